"""Groups of layers: ours compared with itself, with a wrong side, and with vLLM."""

from __future__ import annotations

import pytest

from tests.differential.hybrid import GROUPS, VERDICTS, Ours, Request, Stream, Unexplained

POOL = 400


class Boastful(Ours):
    """Reports one token more than it found, if that is still less than the prompt."""

    def admit(self, request: Request, target: int) -> int | None:
        found = super().admit(request, target)
        return found + 1 if found and found + 1 < len(request.tokens) else found


@pytest.mark.parametrize("name", GROUPS)
def test_two_of_ours_find_the_same(name: str) -> None:
    for seed in range(3):
        groups = GROUPS[name]
        stream = Stream(seed, groups, Ours(groups, POOL, 1), Ours(groups, POOL, 1))
        stream.run(300)
        assert not stream.differences.keys() - {"equal", "refused by both"}
        assert stream.tokens["ours"]


@pytest.mark.parametrize("name", ["state", "window and state"])
def test_a_side_that_claims_more_than_there_is_has_no_excuse(name: str) -> None:
    groups = GROUPS[name]
    streams = [
        Stream(0, groups, Ours(groups, POOL, 0), Boastful(groups, POOL, 0)),
        Stream(0, groups, Boastful(groups, POOL, 0), Ours(groups, POOL, 0)),
    ]
    for stream in streams:
        with pytest.raises(Unexplained):
            stream.run(900)


@pytest.mark.parametrize("num_blocks", [4000, 90])
@pytest.mark.parametrize("name", GROUPS)
def test_each_difference_to_vllm_has_a_reason(name: str, num_blocks: int) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: see tests/differential/README.md")
    from tests.differential.hybrid_vllm import SETTINGS, Theirs

    groups = GROUPS[name]
    for setting in SETTINGS:
        for seed in range(2):
            ours, theirs = Ours(groups, num_blocks, seed % 2), Theirs(groups, num_blocks, setting)
            stream = Stream(seed, groups, ours, theirs)
            stream.run(200)
            assert stream.differences.keys() <= {*VERDICTS, "equal", "refused by both"}
            assert stream.differences["equal"]
