"""The planted bugs: those of other block managers, line by line in this one.

A mutant is one replacement in one file. The replaced text must occur exactly once, so a mutant
cannot disappear unnoticed when the code around it changes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    file: str
    """In ``blockmgr/csrc``, or in ``blockmgr`` if it is Python."""

    before: str
    after: str
    tests: tuple[str, ...] = ()
    """For a bug in Python or the extension: the tests that must find it."""

    profile: str = "all"
    """For a bug in the core: the profile that finds it, if others rarely do."""

    times: int = 1
    """For a bug in the core: a factor on the number of calls, for rare bugs."""


CORE = (
    # Nodes and their blocks.
    Mutant(
        "goes_on_to_a_node_that_is_gone",
        "identity/index.cc",
        "    if (is_next(b, record.parent, record.extras)) flip_goes_on(record.parent);\n",
        "",
    ),
    Mutant(
        "goes_on_over_extra_keys",
        "identity/index.cc",
        "  if (is_next(b, key.parent, key.extras)) flip_goes_on(key.parent);\n",
        "  if (is_next(b, key.parent, 0)) flip_goes_on(key.parent);\n",
    ),
    Mutant(
        "goes_on_from_a_node_whose_children_passed_to_another",
        "identity/index.cc",
        "  if (goes_on(from)) flip_goes_on(from);\n",
        "",
    ),
    Mutant(
        "goes_on_to_a_node_whose_key_passed_to_another",
        "identity/index.cc",
        "  if (is_next(from, parent, source.extras)) flip_goes_on(parent);\n",
        "",
    ),
    Mutant(
        "goes_on_to_another_prefix",
        "identity/index.cc",
        "  if (is_next(b, key.parent, key.extras)) flip_goes_on(key.parent);\n",
        "  if (b && !goes_on(b - 1)) flip_goes_on(b - 1);\n",
    ),
    Mutant(
        "goes_on_without_a_look_at_the_tokens",
        "identity/index.cc",
        "      for (; node < end && has_tokens(node + 1); wanted += size) out[i++] = ++node;\n",
        "      for (; node < end; wanted += size) out[i++] = ++node;\n",
    ),
    Mutant(
        "gives_one_block_to_all_nodes_of_a_run",
        "places/pool.cc",
        "    bind(n, BlockId{out[i]});\n    out[i] = n;\n",
        "    bind(n, BlockId{out[count - 1]});\n    if (i + 1 < count) out[i] = n;\n",
    ),
    Mutant(
        "gives_no_id_back",
        "places/pool.cc",
        "  own.ids.give(n);\n",
        "",
    ),
    Mutant(
        "does_not_know_the_last_word_of_free_ids",
        "identity/node_ids.cc",
        "  empty_.fill(count_ ? last_word_ + 1 : 0);\n",
        "  empty_.fill(last_word_);\n",
    ),
    Mutant(
        "begins_a_run_where_none_is_free",
        "identity/node_ids.cc",
        "  return (best_word << 6) + static_cast<std::uint32_t>(best.start + middle);",
        "  return (best_word << 6) + static_cast<std::uint32_t>(best.start + 2 * middle);",
    ),
    Mutant(
        "begins_each_run_at_the_first_free_id",
        "identity/node_ids.cc",
        "  if (const std::uint32_t word = empty_.first(); word != BitTree::kNone) "
        "return word << 6;\n",
        "  if (free_.first() != BitTree::kNone) return free_.first();\n",
    ),
    Mutant(
        "loses_sight_of_what_a_set_has_left",
        "memory/bit_tree.cc",
        "    if (levels_[level][word >> 6] &= ~(std::uint64_t{1} << (word & 63))) return;\n",
        "    if (levels_[level][word >> 6] = 0; level) return;\n",
    ),
    Mutant(
        "adds_to_the_lowest_level_of_a_set_alone",
        "memory/bit_tree.cc",
        "    own |= std::uint64_t{1} << (word & 63);\n    if (known) return;\n",
        "    if (known) return;\n    own |= std::uint64_t{1} << (word & 63);\n",
    ),
    Mutant(
        "takes_a_block_back_to_an_earlier_generation",
        "places/pool.cc",
        "        std::max(nodes_[n].generation, "
        "(*generations_)[static_cast<std::size_t>(number(b))]);\n",
        "        nodes_[n].generation;\n",
        profile="pool",
    ),
    Mutant(
        "takes_the_block_of_a_node_that_goes_on",
        "places/pool.cc",
        "    own.free.push(unbind(own, b));\n",
        "    own.free.push(nodes_.block(b));\n    own.ids.give(b);\n",
    ),
    Mutant(
        "shows_a_fork_nodes_as_blocks",
        "sequences/fork.cc",
        "      copy_table(shown, model.num_blocks, shown_at(index));\n",
        "      copy_table(from, model.num_blocks, shown_at(index));\n",
    ),
    Mutant(
        "shows_what_a_beam_was",
        "sequences/fork.cc",
        "    show(row_of(s), next.num_kept, s.num_blocks - next.num_kept);\n",
        "    show(row_of(s), next.num_kept, 0);\n",
    ),
    Mutant(
        "maps_slots_of_nodes",
        "sequences/sequences.cc",
        "    std::int64_t slot = nodes_.name(t[position / size]) * size + position % size;\n",
        "    std::int64_t slot = t[position / size] * size + position % size;\n",
    ),
    Mutant(
        "answers_slots_in_nodes",
        "sequences/growth.cc",
        "    slots[i] = nodes_.name(t[logical]) * size + offset;\n",
        "    slots[i] = t[logical] * size + offset;\n",
    ),
    Mutant(
        "copies_from_nodes",
        "sequences/store.cc",
        "    *out++ = {nodes_.name(copy.source), nodes_.name(copy.destination)",
        "    *out++ = {copy.source, nodes_.name(copy.destination)",
    ),
    Mutant(
        "holds_a_node_by_the_number_of_its_block",
        "sequences/holding.cc",
        "    const NodeId n = nodes_.owner(ids[i]);\n    pool_.pin(n);\n",
        "    const auto n = static_cast<NodeId>(ids[i]);\n    pool_.pin(n);\n",
    ),
    Mutant(
        "counts_what_waits_for_a_step_as_available",
        "places/pool.cc",
        "  if (!num_fenced_) return end - unused;\n",
        "  if (num_fenced_ >= 0) return end - unused;\n",
    ),
    # Events.
    Mutant(
        "removes_a_digest_that_another_block_has",
        "identity/index.cc",
        "  if (with_digest(nodes_.digest(b)) < 0) log_->removed(",
        "  log_->removed(",
    ),
    Mutant(
        "logs_a_block_that_took_over_a_key_in_its_old_namespace",
        "identity/index.cc",
        "    log_->moved(from, to);\n",
        "    log_->set_step(0);\n",
    ),
    Mutant(
        "logs_a_namespace_without_holding_it",
        "identity/index.cc",
        "  if (recorded == EventLog::kNewRun) retain_root(root);\n",
        "",
    ),
    Mutant(
        "clears_without_saying_so",
        "identity/index.cc",
        "  log_->cleared();\n",
        "",
    ),
    Mutant(
        "goes_on_with_a_run_after_another_event",
        "events/log.cc",
        "  const int group = number_of(further);\n  last_ = kNoNode;\n",
        "  const int group = number_of(further);\n",
        times=4,
    ),
    # State of single shares, and runs.
    Mutant(
        "time_passes_in_the_common_share_only",
        "sequences/pins.cc",
        "i < pool_.num_partitions(); ++i)\n    pool_.partition(i).retention->set_time",
        "i < 1; ++i)\n    pool_.partition(i).retention->set_time",
        profile="multi_tenant",
        times=2,
    ),
    Mutant(
        "all_shares_have_the_whole_budget_of_pins",
        "sequences/store.cc",
        "std::int64_t{config.max_pinned_blocks} * capacity / all)",
        "std::int64_t{config.max_pinned_blocks} * capacity / capacity + 0 * all)",
    ),
    Mutant(
        "a_run_that_ends_its_use_is_one_short",
        "places/pool.cc",
        "      first = count - (end - kept);\n",
        "      first = count - (end - kept) + 1;\n",
    ),
    Mutant(
        "a_run_that_waits_is_told_as_idle",
        "places/pool.cc",
        "    open_fence_ ? each.on_waiting(run, who) : each.on_idle(run, who);",
        "    each.on_idle(run, who);",
    ),
    Mutant(
        "a_run_that_is_used_again_is_not_told",
        "places/pool.cc",
        "  own.tell([idle](Observer& each) { each.on_used(idle); });\n",
        "",
    ),
    Mutant(
        "a_run_that_is_cached_goes_on_past_a_twin",
        "sequences/promotion.cc",
        "      tell(i);\n      index_.set_hint",
        "      index_.set_hint",
    ),
    Mutant(
        "a_run_is_cached_for_nobody",
        "sequences/promotion.cc",
        "  Context who = s.context;\n",
        "  Context who = kNobody;\n",
    ),
    Mutant(
        "a_run_ends_its_use_for_nobody",
        "sequences/sequences.cc",
        "  Context who = s.context;\n",
        "  Context who = kNobody;\n",
    ),
    Mutant(
        "retention_tells_of_the_wrong_end_of_a_run",
        "policies/retention.cc",
        "  return {run.nodes + first, run.count - first};",
        "  return {run.nodes, run.count - first};",
    ),
    Mutant(
        "a_pool_takes_blocks_that_are_set_apart_for_others",
        "sequences/block_pool.cc",
        "  pool_.take_run(partition_of(name), kNoNode, count, out);",
        "  pool_.take_run(0, kNoNode, count, out);",
        profile="pool",
    ),
    Mutant(
        "a_pool_caches_under_a_namespace_of_another_share",
        "sequences/block_pool.cc",
        "    if (pool_.partition_of(nodes_.owner(ids[i])) != partition)",
        "    if (partition < 0)",
        profile="pool",
    ),
    Mutant(
        "a_pool_does_not_count_a_request",
        "sequences/block_pool.cc",
        "  if (past) past->count(run.nodes",
        "  if (false) past->count(run.nodes",
        profile="pool",
    ),
    # Arrays shown to callers.
    Mutant(
        "releases_what_the_shown_table_says",
        "sequences/sequences.cc",
        (
            "  const std::int32_t* t = table(s);\n"
            "  const std::int64_t count = s.num_blocks - keep;\n"
        ),
        (
            "  const std::int32_t* t = shown_at(row_of(s));\n"
            "  const std::int64_t count = s.num_blocks - keep;\n"
        ),
    ),
    Mutant(
        "shows_no_table_after_an_admission",
        "sequences/admission.cc",
        "  show(row_of(s), 0, num_blocks);\n",
        "",
    ),
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
        "  if (applicant.due_cached >= 0 && cached != applicant.due_cached)",
        "  if (applicant.due_cached >= 0 && cached > applicant.due_cached)",
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
    # Copy-on-write.
    Mutant(
        "writes_into_shared_blocks",
        "sequences/growth.cc",
        "  return is_shared(table(s)[logical]);",
        "  return nodes_[table(s)[logical]].keyed();",
    ),
    Mutant(
        "writes_into_cached_blocks",
        "sequences/growth.cc",
        "  return is_shared(table(s)[logical]);",
        "  return nodes_.uses(table(s)[logical]).ref_count > 1;",
    ),
    Mutant(
        "decode_writes_into_shared_blocks",
        "sequences/growth.cc",
        "if (is_shared(b) || nodes_[b].parent >= 0)",
        "if (nodes_[b].keyed() || nodes_[b].parent >= 0)",
    ),
    Mutant(
        "decode_writes_into_cached_blocks",
        "sequences/growth.cc",
        "if (is_shared(b) || nodes_[b].parent >= 0)",
        "if (nodes_.uses(b).ref_count > 1 || nodes_[b].parent >= 0)",
    ),
    Mutant(
        "copies_a_token_too_few",
        "sequences/copies.cc",
        "  nodes_[destination].copy_tokens = static_cast<std::uint16_t>(num_tokens);",
        (
            "  nodes_[destination].copy_tokens = static_cast<std::uint16_t>(num_tokens - "
            "(num_tokens > 1));"
        ),
    ),
    Mutant(
        "does_not_collapse_chains_of_copies",
        "sequences/copies.cc",
        ("nodes_[source].copy_source == kNoNode ? source : nodes_[source].copy_source;"),
        "source;",
    ),
    Mutant(
        "does_not_pin_copy_sources",
        "sequences/copies.cc",
        "  pool_.pin(root);\n",
        ("  ++nodes_.uses(root).pins;\n  --nodes_.uses(root).pins;\n"),
    ),
    Mutant(
        "leaks_the_pin_of_a_copy",
        "sequences/copies.cc",
        "    pool_.unpin(copy.source);\n",
        "",
    ),
    Mutant(
        "does_not_cancel_dead_copies",
        "sequences/store.cc",
        "  if (nodes_.uses(b).ref_count == 1) copies_.drop(b);\n",
        "",
    ),
    Mutant(
        "cancels_copies_somebody_waits_for",
        "sequences/store.cc",
        "  if (nodes_.uses(b).ref_count == 1) copies_.drop(b);\n",
        "  copies_.drop(b);\n",
    ),
    Mutant(
        "frees_the_target_of_a_running_copy",
        "sequences/copies.cc",
        "    pool_.pin(b);  // the copy",
        "    // the copy",
    ),
    Mutant(
        "loses_copies_on_abort",
        "sequences/copies.cc",
        "    pending_.push_front(destination);\n",
        "",
    ),
    Mutant(
        "copies_what_was_never_copied_on_abort",
        "sequences/copies.cc",
        "    if (!nodes_[source].in_flight) continue;",
        "    continue;",
    ),
    Mutant(
        "counts_uncomputed_tokens_as_copied",
        "sequences/growth.cc",
        "  limit_computed(s, start + brought);\n",
        "",
    ),
    Mutant(
        "copies_what_the_forward_has_not_written",
        "sequences/growth.cc",
        "make_private(s, s.num_tokens / config_.block_size, written(s));",
        "make_private(s, s.num_tokens / config_.block_size, s.num_computed);",
    ),
    Mutant(
        "decode_falls_back",
        "sequences/growth.cc",
        "make_private(s, logical, s.num_tokens);",
        "make_private(s, logical, logical * size);",
    ),
    Mutant(
        "decode_counts_tokens_before_they_are_copied",
        "sequences/growth.cc",
        "      if (takes) refuse_uncopied(s, logical);\n",
        "",
        times=4,
    ),
    Mutant(
        "takes_back_what_a_forward_under_way_writes",
        "sequences/sequences.cc",
        "copies_.in_flight() ? s.num_computed : settled(s);",
        "settled(s);",
        times=2,
    ),
    Mutant(
        "copies_hits_of_this_step",
        "sequences/admission.cc",
        "s.num_written = written_of(found);",
        "s.num_written = s.num_computed;",
        times=4,
    ),
    Mutant(
        "reuses_parts_that_are_not_written",
        "sequences/admission.cc",
        "record.key_tokens - record.unwritten));",
        "int{record.key_tokens}));",
    ),
    Mutant(
        "forgets_what_was_committed_ahead",
        "sequences/promotion.cc",
        "  if (filled == size) return;\n",
        "  if (filled >= 0) return;\n",
    ),
    Mutant(
        "is_unwritten_for_ever",
        "sequences/store.cc",
        "    nodes_[b].unwritten = 0;\n",
        "    if (b % 2) nodes_[b].unwritten = 0;\n",
        times=10,
    ),
    Mutant(
        "merges_what_is_written_into_a_promise",
        "sequences/promotion.cc",
        "(i + 1) * config_.block_size <= written_now)",
        "false)",
        profile="returning",
        times=4,
    ),
    Mutant(
        "counts_steps_in_16_bits",
        "sequences/promotion.cc",
        "s.early_step != step_)",
        ("static_cast<std::uint16_t>(s.early_step) != static_cast<std::uint16_t>(step_))"),
        times=10,
    ),
    Mutant(
        "counts_steps_in_32_bits",
        "sequences/promotion.cc",
        "s.early_step != step_)",
        ("static_cast<std::uint32_t>(s.early_step) != static_cast<std::uint32_t>(step_))"),
        times=10,
    ),
    Mutant(
        "the_last_sharer_of_a_batch_is_counted_too_early",
        "sequences/growth.cc",
        "return counts_.add(b) == num_sharers;",
        "return counts_.add(b) + 1 == num_sharers;",
    ),
    Mutant(
        "a_tally_remembers_the_batch_before",
        "sequences/growth.cc",
        "    if (!begun_) counts_.begin(most_);\n",
        "    if (!counts_.memory()) counts_.begin(1024);\n",
    ),
    Mutant(
        "releases_what_a_list_names_too_often",
        "sequences/block_pool.cc",
        "      return check_counted(ids, count);\n",
        "      continue;\n",
    ),
    Mutant(
        "promotes_a_block_that_is_named_twice",
        "sequences/block_pool.cc",
        "    if (named_before(ids[i]))\n",
        "    if (false)\n",
    ),
    Mutant(
        "makes_fresh_what_nobody_remembers",
        "sequences/store.cc",
        "  std::copy_n(nodes_.tokens(shared), num_known, nodes_.tokens(fresh));\n",
        "",
    ),
    Mutant(
        "every_sharer_of_a_batch_copies",
        "sequences/growth.cc",
        "return counts_.add(b) == num_sharers;",
        "return counts_.add(b) == 0;",
    ),
    # Counting and admission.
    Mutant(
        "does_not_count_idle_hits",
        "sequences/admission.cc",
        "  d.unused_hits = found.num_unused + ",
        "  d.unused_hits = 0 * found.num_unused + ",
    ),
    Mutant(
        "ignores_the_watermark",
        "sequences/admission.cc",
        "fits(left, applicant.held_back);\n  if (found.partial",
        "fits(left, 0);\n  if (found.partial",
    ),
    Mutant(
        "never_fits_too_late",
        "sequences/admission.cc",
        "blocks > pool_.partition(partition).capacity - watermark;",
        "blocks > pool_.partition(partition).capacity;",
    ),
    Mutant(
        "grows_before_it_counts",
        "sequences/growth.cc",
        "  const bool copies = writes && must_copy(s, logical);",
        "  const bool copies = false;",
    ),
    Mutant(
        "leaks_a_namespace_on_shortage",
        "identity/index.cc",
        "  if (!kept_) index_.release_root(root_);\n",
        "",
    ),
    Mutant(
        "serves_the_last_token_from_the_cache",
        "sequences/admission.cc",
        "std::min<std::int64_t>((count - 1) / config_.block_size, config_.row_width)",
        "std::min<std::int64_t>(count / config_.block_size, config_.row_width)",
    ),
    Mutant(
        "takes_before_it_touches_what_it_found",
        "sequences/admission.cc",
        ("    pool_.pin(found.partial);  // before anything is taken: it may be the next victim\n"),
        ("    ++nodes_.uses(found.partial).pins;\n    --nodes_.uses(found.partial).pins;\n"),
    ),
    # Identity.
    Mutant(
        "trusts_the_digest",
        "identity/index.cc",
        "return has_key(b, key); });",
        "return !std::memcmp(nodes_.digest(b), digest, 8); });",
    ),
    Mutant(
        "ignores_extras",
        "identity/index.cc",
        "return has_key(b, key); });",
        "return has_key(b, {key.parent, nodes_[b].extras, key.tokens}); });",
    ),
    Mutant(
        "ignores_the_parent",
        "identity/index.cc",
        "return has_key(b, key); });",
        "return has_key(b, {nodes_[b].parent, key.extras, key.tokens}); });",
    ),
    Mutant(
        "one_namespace_for_all",
        "identity/index.cc",
        ("  std::uint32_t known = find_root(name);\n  if (known != kUnknownId) {"),
        ('  name = "";\n  std::uint32_t known = find_root(name);\n  if (known != kUnknownId) {'),
    ),
    Mutant(
        "compares_half_the_tokens",
        "identity/index.cc",
        "n * size, wanted, static_cast<int>(size))",
        "n * size, wanted, static_cast<int>(size) / 2)",
    ),
    Mutant(
        "follows_hints_to_other_extras",
        "identity/index.cc",
        "std::min(num_blocks, next_extras(extras, i))",
        "num_blocks",
    ),
    Mutant(
        "follows_hints_to_blocks_with_extras",
        "identity/index.cc",
        "                                    child->extras |\n",
        "",
    ),
    # Chains acquired at once.
    Mutant(
        "a_chain_is_not_written_to_its_row",
        "sequences/admission.cc",
        "  std::copy_n(found.full, found.num_full, t);\n",
        "",
    ),
    Mutant(
        "a_chain_in_use_is_not_counted",
        "places/pool.cc",
        "nodes_.used(chain[i]); ++i) ++nodes_.uses(chain[i]).ref_count;",
        "nodes_.used(chain[i]); ++i) {}",
    ),
    Mutant(
        "a_chain_does_not_pin_what_is_before_it",
        "places/pool.cc",
        "parent >= 0) ++nodes_.uses(parent).pins;\n  Partition& own",
        "parent >= 0) {}\n  Partition& own",
    ),
    Mutant(
        "the_end_of_a_chain_stays_pinned",
        "places/pool.cc",
        "  nodes_.uses(chain[count - 1]).pins = 0;\n",
        "",
    ),
    # Publication.
    Mutant(
        "publishes_what_is_not_computed",
        "sequences/promotion.cc",
        "  const std::int64_t end = num_computed / config_.block_size;",
        (
            "  const std::int64_t end = std::max(num_computed, num_slots(s) < s.num_tokens "
            "? 0 : s.num_tokens) / config_.block_size;"
        ),
    ),
    Mutant(
        "a_digest_that_fails_leaves_half_a_commit",
        "sequences/promotion.cc",
        ("  plan.clear();\n  plan_promotion(s, num_computed, written(s), plan);\n"),
        (
            "  plan.clear();\n"
            "  s.num_computed = num_computed;\n"
            "  plan_promotion(s, num_computed, written(s), plan);\n"
        ),
    ),
    Mutant(
        "publishes_what_waits_for_a_copy",
        "sequences/promotion.cc",
        ("    if (nodes_[t[i]].copy_source != kNoNode || nodes_[t[i]].in_flight) return i;"),
        "    if (false) return i;",
    ),
    Mutant(
        "merges_without_a_reference",
        "places/pool.cc",
        "  acquire(twin);\n  release(own);\n",
        "  release(own);\n",
    ),
    Mutant(
        "leaks_the_merged_block",
        "places/pool.cc",
        "  acquire(twin);\n  release(own);\n",
        "  acquire(twin);\n",
    ),
    Mutant(
        "keeps_a_block_for_its_twin",
        "places/twins.cc",
        "  hand_over(b, twin);\n",
        "",
    ),
    Mutant(
        "merges_into_a_block_nobody_holds",
        "places/twins.cc",
        "    if (!nodes_.used(cached)) return hand_over(cached, b);\n",
        "    if (!nodes_.used(cached)) return;\n",
    ),
    Mutant(
        "a_key_passes_without_its_children",
        "identity/index.cc",
        "    nodes_[b].parent = to;\n",
        "",
    ),
    Mutant(
        "a_key_passes_without_its_pins",
        "places/twins.cc",
        "    nodes_.uses(to).pins += pins;\n",
        "",
    ),
    Mutant(
        "a_key_passes_to_a_block_about_to_be_written",
        "sequences/growth.cc",
        "  for (const NodeId b : plan.rewritten) pool_.drop_twin(b);\n",
        "",
        profile="returning",
        times=4,
    ),
    Mutant(
        "a_pin_stays_where_the_key_was",
        "policies/retention.cc",
        "    pins_[static_cast<std::size_t>(i)].tail = to;\n",
        "    pins_[static_cast<std::size_t>(i)].tail = from;\n",
        profile="levels",
    ),
    Mutant(
        "retention_stays_where_the_key_was",
        "policies/retention.cc",
        "  if (retention != kNoLevel) retain(to, retention, until);\n",
        "",
        profile="levels",
    ),
    Mutant(
        "loses_the_twins_after_one",
        "places/twins.cc",
        "    set_first_twin(record.parent, record.next_sibling);\n",
        "    set_first_twin(record.parent, kNoNode);\n",
    ),
    Mutant(
        "logs_the_wrong_remap",
        "sequences/promotion.cc",
        "nodes_.name(own), nodes_.name(cached)});",
        "nodes_.name(cached), nodes_.name(own)});",
    ),
    # Eviction.
    Mutant(
        "evicted_blocks_stay_findable",
        "places/pool.cc",
        "  index_.erase(b);\n  ++own.num_evicted;",
        "  ++own.num_evicted;",
    ),
    Mutant(
        "a_run_of_evictions_leaves_its_last_findable",
        "places/pool.cc",
        "  for (std::int64_t i = 0; i < count + kErase; ++i) {",
        "  for (std::int64_t i = 0; i + 1 < count + kErase; ++i) {",
    ),
    Mutant(
        "a_run_of_evictions_miscounts_what_is_idle",
        "places/pool.cc",
        "  own.idle.remove_front(static_cast<int>(count));",
        "  own.idle.remove_front(static_cast<int>(count) - 1);",
    ),
    Mutant(
        "used_blocks_stay_idle",
        "places/pool.cc",
        (
            "    dequeue(b);\n"
            "    const NodeId parent = nodes_[b].parent;\n"
            "    if (parent < 0) return;\n"
            "    const bool was_used"
        ),
        (
            "    const NodeId parent = nodes_[b].parent;\n"
            "    if (parent < 0) return;\n"
            "    const bool was_used"
        ),
    ),
    Mutant(
        "the_oldest_idle_block_becomes_the_newest",
        "places/pool.cc",
        "    own.idle.push_back(b);\n",
        (
            "    const NodeId oldest = own.idle.front();\n"
            "    own.idle.push_back(b);\n"
            "    if (oldest == own.idle.end()) return;\n"
            "    own.idle.remove(oldest);\n"
            "    own.idle.push_back(oldest);\n"
        ),
    ),
    Mutant(
        "does_not_keep_parents",
        "places/pool.cc",
        "    ++nodes_.uses(parent).pins;\n    if (was_used) return;\n",
        "    if (was_used) return;\n",
    ),
    Mutant(
        "a_full_bucket_does_not_count_what_passes_it",
        "memory/buckets.cc",
        "    ++buckets_[i].passed;\n",
        "",
    ),
    Mutant(
        "a_bucket_counts_what_passed_it_for_ever",
        "memory/buckets.cc",
        "    --bucket.passed;\n",
        "",
    ),
    Mutant(
        "takes_another_block_out_of_the_index",
        "memory/buckets.cc",
        "      if (bucket.nodes[place] != b) continue;\n",
        "",
    ),
    Mutant(
        "keeps_the_hint_of_an_evicted_block",
        "identity/index.cc",
        ("  ++record.generation;\n  --num_keyed_;"),
        "  --num_keyed_;",
    ),
    # Release, preemption, truncation.
    Mutant(
        "leaks_the_last_block",
        "sequences/sequences.cc",
        "    pool_.release_table(t + keep, count, who);",
        "    pool_.release_table(t + keep, count - (count % 7 == 6), who);",
    ),
    Mutant(
        "keeps_what_a_released_block_continues",
        "places/pool.cc",
        "pinned >= 0) --uses[pinned].pins;\n",
        "pinned >= 0) (void)pinned;\n",
    ),
    Mutant(
        "a_row_keeps_the_blocks_it_gave_back",
        "sequences/sequences.cc",
        "  std::fill_n(shown_at(row_of(s)) + keep, count, 0);\n",
        "",
    ),
    Mutant(
        "releases_without_taking_a_reference_away",
        "places/pool.cc",
        "    for (NodeId n = begin; n <= kept; ++n) --uses[n].ref_count;\n",
        "",
    ),
    Mutant(
        "keeps_copies_into_released_blocks",
        "sequences/sequences.cc",
        "  if (copies_.num_pending()) {",
        "  if (false) {",
    ),
    Mutant(
        "releases_a_block_twice",
        "places/pool.cc",
        "    release(table[--count], who);",
        "    release(table[--count], who);\n    if (count % 7 == 3) release(table[count], who);",
    ),
    Mutant(
        "stale_handles_live_on",
        "sequences/sequences.cc",
        (
            "  if (s.state == Sequence::kUnused || s.generation != "
            "static_cast<std::uint64_t>(handle) >> 32)"
        ),
        "  if (s.state == Sequence::kUnused)",
    ),
    Mutant(
        "preemption_keeps_what_was_computed",
        "sequences/sequences.cc",
        "  s.num_computed = s.num_cached = 0;\n",
        "",
    ),
    Mutant(
        "preemption_keeps_the_chain",
        "sequences/sequences.cc",
        "  s.num_chained = 0;\n",
        "",
    ),
    Mutant(
        "fork_misses_the_tail",
        "sequences/fork.cc",
        ("  for (std::int32_t i = 0; i < model.num_blocks; ++i) {\n    if (i + kAhead"),
        ("  for (std::int32_t i = 0; i + 1 < model.num_blocks; ++i) {\n    if (i + kAhead"),
    ),
    Mutant(
        "fork_shares_look_ahead",
        "sequences/fork.cc",
        ("blocks_for(parent.num_tokens)));\n  std::vector<std::vector<Token>>"),
        ("parent.num_blocks));\n  std::vector<std::vector<Token>>"),
    ),
    # Steps in flight.
    Mutant(
        "ignores_fences",
        "places/pool.cc",
        "  if (fence) {\n",
        "  if (fence < 0) {\n",
    ),
    Mutant(
        "completes_every_step",
        "sequences/store.cc",
        "  while (done < open_steps_.size() && open_steps_[done].ticket <= ticket)",
        "  while (done < open_steps_.size())",
    ),
    # Partial reuse.
    Mutant(
        "reuses_a_token_too_many",
        "sequences/admission.cc",
        "        found.num_partial = n;\n",
        "        found.num_partial = std::min<int>(n + 1, limit);\n",
    ),
    Mutant(
        "takes_over_tails_in_use",
        "sequences/admission.cc",
        "pool_.counts_as_available(child)",
        "true",
    ),
    Mutant(
        "keeps_superseded_tails",
        "sequences/admission.cc",
        "      pool_.forget(child);\n",
        "",
    ),
    # Quotas.
    Mutant(
        "admission_counts_what_others_have",
        "sequences/admission.cc",
        "  const std::int64_t left = available(applicant.partition);",
        "  const std::int64_t left = pool_.available();",
    ),
    Mutant(
        "promises_what_others_have",
        "sequences/admission.cc",
        "applicant{node, &extras, partition,",
        "applicant{node, &extras, 0,",
    ),
    Mutant(
        "takes_from_another_quota",
        "sequences/admission.cc",
        "  pool_.take_run(s.partition, i ? t[i - 1] : kNoNode, num_blocks - i, t + i);",
        "  pool_.take_run(0, i ? t[i - 1] : kNoNode, num_blocks - i, t + i);",
    ),
    Mutant(
        "growth_counts_what_others_have",
        "sequences/growth.cc",
        "  check_available(needed, s.partition);",
        "  if (needed > pool_.available()) throw OutOfBlocks(needed, 0, 0);",
    ),
    Mutant(
        "a_batch_needs_no_quota",
        "sequences/growth.cc",
        "    check_available(plan.needed_by[p], static_cast<int>(p));",
        "    check_available(plan.needed_by[p] - 1, static_cast<int>(p));",
    ),
    Mutant(
        "a_batch_charges_one_quota",
        "sequences/growth.cc",
        "      plan.needed_by[s.partition] += taken;",
        "      plan.needed_by[0] += taken;",
    ),
    Mutant(
        "copies_into_another_quota",
        "sequences/growth.cc",
        "  const NodeId fresh = pool_.take(s.partition, before(s, logical));",
        "  const NodeId fresh = pool_.take(0, before(s, logical));",
    ),
    Mutant(
        "quotas_never_fit_too_late",
        "sequences/admission.cc",
        "blocks > pool_.partition(partition).capacity - watermark;",
        "blocks > pool_.capacity() - watermark;",
    ),
    Mutant(
        "the_whole_watermark_of_every_quota",
        "sequences/sequences.cc",
        "return partitions_.empty() ? all : all * ",
        "return true ? all : all * ",
    ),
    Mutant(
        "a_quota_miscounts_its_fenced_blocks",
        "places/pool.cc",
        "    --of(b).num_fenced;\n",
        "",
    ),
    Mutant(
        "sequences_forget_their_quota",
        "sequences/admission.cc",
        "  s.partition = partition;\n",
        "",
    ),
    # Retention, pins and hints.
    Mutant(
        "evicts_the_highest_level_first",
        "policies/retention.cc",
        ("  int level = kLow;\n  while (!num_idle_[static_cast<std::size_t>(level)]) ++level;\n"),
        (
            "  int level = kPinned;\n"
            "  while (!num_idle_[static_cast<std::size_t>(level)]) --level;\n"
        ),
    ),
    Mutant(
        "leaves_what_is_low_for_last",
        "policies/retention.cc",
        "  int level = kLow;\n",
        "  int level = num_idle_[kNormal] ? kNormal : kLow;\n",
    ),
    Mutant(
        "retention_ends_a_moment_late",
        "policies/retention.cc",
        "deadlines_.front_key() <= now_",
        "deadlines_.front_key() < now_",
    ),
    Mutant(
        "a_time_swallowed_by_a_larger_one",
        "policies/retention.cc",
        "until > now_) {  // a large time",
        "until >= now_) {  // a large time",
    ),
    Mutant(
        "retention_never_ends",
        "policies/retention.cc",
        "  at(b).retention = kNoLevel;\n  at(b).until",
        "  at(b).until",
    ),
    Mutant(
        "retention_outlives_the_content",
        "policies/retention.cc",
        "  if (is_current(b)) {\n    refresh(b);",
        "  if (k.generation = nodes_[b].generation; is_current(b)) {\n    refresh(b);",
    ),
    Mutant(
        "parents_stand_below_their_children",
        "policies/retention.cc",
        "    ++at(parent).children[level];\n    b = parent;",
        "    ++at(parent).children[level];\n    return;",
    ),
    Mutant(
        "retention_is_not_inherited",
        "sequences/promotion.cc",
        "    retention->inherit(own, cached);\n",
        "    (void)retention;\n",
        profile="returning",
    ),
    Mutant(
        "the_lower_retention_holds",
        "policies/retention.cc",
        "k.retention > own.retention ||",
        "k.retention < own.retention ||",
        profile="returning",
    ),
    Mutant(
        "hints_outlive_the_use",
        "policies/retention.cc",
        "    k.found = false;\n    k.hint = kNormal;\n",
        "    k.found = false;\n",
    ),
    Mutant(
        "hints_reach_what_others_use",
        "sequences/retaining.cc",
        "      if (in_use || branches ||",
        "      if (branches ||",
    ),
    Mutant(
        "hints_reach_where_others_continue",
        "sequences/retaining.cc",
        "      if (in_use || branches ||",
        "      if (in_use ||",
    ),
    Mutant(
        "hints_break_the_promises_of_others",
        "sequences/retaining.cc",
        "branches || policy.is_expected(node))",
        "branches)",
    ),
    Mutant(
        "hints_are_turned_round",
        "policies/retention.cc",
        "reuse ? kExpected : kLow",
        "reuse ? kLow : kExpected",
    ),
    Mutant(
        "pins_beyond_the_budget",
        "sequences/pins.cc",
        "  if (needed > available) throw PinBudget",
        "  if (needed > available + 1) throw PinBudget",
    ),
    Mutant(
        "pins_are_counted_twice",
        "policies/retention.cc",
        "b >= 0 && at(b).level != kPinned; b = nodes_[b].parent) ++count;",
        "b >= 0; b = nodes_[b].parent) ++count;",
    ),
    Mutant(
        "a_pin_ends_with_its_last_block",
        "policies/retention.cc",
        "    if (parent >= 0) link_pin(slot, parent);\n",
        "",
    ),
    Mutant(
        "unpinned_blocks_stay_pinned",
        "policies/retention.cc",
        ".prev = pin.prev;\n    refresh(pin.tail);\n",
        ".prev = pin.prev;\n",
    ),
    Mutant(
        "a_pin_is_unlinked_on_one_side",
        "policies/retention.cc",
        "    if (pin.next >= 0) pins_[static_cast<std::size_t>(pin.next)].prev = pin.prev;\n",
        "",
        profile="levels",
    ),
    Mutant(
        "a_touched_block_keeps_its_place",
        "policies/retention.cc",
        "  unqueue(b);\n  k.order = ++last_order_;\n  queue(b);\n  if (base_ && below",
        "  k.order = ++last_order_;\n  if (base_ && below",
        profile="returning",
    ),
    # Eviction policies.
    Mutant(
        "the_policy_is_not_told_what_was_found",
        "sequences/admission.cc",
        "{found.full, found.num_full}, num_blocks);",
        "{found.full, 0}, num_blocks);",
    ),
    Mutant(
        "the_policy_is_not_told_of_parts",
        "sequences/admission.cc",
        "  if (found.partial >= 0) pool_.hit(found.partial);\n",
        "",
    ),
    Mutant(
        "the_policy_is_not_told_of_a_use",
        "places/pool.cc",
        "  of(b).tell([b](Observer& each) { each.on_used({&b, 1}); });\n",
        "",
    ),
    Mutant(
        "the_policy_is_not_told_of_what_is_forgotten",
        "places/pool.cc",
        "  tell_uncached(of(b), b, false);\n  index_.erase(b);\n",
        "  index_.erase(b);\n",
    ),
    Mutant(
        "evicts_a_block_before_its_children",
        "policies/queues.cc",
        "  while (nodes[b].first_child >= 0) {",
        "  while (false) {",
    ),
    Mutant(
        "searches_below_what_was_evicted",
        "policies/queues.cc",
        "  if (chosen == chosen_ && nodes[chosen].generation == chosen_generation_ &&\n"
        "      nodes[start_].generation == start_generation_)",
        "  if (chosen == chosen_)",
        profile="returning",
        times=5,
    ),
    Mutant(
        "ghosts_without_bound",
        "policies/arc.cc",
        "  while (ghosts_.size() && cached + ghosts_.size() > 2 * capacity_)",
        "  while (false)",
        profile="returning",
    ),
    Mutant(
        "a_ghost_is_remembered_twice",
        "policies/ghosts.cc",
        "  if (!capacity_) return;\n  erase(tag);\n",
        "  if (!capacity_) return;\n",
    ),
    Mutant(
        "loses_ghosts_behind_a_forgotten_one",
        "memory/tag_table.cc",
        "      buckets_[hole] = buckets_[at];\n      hole = at;\n",
        "      break;\n",
    ),
    Mutant(
        "a_ghost_is_entered_where_another_stands",
        "memory/tag_table.cc",
        "  while (buckets_[i]) i = next(i);\n  buckets_[i] = entry + 1;\n",
        "  buckets_[i] = entry + 1;\n",
    ),
    Mutant(
        "a_heap_out_of_order",
        "policies/lfuda.cc",
        "  if (last != b) sift(last, position);\n",
        "  if (last != b) place(last, position);\n",
    ),
    Mutant(
        "a_parent_never_becomes_a_candidate",
        "policies/adaptive.cc",
        "  parent.listed = true;\n  lists_.push_front(",
        "  if (parent.diverged > 1) return;\n  parent.listed = true;\n  lists_.push_front(",
        profile="returning",
    ),
    # The hit rate curve.
    Mutant(
        "a_cached_ghost_is_not_resolved",
        "policies/reuse.cc",
        "    if (ghost < 0) continue;\n    resolve(ghost);\n",
        "    if (ghost < 0) continue;\n",
    ),
    Mutant(
        "a_cached_ghost_is_remembered",
        "policies/reuse.cc",
        "    const std::int32_t ghost = find(nodes_.digest(b));\n",
        "    const std::int32_t ghost = -1;\n",
    ),
    Mutant(
        "drops_nothing_beyond_the_limit",
        "policies/reuse.cc",
        "    while (in_use_ + num_live_ > limit_) drop_oldest();\n",
        "",
    ),
)

PYTHON = (
    # Events on the wire.
    Mutant(
        "applies_a_batch_after_a_gap",
        "events/stream.py",
        "        if number == self.next:\n",
        "        if number >= self.next:\n",
        tests=("tests/unit/test_event_stream.py",),
    ),
    Mutant(
        "takes_an_older_publisher_for_a_restart",
        "events/stream.py",
        "            return Verdict.RESTARTED if epoch > self.epoch else Verdict.OUTDATED\n",
        "            return Verdict.RESTARTED\n",
        tests=("tests/unit/test_event_stream.py",),
    ),
    Mutant(
        "publishes_what_is_left_after_a_loss_as_all_there_is",
        "events/publisher.py",
        "        if events.num_lost:\n",
        "        if events.num_lost < 0:\n",
        tests=("tests/unit/test_event_stream.py",),
    ),
    Mutant(
        "publishes_the_second_half_of_a_run_as_a_prompt_of_its_own",
        "events/codec.py",
        "            parent=event.digests[start - 1] if start else event.parent,\n",
        "            parent=event.parent,\n",
        tests=("tests/unit/test_event_wire.py",),
    ),
    Mutant(
        "publishes_a_namespace_as_it_is",
        "events/codec.py",
        "    return hashlib.sha256(namespace).hexdigest()[:16]\n",
        "    return hashlib.sha256(namespace).hexdigest()[:16] + repr(namespace)\n",
        tests=("tests/unit/test_event_wire.py",),
    ),
    Mutant(
        "counts_blocks_of_a_window_as_a_prefix",
        "index/layers.py",
        "        return self.kind in wire.WHOLE_PREFIX\n",
        "        return True\n",
        tests=("tests/unit/test_worker_index.py",),
    ),
    Mutant(
        "a_window_reads_one_token_less",
        "index/layers.py",
        "            first = np.maximum(0, ends - self.width + 1)\n",
        "            first = np.maximum(0, ends - self.width + 2)\n",
        tests=("tests/groups/test_events.py",),
    ),
    Mutant(
        "a_chunk_goes_on_for_ever",
        "index/layers.py",
        "            first = ends - ends % self.width\n",
        "            pass\n",
        tests=("tests/groups/test_events.py",),
    ),
    Mutant(
        "groups_are_known_by_their_blocks_alone",
        "index/workers.py",
        "            if batch.about is not None and batch.about.groups:\n",
        "            if False:\n",
        tests=("tests/groups/test_events.py",),
    ),
    Mutant(
        "what_a_group_lacks_is_looked_up_in_another",
        "index/workers.py",
        "    salt = np.uint64((group + 1) * _SPREAD % 2**64)\n",
        "    salt = np.uint64(_SPREAD)\n",
        tests=("tests/unit/test_worker_index.py",),
    ),
    Mutant(
        "salt_and_adapter_of_one_text_meet",
        "digest.py",
        "        for piece in (name.encode(), value):\n",
        "        for piece in (value,):\n",
        ("tests/unit/test_digest.py",),
    ),
    Mutant(
        "parts_imitate_the_end_of_another",
        "digest.py",
        'key += len(piece).to_bytes(4, "little") + piece',
        "key += piece",
        ("tests/unit/test_digest.py",),
    ),
    Mutant(
        "digests_without_the_key",
        "digest.py",
        "blake2b(key=key, ",
        "blake2b(",
        ("tests/unit/test_digest.py",),
    ),
    Mutant(
        "a_key_of_nothing",
        "digest.py",
        "if not _SHORTEST_KEY <= len(key) <=",
        "if not len(key) <=",
        ("tests/unit/test_digest.py",),
    ),
    Mutant(
        "bools_are_numbers",
        "arguments.py",
        "    if isinstance(value, bool):\n",
        "    if False:\n",
        ("tests/unit/test_bad_input.py",),
    ),
    Mutant(
        "append_only_is_forgotten",
        "manager.py",
        '"remap": config.dedup == "remap"',
        '"remap": True',
        ("tests/unit/test_dedup.py",),
    ),
    Mutant(
        "early_commit_is_forgotten",
        "manager.py",
        '"early_commit": config.early_commit',
        '"early_commit": False',
        ("tests/unit/test_steps.py",),
    ),
    Mutant(
        "fences_are_forgotten",
        "manager.py",
        '"steps_in_flight": config.steps_in_flight',
        '"steps_in_flight": 0',
        ("tests/unit/test_steps.py",),
    ),
    Mutant(
        "the_watermark_is_forgotten",
        "manager.py",
        '"watermark_blocks": config.watermark_blocks',
        '"watermark_blocks": 0',
        ("tests/unit/test_admission.py",),
    ),
    Mutant(
        "tables_can_be_written",
        "manager.py",
        "    view.setflags(write=False)\n",
        "",
        ("tests/unit/test_growth.py",),
    ),
    Mutant(
        "extras_that_are_no_mapping",
        "arguments.py",
        "    if not isinstance(extras, Mapping):",
        "    if False:",
        ("tests/unit/test_bad_input.py",),
    ),
    Mutant(
        "invariants_are_not_looked_at",
        "manager.py",
        "if violations := self._core.violations():",
        "if violations := ():",
        ("tests/unit/test_debug.py",),
    ),
    Mutant(
        "copies_in_the_wrong_direction",
        "blocks.py",
        "columns = (self.sources, self.destinations, self.num_tokens)",
        "columns = (self.destinations, self.sources, self.num_tokens)",
        ("tests/unit/test_copies.py",),
    ),
    Mutant(
        "the_debug_level_is_forgotten",
        "manager.py",
        "        self._core.set_debug(config.debug)\n",
        "",
        ("tests/unit/test_debug.py",),
    ),
    # Copies on tensors.
    Mutant(
        "a_list_is_overwritten_while_a_copy_reads_it",
        "kv/pairs.py",
        "        if self._in_flight and self._event is not None and not self._event.query():\n",
        "        if False:\n",
        ("tests/kv/test_copy_ring.py",),
    ),
    Mutant(
        "offsets_of_32_bits",
        "kv/copy_kernels.py",
        "    start = block.to(tl.int64) * tl.load(entry + _BLOCK_STRIDE)\n",
        "    start = block.to(tl.int32) * tl.load(entry + _BLOCK_STRIDE).to(tl.int32)\n",
        ("tests/kv/test_copy_far.py",),
    ),
    # Replays by ids.
    Mutant(
        "replays_parts_of_blocks_by_ids",
        "lab/by_ids.py",
        "            and not config.min_partial_tokens\n",
        "",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "replays_hints_by_ids",
        "lab/by_ids.py",
        '            and config.hints == "none"\n',
        "",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "looks_at_ids_that_do_not_add_up",
        "lab/by_ids.py",
        "    if not np.array_equal(counts, -(-tokens // size)) or len(ids) > MOST_IDS:\n",
        "    if len(ids) > MOST_IDS:\n",
        ("tests/lab/test_by_ids.py",),
    ),
)

# Bindings: each of these takes a whole build.
EXTENSION = (
    Mutant(
        "forgets_in_the_order_of_nodes",
        "sequences/prefixes.cc",
        "  for (std::int32_t block = 0; block < nodes_.num_blocks; ++block)\n"
        "    for (NodeId n = nodes_.owner(block);\n",
        "  for (std::int32_t block = 0; block < nodes_.count; ++block)\n"
        "    for (NodeId n = block;\n",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "names_four_nodes_when_two_are_neighbours",
        "memory/node.h",
        "      if (pairs[0] == first && pairs[1] == first + 0x200000002u) {\n",
        "      if (pairs[0] == first) {\n",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "forgets_the_generation_of_a_free_block",
        "places/pool.cc",
        "    (*generations_)[static_cast<std::size_t>(number(b))] = nodes_[n].generation;\n",
        "    (*generations_)[static_cast<std::size_t>(number(b))] = 0;\n",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "logs_a_remap_to_nodes",
        "sequences/promotion.cc",
        "{handle_of(index), i, kNoNode, nodes_.name(table_at(index)[i])}",
        "{handle_of(index), i, kNoNode, table_at(index)[i]}",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "two_shares_number_their_pins_alike",
        "sequences/store.cc",
        "      first_pin += pins;\n",
        "",
        ("tests/unit/test_shares.py",),
    ),
    Mutant(
        "takes_a_twin_for_written",
        "sequences/promotion.cc",
        "    note_unwritten(*promotion.sequence, logical, own);  // the key may pass",
        (
            "    if (nodes_[own].keyed())\n"
            "      note_unwritten(*promotion.sequence, logical, own);  // the key may pass"
        ),
        ("tests/unit/test_steps.py",),
    ),
    Mutant(
        "forgets_what_the_named_blocks_spoil_and_no_more",
        "sequences/forgetting.cc",
        "more |= forget_table(s, wrong, forgotten);",
        "forget_table(s, wrong, forgotten);",
        ("tests/unit/test_blocks_by_id.py",),
    ),
    Mutant(
        "waits_in_a_fork_for_who_is_not_there",
        "sequences/monitor.cc",
        "  lost_ = true;\n",
        "  lost_ = false;\n",
        ("tests/unit/test_forks_of_the_process.py",),
    ),
    Mutant(
        "takes_every_monitor_for_lost",
        "sequences/monitor.cc",
        "  if (mutex_.try_lock()) {\n    mutex_.unlock();\n    return;\n  }\n",
        "",
        ("tests/unit/test_forks_of_the_process.py",),
    ),
    Mutant(
        "does_not_look_at_signals",
        "bindings/module.cc",
        "if (may_be_interrupted && PyErr_CheckSignals())",
        "if (false && may_be_interrupted)",
        ("tests/unit/test_forks_of_the_process.py",),
    ),
    Mutant(
        "reads_no_numbers_after_the_last_four",
        "bindings/ints.cc",
        "  while (i < count && read(i)) ++i;\n  return i == count;\n",
        "  return true;\n",
        ("tests/unit/test_growth.py",),
    ),
    Mutant(
        "lets_a_subclass_of_list_yield_its_items",
        "bindings/ints.cc",
        "  if (is_exact && read_exact(sequence, size_, count, out_)) return;\n",
        "  if (read_exact(sequence, size_, count, out_)) return;\n",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "reads_items_off_a_list_that_may_change",
        "bindings/ints.cc",
        "    PyObject* item = is_list ? PyList_GetItem(items.ptr(), i) :",
        "    PyObject* item = is_list ? PyList_GetItem(sequence, i) :",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "stops_at_the_length_that_a_sequence_says",
        "bindings/ints.cc",
        "  if (count == size_ && next().is_valid())",
        "  if (false)",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "takes_an_interrupt_for_a_missing_attribute",
        "bindings/ints.cc",
        "  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();\n",
        "",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "reads_a_prompt_before_it_looks_at_its_length",
        "bindings/module.cc",
        (
            "  if (values.size() > self.core.fits_anyway())\n"
            "    self.read([&](const Sequences& core) { core.check_admission("
        ),
        "  if (false)\n    self.read([&](const Sequences& core) { core.check_admission(",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "keeps_the_room_that_one_long_list_took",
        "bindings/bindings.h",
        "    if (numbers_.capacity() <= static_cast<std::size_t>(most_)) numbers_.swap(home_);\n",
        "    numbers_.swap(home_);\n",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "looks_up_all_of_a_prompt",
        "bindings/module.cc",
        "  return with_tokens(prompt, tokens, self.most_matched());\n",
        "  return with_tokens(prompt, tokens);\n",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "makes_children_before_it_counts_rows",
        "bindings/module.cc",
        "  if (count != 1) self.read(",
        "  if (count < 1) self.read(",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "packs_copies_from_before_the_first",
        "bindings/copies.cc",
        "  if (first < 0 || first > self.lists.size())\n",
        "  if (first > self.lists.size())\n",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "packs_copies_into_no_rows",
        "bindings/copies.cc",
        "view_.shape[1] == 3 && view_.shape[0] > 0)",
        "view_.shape[1] == 3)",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "takes_any_number_for_a_level",
        "bindings/shares.cc",
        "  if (level < kNoLevel || level > kHigh)\n",
        "  if (level < kNoLevel)\n",
    ),
    Mutant(
        "takes_every_array_for_one_in_order",
        "bindings/numpy.cc",
        "!PyTypeNum_ISINTEGER(type) || !PyArray_ISCARRAY_RO(array)",
        "!PyTypeNum_ISINTEGER(type)",
        ("tests/unit/test_bad_input.py",),
    ),
    Mutant(
        "a_copy_overwrites_what_another_has_to_read",
        "sequences/copy_order.cc",
        "  for (const std::int32_t x : order) add(group[at(x)], root[at(x)], x);\n",
        (
            "  for (auto x = order.rbegin(); x != order.rend(); ++x)\n"
            "    add(group[at(*x)], root[at(*x)], *x);\n"
        ),
        ("tests/kv/test_copy_order.py",),
    ),
    # Replays by ids.
    Mutant(
        "gives_outputs_the_names_of_prompts",
        "replays/id_trace.cc",
        "    first_own_.push_back(num_names_);\n",
        "    first_own_.push_back(0);\n",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "caches_the_part_of_a_block_by_ids",
        "replays/id_replay.cc",
        "  core_.commit(handle, r.num_cached);\n",
        "  core_.commit(handle, prompt.num_tokens);\n",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "remembers_all_names_by_one_digest",
        "replays/id_replay.cc",
        "digests_.data() + *tokens * size, size",
        "digests_.data(), size",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "digests_outputs_as_those_of_the_request_before",
        "replays/id_trace.cc",
        "static_cast<Token>((r + 1) % kOutputToken)",
        "static_cast<Token>(r % kOutputToken)",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "digests_the_words_of_wide_ids_in_another_order",
        "replays/id_trace.cc",
        "static_cast<int>(i % words_) * kWordBits",
        "static_cast<int>((i + 1) % words_) * kWordBits",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "admits_by_ids_before_all_have_ended",
        "replays/id_replay.cc",
        "    while (!running_.empty() && std::get<0>(running_.top()) == instant) {\n",
        "    if (!running_.empty() && std::get<0>(running_.top()) == instant) {\n",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "goes_on_with_a_run_behind_a_cut",
        "replays/id_trace.cc",
        " && !ends_whole[parent]",
        "",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "goes_on_with_a_run_at_a_fork",
        "replays/id_trace.cc",
        " && !segments_[parent].forks",
        "",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "evicts_the_nearest_of_the_optimum",
        "replays/future.cc",
        "order.push({next_uses[at], runs_.end[run], -paths_[at]});",
        "order.push({-next_uses[at], runs_.end[run], -paths_[at]});",
        ("tests/lab/test_optimum.py",),
    ),
    # The curve of LRU.
    Mutant(
        "forgets_what_releases_have_met_when_one_changes",
        "replays/release_stack.cc",
        "    entry.largest = std::max(entry.largest, entry.above + pending.recorded);\n",
        "",
        ("tests/lab/test_curve.py",),
    ),
    Mutant(
        "leaves_blocks_in_use_on_the_stack",
        "replays/stack_pass.cc",
        "    if (before != kAbsent) stack_.remove(before, length);\n",
        "",
        ("tests/lab/test_curve.py",),
    ),
    Mutant(
        "asks_for_the_blocks_of_samples_one_by_one",
        "replays/stack_pass.cc",
        "  if (request.num_samples > 1) note_peak(request.held_blocks - served);\n",
        "",
        ("tests/lab/test_curve.py",),
    ),
)
