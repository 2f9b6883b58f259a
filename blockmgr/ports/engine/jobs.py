"""The jobs that the engine schedules, and their sequences in the manager."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

from blockmgr.arguments import MOST, whole
from blockmgr.prompt import Prompt

if TYPE_CHECKING:
    from blockmgr.manager import BlockManager

__all__ = ["FinishReason", "Generation", "Job", "Sample", "Track", "checked_stops", "listed"]

T = TypeVar("T")
FinishReason: TypeAlias = Literal["stop", "length"]


def checked_stops(stop_token_ids: Collection[int]) -> tuple[int, ...]:
    """These token ids as a tuple of ints.

    Raises:
        TypeError: They are no token ids.
    """
    stops = listed("stop_token_ids", stop_token_ids)
    return tuple(whole("stop_token_ids", token, 0, MOST) for token in stops)


def listed(name: str, values: Collection[T]) -> list[T]:
    """The items of an argument, read once.

    Raises:
        TypeError: It is a str, or has no number of items.
    """
    try:
        if isinstance(values, Collection) and not isinstance(values, str):
            return list(values)
    except TypeError:  # an array without dimensions
        pass
    raise TypeError(f"{name} must be a sequence, got {values!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One continuation of a prompt.

    Attributes:
        tokens: Generated tokens, including a stop token at the end.
        finish_reason: ``"stop"`` after a stop token, ``"length"`` at the requested number of
            tokens.
        score: For a beam, the sum of its log-probabilities over its length to the power of
            ``length_penalty``. None for a sample.
        logprobs: For each position, the ``Sampling.logprobs`` likeliest tokens with their
            log-probabilities, the best first.
    """

    tokens: list[int]
    finish_reason: FinishReason
    score: float | None = None
    logprobs: list[list[tuple[int, float]]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The result for one prompt.

    Attributes:
        samples: ``n`` samples, or the best beams, the best first.
        num_cached_tokens: Tokens of the prompt that were in the cache at its first admission.
    """

    samples: list[Sample]
    num_cached_tokens: int

    @property
    def tokens(self) -> list[int]:
        """The tokens of the first sample."""
        return self.samples[0].tokens


@dataclass(slots=True, eq=False)
class Track:
    """The engine's record of a sequence of the manager.

    ::

        tokens   t0 t1 t2 t3 t4 t5          length <= len(tokens) <= length + 1
                 [ written )                K/V is in the cache
                 [    length    )           known to the manager
                                 t5         sampled, to be appended by the next decode

    Attributes:
        tokens: All its tokens.
        handle: The manager's; None before it is admitted.
        length: Number of tokens that the manager knows.
        written: Leading tokens with K/V in the cache; 0 while preempted.
        target: Leading tokens with K/V once this step's forward has run.
    """

    tokens: list[int]
    handle: int | None = None
    length: int = 0
    written: int = 0
    target: int = 0

    @property
    def is_behind(self) -> bool:
        """Whether it is in prefill: the manager knows tokens that have no K/V yet."""
        return self.written < self.length

    @property
    def is_ready(self) -> bool:
        """Whether it has all its K/V, and a sampled token that the manager does not know."""
        return self.written == self.length < len(self.tokens)

    def prompt(self) -> Prompt:
        """The tokens to compute before it samples, while it waits."""
        return Prompt(self.tokens if self.handle is None else self.tokens[: self.length])

    def live(self) -> int:
        """The handle of a track that has one."""
        assert self.handle is not None
        return self.handle


class Job(Protocol):
    """A unit of admission and preemption: a sample, or all beams of a search."""

    order: tuple[int, int]
    """Age: the lowest is served first, the highest is preempted first."""
    rows: int
    """Most sequences of the manager that it needs."""
    tracks: list[Track]
    """Its sequences. The first one exists from the start and has the prompt."""
    num_cached_tokens: int | None
    """Tokens of the prompt that the cache held; None before its first admission."""

    def regrow(self, manager: BlockManager) -> None:
        """Forks again what a preemption has reduced to the prompt.

        Raises:
            OutOfBlocksError: A part of it has no blocks; call it again.
        """
        ...

    def preempt(self, manager: BlockManager) -> None:
        """Releases all blocks, and keeps the first track's handle for ``resume``."""
        ...

    @property
    def num_done(self) -> int:
        """Tokens generated; the requested number once it has stopped."""
        ...

    def result(self) -> list[Sample]:
        """The result, once the job has stopped."""
        ...
