"""The cache as a whole, limits of an admission, calls by block id, withdrawals, idle segments."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CACHE = (
    # The cache as a whole.
    Mutant(
        "caches_what_continues_a_forgotten_prefix",
        "sequences/promotion.cc",
        "  if (!digester_ || s.outdated) return 0;\n",
        "  if (!digester_) return 0;\n",
    ),
    Mutant(
        "keeps_the_tail_of_a_forgotten_prefix",
        "sequences/admission.cc",
        "s.state != Sequence::kRunning || s.outdated)",
        "s.state != Sequence::kRunning)",
    ),
    Mutant(
        "a_resumed_sequence_stays_outdated",
        "sequences/sequences.cc",
        "  s.outdated = false;  // it will compute all of it again\n",
        "",
    ),
    Mutant(
        "a_reset_passes_over_parents",
        "sequences/prefixes.cc",
        "      pool_.forget(n);\n      n = parent;\n",
        "      pool_.forget(n);\n      n = nodes_.name(parent) < block ? kNoNode : parent;\n",
    ),
    Mutant(
        "a_reset_does_not_wait_for_the_forward",
        "sequences/prefixes.cc",
        "  for (const Sequence& s : sequences_) refuse_ahead(s,",
        "  for (const Sequence& s : sequences_) if (false) refuse_ahead(s,",
    ),
    Mutant(
        "a_reset_remembers_evicted_blocks",
        "policies/reuse.cc",
        "    if (what > kAnonymous) remove_ghost(-(what + 1));\n    make_hole(t);\n",
        "    if (what > kAnonymous) continue;\n    make_hole(t);\n",
        profile="returning",
    ),
    Mutant(
        "reads_the_cache_uninvited",
        "sequences/admission.cc",
        "  if (applicant.read_cache && applicant.root != kNoNode) {\n",
        "  if (applicant.root != kNoNode) {\n",
    ),
    Mutant(
        "promises_what_will_not_be_read",
        "sequences/admission.cc",
        "applicant{node, &extras, partition, held_back, prompt.read_cache,",
        "applicant{node, &extras, partition, held_back, true,",
    ),
    Mutant(
        "counts_uncomputed_blocks_as_common",
        "sequences/prefixes.cc",
        "  common = std::min(common, s.num_computed / config_.block_size);\n",
        "  common = std::min<std::int64_t>(common, s.num_blocks);\n",
    ),
    # Admissions that keep to a match, or to a limit.
    Mutant(
        "takes_more_from_the_cache_than_it_may",
        "sequences/admission.cc",
        "    const std::int64_t looked_up = applicant.looked_up(count);\n",
        "    const std::int64_t looked_up = count;\n",
    ),
    Mutant(
        "takes_less_than_a_match_found",
        "sequences/admission.cc",
        "num_cached(found) != applicant.due_cached) [[unlikely]]",
        "num_cached(found) > applicant.due_cached) [[unlikely]]",
    ),
    Mutant(
        "leaves_out_the_part_that_a_match_found",
        "sequences/admission.cc",
        "  if (found.partial >= 0 && applicant.due_cached < 0 && !plan.fits)",
        "  if (found.partial >= 0 && !plan.fits)",
    ),
    Mutant(
        "holds_back_what_the_config_says_all_the_same",
        "sequences/sequences.cc",
        "      asked < 0 ? config_.watermark_blocks : ",
        "      asked < config_.watermark_blocks ? config_.watermark_blocks : ",
    ),
    Mutant(
        "forgets_to_count_idle_hits_in_a_match",
        "sequences/admission.cc",
        "  result.num_idle = demand.needed() - ",
        "  result.num_idle = demand.to_take - ",
    ),
    # Blocks by their ids.
    Mutant(
        "a_hold_is_not_counted",
        "sequences/holding.cc",
        "    pool_.pin(n);\n    ++holds_of(n);\n",
        "    if (!num_holds(n)) pool_.pin(n);\n    ++holds_of(n);\n",
    ),
    Mutant(
        "holds_what_nobody_has",
        "sequences/holding.cc",
        "    if (n < 0 || (!nodes_.uses(n).ref_count && !nodes_[n].keyed() && !num_holds(n)))\n",
        "    if (n < 0 || (!nodes_.used(n) && !nodes_[n].keyed()))\n",
        times=4,
    ),
    Mutant(
        "releases_more_often_than_held",
        "sequences/holding.cc",
        "      if (n < 0 || !num_holds(n))\n",
        "      if (n < 0 || !nodes_.uses(n).pins)\n",
    ),
    Mutant(
        "touches_a_block_without_what_it_continues",
        "sequences/holding.cc",
        "b >= 0 && !nodes_.used(b); b = nodes_[b].parent)",
        "b >= 0 && !nodes_.used(b); b = kNoNode)",
    ),
    Mutant(
        "forgets_a_block_before_its_children",
        "sequences/forgetting.cc",
        "    while (nodes_[node].first_child >= 0) node = nodes_[node].first_child;\n",
        "",
    ),
    Mutant(
        "caches_what_was_computed_from_forgotten_blocks",
        "sequences/forgetting.cc",
        "  detach(s);\n  bool more",
        "  bool more",
    ),
    Mutant(
        "leaves_twins_of_what_is_forgotten",
        "sequences/forgetting.cc",
        "      pool_.drop_twin(*at);\n      wrong",
        "      wrong",
        times=4,
    ),
    Mutant(
        "keeps_chains_through_forgotten_blocks",
        "sequences/forgetting.cc",
        "  mend_chains();\n  counters_",
        "  counters_",
    ),
    Mutant(
        "forgets_around_what_the_forward_writes",
        "sequences/forgetting.cc",
        '  for (const Sequence& s : sequences_) refuse_ahead(s, "forget blocks around");\n',
        "",
    ),
    Mutant(
        "a_held_parent_loses_its_children_unnoticed",
        "places/twins.cc",
        "    return unpin(cached);\n",
        "    --nodes_.uses(cached).pins;\n    return;\n",
        times=4,
    ),
    # Withdrawals from a step.
    Mutant(
        "withdraws_what_others_have_found",
        "sequences/withdrawal.cc",
        "    if (nodes_[n].unwritten && nodes_.uses(n).ref_count > 1)\n",
        "    if (false)\n",
    ),
    Mutant(
        "leaves_what_nobody_will_write_findable",
        "sequences/withdrawal.cc",
        "      forget_chain(t[i]);\n",
        "      (void)i;\n",
    ),
    Mutant(
        "withdraws_a_block_from_under_its_children",
        "sequences/withdrawal.cc",
        "      forget_chain(t[i]);\n",
        "      pool_.forget(t[i]);\n",
        times=4,
    ),
    Mutant(
        "withdraws_under_a_forward",
        "sequences/withdrawal.cc",
        "  refuse_open_ticket(call);\n",
        "",
    ),
    # Tokens that are being computed.
    Mutant(
        "appended_tokens_are_not_being_computed",
        "sequences/growth.cc",
        "  show_length(s);\n  note_computing(s);\n",
        "  show_length(s);\n",
    ),
    Mutant(
        "what_decode_fills_is_not_being_computed",
        "sequences/growth.cc",
        "    if (offset + 1 == size) computing_",
        "    if (offset > size) computing_",
    ),
    Mutant(
        "a_fork_computes_nothing",
        "sequences/fork.cc",
        "    show_length(child);\n    note_computing(child);\n",
        "    show_length(child);\n",
    ),
    Mutant(
        "a_beam_computes_nothing",
        "sequences/fork.cc",
        "    show_length(s);\n    note_computing(s);\n",
        "    show_length(s);\n",
    ),
    Mutant(
        "what_another_tenant_computes_is_waited_for",
        "sequences/computing.cc",
        "      } else if (s.root == root) {",
        "      } else {\n        (void)root;",
    ),
    Mutant(
        "what_is_computed_with_other_extra_keys_is_waited_for",
        "sequences/computing.cc",
        "    if (extras_at(s.extras_ids(), i) != extras_at(&extras, i) ||\n        !same",
        "    (void)extras;\n    if (!same",
    ),
    Mutant(
        "what_follows_another_prefix_is_waited_for",
        "sequences/computing.cc",
        "  if (i > found.num_full || (i && chain_node(s, i) != found.full[i - 1])) return 0;",
        "  if (i > found.num_full) return 0;",
    ),
    Mutant(
        "the_last_token_is_waited_for",
        "sequences/computing.cc",
        "  const std::int64_t last = std::min(prompt.num_tokens - 1, prompt.most_cached);",
        "  const std::int64_t last = std::min(prompt.num_tokens, prompt.most_cached);",
    ),
    Mutant(
        "tokens_without_slots_are_compared_from_the_first",
        "sequences/computing.cc",
        "waiting + (i - s.num_blocks) * size;",
        "waiting + (i - s.num_chained) * size * (i < s.num_blocks);",
    ),
    # Idle segments.
    Mutant(
        "a_run_that_becomes_idle_leaves_out_its_last",
        "places/pool.cc",
        "        own.idle.push_back(kept + 1, end);\n",
        "        own.idle.push_back(kept + 1, std::max(kept + 1, end - 1));\n",
    ),
    Mutant(
        "ids_next_to_each_other_pass_for_a_run",
        "places/pool.cc",
        "  return count_neighbours_before(table + count - most, most);",
        "  (void)most;\n  return count_neighbours_before(table, count);",
        profile="wide",
        times=4,
    ),
    Mutant(
        "what_others_use_becomes_idle_with_the_run",
        "places/pool.cc",
        "    if (any) break;\n",
        "",
    ),
    Mutant(
        "a_run_that_is_used_again_is_not_all_counted",
        "places/pool.cc",
        "    std::fill_n(&nodes_.uses(first), length, kInChain);\n",
        "    std::fill_n(&nodes_.uses(first), std::max<std::int64_t>(1, length - 1), kInChain);\n",
    ),
    Mutant(
        "a_segment_that_loses_its_first_does_not_begin",
        "places/idle_segments.cc",
        "      flip_begins(n + 1);\n",
        "",
    ),
    Mutant(
        "a_segment_that_loses_its_last_does_not_end",
        "places/idle_segments.cc",
        "    if (n - 1 != after) link(n - 1, after);\n",
        "",
    ),
    Mutant(
        "a_segment_cut_in_the_middle_loses_its_end",
        "places/idle_segments.cc",
        "      before = upto + 1;\n",
        "",
    ),
    Mutant(
        "a_segment_cut_in_the_middle_loses_its_beginning",
        "places/idle_segments.cc",
        "      before = begin;\n",
        "",
    ),
    Mutant(
        "a_segment_evicted_in_part_keeps_one_too_many",
        "places/idle_segments.cc",
        "      place(sentinel_, first, last - count);\n",
        "      place(sentinel_, first, last - count + 1);\n",
    ),
    Mutant(
        "looks_for_the_beginning_of_a_segment_in_one_word",
        "places/idle_segments.cc",
        "  while (!before) before = begins_[--w];\n",
        "  if (!before) before = begins_[--w] | 1;\n",
    ),
    Mutant(
        "takes_any_node_for_the_last_of_a_segment",
        "places/idle_segments.cc",
        "  } else if (ends(n)) {",
        "  } else if (holds(after)) {",
    ),
    Mutant(
        "a_run_of_idle_nodes_is_counted_as_one",
        "places/idle_segments.cc",
        "  size_ -= last - first + 1;\n",
        "  size_ -= 1;\n",
    ),
)
