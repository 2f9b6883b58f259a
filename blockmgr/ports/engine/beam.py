"""Beam search on block tables: which continuations live on, and the job that forks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from blockmgr.arguments import MOST, real, whole
from blockmgr.errors import MissingExtraError
from blockmgr.ports.engine.jobs import Sample, Track, check_stops

try:
    import torch
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.engine.beam") from error

if TYPE_CHECKING:
    from blockmgr.manager import BlockManager

__all__ = ["BeamConfig", "BeamJob"]

# A score that no sum of log-probabilities reaches: the mark of what must not be chosen.
WORST: Final = -1.0e9

STEEPEST: Final = 40
"""Largest length penalty: any length to this power is still a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamConfig:
    """A beam search, with the meanings that transformers gives these names.

    Attributes:
        num_beams: Continuations kept after each step.
        max_new_tokens: Tokens to generate at most.
        length_penalty: A beam's score is the sum of its log-probabilities over its length to this
            power: above 0 longer beams gain, below 0 shorter ones.
        early_stopping: True stops once ``num_beams`` have ended; False once no running beam looks
            able to beat the worst of them at its present length; ``"never"`` once none can at any
            length. A single beam ends with its first stop token, whatever this says.
        num_return: Beams to return, the best first.
        stop_token_ids: Tokens that end a beam.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    num_beams: int
    max_new_tokens: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return: int = 1
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_beams", "max_new_tokens", "num_return"):
            whole(name, getattr(self, name), 1, MOST)
        if not abs(real("length_penalty", self.length_penalty)) <= STEEPEST:
            raise ValueError(
                f"length_penalty must be in [-{STEEPEST}, {STEEPEST}], got {self.length_penalty}"
            )
        check_stops(self.stop_token_ids)
        if self.num_return > self.num_beams:
            raise ValueError(
                f"num_return must be at most num_beams, {self.num_beams}, got {self.num_return}"
            )
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise ValueError(
                f"early_stopping must be True, False or 'never', got {self.early_stopping!r}"
            )


class BeamJob:
    """All beams of a search over one prompt, in step with each other.

    The prompt is one sequence. Its beams are forked from it when the first continuations have been
    chosen, and ``reparent`` makes each one a fork of the beam that it continues. A preemption cuts
    them down to the prompt; ``regrow`` forks and fills them again.
    """

    def __init__(self, prompt: list[int], config: BeamConfig, index: int) -> None:
        self.order = (index, 0)
        self.rows = config.num_beams
        self.tracks = [Track(list(prompt))]
        self.num_cached_tokens: int | None = None
        self.config = config
        self.prompt = prompt
        self.is_done = False
        self._beams: list[list[int]] = []  # what each has generated, the best first
        self._scores = torch.full((config.num_beams,), WORST)
        self._scores[0] = 0.0  # all beams are equal at first, so only one may continue
        self._ended: list[tuple[float, list[int]]] = []  # best first, at most num_beams
        self._parents: list[int] = []  # of those that were chosen last
        self._logits: dict[int, torch.Tensor] = {}  # by index of the track

    @property
    def num_generated(self) -> int:
        """Tokens of each running beam."""
        return len(self._beams[0]) if self._beams else 0

    @property
    def num_done(self) -> int:
        """Tokens generated, or all that were asked for once it has stopped."""
        return self.config.max_new_tokens if self.is_done else self.num_generated

    def preempt(self, manager: BlockManager) -> None:
        """Keeps what is computed findable, and of all beams the prompt alone."""
        first, *others = self.tracks
        for track in self.tracks:
            manager.commit(track.live(), track.written)
            track.target = 0
        for track in others:
            manager.free(track.live())
        if first.length > len(self.prompt):
            manager.truncate(first.live(), len(self.prompt))
        manager.preempt(first.live())
        self.tracks = [Track(list(self.prompt), first.handle, len(self.prompt))]
        self._logits.clear()

    def regrow(self, manager: BlockManager) -> None:
        """Forks the beams off the computed prompt and appends to each what it has generated.

        Raises:
            OutOfBlocksError: Not all of them have blocks; to be called again.
        """
        first = self.tracks[0]
        if not self._beams or (len(self.tracks) == 1 and first.is_behind):
            return
        if len(self.tracks) == 1:
            self._logits.clear()  # the prompt's own, which were used long ago
            self._fork(manager)
        for track, beam in zip(self.tracks, self._beams, strict=True):
            if len(track.tokens) == len(self.prompt):
                manager.append(track.live(), beam)
                track.tokens = [*self.prompt, *beam]
                track.length = len(track.tokens)

    def _fork(self, manager: BlockManager) -> None:
        first = self.tracks[0]
        if self.config.num_beams > 1:
            self.tracks += [
                Track(list(first.tokens), handle, first.length, first.written)
                for handle in manager.fork(first.live(), self.config.num_beams - 1)
            ]

    def accept(self, track: Track, logits: torch.Tensor) -> bool:
        """Takes the logits of a beam; with those of the last one, the search goes a step on.

        Returns:
            Whether beams have been chosen, which ``branch`` is to follow.
        """
        self._logits[self.tracks.index(track)] = logits
        if len(self._logits) < (self.config.num_beams if self._beams else 1):
            return False
        rows = [self._logits[i] for i in sorted(self._logits)]
        self._logits.clear()
        self._parents, tokens = self._choose(torch.stack(rows))
        if self.is_done:
            return False
        starts = [self._beams[parent] for parent in self._parents] if self._beams else None
        self._beams = [[*(starts[i] if starts else ()), token] for i, token in enumerate(tokens)]
        return True

    def branch(self, manager: BlockManager) -> None:
        """Makes the sequences those of the beams that were chosen, with one token more each.

        Raises:
            OutOfBlocksError: A state of its own is due to each, and there are no blocks; to be
                called again, or preempted.
        """
        if len(self._beams[0]) > 1:
            manager.reparent([t.live() for t in self.tracks], self._parents)
        else:
            self._fork(manager)
        for track, beam in zip(self.tracks, self._beams, strict=True):
            track.tokens = [*self.prompt, *beam]

    def _choose(self, logits: torch.Tensor) -> tuple[list[int], list[int]]:
        """Parents and tokens of the next beams; adds to those that have ended.

        Source: beam search of transformers 5, whose scores, ties and stopping these are.
        """
        config = self.config
        width = config.num_beams
        stops = set(config.stop_token_ids)
        vocab_size = logits.shape[-1]
        sums = logits.log_softmax(dim=-1) + self._scores.to(logits.device)[:, None]
        # Enough candidates for num_beams even if all of the best end.
        count = max(2, 1 + len(stops)) * width
        values, indices = sums.flatten().topk(min(count, width * vocab_size))
        length = self.num_generated + 1
        is_last = length == config.max_new_tokens
        parents = (indices // vocab_size).tolist()
        tokens = (indices % vocab_size).tolist()
        ends = [is_last or token in stops for token in tokens]
        self._end(values, parents, tokens, ends)
        # Beams that have ended stay behind all others, in their order.
        held_back = torch.tensor(ends, device=values.device) * WORST
        kept_values, kept = (values + held_back).topk(width)
        self._scores = kept_values.cpu()
        chosen = kept.tolist()
        self.is_done = all(ends) or self._is_settled(kept_values[0], length)
        return [parents[i] for i in chosen], [tokens[i] for i in chosen]

    def _end(
        self, values: torch.Tensor, parents: list[int], tokens: list[int], ends: list[bool]
    ) -> None:
        """Enters the ended ones among the best ``num_beams`` candidates."""
        config = self.config
        scores = (values / (self.num_generated + 1) ** config.length_penalty).tolist()
        for i in range(config.num_beams):
            if ends[i]:
                start = self._beams[parents[i]] if self._beams else []
                self._ended.append((scores[i], [*start, tokens[i]]))
        self._ended.sort(key=lambda scored: -scored[0])  # stable: the earlier one wins a tie
        del self._ended[config.num_beams :]

    def _is_settled(self, best: torch.Tensor, length: int) -> bool:
        """Whether the search may stop with running beams left, the best of score ``best``."""
        config = self.config
        if len(self._ended) < config.num_beams:
            return False
        if config.early_stopping is True or config.num_beams == 1:  # a single beam is greedy
            return True
        if config.early_stopping == "never" and config.length_penalty > 0:
            length = config.max_new_tokens
        return float(best / length**config.length_penalty) <= self._ended[-1][0]

    def result(self) -> list[Sample]:
        """The best beams that ended, the best first."""
        stops = self.config.stop_token_ids
        return [
            Sample(
                tokens=tokens,
                finish_reason="stop" if tokens[-1] in stops else "length",
                score=score,
            )
            for score, tokens in self._ended[: self.config.num_return]
        ]
