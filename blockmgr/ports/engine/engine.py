"""A small continuous-batching engine: a transformers model on block tables.

Requests of any length run concurrently. Each step decodes one token of every running sequence and
computes as much of the waiting prompts as its token budget allows, in one forward. If blocks run
out, the youngest job is preempted, and computed again later. Blocks are shared between prompts with
a common prefix, between the samples of a prompt, and between beams.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from blockmgr.arguments import integer, positive
from blockmgr.blocks import Admission
from blockmgr.config import ManagerConfig, ManagerOptions
from blockmgr.errors import NeverFitsError
from blockmgr.options import spells_options
from blockmgr.ports.engine.beam import BeamConfig, BeamJob
from blockmgr.ports.engine.jobs import Generation, checked_stops, listed
from blockmgr.ports.engine.progress import token_bar
from blockmgr.ports.engine.room import blocks_needed
from blockmgr.ports.engine.sampling import OnToken, SampleJob, Sampling
from blockmgr.ports.engine.scheduler import Scheduler
from blockmgr.ports.engine.tiers import EngineTiers
from blockmgr.ports.transformers.generation import ignored_settings
from blockmgr.ports.transformers.model import PagedModel, load_model
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from blockmgr.manager import BlockManager
    from blockmgr.ports.engine.report import EngineReport
    from blockmgr.ports.engine.tiers import TierKind
    from blockmgr.ports.transformers.needs import Windows

__all__ = ["Engine"]


class Engine(NotCopied):
    """Generates tokens with a transformers model whose K/V is in shared blocks.

    The cache persists between calls, so a call finds blocks computed by earlier calls. ``reset``
    clears it; call it after every change of weights.

    An engine runs one call at a time. Several engines can share a model, in different threads and
    concurrently with the model's ``generate``; ``PagedModel`` lists the limits for hooks inside the
    model.

    Args:
        model: A causal language model with its weights.
        num_blocks: Blocks of the pool; by default as many as fit 1 GiB, or on a GPU 80 % of its
            free memory.
        block_size: Tokens per block; None for 16, or more if a recurrent state needs more.
        max_batch_tokens: Most tokens of one forward; at least ``max_seqs``.
        chunk_size: Most tokens of one prompt in one forward; None for no further limit.
        wait_for_computing: Whether to keep a prompt in the queue while another request computes its
            prefix, and start later prompts first. Then no prefix is computed twice.
        layout: Layout of the K/V tensors, as in ``PagedKVCache``; None for the default.
        windows: Whether layers with a window or a chunk keep only the tokens they read, in groups
            of layers, as in ``PagedModel.with_cache``.
        tiers: Where K/V goes before the device evicts it, and comes back from: ``HostTier``,
            ``DiskTier`` and ``MooncakeTier`` of ``blockmgr.tiers``, the fastest first.
            ``MooncakeTier`` is for models in which all layers have full attention.
        load_timeout: Seconds that a request waits for tiers before it computes its prompt.
        **options: Fields of ``ManagerConfig``, by keyword: ``prefix_caching``, ``dedup``,
            ``max_seqs``, ``early_commit``, ``min_partial_tokens``, ``watermark_blocks`` and so on.
            ``groups`` are those of the model. With groups, there is a null block, and some options
            are refused.

    Raises:
        UnsupportedModelError: The model needs something that is missing here.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    Warns:
        UserWarning: The model's generation config has settings that the engine ignores.

    Attributes:
        model: The model and its K/V.
    """

    _instead = "make another engine on a model of its own"

    @spells_options(ManagerConfig, ManagerOptions)
    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_blocks: int | None = None,
        block_size: int | None = None,
        max_batch_tokens: int = 2048,
        chunk_size: int | None = None,
        wait_for_computing: bool = False,
        layout: str | None = None,
        windows: Windows | None = None,
        tiers: Sequence[TierKind] = (),
        load_timeout: float = 30.0,
        **options: Unpack[ManagerOptions],
    ) -> None:
        if "groups" in options:
            raise ValueError(f"groups must be those of the model, got {options['groups']!r}")
        self.model = PagedModel.with_cache(
            model, num_blocks, block_size, layout=layout, windows=windows
        )
        cache = self.model.cache
        if self.model.groups:
            options = {"null_block": True, **options, "groups": self.model.groups}
        config = ManagerConfig(num_blocks=cache.num_blocks, block_size=cache.block_size, **options)
        if config.steps_in_flight:
            raise ValueError(
                "steps_in_flight must be 0, since this engine waits for every step, got "
                f"{config.steps_in_flight}"
            )
        if max_batch_tokens < config.max_seqs:
            raise ValueError(
                f"max_batch_tokens must be at least max_seqs, {config.max_seqs}, got "
                f"{max_batch_tokens}"
            )
        if not isinstance(wait_for_computing, bool):
            raise TypeError(f"wait_for_computing must be a bool, got {wait_for_computing!r}")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        kinds = listed("tiers", tiers)
        timeout = positive("load_timeout", load_timeout)
        self._tiers = EngineTiers(self.model, config, kinds, timeout) if kinds else None
        self._scheduler = Scheduler(
            self.model,
            config,
            max_batch_tokens,
            chunk_size or max_batch_tokens,
            waits=wait_for_computing,
            tiers=self._tiers,
        )
        if ignored := ignored_settings(model.generation_config):
            names = ", ".join(f"{name}={value!r}" for name, value in ignored.items())
            message = f"the model's generation config sets {names}, which is not applied here"
            warnings.warn(message, UserWarning, stacklevel=2)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> Self:
        """An engine with a model from a local directory, loaded by ``load_model``.

        Args:
            path: Directory with ``config.json`` and safetensors weights.
            dtype: Element type of weights and K/V; by default that of the stored weights.
            device: Device of both.
            **options: Those of the constructor.

        Raises:
            FileNotFoundError: There is no such directory, or no ``config.json`` in it.
            UnsupportedModelError: The model needs something that is missing here; no weights
                have been loaded.
            ValueError: An option is out of its bounds.
        """
        return cls(load_model(path, dtype=dtype, device=device), **options)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        on_token: OnToken | None = None,
        progress: bool = False,
    ) -> list[Generation]:
        """Continues each prompt.

        Any exception, including one from ``on_token``, ends all requests of this call and no
        others.

        Args:
            prompts: Token ids, at least one each.
            sampling: Sampling for all prompts, or one for each; greedy by default.
            on_token: Called once for every token, as soon as it is known.
            progress: Show a bar on stderr, if that is a terminal.

        Returns:
            For each prompt in order, its ``n`` samples.

        Raises:
            NeverFitsError: A prompt and its continuation are more than the pool can ever hold.
            ValueError: A prompt is empty, longer than the model allows, or has a token that the
                model does not know; ``n`` is more than ``max_seqs``.
            TypeError: A prompt is not a sequence of ints, or ``sampling`` is not ``Sampling``.
            ReentrancyError: The engine is inside another call.
        """
        prompts = listed("prompts", prompts)
        samplings = _one_for_each(sampling, len(prompts))
        if on_token is not None and not callable(on_token):
            raise TypeError(f"on_token must be callable, got {on_token!r}")
        jobs = []
        for i, (prompt, how) in enumerate(zip(prompts, samplings, strict=True)):
            tokens = self._checked(i, prompt, how.max_new_tokens, rows=how.n, apart=1)
            stops = self.model.stop_token_ids if how.stop_token_ids is None else how.stop_token_ids
            jobs.append(SampleJob(tokens, how, (i, 0), frozenset(stops), self.model.device))
        total = sum(how.n * how.max_new_tokens for how in samplings)
        with token_bar(total, wanted=progress) as show:
            done = self._scheduler.run(jobs, on_token, show)
        samples: list[list[Any]] = [[] for _ in prompts]
        for job in done:
            samples[job.order[0]] += job.result()
        return [
            Generation(samples=each, num_cached_tokens=job.num_cached_tokens or 0)
            for each, job in zip(samples, jobs, strict=True)
        ]

    def beam_search(
        self,
        prompts: Sequence[Sequence[int]],
        num_beams: int,
        max_new_tokens: int,
        *,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        num_return: int = 1,
        stop_token_ids: Sequence[int] | None = None,
        progress: bool = False,
    ) -> list[Generation]:
        """Finds the likeliest continuations of each prompt.

        Beams share every block up to the point at which they diverge. Keeping one beam twice and
        dropping another changes block tables, and copies at most the block that is written next.

        Args:
            prompts: Token ids, at least one each.
            num_beams: Continuations kept after each step.
            max_new_tokens: Tokens to generate at most.
            length_penalty: As in ``BeamConfig``, and in transformers.
            early_stopping: As in ``BeamConfig``, and in transformers.
            num_return: Beams to return for each prompt.
            stop_token_ids: Tokens that end a beam; the model's end-of-sequence tokens by default.
            progress: Show a bar on stderr, if that is a terminal.

        Returns:
            For each prompt in order, its best beams, the best first.

        Raises:
            NeverFitsError: A prompt and its beams, if they share only the prompt, are more than the
                pool can ever hold.
            ValueError: As ``generate``; or a value is out of its bounds.
            TypeError: A prompt is not a sequence of ints.
            ReentrancyError: The engine is inside another call.
        """
        prompts = listed("prompts", prompts)
        stops = self.model.stop_token_ids if stop_token_ids is None else stop_token_ids
        config = BeamConfig(
            num_beams=num_beams,
            max_new_tokens=max_new_tokens,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            num_return=num_return,
            stop_token_ids=checked_stops(stops),
        )
        jobs = []
        for i, prompt in enumerate(prompts):
            beams = config.num_beams
            tokens = self._checked(i, prompt, config.max_new_tokens, rows=beams, apart=beams)
            jobs.append(BeamJob(tokens, config, i))
        with token_bar(len(jobs) * config.max_new_tokens, wanted=progress) as show:
            self._scheduler.run(jobs, None, show)
        return [
            Generation(samples=job.result(), num_cached_tokens=job.num_cached_tokens or 0)
            for job in jobs
        ]

    def reset(self) -> None:
        """Forgets all K/V in the cache; call it after a change of the model.

        Otherwise a prompt with the same prefix would find K/V that was computed with other weights,
        another adapter or replaced modules.

        Raises:
            ReentrancyError: The engine is inside another call. Nothing is forgotten.

        Leaves:
            The counts of ``report`` as they are.
        """
        self._scheduler.reset()

    def close(self) -> None:
        """Stores what is idle in the tiers, and closes them; the engine is of no use afterwards.

        Without tiers, or a second time, it does nothing.

        Raises:
            ReentrancyError: The engine is inside another call. Nothing is closed.
        """
        self._scheduler.close()

    def report(self) -> EngineReport:
        """The work of the engine so far, and the savings by sharing."""
        return self._scheduler.report()

    @property
    def manager(self) -> BlockManager:
        """The block manager, for reading only: its sequences belong to the engine."""
        return self._scheduler.manager

    def _checked(
        self, index: int, prompt: Sequence[int], max_new_tokens: int, *, rows: int, apart: int
    ) -> list[int]:
        """The prompt as a list, after all checks that are possible before it runs.

        ``rows`` is the number of its sequences, ``apart`` the number that hold blocks at the same
        time.
        """
        tokens = _as_list(prompt, f"prompts[{index}]")
        worst = max(tokens) if min(tokens) >= 0 else min(tokens)
        if not 0 <= worst < self.model.vocab_size:
            raise ValueError(
                f"prompts[{index}] must have tokens in [0, {self.model.vocab_size}), got {worst}"
            )
        longest = self.model.max_tokens
        if longest is not None and len(tokens) + max_new_tokens > longest:
            raise ValueError(
                f"prompts[{index}] of {len(tokens)} tokens and {max_new_tokens} to follow are more "
                f"than the {longest} positions of the model"
            )
        config = self.manager.config
        if rows > config.max_seqs:
            raise ValueError(
                f"n and num_beams must be at most max_seqs, {config.max_seqs}, got {rows}"
            )
        # The last sampled token is never written.
        written = len(tokens) + max_new_tokens - 1
        columns = -(-written // config.block_size)
        needed = blocks_needed(config, len(tokens), written, apart)
        if needed > config.capacity or columns > config.row_width:
            raise NeverFitsError(
                f"prompts[{index}] of {len(tokens)} tokens and {max_new_tokens} to follow"
                f"{f' in {apart} beams' if apart > 1 else ''} need {needed} blocks of "
                f"{config.block_size}, {columns} of them in a row; the pool has {config.capacity}, "
                f"a row {config.row_width}"
            )
        if self.manager.can_admit(tokens, num_slots=self._first_slots(tokens)) is Admission.NEVER:
            raise NeverFitsError(
                f"prompts[{index}] of {len(tokens)} tokens needs more than the "
                f"{config.capacity - config.watermark_blocks} blocks that the watermark leaves"
            )
        return tokens

    def _first_slots(self, tokens: list[int]) -> int:
        """The slots to request first: with groups, a chunk may shrink to a single token."""
        return 1 if self.manager.config.groups else len(tokens)


def _one_for_each(
    sampling: Sampling | Sequence[Sampling] | None, num_prompts: int
) -> list[Sampling]:
    if sampling is None or isinstance(sampling, Sampling):
        return [sampling or Sampling()] * num_prompts
    found = listed("sampling", sampling)
    if len(found) != num_prompts:
        raise ValueError(
            f"sampling must be one for each of {num_prompts} prompts, got {len(found)}"
        )
    for how in found:
        if not isinstance(how, Sampling):
            raise TypeError(f"sampling must be Sampling, got {type(how).__name__}")
    return found


def _as_list(tokens: Sequence[int], name: str) -> list[int]:
    own = [integer(f"a token of {name}", token) for token in listed(name, tokens)]
    if not own:
        raise ValueError(f"{name} must have at least one token")
    return own
