"""Random calls of TGI's allocator beside a model and a fake KV memory.

The model is that of the block manager: the port must make exactly the expected calls in order. The
memory checks what each request reads; copies run as late as allowed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockmgr import BlockMgrError, NeverFitsError, StepError
from blockmgr.ports.tgi import BlockAllocation
from tests.ports.tgi_engine import Engine, now
from tests.specification.leaves import ModelLeaves
from tests.stress.memory import Step

prompts = st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=9)


@dataclass(eq=False)
class Request:
    """An allocation, its state, and its name in the model."""

    allocation: BlockAllocation
    twin: int
    prompt: list[int] | None
    waits: bool  # for a plan
    launched: bool = False  # its forward is in a step
    computed: bool = False


class TgiMachine(RuleBasedStateMachine):
    """Allocations of prompts with common prefixes, in a pool that is often exhausted."""

    requests: list[Request]

    @initialize(
        num_blocks=st.integers(1, 8),
        block_size=st.integers(1, 4),
        caching=st.sampled_from([True, True, True, False]),
    )
    def build(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.engine = Engine(num_blocks, block_size, prefix_caching=caching)
        self.model = ModelLeaves(
            num_blocks + 1,
            block_size,
            max_seqs=num_blocks,
            prefix_caching=caching,
            dedup="append_only",
            min_partial_tokens=1,
            null_block=True,
        )
        self.caching = caching
        self.requests = []
        self.open: tuple[Any, Step, list[Request]] | None = None

    @rule(prompt=st.none() | prompts, more=st.integers(0, 6))
    def allocate(self, prompt: list[int] | None, more: int) -> None:
        tokens = len(prompt or [0]) + more
        try:
            known = prompt if self.caching and prompt else [0]  # a prompt without a common prefix
            twin = self.model.admit(known, num_slots=tokens)
        except NeverFitsError:
            self.raises(NeverFitsError, lambda: self.engine.allocate(tokens, prompt))
            return
        except BlockMgrError:
            assert self.engine.allocate(tokens, prompt) is None
            return
        allocation = self.engine.reserve(tokens, prompt)
        view = self.model.sequence(twin)
        assert allocation.prefix_len == view.num_cached_tokens
        assert (len(allocation.blocks), len(allocation.slots)) == (len(view.blocks), tokens)
        waits = allocation.prefix_len % self.engine.size > 0
        self.requests.append(Request(allocation, twin, prompt, waits))

    @precondition(lambda self: not self.open)
    @rule()
    def steps(self) -> None:
        self.opens_a_plan()
        self.applies_it()

    @precondition(lambda self: not self.open)
    @rule(prompt=prompts, more=st.integers(0, 1), how=st.sampled_from(["close", "free", "drop"]))
    def serves_one(self, prompt: list[int], more: int, how: str) -> None:
        """Runs a whole request, which later ones can find."""
        before = len(self.requests)
        self.allocate(prompt, more)
        if len(self.requests) > before:
            self.steps()
            self.end(self.requests[-1], how)

    @precondition(lambda self: not self.open)
    @rule()
    def opens_a_plan(self) -> None:
        context = self.engine.allocator.copies()
        step = self.engine.device.launch(now(context.__aenter__()))
        assert len(step.copies) == len(self.model.take_copies())
        fresh = [r for r in self.requests if r.prompt and not r.computed]
        for request in fresh:
            step.work.append(self.engine.work(request.allocation, request.prompt or []))
            request.launched = True
        self.open = context, step, fresh

    @precondition(lambda self: self.open)
    @rule()
    def applies_it(self) -> None:
        context, step, batch = self.open
        # Do not write for a request that has ended: its blocks may belong to another.
        names = {str(r.allocation.allocation_id) for r in self.requests}
        step.work = [work for work in step.work if work.name in names]
        self.engine.device.run(step)
        now(context.__aexit__(None, None, None))
        self.model.copies_applied(step.ticket)
        for request in batch:
            request.computed, request.waits, request.launched = True, False, False
        self.open = None

    @precondition(lambda self: self.open)
    @rule()
    def aborts_it(self) -> None:
        context, step, batch = self.open
        self.engine.device.cancel(step)
        error = OSError("no device")
        assert now(context.__aexit__(OSError, error, None)) is False
        self.model.copies_aborted(step.ticket)
        for request in batch:
            request.launched = False
        self.open = None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def commits(self, data: st.DataObject) -> None:
        request = self.requests[data.draw(st.integers(0, len(self.requests) - 1))]
        allocation, prompt = request.allocation, request.prompt or []
        if request.waits:
            self.raises(StepError, allocation.commit)
        elif request.computed:
            computed = self.model.sequence(request.twin).num_computed_tokens
            count = data.draw(st.integers(computed, len(prompt)))
            allocation.commit(count)
            self.vouch(request, count)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), how=st.sampled_from(["close", "free", "discard", "drop"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        self.end(self.requests[data.draw(st.integers(0, len(self.requests) - 1))], how)

    def end(self, request: Request, how: str) -> None:
        allocation = request.allocation
        if how in ("close", "free") and not request.waits:
            if request.prompt and not request.computed:
                return  # would claim uncomputed tokens
            self.vouch(request, len(request.prompt or []))
        self.requests.remove(request)
        if self.open and request in self.open[2]:
            self.open[2].remove(request)
        self.model.free(request.twin)
        if how == "free":
            self.engine.allocator.free(allocation.blocks, allocation.allocation_id)
        elif how != "drop":
            getattr(allocation, how)()

    def vouch(self, request: Request, count: int) -> None:
        if self.caching and request.prompt:
            self.model.commit(request.twin, count)

    @staticmethod
    def raises(error: type[Exception], call: Any) -> None:
        try:
            call()
        except error:
            return
        raise AssertionError(f"{error.__name__} was not raised")

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "requests"):
            return
        manager = self.engine.allocator.manager
        manager.check_invariants()
        ours, theirs = asdict(manager.stats()), asdict(self.model.stats())
        # The model updates its peak only when it is queried, and a close is two calls.
        ours["peak_used_blocks"] = theirs["peak_used_blocks"]
        assert ours == theirs
        for request in self.requests:
            assert request.allocation.is_ready is not request.waits
            view = manager.sequence(request.allocation.allocation_id)
            assert view.block_ids.tolist() == request.allocation.blocks.tolist()
            assert view.num_computed_tokens == self.model.sequence(request.twin).num_computed_tokens


TestTgi = TgiMachine.TestCase
