"""Chooses the next token; the job of one sample."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from blockmgr.arguments import MOST, real, whole
from blockmgr.errors import MissingExtraError
from blockmgr.ports.engine.jobs import FinishReason, Sample, Track, checked_stops

try:
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.engine.sampling") from error

if TYPE_CHECKING:
    from blockmgr.manager import BlockManager

__all__ = ["OnToken", "SampleJob", "Sampling", "StreamedToken", "choose_tokens"]

# Below this, logits divided by the temperature may overflow.
COLDEST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings for choosing tokens and for stopping.

    With a seed, sample ``i`` of a prompt draws from its own torch generator, seeded with
    ``seed + i``. So its tokens do not depend on the rest of the batch. The first sample equals the
    result of ``model.generate(do_sample=True)`` for that prompt alone after
    ``torch.manual_seed(seed)``.

    Attributes:
        max_new_tokens: Tokens to generate at most.
        temperature: Divides the logits; 0 always takes the likeliest token.
        top_k: Draw from the ``k`` likeliest tokens only; 0 for all.
        top_p: Draw from the likeliest tokens whose probabilities sum to this value; 1 for all.
        seed: Seed of the first sample, at least 0; None for a random seed.
        n: Samples of each prompt, forked once its K/V has been computed.
        stop_token_ids: Tokens that end a sample; None for the model's end-of-sequence tokens.
        logprobs: Number of likeliest tokens to report for each position.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    max_new_tokens: int = 20
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    stop_token_ids: tuple[int, ...] | None = None
    logprobs: int = 0

    def __post_init__(self) -> None:
        # What passes here is kept as plain numbers: torch and transformers refuse others, and would
        # do so in a step, which ends all requests.
        keep = functools.partial(object.__setattr__, self)
        for name, least in (("max_new_tokens", 1), ("n", 1), ("top_k", 0), ("logprobs", 0)):
            keep(name, whole(name, getattr(self, name), least, MOST))
        for name in ("temperature", "top_p"):
            keep(name, real(name, getattr(self, name)))
        if self.temperature and not COLDEST <= self.temperature < math.inf:
            raise ValueError(
                f"temperature must be 0, or finite and at least {COLDEST}, got {self.temperature}"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.seed is not None:
            keep("seed", whole("seed", self.seed, 0, 2**64 - self.n))  # torch's have 64 bits
        if self.stop_token_ids is not None:
            keep("stop_token_ids", checked_stops(self.stop_token_ids))
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n must be 1 at temperature 0, where all samples agree, got {self.n}")


class StreamedToken(NamedTuple):
    """A token as soon as it is known."""

    prompt: int
    """Index of the prompt."""
    sample: int
    """Index of the sample."""
    token: int
    """Token id."""
    finish_reason: FinishReason | None
    """Why this token is the last of its sample; None if it is not."""


OnToken: TypeAlias = Callable[[StreamedToken], None]


class SampleJob:
    """One sample: a sequence that grows by one token per step.

    The job of the first sample computes the prompt; ``split`` forks the other samples from it.
    """

    def __init__(
        self,
        prompt: list[int],
        sampling: Sampling,
        order: tuple[int, int],
        stops: frozenset[int],
        device: torch.device,
    ) -> None:
        self.order = order
        self.rows = sampling.n if order[1] == 0 else 1
        self.tracks = [Track(list(prompt))]
        self.num_cached_tokens: int | None = None
        self.sampling = sampling
        self.prompt = prompt
        self.stops = stops
        self.finish_reason: FinishReason | None = None
        self.logprobs: list[list[tuple[int, float]]] = []
        self.generator = torch.Generator(device)
        if sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(sampling.seed + order[1])

    def regrow(self, manager: BlockManager) -> None:
        """Does nothing: the single sequence resumes with all its tokens."""

    def preempt(self, manager: BlockManager) -> None:
        """Releases all blocks; computed ones stay findable."""
        [track] = self.tracks
        manager.commit(track.live(), track.written)
        manager.preempt(track.live())
        track.written = track.target = 0

    def split(self, manager: BlockManager) -> list[SampleJob]:
        """Forks the other samples of the prompt, whose K/V this one has just computed.

        Raises:
            OutOfBlocksError: Each sample needs its own state, and there are no blocks.
        """
        [track] = self.tracks
        if self.rows == 1:
            return []
        handles = manager.fork(track.live(), self.rows - 1)
        others = self.part()
        for job, handle in zip(others, handles, strict=True):
            job.tracks = [Track(list(self.prompt), handle, track.length, track.written)]
        return others

    def part(self) -> list[SampleJob]:
        """The other samples of the prompt as jobs that are not admitted yet."""
        others = []
        for i in range(1, self.rows):
            order = (self.order[0], i)
            job = SampleJob(self.prompt, self.sampling, order, self.stops, self.generator.device)
            job.num_cached_tokens = self.num_cached_tokens
            others.append(job)
        self.rows = 1
        return others

    def accept(self, token: int) -> StreamedToken:
        """Adds the chosen token."""
        [track] = self.tracks
        track.tokens.append(token)
        if token in self.stops:
            self.finish_reason = "stop"
        elif len(track.tokens) - len(self.prompt) == self.sampling.max_new_tokens:
            self.finish_reason = "length"
        return StreamedToken(*self.order, token, self.finish_reason)

    @property
    def num_done(self) -> int:
        """Tokens generated; the requested number once it has stopped."""
        [track] = self.tracks
        if self.finish_reason is not None:
            return self.sampling.max_new_tokens
        return len(track.tokens) - len(self.prompt)

    def result(self) -> list[Sample]:
        """The generated sample."""
        assert self.finish_reason is not None
        return [
            Sample(
                tokens=self.tracks[0].tokens[len(self.prompt) :],
                finish_reason=self.finish_reason,
                logprobs=self.logprobs if self.sampling.logprobs else None,
            )
        ]


def choose_tokens(logits: torch.Tensor, jobs: list[SampleJob]) -> list[int]:
    """The next token of each job, and its ``logprobs`` if requested.

    Applies temperature, then top-k, then top-p, as ``model.generate`` does.

    Args:
        logits: ``float32[num_jobs, vocab_size]``.
        jobs: The jobs, in the order of the logits.
    """
    chosen = logits.argmax(dim=-1).tolist()
    alike: defaultdict[tuple[float, int, float], list[int]] = defaultdict(list)
    for i, job in enumerate(jobs):
        sampling = job.sampling
        if sampling.temperature > 0:
            alike[sampling.temperature, sampling.top_k, sampling.top_p].append(i)
        if sampling.logprobs:
            job.logprobs.append(_likeliest(logits[i], sampling.logprobs))
    for (temperature, top_k, top_p), rows in alike.items():
        probabilities = _warped(logits[rows], temperature, top_k, top_p).softmax(dim=-1)
        for i, row in zip(rows, probabilities, strict=True):
            drawn = torch.multinomial(row[None], 1, generator=jobs[i].generator)
            chosen[i] = int(drawn)
    return chosen


def _warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    # transformers' own processors, so that ties and edge cases are as in model.generate. They
    # require the tokens so far but ignore them.
    tokens = torch.empty(0, dtype=torch.int64)
    if temperature != 1.0:
        logits = TemperatureLogitsWarper(temperature)(tokens, logits)
    if top_k:
        logits = TopKLogitsWarper(top_k)(tokens, logits)
    if top_p < 1.0:
        logits = TopPLogitsWarper(top_p)(tokens, logits)
    return logits


def _likeliest(logits: torch.Tensor, count: int) -> list[tuple[int, float]]:
    values, ids = logits.log_softmax(dim=-1).topk(min(count, logits.shape[-1]))
    return list(zip(ids.tolist(), values.tolist(), strict=True))
