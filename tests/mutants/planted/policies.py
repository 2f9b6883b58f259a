"""Quotas, retention, policies and the hit rate curve."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

POLICIES = (
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
        "      plan.needed_by[s.partition] += takes;",
        "      plan.needed_by[0] += takes;",
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
        "  pool_.admitted(s.partition, {found.full, found.num_full});\n",
        "  pool_.admitted(s.partition, {found.full, 0});\n",
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
