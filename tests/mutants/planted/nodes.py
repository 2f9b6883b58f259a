"""Nodes and their blocks, events, shares and runs, arrays that callers read."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

NODES = (
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
        "  if (idles_unheard_ || open_fence_ || !last) return count;\n",
        "  if (idles_unheard_ || !last) return count;\n",
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
)
