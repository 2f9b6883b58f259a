"""Refusals name the segment or the pair, come before a launch, and move no byte."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from blockmgr import BlockManager, CopyError, LayoutError, MissingExtraError, TicketError
from blockmgr.kv import KVBlocks, Segment, copy, segments_from
from tests.kv.pools import BLOCKS, TOKENS, World, fresh, plan_of


def tensor(*shape: int) -> torch.Tensor:
    return fresh(np.random.default_rng(0), shape or (BLOCKS, TOKENS, 2, 8), torch.float16)


def register(**options: Any) -> KVBlocks:
    return KVBlocks(segments_from(tensor(), layout="NHD"), **{"block_size": TOKENS, **options})


@pytest.mark.parametrize(
    ("copies", "pair", "problem"),
    [
        ([(0, 1, 2), (BLOCKS, 2, 2)], 1, rf"source must be in \[0, {BLOCKS}\), got {BLOCKS}"),
        ([(0, 1, 2), (-1, 2, 2)], 1, "got -1"),
        ([(0, 1, 2), (2, BLOCKS, 2)], 1, f"destination must be .* got {BLOCKS}"),
        ([(0, 1, 2), (0, 1, 2)], 1, "destination 1 is the destination of pair 0 too"),
        ([(0, 1, 2), (1, 2, 2)], 1, "source 1 is the destination of pair 0"),
        ([(0, 1, TOKENS + 1)], 0, r"num_tokens must be in \[1, 4\], got 5"),
        ([(0, 1, 0)], 0, "num_tokens .* got 0"),
    ],
)
def test_a_plan_that_must_not_run(
    copies: list[tuple[int, int, int]], pair: int, problem: str, backend: str
) -> None:
    world = World("NHD", backend)
    plan = plan_of(*copies)
    buffer = world.blocks.pair_buffer(4)
    buffer.fill(plan_of((3, 4, 1)))
    held = buffer._rows.clone()
    for refuse in (world.blocks.copy, world.blocks.copy, buffer.fill):
        with world.unchanged(CopyError, problem, pair):  # not a TicketError the second time
            refuse(plan)
    assert torch.equal(buffer._rows, held)


def test_a_plan_is_copied_once(backend: str) -> None:
    world = World("NHD", backend)
    plan = plan_of((0, 1, 2), ticket=17)
    world.expect(0, 1, 2)
    world.blocks.copy(plan)
    buffer = world.blocks.pair_buffer(1)
    for again in (world.blocks.copy, buffer.fill):
        with world.unchanged(TicketError, "ticket 17 has been copied already"):
            again(plan)
    filled = plan_of((0, 2, 2), ticket=18)
    buffer.fill(filled)
    with world.unchanged(TicketError, "ticket 18"):
        world.blocks.copy(filled)
    same_ticket = plan_of((0, 3, 1), ticket=17)  # for example of another manager
    world.expect(0, 3, 1)
    world.blocks.copy(same_ticket)
    world.check()


def test_an_empty_plan_counts_as_copied() -> None:
    world = World("NHD", "torch")
    manager = BlockManager(BLOCKS, TOKENS)
    plan = manager.take_copies()
    world.blocks.copy(plan)
    world.check()
    with world.unchanged(TicketError, "copied already"):
        world.blocks.copy(plan)


def test_plans_are_not_kept_alive() -> None:
    world = World("NHD", "torch")
    for ticket in range(100):
        world.blocks.copy(plan_of((0, 1, 1), ticket=ticket))
    assert len(world.blocks._done) <= 1


def test_a_failed_launch_leaves_the_plan_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    world = World("NHD", backend)
    plan = plan_of((0, 1, 2))

    def fail(*_: object) -> None:
        raise RuntimeError("out of resources")

    with monkeypatch.context() as patch:
        patch.setattr(world.blocks._copier, "launch", fail)
        with world.unchanged(RuntimeError, "out of resources"):
            world.blocks.copy(plan)
    world.expect(0, 1, 2)
    world.blocks.copy(plan)
    world.check()


@pytest.mark.parametrize("wrong", [None, [(0, 1, 2)], "plan"])
def test_only_plans_are_plans(wrong: Any) -> None:
    world = World("NHD", "torch")
    for call in (world.blocks.copy, world.blocks.pair_buffer(1).fill):
        with world.unchanged(TypeError, "plan must be a CopyPlan, got"):
            call(wrong)


def test_pairs_that_are_no_pairs() -> None:
    world = World("NHD", "torch")
    other = World("NHD", "torch", 1).blocks
    for call in (world.blocks.copy_blocks, lambda p: world.blocks.copy_to(other, p)):
        with world.unchanged(TypeError, r"pairs\[0\] must be ints, got float"):
            call([(0.0, 1.0)])
        with world.unchanged(TypeError, "pairs must hold whole numbers, got bool"):
            call(np.ones((1, 2), bool))
        with world.unchanged(TypeError, r"pairs\[0\] must be a list, .* got int"):
            call([0, 1])
        with world.unchanged(ValueError, r"pairs must have 2 axes, got shape \(2,\)"):
            call(np.array([0, 1]))
        with world.unchanged(ValueError, r"pairs must have rows of one length, got \[2, 1\]"):
            call([(0, 1), (2,)])
        with world.unchanged(ValueError, r"pairs must have 2 columns, got shape \(1, 3\)"):
            call([(0, 1, 2)])
        with world.unchanged(CopyError, "pair 1: destination must be", pair=1):
            call([(0, 1), (0, 99)])
        call([])
        call(np.zeros((0, 2), np.int32))
        world.check()
    with world.unchanged(ValueError, "semantics must be 'sequential' or 'simultaneous', got 'any'"):
        world.blocks.copy_blocks([(0, 1)], semantics="any")  # type: ignore[arg-type]
    with world.unchanged(CopyError, "destination 1 is the destination of pair 0 too", pair=1):
        world.blocks.copy_blocks([(0, 1), (2, 1)], semantics="simultaneous")


def test_blocks_that_are_no_blocks() -> None:
    world = World("NHD", "torch")
    with world.unchanged(CopyError, rf"block must be in \[0, {BLOCKS}\), got -1", pair=2):
        world.blocks.zero([0, 1, -1])
    with world.unchanged(TypeError, "blocks must be ints, got float"):
        world.blocks.zero([0.5])
    with world.unchanged(TypeError, "blocks must be ints, got list at index 0"):
        world.blocks.zero([[0]])
    world.blocks.zero([])
    world.check()


def test_pools_that_do_not_match() -> None:
    world = World("NHD", "torch")
    for other, problem in (
        ("fused", "is one of 2 segments, the other pool has 2|has (num_rows|row_bytes)"),
        ("MLA", "is one of 1 segments, the other pool has 2"),
        ("HND", "has num_rows 3, .* of the other pool 1"),
    ):
        with world.unchanged(LayoutError, problem):
            world.blocks.copy_to(World(other, "torch").blocks, [(0, 1)])
    with world.unchanged(LayoutError, "register both with access_bytes=8"):
        world.blocks.copy_to(World("NHD", "torch", access_bytes=8).blocks, [(0, 1)])
    with world.unchanged(ValueError, "copy_blocks copies within one"):
        world.blocks.copy_to(world.blocks, [(0, 1)])
    with world.unchanged(TypeError, "other must be KVBlocks, got list"):
        world.blocks.copy_to([], [(0, 1)])  # type: ignore[arg-type]
    twin = World("NHD", "torch", 5)
    with world.unchanged(CopyError, "destination 1 is the destination of pair 0 too", pair=1):
        world.blocks.copy_to(twin.blocks, [(0, 1), (2, 1)])
    twin.check()


def test_lists_on_the_device_that_no_kernel_can_read(backend: str) -> None:
    world = World("NHD", backend, max_pairs=3)
    call = world.blocks.copy_pairs
    good = torch.tensor([(0, 1, 1)], dtype=torch.int32)
    with world.unchanged(ValueError, r"pairs must be int32 of shape \(1, 3\), got torch.int64"):
        call(good.long())
    with world.unchanged(ValueError, r"pairs must be int32 of shape \(1, 3\), .* of \(1, 2\)"):
        call(good[:, :2])
    with world.unchanged(ValueError, "pairs must be at most 3, got 4"):
        call(good.repeat(4, 1))
    with world.unchanged(ValueError, "pairs must be contiguous on cpu"):
        call(good.repeat(3, 1).T.contiguous().T)
    with world.unchanged(ValueError, r"count must be int32 of shape \(1,\)"):
        call(good, torch.tensor(1, dtype=torch.int32))
    with world.unchanged(ValueError, r"pairs must be int32 of shape \(0, 3\), .* of \(\)"):
        call(good[0, 0])
    for no_tensor in ([(0, 1, 1)], good.numpy(), None):
        with world.unchanged(TypeError, "pairs must be a torch.Tensor, got "):
            call(no_tensor)
    with world.unchanged(TypeError, "count must be a torch.Tensor, got int"):
        call(good, 1)
    with world.unchanged(ValueError, "pairs must be contiguous on cpu, got one on meta"):
        call(good.to("meta"))


def test_buffers() -> None:
    world = World("NHD", "torch", max_pairs=3)
    for wrong in (0, 4):
        with world.unchanged(ValueError, rf"max_pairs must be in \[1, 3\], got {wrong}"):
            world.blocks.pair_buffer(wrong)
    with world.unchanged(TypeError, "max_pairs must be an int, got 1.0"):
        world.blocks.pair_buffer(1.0)  # type: ignore[arg-type]
    buffer = world.blocks.pair_buffer(1)
    long = plan_of((0, 1, 1), (0, 2, 1))
    with world.unchanged(CopyError, "the plan has 2 pairs, the buffer holds 1"):
        buffer.fill(long)
    for no_buffer in (3, None, buffer.pairs):
        with world.unchanged(TypeError, "buffer must be a PairBuffer, got "):
            world.blocks.copy_buffer(no_buffer)  # type: ignore[arg-type]
    with world.unchanged(ValueError, "must come from pair_buffer"):
        World("NHD", "torch").blocks.copy_buffer(buffer)
    for one in ((0, 1, 1), (0, 2, 1)):
        world.expect(*one)
    world.blocks.copy(long)
    world.check()


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"block_size": 3}, LayoutError, "segment 'kv': a row of .* block_size is 3"),
        ({"block_size": 0}, ValueError, "block_size must be at least 1, got 0"),
        ({"block_size": 4.0}, TypeError, "block_size must be an int"),
        ({"max_pairs": 0}, ValueError, "max_pairs must be in .* got 0"),
        ({"max_pairs": True}, TypeError, "max_pairs must be an int, got True"),
        ({"access_bytes": 32}, ValueError, "access_bytes must be one of .* got 32"),
        ({"access_bytes": True}, TypeError, "access_bytes must be an int, got True"),
        ({"backend": "cuda"}, ValueError, "backend must be 'torch', 'triton' or None, got 'cuda'"),
    ],
)
def test_options_out_of_range(
    options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem) as caught:
        register(**options)
    assert type(caught.value) is error


@pytest.mark.parametrize("segments", [None, 3, iter(())])
def test_segments_that_are_no_sequence(segments: Any) -> None:
    with pytest.raises(TypeError, match="segments must be a sequence, got "):
        KVBlocks(segments, block_size=TOKENS)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("longer_first", [False, True])
def test_storages_that_begin_alike_may_end_elsewhere(backend: Any, longer_first: bool) -> None:
    """An engine may create several tensors on one buffer, each with its own storage object."""
    buffer = np.arange(2 * BLOCKS * TOKENS * 8, dtype=np.float32)
    half = len(buffer) // 2
    first = torch.from_numpy(buffer[:half]).view(BLOCKS, TOKENS, 1, 8)
    whole = torch.from_numpy(buffer)
    assert first.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    second = whole[half:].view(BLOCKS, TOKENS, 1, 8)
    named = [("first", first), ("second", second)]
    segments = [
        segment
        for name, each in (named[::-1] if longer_first else named)
        for segment in segments_from(each, layout="NHD", name=name)
    ]
    before = buffer.copy().reshape(2, BLOCKS, -1)
    blocks = KVBlocks(segments, block_size=TOKENS, backend=backend)
    blocks.copy(plan_of((0, 2, TOKENS)))
    before[:, 2] = before[:, 0]
    assert (buffer.reshape(before.shape) == before).all()
    rows = torch.tensor([[1, 0, TOKENS]], dtype=torch.int32)
    blocks.copy_pairs(rows)
    before[:, 0] = before[:, 1]
    assert (buffer.reshape(before.shape) == before).all()


def test_a_demand_for_wider_accesses_names_the_segment_that_does_not_allow_them() -> None:
    segments = segments_from(tensor(), layout="NHD", name="wide")
    segments += segments_from(tensor(BLOCKS, TOKENS, 1, 3), layout="NHD", name="narrow")
    with pytest.raises(
        LayoutError, match="allows accesses of 8 bytes, access_bytes is 16"
    ) as caught:
        KVBlocks(segments, block_size=TOKENS, access_bytes=16)
    assert caught.value.segment == "narrow"
    assert KVBlocks(segments, block_size=TOKENS).access_bytes == 8


def test_tokens_narrower_than_rows_narrow_the_accesses() -> None:
    narrow = Segment(
        name="narrow",
        tensor=tensor(),
        block_stride=64,
        num_rows=1,
        row_stride=16,
        row_bytes=16,
        num_blocks=3,
        token_bytes=4,
    )
    assert KVBlocks([narrow], block_size=TOKENS).access_bytes == 4


def test_segments_that_do_not_belong_together() -> None:
    ours = segments_from(tensor(), layout="NHD", name="ours")
    for other, problem in (
        (tensor(BLOCKS + 1, TOKENS, 2, 8), f"has {BLOCKS + 1} blocks, 'ours' has {BLOCKS}"),
        (tensor(BLOCKS, TOKENS + 1, 2, 8), "holds 5 tokens"),
    ):
        with pytest.raises(LayoutError, match=problem) as caught:
            KVBlocks([*ours, *segments_from(other, layout="NHD", name="other")], block_size=TOKENS)
        assert caught.value.segment == "other"
    moved = ours[0].tensor.view(-1)[16:].as_strided((BLOCKS - 1, TOKENS, 2, 8), (64, 16, 8, 1))
    overlapping = segments_from(moved, layout="NHD", name="moved")
    first = segments_from(ours[0].tensor[:-1], layout="NHD", name="first")
    with pytest.raises(LayoutError, match="shares some but not all of its bytes") as caught:
        KVBlocks([*first, *overlapping], block_size=TOKENS)
    assert {caught.value.segment} <= {"moved", "first"}
    with pytest.raises(ValueError, match="segments must not be empty"):
        KVBlocks([], block_size=TOKENS)
    with pytest.raises(TypeError, match="segments must be Segment objects"):
        KVBlocks([tensor()], block_size=TOKENS)  # type: ignore[list-item]


def test_a_base_that_is_not_aligned_is_a_segment_that_cannot_be_made() -> None:
    with pytest.raises(LayoutError, match="not aligned") as caught:
        Segment(
            name="askew",
            tensor=tensor(),
            offset=1,
            block_stride=128,
            num_rows=1,
            row_stride=128,
            row_bytes=32,
            num_blocks=2,
        )
    assert caught.value.segment == "askew"


def test_triton_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"backend 'triton' needs an extra; .*\[torch\]"):
        register(backend="triton")
    assert register().backend == "torch"


def test_on_a_cpu_the_kernels_are_compiled_for_nothing() -> None:
    """Uses a separate process, because the choice is made when the kernels are imported."""
    pytest.importorskip("triton", reason="needs triton")
    code = (
        "import torch\n"
        "from blockmgr.kv import KVBlocks, segments_from\n"
        "s = segments_from(torch.zeros(2, 4, 1, 8), layout='NHD')\n"
        "assert KVBlocks(s, block_size=4).backend == 'torch'\n"
        "KVBlocks(s, block_size=4, backend='triton')\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    message = "ValueError: backend 'triton' on cpu needs TRITON_INTERPRET set to 1"
    assert message in done.stderr.splitlines()[-1]


def test_without_torch_the_extra_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import blockmgr\n"
        "try:\n"
        "    import blockmgr.kv\n"
        "except blockmgr.MissingExtraError as error:\n"
        "    print(error.extra, '|', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("torch | blockmgr.kv needs an extra")
