"""The promises of the Aphrodite port.

A world is built from a seed, as often as needed: a question is asked in one copy, and the action in
question is tried in others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from blockmgr.ports.aphrodite import (
    AllocStatus,
    BlockSpaceManager,
    BlockTable,
    Device,
    NoFreeBlocksError,
)

TOKENS = (1, 2)


class Seq:
    """A sequence whose scheduled tokens are computed."""

    def __init__(self, seq_id: int, tokens: list[int]) -> None:
        self.seq_id = seq_id
        self.tokens = tokens

    def get_token_ids(self) -> list[int]:
        return self.tokens


class Group:
    """A group of one or two sequences."""

    def __init__(self, *seqs: Seq) -> None:
        self.seqs = seqs
        self.state = "waiting"

    def get_seqs(self) -> list[Seq]:
        return list(self.seqs)


class World:
    """A manager that has served some random groups."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.size = rng.randrange(1, 5)
        self.caches = rng.random() < 0.5
        self.manager = BlockSpaceManager(
            self.size,
            rng.randrange(3, 11),
            rng.randrange(7),
            watermark=rng.choice([0, 0, 0.2]),
            enable_caching=self.caches,
        )
        self.lookahead = rng.choice([0, 0, 1, 3])
        self.groups: list[Group] = []
        self.names = iter(range(10**6))
        for _ in range(rng.randrange(2, 14)):
            self.step()
        for group in self.groups:
            if group.state == "running" and rng.random() < 0.4 and self.host_has_room_for(group):
                self.manager.swap_out(group)
                group.state = "swapped"
        self.groups += [self.new_group(), self.new_group()]
        for group in self.groups:  # tokens that were sampled but have no slots yet
            if group.state != "waiting":
                for seq in group.seqs:
                    seq.tokens += rng.choices(TOKENS, k=rng.choice([0, 1, 1, 1, 3]))

    def new_group(self) -> Group:
        tokens = self.rng.choices(TOKENS, k=self.rng.randrange(1, 5 * self.size))
        count = self.rng.choice([1, 1, 2])
        return Group(*(Seq(next(self.names), list(tokens)) for _ in range(count)))

    def step(self) -> None:
        rng, manager = self.rng, self.manager
        group = rng.choice([None, *self.groups])
        try:
            if group is None:
                group = self.new_group()
                manager.allocate(group)
                group.state = "running"
                self.groups.append(group)
                if rng.random() < 0.7:
                    manager.mark_blocks_as_computed(group)
            elif group.state == "running" and rng.random() < 0.6:
                for seq in group.seqs:
                    seq.tokens.append(rng.choice(TOKENS))
                    manager.append_slots(seq)
            elif group.state == "running" and rng.random() < 0.5:
                manager.swap_out(group)
                group.state = "swapped"
            elif group.state == "swapped":
                manager.swap_in(group)
                group.state = "running"
            elif rng.random() < 0.5:
                self.drop(group)
        except (NoFreeBlocksError, ValueError):
            if group in self.groups:  # for example, only one of two sequences grew
                self.drop(group)

    def host_has_room_for(self, group: Group) -> bool:
        most = sum(len(self.manager.get_block_table(seq)) for seq in group.seqs)
        return self.manager.get_num_free_cpu_blocks() >= most

    def drop(self, group: Group) -> None:
        for seq in group.seqs:
            self.manager.free(seq)
        self.groups.remove(group)

    def drop_others(self, group: Group) -> None:
        for other in self.groups[:]:
            if other is not group:
                self.drop(other)

    def append(self, group: Group) -> None:
        for seq in group.seqs:
            self.manager.append_slots(seq, self.lookahead)

    def keeps_watermark(self) -> bool:
        return self.manager.get_num_free_gpu_blocks() >= self.manager.watermark_blocks


def happens(world: World, act: Callable[[], object]) -> bool:
    """Whether the action succeeds."""
    try:
        act()
    except NoFreeBlocksError:
        return False
    world.manager.block_allocator.pool_of(Device.GPU).pool.check_invariants()
    return True


