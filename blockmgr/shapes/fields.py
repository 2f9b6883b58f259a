"""The fields of a Hugging Face style config: an object, a mapping, or a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockmgr.arguments import whole

__all__ = [
    "BOTH",
    "CHUNKED",
    "DTYPE",
    "FULL",
    "NOTHING",
    "OTHER_LAYERS",
    "PER_TOKEN",
    "SLIDING",
    "STATES",
    "Config",
    "ConfigFields",
    "head_dim",
    "kv_heads",
    "listed_kinds",
]

Config = object | Mapping[str, Any] | str | os.PathLike[str]

# Names of one field in the configs of different families, the usual one first.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
MOST_LAYERS = 65_536  # far more than any model has
HEADS = ("num_attention_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HIDDEN = ("hidden_size", "n_embd", "d_model")
DTYPE = ("dtype", "torch_dtype")

# Kinds of layers in `layer_types`: those with K/V of tokens, those with a state of constant size,
# and those that keep nothing. What any other kind keeps is unknown, so it is refused.
FULL = {"full_attention", "attention"}
SLIDING = {"sliding_attention", "window_attention"}
CHUNKED = "chunked_attention"
PER_TOKEN = FULL | SLIDING | {CHUNKED, "reference_sliding_attention"}
STATES = {"linear_attention", "mamba", "recurrent", "conv"}
NOTHING = {"moe", "mlp"}
BOTH = "hybrid"
"""A layer with full attention and a state."""

# Fields that determine the kinds of layers in families without `layer_types`.
OTHER_LAYERS = (
    "full_attention_interval",
    "attn_layer_period",
    "attn_layer_indices",
    "attn_type_list",
    "block_configs",
    "block_types",
    "compress_rates",
    "compress_ratios",
    "full_attn_idxs",
    "hybrid_override_pattern",
    "linear_attn_config",
)


class ConfigFields:
    """Reads fields of a config or of its text_config, which may be objects or mappings.

    Args:
        config: A config object, its fields as a mapping, or the path of a ``config.json`` or of its
            folder.

    Raises:
        ValueError: The file does not hold a JSON object.
        OSError: The file cannot be read.
    """

    def __init__(self, config: Config) -> None:
        outer = _One(_read(config) if isinstance(config, str | os.PathLike) else config)
        inner = outer.get("text_config")
        self._parts: tuple[_One, ...] = (outer,) if inner is None else (_One(inner), outer)

    def layer(self, number: int) -> ConfigFields:
        """The fields of one layer, some of which a config may list apart (``per_layer_config``)."""
        own = self._apart().get(number)
        if own is None:
            return self
        found = ConfigFields.__new__(ConfigFields)
        found._parts = (_One(own), *self._parts)
        return found

    @property
    def layers_apart(self) -> list[int]:
        """The layers of which the config lists fields apart."""
        return sorted(self._apart())

    def _apart(self) -> dict[int, Any]:
        given = self.get("per_layer_config")  # objects without such layers have a view of them all
        if not isinstance(given, Mapping):
            return {}
        if strange := [i for i in given if not str(i).isdecimal()]:
            raise ValueError(f"per_layer_config must have numbers of layers, got {strange[0]!r}")
        return {int(i): own for i, own in given.items()}

    def get(self, *names: str) -> Any:
        """The first of these fields that has a value; None if there is none."""
        found = (part.get(name) for part in self._parts for name in names)
        return next((value for value in found if value is not None), None)

    def need(self, *names: str) -> Any:
        """Like ``get``, but raises a ``ValueError`` with the first name if there is none."""
        value = self.get(*names)
        if value is None:
            raise ValueError(f"config has no {names[0]}")
        return value

    def size(self, *names: str) -> int:
        """A required whole number of at least 1."""
        return whole(names[0], self.need(*names), 1)

    def num_layers(self) -> int:
        """The number of layers, of which each is looked at."""
        return whole(LAYERS[0], self.need(*LAYERS), 1, MOST_LAYERS)


class _One:
    def __init__(self, config: object) -> None:
        self._config = config
        if not isinstance(config, Mapping) and hasattr(config, "per_layer_config"):
            given = config.to_dict()  # type: ignore[attr-defined]
            if given.get("per_layer_config"):  # then attributes that layers have apart raise
                self._config = given

    def get(self, name: str) -> Any:
        if isinstance(self._config, Mapping):
            return self._config.get(name)
        return getattr(self._config, name, None)


def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no JSON object")
    return config


def kv_heads(fields: ConfigFields) -> int:
    """Number of K/V heads of a layer."""
    # One K/V head for all, unless the config has a number (Falcon, StarCoder).
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        return 1
    if fields.get("multi_query_attention"):  # ChatGLM
        return whole("multi_query_group_num", fields.need("multi_query_group_num"), 1)
    given = fields.get(*KV_HEADS)
    return whole(KV_HEADS[0], fields.need(*HEADS) if given is None else given, 1)


def head_dim(fields: ConfigFields) -> int:
    """Number of elements of one head."""
    given = fields.get("head_dim")
    if given is not None:
        return whole("head_dim", given, 1)
    hidden = whole("hidden_size", fields.need(*HIDDEN), 1)
    heads = whole("num_attention_heads", fields.need(*HEADS), 1)
    if hidden % heads:
        raise ValueError(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    return hidden // heads


def listed_kinds(fields: ConfigFields, *names: str) -> list[str] | None:
    """The kind of each layer, where a field of these names lists them; some list too many."""
    listed = fields.get(*names)
    if listed is None:
        return None
    if not isinstance(listed, list | tuple) or not all(isinstance(kind, str) for kind in listed):
        raise TypeError(f"{names[0]} of the config must be a list of names, got {listed!r}")
    return list(listed)
