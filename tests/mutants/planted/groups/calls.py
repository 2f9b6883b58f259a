"""Steps, forks, growth, retention and events."""

from __future__ import annotations

from tests.mutants.planted.groups.bugs import bugs_in

CALLS = (
    *bugs_in(
        "sequences/group_parts.cc",
        (
            "a_writer_keeps_the_shared_part",
            "    drop_part(g, shared);\n  }\n",
            "  }\n",
        ),
        (
            "a_part_that_is_gone_has_its_place",
            "  if (last) groups_->clear_part(g, node);\n",
            "",
        ),
        (
            "the_first_part_of_a_window_leaks",
            "unit-- > std::max<std::int64_t>(from, first);)",
            "unit-- > std::max<std::int64_t>(from, first + 1);)",
        ),
        (
            "a_unit_that_others_share_is_merged_with_one_that_lacks_a_part",
            "  if (nodes_.uses(table(s)[logical]).ref_count == 1) return false;\n",
            "  if (nodes_.uses(table(s)[logical]).ref_count) return false;\n",
        ),
        (
            "the_parts_of_a_fork_are_found_with_another_unit",
            "  settle_parts(s, logical, is_shared ? cached : own, cached);\n",
            "  settle_parts(s, logical, is_shared ? own : own, cached);\n",
        ),
        (
            "a_merged_unit_shows_its_former_part",
            "    shown_group_at(g, row_of(s))[logical] = number(nodes_.block(there));\n",
            "",
        ),
        (
            "the_part_of_a_twin_is_lost",
            "      if (there >= 0) groups_->set_part(g, node, there);\n",
            "",
        ),
        (
            "puts_by_a_part_that_no_boundary_needs",
            " && nodes_[m].keyed() && groups_->is_read(group, n, unit)) {\n",
            " && nodes_[m].keyed()) {\n",
        ),
        (
            "puts_by_a_part_that_others_use",
            "    if (keeps && uses == Uses{1, 0} && nodes_[m].keyed()",
            "    if (keeps && nodes_[m].keyed()",
        ),
    ),
    *bugs_in(
        "sequences/group_steps.cc",
        (
            "a_batch_counts_one_group",
            "  std::int64_t needed = grouped_need(blocks);\n",
            "  std::int64_t needed = blocks;\n",
        ),
        (
            "a_batch_counts_one_group_of_a_quota",
            "  for (std::int64_t& each : plan.needed_by) each = grouped_need(each);\n",
            "",
        ),
        (
            "a_quota_does_not_get_what_windows_give_back",
            "    if (!plan.needed_by.empty()) plan.needed_by[s.partition] -= dropped;\n",
            "",
        ),
        (
            "a_batch_counts_on_what_waits_for_a_step",
            "  if (!drops_before_taking()) return needed;\n",
            "",
        ),
        (
            "a_window_drops_a_unit_early",
            "    const auto until = static_cast<std::int32_t>(read / config_.block_size);",
            "    const auto until = static_cast<std::int32_t>(read / config_.block_size) + 1;",
        ),
        (
            "a_window_forgets_the_drafts",
            "std::max<std::int64_t>(0, settled(s) - config_.max_rollback);",
            "settled(s);",
        ),
        (
            "a_window_drops_what_the_step_reads",
            "std::max<std::int64_t>(0, settled(s) - config_.max_rollback);",
            "std::max<std::int64_t>(0, s.num_computed - config_.max_rollback);",
        ),
        (
            "each_commit_tells_the_state",
            "  if (settled(s) != s.num_computed || !tells_state(s)) return;",
            "  if (settled(s) != s.num_computed) return;",
        ),
        (
            "a_forward_moves_no_state",
            "    group_row(s).stands = false;\n",
            "",
        ),
        (
            "two_forwards_count_as_one",
            "    ++group_row(s).moves;\n",
            "",
        ),
        (
            "decode_gives_back_what_others_have",
            "      if (nodes_.uses(m) != Uses{1, 0}) continue;\n",
            "",
        ),
        (
            "forks_what_may_have_moved",
            "  if (!num_states_ || group_row(s).stands) return;\n",
            "  if (true) return;\n",
        ),
        (
            "decode_moves_the_block_whose_slot_it_answers",
            "    if (s.num_computed % config_.block_size == 0) keep_state(s);\n",
            "    keep_state(s);\n",
        ),
        (
            "states_that_were_copied_are_not_told_of",
            "  for (const KeptState& k : keeps_) groups_->tell_kept(k.state);\n",
            "",
        ),
    ),
    *bugs_in(
        "sequences/group_forks.cc",
        (
            "the_end_that_truncate_leaves_stays_away",
            "  if (length / config_.block_size < s.num_chained) keep_path(s);\n",
            "",
        ),
        (
            "a_state_that_a_sequence_went_back_to_waits_again",
            "  settle_keeps();  // before another copy of a kept state",
            "  // before another copy of a kept state",
        ),
        (
            "a_fork_begins_with_an_empty_state",
            "    if (parent.num_computed) copies_.plan(from",
            "    if (false) copies_.plan(from",
        ),
        (
            "a_fork_counts_no_window",
            "          ++nodes_.uses(groups_->part(g, t[unit])).ref_count;\n        continue;",
            "          ;\n        continue;",
        ),
        (
            "only_the_first_child_gets_parts_and_states",
            "  for (std::int64_t c = 0; c < count; ++c) {\n",
            "  for (std::int64_t c = 0; c < 1; ++c) {\n",
        ),
        (
            "a_fork_counts_the_moves_of_its_row",
            "  to.moves = from.moves;\n",
            "",
        ),
        (
            "a_beam_begins_with_an_empty_state",
            "    if (model.num_computed) copies_.plan(source",
            "    if (false) copies_.plan(source",
        ),
        (
            "truncates_to_where_no_window_is",
            "    if (has_state(length) && has_attention(length)) return length;",
            "    if (has_state(length)) return length;",
        ),
        (
            "truncates_to_where_no_state_is",
            "    if (has_state(length) && has_attention(length)) return length;",
            "    if (has_attention(length)) return length;",
        ),
        (
            "goes_back_without_its_state",
            "      copies_.plan(groups_->cached(g, t[whole - 1]), state, config_.block_size);\n",
            "",
        ),
        (
            "goes_back_without_its_window",
            "      pool_.acquire(groups_->part(g, t[unit]));\n    first",
            "      ;\n    first",
        ),
        (
            "what_is_promised_counts_as_written",
            "    s.num_written = grouped_written(s, length);\n",
            "    s.num_written = length;\n",
        ),
    ),
    *bugs_in(
        "sequences/growth.cc",
        (
            "decode_drops_before_the_step_is_over",
            "const bool drops_first = drops_before_taking();",
            "const bool drops_first = grouped;",
        ),
        (
            "growth_counts_one_group",
            "    needed = grouped_need(needed);\n",
            "",
        ),
    ),
    *bugs_in(
        "sequences/fork.cc",
        (
            "the_end_that_a_beam_leaves_stays_away",
            "      keep_path(s);\n",
            "",
        ),
    ),
    *bugs_in(
        "sequences/retaining.cc",
        (
            "half_of_what_is_retained_is_a_stop_twice",
            "{GroupRow::kLast, GroupRow::kHalfway, GroupRow::kPromptEnd})",
            "{GroupRow::kLast, GroupRow::kPromptEnd})",
        ),
        (
            "the_end_of_a_prompt_that_is_retained_is_just_passed",
            "{GroupRow::kLast, GroupRow::kHalfway, GroupRow::kPromptEnd})",
            "{GroupRow::kLast, GroupRow::kHalfway})",
        ),
        (
            "the_end_of_what_is_retained_is_just_passed",
            "  groups_->note_continued(node);\n",
            "",
        ),
        (
            "no_forward_stops_at_the_end_of_what_is_retained",
            "    if (stops[GroupRow::kDiverges] != end) stops[GroupRow::kRetained] = end;\n",
            "",
        ),
        (
            "a_stop_within_a_unit_is_rounded_down",
            "  if (!within) end -= rest;\n",
            "  end -= rest;\n",
        ),
        (
            "retains_what_no_prompt_finds",
            "    found.num_full = served_of(found);\n",
            "",
        ),
        (
            "a_hint_keeps_no_state",
            "  groups_ ? leave_groups(s, expect_reuse) : cache_tail(s);\n",
            "  cache_tail(s);\n",
        ),
        (
            "a_touch_leaves_the_boundary_passed",
            "  if (groups_ && found.partial < 0 && found.num_full) keep_boundary(found.node);\n",
            "",
        ),
    ),
    *bugs_in(
        "events/log.h",
        (
            "groups_are_numbered_as_if_full_attention_were_last",
            "further + (further >= full_group_);",
            "further;",
        ),
    ),
    *bugs_in(
        "events/log.cc",
        (
            "runs_of_two_groups_are_one",
            "runs_[static_cast<std::size_t>(num_runs_ - 1)].group == group;",
            "true;",
        ),
        (
            "a_removal_joins_that_of_another_group",
            "run.step == step_ && run.group == group) {",
            "run.step == step_) {",
        ),
    ),
    *bugs_in(
        "identity/event_columns.cc",
        (
            "a_snapshot_leaves_out_the_parts",
            "      add_told(g, root, [&](NodeId b) { return parts_.is_told(g, b); });\n",
            "      add_told(g, root, [](NodeId) { return false; });\n",
        ),
    ),
    *bugs_in(
        "policies/retention.cc",
        (
            "a_higher_level_goes_first",
            "  while (!num_idle_[static_cast<std::size_t>(level)]) ++level;\n",
            (
                "  for (int l = kLow; l <= kPinned; ++l)\n"
                "    if (num_idle_[static_cast<std::size_t>(l)]) level = l;\n"
            ),
        ),
    ),
    *bugs_in(
        "sequences/forgetting.cc",
        (
            "what_only_the_forgotten_continued_stays",
            "  if (groups_ && start >= 0) groups_->prune(start);\n",
            "",
        ),
        (
            "goes_on_forgetting_at_a_node_that_is_gone",
            "    node = node != b && nodes_[parent].keyed() ? parent : b;\n",
            "    node = node != b ? parent : b;\n",
        ),
        (
            "a_part_that_is_wrong_is_not_its_nodes",
            "      if (groups_->part(g, table(s)[i]) == n) return table(s)[i];\n",
            "      if (groups_->part(g, table(s)[i]) == n) return kNoNode;\n",
        ),
        (
            "a_wrong_state_goes_on_being_cached",
            "      if (group_row(s).states[nth(g)] == n) detach(s);\n",
            "",
        ),
    ),
    *bugs_in(
        "sequences/holding.cc",
        (
            "touches_parts_as_nodes",
            "  return nodes_[n].keyed() ? groups_->node_of(n) : kNoNode;\n",
            "  return n;\n",
        ),
    ),
)
