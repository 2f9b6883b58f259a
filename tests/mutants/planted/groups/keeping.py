"""What becomes findable, and what is taken back."""

from __future__ import annotations

from tests.mutants.planted.groups.bugs import bugs_in

KEEPING = (
    *bugs_in(
        "sequences/group_keeping.cc",
        (
            "where_prompts_diverge_is_passed_by",
            "  if (is_kept && (stop == GroupRow::kDiverges || stop == GroupRow::kRetained))",
            "  if (is_kept && false)",
        ),
        (
            "a_place_where_prompts_diverged_is_that_of_the_last_one",
            "    if (!num_states_ && end == stops[GroupRow::kDiverges]) "
            "groups_->note_diverged(t[i]);\n",
            "",
        ),
        (
            "no_boundary_of_a_sequence_that_ended_is_passed",
            "    if (num_states_) end_path(s, node, resumes);\n",
            "    (void)resumes;\n",
        ),
        (
            "a_gap_in_a_window_is_a_boundary",
            "      since_room_[nth(g)] = i + 1;\n",
            "",
        ),
        (
            "a_gap_before_a_window_is_forgotten",
            "  while (since > least && groups_->cached(g, t[since - 1]) >= 0) --since;",
            "  since = least;",
        ),
        (
            "an_end_after_a_chunk_needs_its_last_block",
            "    const std::int64_t from = read_before ? std::max(first, logical) : first;\n",
            "    const std::int64_t from = read_before ? logical : first;\n",
        ),
        (
            "a_boundary_that_others_evicted_stays_away",
            "&& serves(s, s.num_chained - 1)) groups_->add_boundary(last);\n",
            "&& false) groups_->add_boundary(last);\n",
        ),
        (
            "the_end_of_a_path_is_a_boundary_whatever_it_serves",
            "&& serves(s, s.num_chained - 1)) groups_->add_boundary(last);\n",
            ") groups_->add_boundary(last);\n",
        ),
        (
            "a_kept_state_has_no_successor",
            "  copies_.plan(kept, state, config_.block_size);\n",
            "",
        ),
        (
            "keeps_a_state_that_may_have_moved",
            "|| !group_row(s).stands || s.outdated",
            "|| s.outdated",
        ),
        (
            "a_state_at_no_stop_is_worth_an_eviction",
            "  return keep_whole(s, pool_.free_blocks(s.partition).size(), true);",
            "  return keep_whole(s, available(s.partition), true);",
        ),
        (
            "a_state_at_no_stop_is_as_good_as_one_at_a_stop",
            "  return keep_whole(s, pool_.free_blocks(s.partition).size(), true);",
            "  return keep_whole(s, pool_.free_blocks(s.partition).size(), false);",
        ),
        (
            "caches_a_state_that_may_have_moved",
            '  refuse_moved(s, "cache the state of");\n',
            "",
        ),
        (
            "a_state_is_found_before_its_copy",
            "  groups_->set_being_kept(kept, true);\n",
            "",
        ),
        (
            "keeps_the_end_of_what_may_have_moved",
            "  if ((num_states_ && !row.stands) || s.num_chained < unit) return;",
            "  if (s.num_chained < unit) return;",
        ),
        (
            "keeps_the_end_that_others_share",
            "  return nodes_.uses(own).ref_count == 1 && !nodes_[own].keyed() &&",
            "  return !nodes_[own].keyed() &&",
        ),
        (
            "a_branch_that_sank_stays_there",
            "      index_.bring_forward(child);  // for the next prompt that diverges here\n",
            "",
        ),
        (
            "a_branch_has_no_state",
            "    if (groups_->group(g).recurrent()) give_state(s, g, tail);\n",
            "    (void)g;\n",
        ),
        (
            "goes_on_writing_into_a_branch",
            "  make_private(s, unit, s.num_computed);\n",
            "",
        ),
        (
            "a_branch_takes_what_is_not_there",
            "  if (groups_->num_groups() + 1 > room) return;\n",
            "",
        ),
        (
            "the_end_of_a_prompt_evicts_for_its_state",
            "passed ? pool_.free_blocks(s.partition).size() : available(s.partition);",
            "available(s.partition);",
        ),
        (
            "the_end_of_a_prompt_outlives_what_prompts_continue_from",
            "groups_->add_boundary(tail, passed);",
            "groups_->add_boundary(tail);",
        ),
        (
            "the_first_turn_that_continues_a_prompt_leaves_its_end",
            "  if (!passed) groups_->set_branch(tail);\n",
            "  groups_->set_branch(tail);\n",
        ),
        (
            "the_end_of_a_prompt_takes_a_look_up_from_others",
            "  if (passed) {  // it takes no look-up",
            "  if (false) {  // it takes no look-up",
        ),
        (
            "ends_of_prompts_are_seen_as_long_as_ends_of_sequences",
            "  if (child >= 0 && seen.passed >= 0) {\n",
            "  if (false) {\n",
        ),
        (
            "an_end_of_a_sequence_stays_passed",
            "      groups_->clear_passed(child);\n",
            "",
        ),
        (
            "a_sequence_that_resumes_has_no_prompt",
            "stops[GroupRow::kPromptEnd], 0};  // if it resumes",
            "0, 0};",
        ),
        (
            "what_was_only_passed_stays_like_the_rest",
            "    const bool passes = !num_states_ && !is_stop(end);\n",
            "    const bool passes = false && !is_stop(end);\n",
        ),
        (
            "the_end_of_a_sequence_was_only_passed",
            "      groups_->clear_passed(last);\n    }\n  }\n  drop_states",
            "    }\n  }\n  drop_states",
        ),
        (
            "where_prompts_diverge_was_only_passed",
            " || end == stops[GroupRow::kDiverges] ||\n",
            " ||\n",
        ),
        (
            "a_unit_before_is_always_a_boundary",
            "  const bool read_before = logical > 0 && groups_->is_boundary(t[logical - 1]);\n",
            "  const bool read_before = logical > 0;\n",
        ),
        (
            "drops_full_blocks_that_are_not_seen",
            "nodes_[child].key_tokens < config_.block_size && nodes_.idle(child)) drop_tail",
            "nodes_.idle(child)) drop_tail",
        ),
        (
            "keeps_tails_that_are_not_seen",
            "nodes_[child].key_tokens < config_.block_size && nodes_.idle(child)) drop_tail",
            "false) drop_tail",
        ),
        (
            "the_state_at_an_end_is_not_told_of",
            "    groups_->tell_kept(&last, 1);\n",
            "",
        ),
        (
            "only_the_stops_of_the_admission_are_more_than_passed",
            "           end == stops[GroupRow::kRetained];\n",
            "           false;\n",
        ),
    ),
    *bugs_in(
        "sequences/promotion.cc",
        (
            "a_fork_moves_with_the_sequence_that_commits",
            "  if (groups_) [[unlikely]]\n    merge_parts(*promotion.sequence, logical, cached);\n",
            "  for (Sequence& each : sequences_) {\n"
            "    if (!groups_ || each.state != Sequence::kRunning ||\n"
            "        each.num_blocks <= logical || &each == promotion.sequence ||\n"
            "        table(each)[logical] != own)\n"
            "      continue;\n"
            "    merge_parts(each, logical, cached);\n"
            "    set_entry(row_of(each), logical, cached);\n"
            "    pool_.exchange(own, cached);\n"
            "  }\n"
            "  if (groups_) merge_parts(*promotion.sequence, logical, cached);\n",
        ),
        (
            "a_merge_trusts_a_plan_that_an_eviction_has_changed",
            "      if (groups_ && must_stay(s, i, cached)) [[unlikely]] {\n",
            "      if (groups_ && num_states_ < 0) {\n",
        ),
        (
            "counts_on_a_block_that_others_share",
            "    if (uses.ref_count + uses.pins == 1) return;\n",
            "    if (!uses.pins) return;\n",
        ),
        (
            "counts_on_a_block_that_the_batch_moves_to",
            "std::find(dropped.begin(), dropped.end(), there) != dropped.end();",
            "std::find(dropped.begin(), dropped.end(), there) > dropped.end();",
        ),
        (
            "counts_what_sharers_move_to_for_each_of_them",
            "    lost += taken && plan.taken.add(there) == 1;\n",
            "    lost += taken && plan.taken.add(there) > 0;\n",
        ),
        (
            "a_batch_counts_on_a_node_that_a_caller_holds",
            "  count(table(s)[logical], cached);\n",
            "",
        ),
        (
            "a_batch_counts_on_a_part_that_a_caller_holds",
            "there >= 0) count(part, there);\n",
            "there < 0) count(part, there);\n",
        ),
        (
            "a_unit_is_merged_with_parts_to_be_written",
            "(is_written && most_unwritten(cached))",
            "(is_written && nodes_[cached].unwritten)",
        ),
    ),
    *bugs_in(
        "sequences/withdrawal.cc",
        (
            "a_part_that_is_taken_back_is_found",
            "      if (!record.unwritten) groups_->lose_part(g, t[i]);\n",
            "      (void)g;\n",
        ),
        (
            "a_part_that_is_taken_back_waits_for_the_forward",
            "      forget_unwritten(part);\n",
            "",
        ),
        (
            "takes_back_a_part_that_others_have",
            "    each_part(s, i, [&](int, NodeId part) { check(part); });\n",
            "",
        ),
    ),
)
