"""Bugs of the bindings and of replays: each takes a whole build."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

EXTENSION = (
    Mutant(
        "a_key_has_its_place_without_the_secret",
        "fleet/worker_table.h",
        "    key = (key ^ secret_[0]) * secret_[1];\n",
        "    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> shift_);\n",
        ("tests/unit/test_worker_index.py",),
    ),
    Mutant(
        "buckets_without_a_secret",
        "memory/buckets.cc",
        "secret_(drawn_secret() | 1)",
        "secret_(0x9e3779b97f4a7c15u)",
        ("tests/unit/test_digest.py",),
    ),
    Mutant(
        "tags_without_a_secret",
        "memory/tag_table.h",
        "factor_(static_cast<std::uint32_t>(drawn_secret()) | 1)",
        "factor_(0x7f4a7c15u)",
        ("tests/unit/test_digest.py",),
    ),
    Mutant(
        "a_clearing_leaves_entries_without_workers",
        "fleet/worker_table.cc",
        "      --held;\n      if (is_empty(i)) erase(i);\n",
        "      --held;\n",
        ("tests/unit/test_worker_index.py",),
    ),
    Mutant(
        "forgets_in_the_order_of_nodes",
        "sequences/prefixes.cc",
        "  for (std::int32_t block = 0; block < nodes_.num_blocks; ++block)\n"
        "    for (NodeId n = nodes_.owner(block);\n",
        "  for (std::int32_t block = 0; block < nodes_.count; ++block)\n"
        "    for (NodeId n = block;\n",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "names_four_nodes_when_two_are_neighbours",
        "memory/node.h",
        "      if (pairs[0] == first && pairs[1] == first + 0x200000002u) {\n",
        "      if (pairs[0] == first) {\n",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "forgets_the_generation_of_a_free_block",
        "places/pool.cc",
        "    (*generations_)[static_cast<std::size_t>(number(b))] = nodes_[n].generation;\n",
        "    (*generations_)[static_cast<std::size_t>(number(b))] = 0;\n",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "logs_a_remap_to_nodes",
        "sequences/promotion.cc",
        "{handle_of(index), i, kNoNode, nodes_.name(table_at(index)[i])}",
        "{handle_of(index), i, kNoNode, table_at(index)[i]}",
        ("tests/unit/test_nodes.py",),
    ),
    Mutant(
        "two_shares_number_their_pins_alike",
        "sequences/store.cc",
        "      first_pin += pins;\n",
        "",
        ("tests/unit/test_shares.py",),
    ),
    Mutant(
        "takes_a_twin_for_written",
        "sequences/promotion.cc",
        "    note_unwritten(*promotion.sequence, logical, own);  // the key may pass",
        (
            "    if (nodes_[own].keyed())\n"
            "      note_unwritten(*promotion.sequence, logical, own);  // the key may pass"
        ),
        ("tests/unit/test_steps.py",),
    ),
    Mutant(
        "forgets_what_the_named_blocks_spoil_and_no_more",
        "sequences/forgetting.cc",
        "more |= forget_table(s, wrong, forgotten);",
        "forget_table(s, wrong, forgotten);",
        ("tests/unit/test_blocks_by_id.py",),
    ),
    Mutant(
        "waits_in_a_fork_for_who_is_not_there",
        "sequences/monitor.cc",
        "  lost_ = true;\n",
        "  lost_ = false;\n",
        ("tests/unit/test_forks_of_the_process.py",),
    ),
    Mutant(
        "takes_every_monitor_for_lost",
        "sequences/monitor.cc",
        "  if (mutex_.try_lock()) {\n    mutex_.unlock();\n    return;\n  }\n",
        "",
        ("tests/unit/test_forks_of_the_process.py",),
    ),
    Mutant(
        "does_not_look_at_signals",
        "bindings/module.cc",
        "if (may_be_interrupted && in_python(",
        "if (false && may_be_interrupted && in_python(",
        ("tests/unit/test_forks_of_the_process.py",),
    ),
    Mutant(
        "reads_tokens_in_place_while_python_runs",
        "bindings/ints.cc",
        "  if (inside_ == Inside::kNative && from.item_bytes",
        "  if (from.item_bytes",
        ("tests/arguments/test_inside.py",),
    ),
    Mutant(
        "lets_the_end_of_the_interpreter_unwind_a_policy",
        "bindings/policy.cc",
        "    in_python(call);\n",
        "    call();\n",
        ("tests/unit/test_exits.py",),
    ),
    Mutant(
        "waits_for_a_thread_that_has_ended",
        "bindings/module.cc",
        "  return answer.is(Py_True) ? Monitor::Turn::kNever",
        "  return false ? Monitor::Turn::kNever",
        ("tests/unit/test_exits.py",),
    ),
    Mutant(
        "reads_no_numbers_after_the_last_four",
        "bindings/ints.cc",
        "  while (i < count && read(i)) ++i;\n  return i == count;\n",
        "  return true;\n",
        ("tests/unit/test_growth.py",),
    ),
    Mutant(
        "lets_a_subclass_of_list_yield_its_items",
        "bindings/ints.cc",
        "  if (is_exact && read_exact(sequence, size_, count, out_)) return;\n",
        "  if (read_exact(sequence, size_, count, out_)) return;\n",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "reads_items_off_a_list_that_may_change",
        "bindings/ints.cc",
        "    PyObject* item = is_list ? PyList_GetItem(items.ptr(), i) :",
        "    PyObject* item = is_list ? PyList_GetItem(sequence, i) :",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "stops_at_the_length_that_a_sequence_says",
        "bindings/ints.cc",
        "  if (count == size_ && next().is_valid())",
        "  if (false)",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "takes_an_interrupt_for_a_missing_attribute",
        "bindings/ints.cc",
        "  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();\n",
        "",
        ("tests/arguments/test_containers.py",),
    ),
    Mutant(
        "reads_a_prompt_before_it_looks_at_its_length",
        "bindings/module.cc",
        (
            "  if (values.size() > self.core.fits_anyway())\n"
            "    self.read([&](const Sequences& core) { core.check_admission("
        ),
        "  if (false)\n    self.read([&](const Sequences& core) { core.check_admission(",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "keeps_the_room_that_one_long_list_took",
        "bindings/bindings.h",
        "    if (numbers_.capacity() <= static_cast<std::size_t>(most_)) numbers_.swap(home_);\n",
        "    numbers_.swap(home_);\n",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "looks_up_all_of_a_prompt",
        "bindings/module.cc",
        "  return with_tokens(prompt, tokens, self.most_matched());\n",
        "  return with_tokens(prompt, tokens);\n",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "makes_children_before_it_counts_rows",
        "bindings/module.cc",
        "  if (count != 1) self.read(",
        "  if (count < 1) self.read(",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "packs_copies_from_before_the_first",
        "bindings/copies.cc",
        "  if (first < 0 || first > self.lists.size())\n",
        "  if (first > self.lists.size())\n",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "packs_copies_into_no_rows",
        "bindings/copies.cc",
        "view_.shape[1] == 3 && view_.shape[0] > 0)",
        "view_.shape[1] == 3)",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "takes_any_number_for_a_level",
        "bindings/shares.cc",
        "  if (level < kNoLevel || level > kHigh)\n",
        "  if (level < kNoLevel)\n",
    ),
    Mutant(
        "has_more_steps_than_queues",
        "bindings/shares.cc",
        '  check_bounds("steps_in_flight", config.steps_in_flight, 0, kMaxStepsInFlight);\n',
        "",
        ("tests/arguments/test_meddling.py",),
    ),
    Mutant(
        "takes_every_array_for_one_in_order",
        "bindings/numpy.cc",
        "!PyTypeNum_ISINTEGER(type) || !PyArray_ISCARRAY_RO(array)",
        "!PyTypeNum_ISINTEGER(type)",
        ("tests/unit/test_bad_input.py",),
    ),
    Mutant(
        "a_copy_overwrites_what_another_has_to_read",
        "sequences/copy_order.cc",
        "  for (const std::int32_t x : order) add(group[at(x)], root[at(x)], x);\n",
        (
            "  for (auto x = order.rbegin(); x != order.rend(); ++x)\n"
            "    add(group[at(*x)], root[at(*x)], *x);\n"
        ),
        ("tests/kv/test_copy_order.py",),
    ),
    # Replays by ids.
    Mutant(
        "gives_outputs_the_names_of_prompts",
        "replays/id_trace.cc",
        "    first_own_.push_back(num_names_);\n",
        "    first_own_.push_back(0);\n",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "caches_the_part_of_a_block_by_ids",
        "replays/id_replay.cc",
        "  core_.commit(handle, r.num_cached);\n",
        "  core_.commit(handle, prompt.num_tokens);\n",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "remembers_all_names_by_one_digest",
        "replays/id_replay.cc",
        "digests_.data() + *tokens * size, size",
        "digests_.data(), size",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "digests_outputs_as_those_of_the_request_before",
        "replays/id_trace.cc",
        "static_cast<Token>((r + 1) % kOutputToken)",
        "static_cast<Token>(r % kOutputToken)",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "digests_the_words_of_wide_ids_in_another_order",
        "replays/id_trace.cc",
        "static_cast<int>(i % words_) * kWordBits",
        "static_cast<int>((i + 1) % words_) * kWordBits",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "admits_by_ids_before_all_have_ended",
        "replays/id_replay.cc",
        "    while (!running_.empty() && std::get<0>(running_.top()) == instant) {\n",
        "    if (!running_.empty() && std::get<0>(running_.top()) == instant) {\n",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "goes_on_with_a_run_behind_a_cut",
        "replays/id_trace.cc",
        " && !ends_whole[parent]",
        "",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "goes_on_with_a_run_at_a_fork",
        "replays/id_trace.cc",
        " && !segments_[parent].forks",
        "",
        ("tests/lab/test_by_ids.py",),
    ),
    Mutant(
        "evicts_the_nearest_of_the_optimum",
        "replays/future.cc",
        "order.push({next_uses[at], runs_.end[run], -paths_[at]});",
        "order.push({-next_uses[at], runs_.end[run], -paths_[at]});",
        ("tests/lab/test_optimum.py",),
    ),
    # The curve of LRU.
    Mutant(
        "forgets_what_releases_have_met_when_one_changes",
        "replays/release_stack.cc",
        "    entry.largest = std::max(entry.largest, entry.above + pending.recorded);\n",
        "",
        ("tests/lab/test_curve.py",),
    ),
    Mutant(
        "leaves_blocks_in_use_on_the_stack",
        "replays/stack_pass.cc",
        "    if (before != kAbsent) stack_.remove(before, length);\n",
        "",
        ("tests/lab/test_curve.py",),
    ),
    Mutant(
        "asks_for_the_blocks_of_samples_one_by_one",
        "replays/stack_pass.cc",
        "  if (request.num_samples > 1) note_peak(request.held_blocks - served);\n",
        "",
        ("tests/lab/test_curve.py",),
    ),
)
