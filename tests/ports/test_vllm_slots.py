"""Where the state of a request with draft tokens is, in the port for vLLM."""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockmgr.ports.vllm.slots import Slots, WholeState


class Worker:
    """What vLLM's worker writes: by column, the tokens of the whole state that is there."""

    def __init__(self, size: int, drafts: int, found: int, slots: Slots) -> None:
        self.size, self.drafts, self.slots = size, drafts, slots
        self.computed = found
        self.whole: dict[int, int] = {slots.slot_of(max(0, found - 1) // size): found}

    def run(self, num_tokens: int, num_drafts: int, num_right: int) -> None:
        """A step over this many tokens, of whose drafts the first ones are right."""
        stop = self.computed + num_tokens
        column, least = (stop - 1) // self.size, stop - num_drafts
        self.computed = least + num_right
        for each in range(column, column + num_drafts + 1):
            self.whole[self.slots.slot_of(each)] = -1
        self.whole[self.slots.slot_of(column)] = least
        end = self.computed - self.computed % self.size
        if end >= least:
            self.whole[self.slots.slot_of(end // self.size - 1)] = end


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize("seed", range(40))
def test_the_slot_that_is_named_has_the_whole_state(seed: int, in_flight: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(2, 9)
    drafts = rng.randint(1, size - 1)
    found = rng.choice([0, 3, size, 2 * size + 1])
    slots = Slots.after(found, size, drafts)
    worker, told, waiting, known = Worker(size, drafts, found, slots), found, [], 0
    for number in range(300):
        prefill = number < 3
        num_drafts = 0 if prefill else rng.randint(0, drafts)
        num_tokens = rng.randint(1, 3 * size) if prefill else 1 + num_drafts
        if not number and seed % 2 and found:
            slots.load_in_step(found + num_tokens)
        slots.launch(num_tokens, num_drafts)
        worker.run(num_tokens, num_drafts, rng.randint(0, num_drafts))
        waiting.append(worker.computed)
        if len(waiting) > in_flight:
            told = waiting.pop(0)
        slots.report(told)
        state = slots.known()
        if state is not None:
            known += 1
            assert worker.whole[slots.slot_of(state.column)] == state.num_tokens
            assert state.num_tokens <= worker.computed
    assert known > 20


def test_the_columns_of_a_step_and_the_one_before_have_different_slots() -> None:
    slots = Slots.after(0, 4, 3)
    for column in range(9):
        assert len({slots.slot_of(each) for each in range(column - 1, column + 4)}) == 5
    assert slots.slot_of(0) == 0
    assert Slots.after(9, 4, 3).slot_of(2) == 0  # the column of what was found


def test_a_step_leaves_the_state_before_its_drafts_or_at_the_end_of_a_block() -> None:
    slots = Slots.after(0, 8, 2)
    for num_tokens, num_drafts, right, state in (
        (4, 0, 4, (4, 0)),
        (3, 2, 6, (5, 0)),  # one draft was right
        (3, 2, 9, (8, 0)),  # it passed the end of the block, from column 1
        (3, 2, 10, (10, 1)),
    ):
        slots.launch(num_tokens, num_drafts)
        slots.report(right)
        assert slots.known() == WholeState(*state)


def test_a_request_that_ends_may_have_had_more_right_drafts_than_it_tells() -> None:
    slots = Slots.after(5, 8, 2)
    slots.launch(3, 2)  # up to the end of the block
    slots.report(7)  # both drafts were right, and the request ended before the second
    assert slots.known() is None
    slots.launch(3, 2)  # it did not end
    slots.report(9)
    assert slots.known() == WholeState(8, 0)


def test_a_step_in_flight_may_have_begun_behind_right_drafts_that_are_taken_back() -> None:
    slots = Slots.after(10, 4, 3)
    slots.launch(4, 3)
    slots.launch(4, 3)
    slots.report(12)  # 13 were right, and the next step writes the columns from 4 on
    assert slots.slot_of(7) == slots.slot_of(2)
    assert slots.known() is None


def test_a_step_in_flight_hides_the_state_that_it_overwrites() -> None:
    slots = Slots.after(4, 8, 2)
    slots.launch(3, 2)
    assert slots.known() is None  # both are in column 0
    slots = Slots.after(6, 8, 2)
    slots.launch(3, 2)
    slots.report(9)
    slots.launch(3, 2)
    assert slots.known() == WholeState(8, 0)  # from there, it goes on in column 1
    slots.launch(3, 2)
    assert slots.known() is None


@pytest.mark.parametrize("reported", [[3, 12], [20]])
def test_reports_that_do_not_fit_the_steps_end_what_is_known(reported: list[int]) -> None:
    slots = Slots.after(0, 8, 2)
    slots.launch(2, 0)
    for _ in range(2):
        slots.launch(3, 2)
    for computed in reported:
        slots.report(computed)
    assert slots.known() is None
    slots.report(30)
    assert slots.known() is None


def test_a_late_report_of_an_earlier_life_changes_nothing() -> None:
    slots: Any = Slots.after(4, 8, 2)
    slots.launch(3, 2)
    slots.report(4)
    assert slots.steps == [(3, 2)]
