"""Eviction, release, preemption, truncation, steps in flight, partial reuse."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LIFETIMES = (
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
        "    pool_.release_table(t + keep, count);",
        "    pool_.release_table(t + keep, count - (count % 7 == 6));",
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
        "    release(table[--count]);",
        "    release(table[--count]);\n    if (count % 7 == 3) release(table[count]);",
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
)