def places(seed: int, state: str) -> Iterator[int]:
    """The groups of a world that are in a state."""
    return (i for i, group in enumerate(World(seed).groups) if group.state == state)


def can_allocate(seed: int) -> Iterator[str]:
    def act(world: World, group: Group) -> None:
        world.manager.allocate(group)
        world.append(group)

    def ask(world: World, group: Group) -> AllocStatus:
        return world.manager.can_allocate(group, world.lookahead)

    for at in places(seed, "waiting"):
        yield from _status(seed, at, ask, act, spares_idle=False)


def can_swap_in(seed: int) -> Iterator[str]:
    def act(world: World, group: Group) -> None:
        world.manager.swap_in(group)
        world.append(group)

    def ask(world: World, group: Group) -> AllocStatus:
        return world.manager.can_swap_in(group, world.lookahead)

    for at in places(seed, "swapped"):
        yield from _status(seed, at, ask, act, spares_idle=True)


def _status(
    seed: int,
    at: int,
    ask: Callable[[World, Group], AllocStatus],
    act: Callable[[World, Group], None],
    *,
    spares_idle: bool,
) -> Iterator[str]:
    world = World(seed)
    group = world.groups[at]
    answer = ask(world, group)
    nobody_runs = not any(g.state == "running" for g in world.groups)
    world = World(seed)
    done = happens(world, lambda: act(world, world.groups[at]))
    kept = world.keeps_watermark() or (spares_idle and nobody_runs)
    if answer == AllocStatus.OK:
        if not (done and kept):
            yield f"group {at} of world {seed}: {answer}, but done={done}, watermark kept={kept}"
        return
    # Deduplication with cached blocks frees blocks, so that it may fit after all.
    if done and kept and not world.caches:
        yield f"group {at} of world {seed}: {answer}, but there is room"
    alone = World(seed)
    alone.drop_others(alone.groups[at])
    later = ask(alone, alone.groups[0])
    if (later == AllocStatus.OK) is not (answer == AllocStatus.LATER):
        yield f"group {at} of world {seed}: {answer}, but {later} once all others are freed"
    alone = World(seed)
    alone.drop_others(alone.groups[at])
    done = happens(alone, lambda: act(alone, alone.groups[0]))
    kept = alone.keeps_watermark() or spares_idle
    if done and kept and answer == AllocStatus.NEVER:
        yield f"group {at} of world {seed}: {answer}, but it fits alone"


def can_append_slots(seed: int) -> Iterator[str]:
    for at in places(seed, "running"):
        world = World(seed)
        answer = world.manager.can_append_slots(world.groups[at], world.lookahead)
        world = World(seed)
        done = happens(world, partial(world.append, world.groups[at]))
        # Deduplication with cached blocks frees blocks, so that it may fit after all.
        if answer is not done and (answer or not world.caches):
            yield f"group {at} of world {seed}: {answer}, but done={done}"


def can_swap_out(seed: int) -> Iterator[str]:
    for at in places(seed, "running"):
        world = World(seed)
        answer = world.manager.can_swap_out(world.groups[at])
        if not world.manager.block_allocator.get_num_total_blocks(Device.CPU):
            if answer:
                yield f"world {seed}: there is no host"
            continue
        world = World(seed)
        done = happens(world, partial(world.manager.swap_out, world.groups[at]))
        if answer is not done:
            yield f"group {at} of world {seed}: {answer}, but done={done}"


