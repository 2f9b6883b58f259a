"""Where parts and boundaries are, and which of them are evicted."""

from __future__ import annotations

from tests.mutants.planted.groups.bugs import bugs_in

PLACES = (
    *bugs_in(
        "places/group_places.cc",
        (
            "a_boundary_needs_its_last_unit_alone",
            "a >= 0 && near(a) > end && any_reads(end, unit(a));",
            "a == n && near(a) > end && any_reads(end, unit(a));",
        ),
        (
            "what_is_below_needs_nothing_here",
            "    least = std::min(least, near(child));\n",
            "    least = std::min(least, kNever);\n",
        ),
        (
            "ends_of_earlier_turns_keep_their_windows",
            "    pass(path[unit]);\n",
            "",
        ),
        (
            "an_earlier_turn_goes_though_others_continue_there",
            "  if (child >= 0 && nodes_[child].next_sibling >= 0) return true;\n",
            "",
        ),
        (
            "a_retained_turn_goes_with_the_others",
            "  return levels && levels->level(n) > kNormal;\n",
            "  return levels && false;\n",
        ),
        (
            "a_window_outlives_its_boundary",
            "  refresh(n);\n",
            "",
        ),
        (
            "a_state_outlives_its_boundary",
            "    if (group(g).recurrent()) drop_unneeded(g, n);\n",
            "    ;\n",
        ),
        (
            "only_the_last_unit_of_a_window_goes",
            "  while (n >= 0 && !is_boundary(n) && find_near(n)) n = nodes_[n].parent;",
            "  if (n >= 0 && !is_boundary(n)) find_near(n);",
        ),
        (
            "drops_a_part_that_is_used",
            "  if (m < 0 || nodes_.used(m)) return kNoNode;",
            "  if (m < 0) return kNoNode;",
        ),
        (
            "drops_what_the_next_boundary_needs",
            "!group(g).recurrent() && !is_needed(g, n)) drop_unneeded(g, n);",
            "!group(g).recurrent()) drop_unneeded(g, n);",
        ),
        (
            "evicts_paths_as_if_they_were_one",
            "  } while (next == parent && free.size() < count);",
            "  } while (next != sentinel && free.size() < count);",
        ),
        (
            "evicted_boundaries_leave_what_is_before_them",
            "  refresh(parent);\n",
            "",
        ),
        (
            "what_continues_again_counts_as_the_first_time",
            "facts & kContinued ? Kind::kAgain : whole ?",
            "whole ?",
        ),
        (
            "nobody_counts_what_goes_on_from_whole_units",
            " : whole ? Kind::kWholeBlock : Kind::kEnd",
            " : Kind::kEnd",
        ),
        (
            "a_sequence_that_resumes_loses_its_end",
            "      !resumes && continued_ends_",
            "      continued_ends_",
        ),
        (
            "where_two_continued_is_passed_by",
            "!is_boundary(found) || (facts_[static_cast<std::size_t>(found)] & kDiverged)",
            "!is_boundary(found)",
        ),
        (
            "the_end_is_passed_whatever_it_serves",
            "  pass(prefers_whole ? tail : whole);",
            "  pass(resumes ? whole : tail);",
        ),
        (
            "a_passed_boundary_leaves_what_was_known_of_it",
            "~(kOfBoundary | kPassed)",
            "~(kBoundary | kPassed)",
        ),
        (
            "an_evicted_boundary_leaves_its_states",
            "        if (is_needed(g, ends[i])) continue;\n",
            "        if (group(g).recurrent() || is_needed(g, ends[i])) continue;\n",
        ),
        (
            "keeps_parts_that_no_boundary_needs",
            "    if (part(g, n) == b && is_needed(g, n)) return;",
            "    if (part(g, n) == b) return;",
        ),
        (
            "keeps_no_part",
            "    if (part(g, n) == b && is_needed(g, n)) return;\n",
            "",
        ),
        (
            "keeps_nodes_that_no_boundary_needs",
            "  } else if (!stays(b)) {",
            "  } else if (false) {",
        ),
        (
            "eviction_leaves_what_it_made_useless",
            "    prune(pool_.evict_next(partition));",
            "    pool_.evict_next(partition);",
        ),
        (
            "a_boundary_outlives_its_node",
            "  if (is_boundary(n)) remove_boundary(n);\n  for",
            "  for",
        ),
        (
            "a_part_outlives_its_node",
            "      unkeep(m);  // a sequence's own from here on, or the source of a copy\n",
            "",
        ),
        (
            "a_boundary_in_use_is_not_listed",
            "  } else if (!is_passed(n) && (nodes_.used(n) || nodes_[n].fence)) {\n    link(n);\n",
            "",
        ),
        (
            "a_tail_is_not_looked_for",
            "    facts_[static_cast<std::size_t>(parent)] |= kHasTails;",
            "    ;",
        ),
        (
            "nothing_in_use_frees_a_window",
            "      if (is_idle(cached(g, a))) return true;\n",
            "      break;\n",
        ),
        (
            "one_boundary_of_a_lost_part_ends",
            "  while (is_needed(g, n)) {\n",
            "  if (is_needed(g, n)) {\n",
        ),
        (
            "a_boundary_that_is_gone_was_passed",
            "  clear_passed(n);\n  drop_states",
            "  drop_states",
        ),
        (
            "the_shallowest_of_a_path_goes_first",
            "follows ? parent : nodes_.count + pool_.partition_of(n));\n",
            "nodes_.count + pool_.partition_of(n));\n  (void)follows;\n",
        ),
        (
            "of_a_commit_the_shallowest_goes_first",
            "    ring::insert_before(passed_.data(), n, nodes[i - 1]);\n",
            "    ring::insert_before(passed_.data(), n, nodes_.count + pool_.partition_of(n));\n",
        ),
        (
            "a_passed_boundary_reads_its_own_unit",
            "    if (any_reads(end, unit(n))) near(n) = end;\n",
            "    near(n) = end;\n",
        ),
        (
            "evicts_more_boundaries_than_it_must",
            "missing / (1 + num_groups()), 1, ends.size()",
            "missing, 1, ends.size()",
        ),
        (
            "a_path_goes_with_what_branches_off",
            "    if (before != first - 1 || !alone || ",
            "    (void)alone;\n    if (before != first - 1 || ",
        ),
        (
            "a_path_goes_with_the_boundary_before_it",
            " || !nodes_.idle(before) || is_boundary(before)) break;\n",
            " || !nodes_.idle(before)) break;\n",
        ),
        (
            "a_path_goes_with_what_is_used",
            " || !nodes_.idle(before) || is_boundary(before)) break;\n",
            " || is_boundary(before)) break;\n",
        ),
        (
            "tells_of_a_state_before_its_copy",
            "  if (!is_untold(m) || is_being_kept(m)) return;\n",
            "  if (!is_untold(m)) return;\n",
        ),
        (
            "a_part_goes_without_a_word",
            "  if (index_.log() && !knows_like(m)) index_.log_part_removed(",
            "  if (false && !knows_like(m)) index_.log_part_removed(",
        ),
        (
            "tells_of_parts_with_one_digest_twice",
            "         return other != n && part(g, other) >= 0 && is_told(part(g, other));\n",
            "         return false && other != n && part(g, other) >= 0;\n",
        ),
        (
            "tells_of_parts_as_of_the_first_group",
            "index_.log_part_stored(node_of(m), group_of(m));\n",
            "index_.log_part_stored(node_of(m), 0);\n",
        ),
        (
            "levels_do_not_count_behind_running_sequences",
            "    if (pool_.partition(partition).retention && evict_used_below(partition)) ",
            "    if (false && evict_used_below(partition)) ",
        ),
    ),
    *bugs_in(
        "places/group_places.h",
        (
            "prunes_boundaries",
            "return is_boundary(n) || nodes_[n].first_child >= 0;",
            "return nodes_[n].first_child >= 0;",
        ),
        (
            "prunes_what_continues",
            "return is_boundary(n) || nodes_[n].first_child >= 0;",
            "return is_boundary(n);",
        ),
    ),
    *bugs_in(
        "places/pool.cc",
        (
            "nothing_looks_whether_a_boundary_needs_it",
            "  if (groups_) groups_->before_unused(b);\n",
            "",
        ),
        (
            "groups_are_not_told_of_what_goes",
            "  if (groups_) groups_->on_uncached(b);\n",
            "",
        ),
        (
            "a_run_that_ends_at_no_boundary_stays",
            "    if (groups_ && !groups_->stays(end)) [[unlikely]] break;\n",
            "",
        ),
        (
            "a_run_that_comes_out_of_use_stays_listed",
            "groups_ && i < last; ++i) groups_->on_idle(table[i]);\n",
            "groups_ && i < first; ++i) groups_->on_idle(table[i]);\n",
        ),
        (
            "a_part_goes_with_one_that_a_step_reads",
            "    } while (++i < count && parts[i] == n && !nodes_[n].fence);\n",
            "    } while (++i < count && parts[i] == n);\n",
        ),
        (
            "of_parts_that_go_together_one_is_counted",
            "    own.num_kept -= last - n;\n",
            "    --own.num_kept;\n",
        ),
    ),
    *bugs_in(
        "places/pool.h",
        (
            "puts_by_a_part_that_a_step_reads",
            "  bool keeps_parts() const { return !open_fence_ && !debug_; }\n",
            "  bool keeps_parts() const { return !debug_; }\n",
        ),
        (
            "takes_a_part_from_no_queue",
            "    if (nodes_.used(m) || nodes_[m].fence) return acquire(m);\n",
            "    if (nodes_.used(m)) return acquire(m);\n",
        ),
        (
            "keeps_parts_that_no_share_counts",
            "    if (partitions_) num_queued_ += count;\n",
            "",
        ),
    ),
    *bugs_in(
        "identity/node_ids.h",
        (
            "forgets_which_ids_begin_a_run",
            "      if (free_.word(i >> 6) == whole(i >> 6)) empty_.insert(i >> 6);\n      first",
            "      first",
        ),
    ),
)
