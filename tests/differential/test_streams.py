"""The same requests give the same numbers with ours and with another system's manager."""

from __future__ import annotations

import pytest

from tests.differential.stream import Ours, Stream

SEEDS = range(6)


class Misled(Ours):
    """Reports one available block too many, once the pool has been full."""

    full = False

    def available(self) -> int:
        honest = super().available()
        self.full |= honest == 0
        return honest + self.full


class Forgetful(Ours):
    """Finds one block too few of a long prompt."""

    def admit(self, name: int, tokens: list[int], chunk: int) -> int | None:
        found = super().admit(name, tokens, chunk)
        return found and max(0, found - 4)


@pytest.mark.parametrize("twins", [False, True])
def test_two_of_ours_agree(twins: bool) -> None:
    for seed in SEEDS:
        stream = Stream(seed, Ours(17), Ours(17), twins)
        assert stream.run(400), stream.steps
        assert stream.steps["refused"]
        assert stream.steps["hit tokens"]


@pytest.mark.parametrize("wrong", [Misled, Forgetful])
def test_a_side_that_is_wrong_is_found(wrong: type[Ours]) -> None:
    assert not all(Stream(seed, Ours(17), wrong(17), twins=False).run(400) for seed in SEEDS)


@pytest.mark.parametrize("twins", [False, True])
@pytest.mark.parametrize("num_blocks", [17, 40, 120])
def test_vllm_agrees(num_blocks: int, twins: bool) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: see tests/differential/README.md")
    from tests.differential.vllm_side import Vllm

    for seed in SEEDS:
        stream = Stream(seed, Ours(num_blocks), Vllm(num_blocks), twins)
        assert stream.run(600), (seed, stream.steps)
        if not twins:
            assert stream.steps["ended by twins"] == 0