def get_num_cached_tokens(seed: int) -> Iterator[str]:
    """Compares with the blocks given to the engine, for waiting and for running sequences."""
    for at, group in enumerate(World(seed).groups):
        if group.state == "swapped":
            continue
        world = World(seed)
        seq = world.groups[at].seqs[0]
        manager = world.manager
        answer = manager.get_num_cached_tokens(seq)
        if group.state == "waiting" and not happens(
            world, partial(manager.allocate, world.groups[at])
        ):
            continue
        if group.state == "running":
            seq.tokens = seq.tokens[: manager.block_tables[seq.seq_id].num_full_slots]
            manager.remove_seq_from_computed_blocks_tracker(seq)
            answer = manager.get_num_cached_tokens(seq)
        computed = manager.get_common_computed_block_ids([seq])
        # A table may end with blocks without tokens; the ids leave out the last block.
        given = min(len(computed), (len(seq.tokens) - 1) // world.size) * world.size
        # Schedulers leave one token of a whole hit to compute themselves.
        is_whole = answer == len(seq.tokens) and given == answer - world.size
        if answer != given and not is_whole:
            yield f"group {at} of world {seed}: {answer} cached tokens, {given} handed out"


def get_num_free_blocks(seed: int) -> Iterator[str]:
    """An uncached sequence of this many blocks fits, and one with a block more does not."""
    for more in (0, 1):
        world = World(seed)
        free = world.manager.get_num_free_gpu_blocks()
        if free + more == 0:
            continue
        lone = Group(Seq(-1, [9] * (world.size * (free + more))))
        if happens(world, partial(world.manager.allocate, lone)) is not (more == 0):
            yield f"world {seed}: {free} free blocks, wrong by one for {free + more}"


def get_num_free_cpu_blocks(seed: int) -> Iterator[str]:
    for more in (0, 1):
        world = World(seed)
        pools = world.manager.block_allocator
        free = world.manager.get_num_free_cpu_blocks()
        taken = [happens(world, partial(pools.allocate_mutable_block, None, Device.CPU))
                 for _ in range(free + more) if pools.get_num_total_blocks(Device.CPU)]  # fmt: skip
        if taken and all(taken) is not (more == 0):
            yield f"world {seed}: {free} free blocks of the host, wrong by one"


def get_num_required_blocks(seed: int) -> Iterator[str]:
    world = World(seed)
    group = world.groups[-1]
    table = BlockTable(world.size, world.manager.block_allocator)
    tokens = [9, *group.seqs[0].tokens]  # a prefix that is not cached
    answer = table.get_num_required_blocks(tokens, world.size)
    before = world.manager.get_num_free_gpu_blocks()
    done = happens(world, lambda: table.allocate(tokens))
    taken = before - world.manager.get_num_free_gpu_blocks()
    if done is not (answer <= before) or (done and taken != answer):
        yield f"world {seed}: {answer} required, done={done}, {taken} taken"


def is_appendable(seed: int) -> Iterator[str]:
    for at in places(seed, "running"):
        world = World(seed)
        table = world.manager.block_tables[world.groups[at].seqs[0].seq_id]
        for block in table.blocks:
            if block.block_id is None:
                continue
            pool = world.manager.block_allocator.pool_of(Device.GPU)
            answer, before = pool.is_appendable(block), block.block_id
            if answer and block.num_empty_slots > 1:
                block.append_token_ids([9])
                if block.block_id != before:
                    yield f"group {at} of world {seed}: block {before} was moved"


PROMISES: dict[tuple[str, str], Callable[[int], Iterator[str]]] = {
    ("BlockSpaceManager", "can_allocate"): can_allocate,
    ("BlockSpaceManager", "can_append_slots"): can_append_slots,
    ("BlockSpaceManager", "can_swap_in"): can_swap_in,
    ("BlockSpaceManager", "can_swap_out"): can_swap_out,
    ("BlockSpaceManager", "get_num_cached_tokens"): get_num_cached_tokens,
    ("BlockSpaceManager", "get_num_free_gpu_blocks"): get_num_free_blocks,
    ("BlockSpaceManager", "get_num_free_cpu_blocks"): get_num_free_cpu_blocks,
    ("CpuGpuBlockAllocator", "get_num_free_blocks"): get_num_free_blocks,
    ("NaiveBlockAllocator", "get_num_free_blocks"): get_num_free_blocks,
    ("PrefixCachingBlockAllocator", "get_num_free_blocks"): get_num_free_blocks,
    ("BlockTable", "get_num_required_blocks"): get_num_required_blocks,
    ("NaiveBlockAllocator", "is_appendable"): is_appendable,
    ("PrefixCachingBlockAllocator", "is_appendable"): is_appendable,
}
