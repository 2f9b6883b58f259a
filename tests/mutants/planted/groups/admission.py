"""What a prompt finds, and what of it fits."""

from __future__ import annotations

from tests.mutants.planted.groups.bugs import bugs_in

ADMISSION = (
    *bugs_in(
        "sequences/group_admission.cc",
        (
            "a_tail_is_as_good_as_the_beginning_of_a_block",
            "(n == best && at_end && found.partial >= 0 && !found.take_over);\n",
            "(n == best && at_end && found.partial >= 0 && found.num_full < 0);\n",
        ),
        (
            "prompts_part_where_a_block_is_unwritten",
            "    most_shared = std::max(most_shared, n);",
            "    most_shared = std::max(most_shared, n - most_unwritten(child));",
        ),
        (
            "where_a_prompt_went_on_is_passed_by",
            "  if (end >= 0 && groups_->length(end) == cached) groups_->continue_from(end);\n",
            "",
        ),
        (
            "finds_a_state_that_is_yet_to_be_copied",
            "    if (state < 0 || groups_->is_being_kept(state)) return false;",
            "    if (state < 0) return false;",
        ),
        (
            "a_hit_needs_no_window",
            "      if (groups_->cached(g, chain[unit]) < 0) gap = unit;",
            "      ;",
        ),
        (
            "a_hit_reads_one_unit_less",
            "unit-- > from && unit > gap;)",
            "unit-- > from + 1 && unit > gap;)",
        ),
        (
            "a_hit_needs_one_state_alone",
            "    if (!length || !num_states_ || has_states(node)) break;",
            "    if (!length || num_states_ != 1 || has_states(node)) break;",
        ),
        (
            "a_part_of_a_unit_needs_no_window",
            " && has_parts(child) &&",
            " &&",
        ),
        (
            "a_state_serves_in_the_middle_of_a_tail",
            "((num_states_ || tails_only) ? at_end : true)",
            "(tails_only ? at_end : true)",
        ),
        (
            "a_partial_hit_needs_no_window_before_it",
            "last_gap(found.full, start + n, found.num_full) < 0;",
            "true;",
        ),
        (
            "takes_over_what_others_use",
            "        !pool_.counts_as_available(groups_->cached(g, end)))\n      return false;",
            "        false)\n      return false;",
        ),
        (
            "a_state_costs_no_block",
            "      ++d.to_take;\n",
            "",
        ),
        (
            "a_found_window_costs_nothing",
            "      uses(groups_->cached(g, found.full[unit]));",
            "      ;",
        ),
        (
            "a_fresh_window_costs_nothing",
            "    d.to_take += d.num_blocks - std::max(first, found.num_full);\n",
            "",
        ),
        (
            "a_found_window_is_not_acquired",
            "      pool_.acquire_part(groups_->part(g, t[unit]));\n  }\n",
            "      ;\n  }\n",
        ),
        (
            "a_found_state_is_not_copied",
            "      if (source >= 0) copies_.plan(source, state, config_.block_size);\n",
            "",
        ),
        (
            "a_boundary_outlives_its_state",
            "      groups_->end_boundary(end);",
            "      ;",
        ),
        (
            "a_state_taken_over_can_be_found",
            "      groups_->unkeep(m);\n",
            "",
        ),
        (
            "stops_where_no_prompt_can_go_on",
            "const std::int64_t last = (num_tokens - 1) / size;\n",
            "const std::int64_t last = num_tokens / size;\n",
        ),
        (
            "never_stops_where_prompts_diverge",
            "num_shared > num_computed ? num_shared : 0",
            "0",
        ),
        (
            "a_window_never_shrinks_the_peak",
            "      if (!groups_->group(g).recurrent()) sum -= groups_->first_unit(g, position);\n",
            "",
        ),
        (
            "the_first_forward_is_no_peak",
            "    const bool may_fit = first_blocks(candidate, slots) <= most;\n",
            "    const bool may_fit = true;\n",
        ),
        (
            "a_partial_window_is_not_copied",
            "      copies_.plan(source, before, found.num_partial);\n",
            "",
        ),
        (
            "a_part_that_is_yet_to_be_written_is_copied_from",
            "record.key_tokens - most_unwritten(child)",
            "record.key_tokens - record.unwritten",
        ),
        (
            "nobody_stops_within_a_block",
            "      if (deepest && count == num_tokens) share(shared);\n",
            "      (void)shared;\n",
        ),
        (
            "a_limit_hides_where_prompts_part",
            "find_prefix(tokens, num_tokens, applicant.root",
            "find_prefix(tokens, count, applicant.root",
        ),
        (
            "a_limit_hides_where_prompts_part_within_a_block",
            "  if (partly && num_states_ && count < num_tokens) {",
            "  if (partly && num_states_ && count < 0) {",
        ),
        (
            "the_first_prompt_takes_a_branch_over",
            "!groups_->is_branch(child) && may_take_over(other)",
            "may_take_over(other)",
        ),
        (
            "no_branch_is_ever_taken_over",
            "      if (candidate.take_over || !may_take_over(candidate)) return false;\n",
            "      if (candidate.partial >= 0 || !may_take_over(candidate)) return false;\n",
        ),
        (
            "a_branch_sinks_below_what_is_new",
            "    index_.bring_forward(found.partial);\n",
            "",
        ),
        (
            "short_prompts_stop_halfway",
            "blocks >= kLeastBlocks * num_states_ && blocks * size >= least;",
            "blocks >= kLeastBlocks * num_states_;",
        ),
        (
            "few_blocks_are_enough_to_stop_halfway",
            "blocks >= kLeastBlocks * num_states_ && blocks * size >= least;",
            "blocks * size >= least;",
        ),
        (
            "a_sequence_that_resumes_stops_at_the_end_of_its_answer",
            "s.state == Sequence::kPreempted ? stops[GroupRow::kPromptEnd]",
            "false ? stops[GroupRow::kPromptEnd]",
        ),
        (
            "the_end_of_a_prompt_is_just_passed_where_prompts_diverge",
            "prompt_end != num_shared && ",
            "",
        ),
        (
            "prompts_stop_where_too_little_of_a_block_is_cached",
            " && can_stop_at(prompt_end);",
            ";",
        ),
        (
            "half_of_all_instead_of_half_of_what_is_computed",
            "is_long ? (first + blocks / 2) * size : 0;",
            "is_long ? last / 2 * size : 0;",
        ),
        (
            "what_never_fits_is_judged_without_the_cache",
            "    const bool may_fit = first_blocks(candidate, slots) <= most;\n",
            "    const bool may_fit = first_blocks(Found(), slots) <= most;\n",
        ),
        (
            "what_fits_behind_nothing_is_forgotten",
            "    plan.never = plan.never && !may_fit;\n",
            "    plan.never = !may_fit;\n",
        ),
    ),
    *bugs_in(
        "sequences/admission.cc",
        (
            "a_promise_before_a_block_counts_against_it",
            "    choose_stops(s, plan.num_shared);\n",
            (
                "    s.num_written = grouped_written(s, s.num_computed);\n"
                "    choose_stops(s, plan.num_shared);\n"
            ),
        ),
    ),
    *bugs_in(
        "sequences/explain.cc",
        (
            "explains_with_the_number_of_the_core",
            "      if (groups_->cached(g, chain[unit]) < 0) return in_engine(g);\n",
            "      if (groups_->cached(g, chain[unit]) < 0) return g;\n",
        ),
    ),
)
