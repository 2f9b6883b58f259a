"""One forward: writes K/V, computes attention over block tables, moves states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.errors import MissingExtraError, UnsupportedModelError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

import numpy as np

from blockmgr.groups import tokens_per_block
from blockmgr.kv import GroupedKVCache
from blockmgr.ports.transformers.attention import Attention
from blockmgr.ports.transformers.latents import latents_of
from blockmgr.ports.transformers.past import Past, past_argument
from blockmgr.ports.transformers.try_out import SINKS

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from blockmgr.kv import PagedKVCache
    from blockmgr.ports.transformers.attention import PagedBatch
    from blockmgr.ports.transformers.needs import Needs

__all__ = ["Forward", "StateMemory", "resumes"]


class Forward:
    """The shared state of the attention layers in one forward.

    Args:
        cache: The cache for K/V.
        batch: The batch.
        needs: The needs of each layer.
        past: Stand-in for transformers' cache, which receives latents; None if there is none.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        batch: PagedBatch,
        needs: Needs,
        past: Past | None = None,
    ) -> None:
        self._cache = cache
        self._past = past
        self._layers = needs.layers
        self._chunks = needs.chunks
        # For each group, or for the only one.
        self._places: dict[int, int] = {}
        self._slots, self._readers = [], []
        if isinstance(cache, GroupedKVCache):
            shape = cache.shape
            self._places = {
                layer: group for group, members in enumerate(shape.members) for layer in members
            }
            attending = [i for i, tables in enumerate(batch.groups) if tables.slots is not None]
            self._numbers = {group: i for i, group in enumerate(attending)}
            for group in attending:
                own = batch.of_group(group)
                size = tokens_per_block(shape.groups[group], cache.block_size)
                self._slots.append(cache.slots(own.slots, group=group))
                self._readers.append(Attention(cache, own, size))
        else:
            self._slots.append(cache.slots(batch.slots))
            self._readers.append(Attention(cache, batch, cache.block_size))
        self._attended: list[int] = []
        self._due = [i for i, each in enumerate(needs.layers) if each and each.kv]

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        """The attention of one layer: see ``Attends``."""
        # transformers passes [rows, heads, tokens, dim].
        query, key, value = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
        layer: int = module.layer_idx  # type: ignore[assignment]
        self._attended.append(layer)
        group = self._numbers[self._places[layer]] if self._places else 0
        expand = None
        keeps = self._layers[layer]
        if keeps and keeps.kv and keeps.kv.latent_dim is not None and self._past is not None:
            latents, expand = latents_of(module, self._past)
            self._cache.write(layer, latents, None, self._slots[group])
        else:
            self._cache.write(layer, key, value, self._slots[group])
        scale = options.get("scaling")
        return self._readers[group].attend(
            layer,
            query,
            scale=query.shape[-1] ** -0.5 if scale is None else scale,
            window=options.get("sliding_window"),
            softcap=options.get("softcap"),
            chunk=self._chunks.get(layer),
            sinks=options.get(SINKS),
            expand=expand,
        )

    def check_complete(self, model_type: str) -> None:
        """Checks that every layer with attention has called this exactly once."""
        if sorted(self._attended) != self._due:
            raise UnsupportedModelError(
                model_type,
                f"layers {sorted(self._attended)} of {len(self._due)} attended to the cache in a "
                "forward; if modules or configs were replaced, call model_changed() or reset()",
            )


class StateMemory:
    """Moves states of recurrent layers between blocks and a forward.

    Args:
        cache: The cache with the states.
        config: Config of the model.
        needs: The needs of each layer.
    """

    def __init__(self, cache: GroupedKVCache, config: PretrainedConfig, needs: Needs) -> None:
        self._cache = cache
        self._config = config
        self._needs = needs
        # For each: its index in the model, its index in the cache, and its group.
        self._layers = [(*pair, cache.shape.place(pair[1])[0]) for pair in needs.state_layers]

    def load(self, batch: PagedBatch, *, is_fresh: bool) -> Past:
        """The states from which the sequences of a batch continue; none for fresh ones."""
        past = Past(self._config, 0 if is_fresh else int(batch.positions[0]))
        if not is_fresh:
            for layer, place, group in self._layers:
                blocks = self._blocks(batch, group)
                states = [tensor[blocks] for tensor in self._cache.states(place)]
                past.load(layer, states, self._needs.names[layer])
        return past

    def store(self, batch: PagedBatch, past: Past) -> None:
        """Stores the states of a forward in the blocks of their sequences.

        Raises:
            UnsupportedModelError: A state differs from the one in the trial. No state has been
                stored.
        """
        new = {layer: past.states(layer) for layer, _, _ in self._layers}
        for layer, place, _ in self._layers:
            states = new[layer]
            due = [(each.shape[1:], each.dtype) for each in self._cache.states(place)]
            if [(each.shape[1:], each.dtype) for each in states] != due:
                raise UnsupportedModelError(
                    self._needs.model_type,
                    f"layer {layer} has left the state {_described(states)} in place of "
                    f"{_described(self._cache.states(place))}",
                )
        for layer, place, group in self._layers:
            blocks = self._blocks(batch, group)
            for tensor, state in zip(self._cache.states(place), new[layer], strict=True):
                tensor[blocks] = state

    def _blocks(self, batch: PagedBatch, group: int) -> torch.Tensor:
        column = batch.groups[group].block_tables[:, 0].astype(np.int64)
        return torch.from_numpy(column).to(self._cache.device)


def _described(states: Any) -> str:
    return ", ".join(f"{tuple(each.shape[1:])} {each.dtype}" for each in states) or "none"


class _Echo:
    """Replaces attention when only states matter."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        """The queries themselves."""
        del module, key, value, options
        return query.transpose(1, 2).flatten(0, 1)


def resumes(model: torch.nn.Module, needs: Needs, device: torch.device) -> bool:
    """Whether the layers can continue from a state by several tokens at a time.

    The recurrences of some families ignore their state unless they get a single token: then two
    tokens lead to the same state from every state. Only the first layer is tested, because the
    inputs of the others depend on it.

    Args:
        model: The model with weights, which uses an attention function of ``interface``.
        needs: The needs of its layers.
        device: Device of the model.
    """
    after = []
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    for value in (0.0, 1.0):
        past = Past(model.config, 2)  # type: ignore[arg-type]
        for layer, place in needs.state_layers:
            kept = needs.layers[place]
            assert kept is not None
            names = needs.names[layer]
            states = [
                torch.full(
                    (1, *state.shape),
                    value if name == "recurrent" else 0.0,
                    dtype=state.dtype,
                    device=device,
                )
                for (name, _), state in zip(names, kept.states, strict=True)
            ]
            past.load(layer, states, names)
        model(
            input_ids=tokens,
            position_ids=tokens + torch.arange(2, 4, device=device),
            **{past_argument(model): past},
            use_cache=True,
            paged_batch=_Echo(),
        )
        after.append(past)
    first = min(needs.state_layers)[0]
    pairs = zip(needs.names[first], after[0].states(first), after[1].states(first), strict=True)
    return not any(name == "recurrent" and torch.equal(a, b) for (name, _), a, b in pairs)
