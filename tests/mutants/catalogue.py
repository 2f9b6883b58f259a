"""The bugs: what other block managers have had, line by line in this one.

A mutant is one replacement in one file. The text it replaces must be there exactly once, so a
mutant cannot die out unnoticed when the code around it changes.
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
    """Of a bug in Python: what is run to find it."""


CORE = (
    # Copy-on-write.
    Mutant(
        "writes_into_shared_blocks",
        "growth.cc",
        "  return block.ref_count > 1 || block.keyed();",
        "  return block.keyed();",
    ),
    Mutant(
        "writes_into_cached_blocks",
        "growth.cc",
        "  return block.ref_count > 1 || block.keyed();",
        "  return block.ref_count > 1;",
    ),
    Mutant(
        "decode_writes_into_shared_blocks",
        "growth.cc",
        "if (block.ref_count > 1 || block.keyed() || block.parent >= 0)",
        "if (block.keyed() || block.parent >= 0)",
    ),
    Mutant(
        "decode_writes_into_cached_blocks",
        "growth.cc",
        "if (block.ref_count > 1 || block.keyed() || block.parent >= 0)",
        "if (block.ref_count > 1 || block.parent >= 0)",
    ),
    Mutant(
        "copies_a_token_too_few",
        "copies.cc",
        "  blocks_[destination].copy_tokens = static_cast<std::uint16_t>(num_tokens);",
        (
            "  blocks_[destination].copy_tokens = static_cast<std::uint16_t>(num_tokens - "
            "(num_tokens > 1));"
        ),
    ),
    Mutant(
        "does_not_collapse_chains_of_copies",
        "copies.cc",
        ("blocks_[source].copy_source == kNoBlock ? source : blocks_[source].copy_source;"),
        "source;",
    ),
    Mutant(
        "does_not_pin_copy_sources",
        "copies.cc",
        "  pool_.pin(root);\n",
        ("  ++blocks_[root].pins;\n  --blocks_[root].pins;\n"),
    ),
    Mutant(
        "leaks_the_pin_of_a_copy",
        "copies.cc",
        "    pool_.unpin(copy.source);\n",
        "",
    ),
    Mutant(
        "does_not_cancel_dead_copies",
        "sequences.cc",
        (
            "  if (blocks_[b].copy_source != kNoBlock && blocks_[b].ref_count == 1) "
            "copies_.drop(b);\n"
        ),
        "",
    ),
    Mutant(
        "cancels_copies_somebody_waits_for",
        "sequences.cc",
        "blocks_[b].copy_source != kNoBlock && blocks_[b].ref_count == 1",
        "blocks_[b].copy_source != kNoBlock",
    ),
    Mutant(
        "frees_the_target_of_a_running_copy",
        "copies.cc",
        "    pool_.pin(b);  // the copy",
        "    // the copy",
    ),
    Mutant(
        "loses_copies_on_abort",
        "copies.cc",
        "    pending_.push_front(destination);\n",
        "",
    ),
    Mutant(
        "copies_what_was_never_copied_on_abort",
        "copies.cc",
        "    if (!blocks_[source].in_flight) continue;",
        "    continue;",
    ),
    Mutant(
        "counts_uncomputed_tokens_as_copied",
        "growth.cc",
        "  s.num_computed = std::min(s.num_computed, start + brought);\n",
        "",
    ),
    Mutant(
        "copies_what_the_forward_has_not_written",
        "growth.cc",
        "  return ahead ? std::min(s.num_written, s.num_computed) : s.num_computed;",
        "  return ahead ? s.num_computed : s.num_computed;",
    ),
    Mutant(
        "every_sharer_of_a_batch_copies",
        "growth.cc",
        ("          --block.ref_count;\n          leaving_.push_back(b);\n"),
        "",
    ),
    # Counting and admission.
    Mutant(
        "does_not_count_idle_hits",
        "admission.cc",
        "  d.unused_hits = found.num_unused + ",
        "  d.unused_hits = 0 * found.num_unused + ",
    ),
    Mutant(
        "ignores_the_watermark",
        "sequences.h",
        "return needed() == 0 || needed() <= available - watermark;",
        "return needed() == 0 || needed() <= available - 0 * watermark;",
    ),
    Mutant(
        "never_fits_too_late",
        "admission.cc",
        "blocks > pool_.partition(partition).capacity - watermark;",
        "blocks > pool_.partition(partition).capacity;",
    ),
    Mutant(
        "grows_before_it_counts",
        "growth.cc",
        "  const bool copies = writes && must_copy(s, logical);",
        "  const bool copies = false;",
    ),
    Mutant(
        "leaks_a_namespace_on_shortage",
        "admission.cc",
        "      if (!kept) index.release_root(root);\n",
        "",
    ),
    Mutant(
        "serves_the_last_token_from_the_cache",
        "admission.cc",
        "  const std::int64_t limit = (count - 1) / config_.block_size;\n  const Chain chain",
        "  const std::int64_t limit = count / config_.block_size;\n  const Chain chain",
    ),
    Mutant(
        "takes_before_it_touches_what_it_found",
        "admission.cc",
        ("    pool_.pin(found.partial);  // before anything is taken: it may be the next victim\n"),
        ("    ++blocks_[found.partial].pins;\n    --blocks_[found.partial].pins;\n"),
    ),
    # Identity.
    Mutant(
        "trusts_the_digest",
        "index.cc",
        "    if (has_key(buckets_[s], key)) return buckets_[s];",
        "    if (tag(blocks_.digest(buckets_[s])) == tag(digest)) return buckets_[s];",
    ),
    Mutant(
        "ignores_extras",
        "index.h",
        "block.extras == key.extras &&",
        "true &&",
    ),
    Mutant(
        "ignores_the_parent",
        "index.h",
        "    return block.parent == key.parent && block.key_tokens",
        "    return block.key_tokens",
    ),
    Mutant(
        "one_namespace_for_all",
        "index.cc",
        ("  std::uint32_t known = find_root(name);\n  if (known != kUnknownId) {"),
        ('  name = "";\n  std::uint32_t known = find_root(name);\n  if (known != kUnknownId) {'),
    ),
    Mutant(
        "compares_half_the_tokens",
        "index.h",
        "same_tokens(blocks_.tokens(b), key.tokens, blocks_.block_size)",
        "same_tokens(blocks_.tokens(b), key.tokens, blocks_.block_size / 2)",
    ),
    # Publication.
    Mutant(
        "publishes_what_is_not_computed",
        "promotion.cc",
        "  const std::int64_t end = num_computed / config_.block_size;",
        (
            "  const std::int64_t end = std::max(num_computed, num_slots(s) < s.num_tokens "
            "? 0 : s.num_tokens) / config_.block_size;"
        ),
    ),
    Mutant(
        "publishes_what_waits_for_a_copy",
        "promotion.cc",
        ("    if (blocks_[t[i]].copy_source != kNoBlock || blocks_[t[i]].in_flight) return i;"),
        "    if (false) return i;",
    ),
    Mutant(
        "merges_without_a_reference",
        "pool.cc",
        "  acquire(twin);\n  release(own);\n",
        "  release(own);\n",
    ),
    Mutant(
        "leaks_the_merged_block",
        "pool.cc",
        "  acquire(twin);\n  release(own);\n",
        "  acquire(twin);\n",
    ),
    Mutant(
        "does_not_keep_the_twin",
        "pool.cc",
        "  pin(twin);\n",
        "",
    ),
    Mutant(
        "leaks_the_twin",
        "pool.cc",
        "  if (twin >= 0) unpin(twin);\n",
        "",
    ),
    Mutant(
        "logs_the_wrong_remap",
        "promotion.cc",
        "static_cast<std::int32_t>(logical), own, cached});",
        "static_cast<std::int32_t>(logical), cached, own});",
    ),
    # Eviction.
    Mutant(
        "evicted_blocks_stay_findable",
        "pool.cc",
        "  index_.erase(b);\n  ++own.num_evicted;",
        "  ++own.num_evicted;",
    ),
    Mutant(
        "used_blocks_stay_idle",
        "pool.cc",
        (
            "    dequeue(b);\n"
            "    const NodeId parent = blocks_[b].parent;\n"
            "    if (parent < 0) return;\n"
            "    const bool was_used"
        ),
        (
            "    const NodeId parent = blocks_[b].parent;\n"
            "    if (parent < 0) return;\n"
            "    const bool was_used"
        ),
    ),
    Mutant(
        "releases_the_head_first",
        "pool.cc",
        "    own.idle.push_back(b);\n",
        "    own.idle.push_front(b);\n",
    ),
    Mutant(
        "does_not_keep_parents",
        "pool.cc",
        "  if (key.parent >= 0) pin(key.parent);\n",
        "",
    ),
    Mutant(
        "loses_entries_behind_an_erased_one",
        "index.cc",
        ("        buckets_[hole] = buckets_[s];\n        hole = s;\n"),
        "        break;\n",
    ),
    Mutant(
        "keeps_the_hint_of_an_evicted_block",
        "index.cc",
        ("  ++block.generation;\n  --num_keyed_;"),
        "  --num_keyed_;",
    ),
    # Release, preemption, truncation.
    Mutant(
        "leaks_the_last_block",
        "sequences.cc",
        "    drop_reference(t[last]);\n",
        "    if (last % 7 != 6) drop_reference(t[last]);\n",
    ),
    Mutant(
        "stale_handles_live_on",
        "sequences.cc",
        (
            "  if (s.state == Sequence::kUnused || s.generation != "
            "static_cast<std::uint64_t>(handle) >> 32)"
        ),
        "  if (s.state == Sequence::kUnused)",
    ),
    Mutant(
        "preemption_keeps_what_was_computed",
        "sequences.cc",
        "  s.num_computed = s.num_cached = s.num_written = 0;\n",
        "",
    ),
    Mutant(
        "preemption_keeps_the_chain",
        "sequences.cc",
        "  s.num_chained = 0;\n",
        "",
    ),
    Mutant(
        "fork_misses_the_tail",
        "fork.cc",
        ("  for (std::int32_t i = 0; i < model.num_blocks; ++i) {\n    if (i + kAhead"),
        ("  for (std::int32_t i = 0; i + 1 < model.num_blocks; ++i) {\n    if (i + kAhead"),
    ),
    Mutant(
        "fork_shares_look_ahead",
        "fork.cc",
        ("blocks_for(parent.num_tokens)));\n  std::vector<std::vector<Token>>"),
        ("parent.num_blocks));\n  std::vector<std::vector<Token>>"),
    ),
    # Steps in flight.
    Mutant(
        "ignores_fences",
        "pool.cc",
        "  if (fence) {\n",
        "  if (fence < 0) {\n",
    ),
    Mutant(
        "completes_every_step",
        "sequences.cc",
        "  while (done < open_steps_.size() && open_steps_[done].ticket <= ticket)",
        "  while (done < open_steps_.size())",
    ),
    # Reuse of parts.
    Mutant(
        "reuses_a_token_too_many",
        "admission.cc",
        "        found.num_partial = n;\n",
        "        found.num_partial = std::min<int>(n + 1, limit);\n",
    ),
    Mutant(
        "takes_over_tails_in_use",
        "admission.cc",
        "pool_.counts_as_available(child)",
        "true",
    ),
    Mutant(
        "keeps_superseded_tails",
        "admission.cc",
        "      pool_.forget(child);\n",
        "",
    ),
)

PYTHON = (
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
        "a_key_that_shows",
        "digest.py",
        '"<KeyedDigest: ',
        '"<{self._start} KeyedDigest: ',
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
        'remap=config.dedup == "remap"',
        "remap=True",
        ("tests/unit/test_dedup.py",),
    ),
    Mutant(
        "early_commit_is_forgotten",
        "manager.py",
        "early_commit=config.early_commit",
        "early_commit=False",
        ("tests/unit/test_steps.py",),
    ),
    Mutant(
        "fences_are_forgotten",
        "manager.py",
        "steps_in_flight=config.steps_in_flight",
        "steps_in_flight=0",
        ("tests/unit/test_steps.py",),
    ),
    Mutant(
        "the_watermark_is_forgotten",
        "manager.py",
        "watermark_blocks=config.watermark_blocks",
        "watermark_blocks=0",
        ("tests/unit/test_admission.py",),
    ),
    Mutant(
        "tables_can_be_written",
        "manager.py",
        "    view.flags.writeable = False\n",
        "",
        ("tests/unit/test_package.py",),
    ),
    Mutant(
        "extras_that_are_no_mapping",
        "manager.py",
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
)
