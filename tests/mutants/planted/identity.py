"""Admission, identity, chains and publication."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

IDENTITY = (
    # Counting and admission.
    Mutant(
        "does_not_count_idle_hits",
        "sequences/sequences.h",
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
        "  plan_promotion(s, num_computed, written(s), plan);\n",
        (
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
)
