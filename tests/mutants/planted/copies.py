"""Copy-on-write."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COPIES = (
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
        "  limit_computed(s, start + own.num_copied);\n",
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
)
