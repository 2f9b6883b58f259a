"""What vLLM's planner makes of a model, and what the port says to that.

vLLM's engine core starts with an executor that makes the model without weights, so that it plans
and makes its scheduler as for any other model.
"""

from __future__ import annotations

import tempfile
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, iter_layer_specs
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.workspace import init_workspace_manager

from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm import plugin
from tests.engines.families.hopper import GIB, OnMeta

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["plan"]

ATTRIBUTES = (
    "sliding_window",
    "attention_chunk_size",
    "extra_retained_tokens",
    "tokens_per_state",
    "mamba_cache_mode",
    "num_speculative_blocks",
)
DEFAULTS = (0, 1, -1)  # of the three numbers; a state has -1 tokens for each state


class Executor:
    """What an engine core asks of its workers before the first step."""

    supported_tasks = ("generate",)

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        with set_current_vllm_config(vllm_config), tempfile.TemporaryDirectory() as folder:
            parallel_state.init_distributed_environment(
                1, 0, f"file://{folder}/store", 0, backend="gloo"
            )
            parallel_state.initialize_model_parallel(1, 1)
            init_workspace_manager(torch.device("meta"))
            dtype = set_default_torch_dtype(vllm_config.model_config.dtype)
            with OnMeta(), dtype, torch.device("meta"):
                self.model = initialize_model(vllm_config=vllm_config)
            current_platform.update_block_size_for_backend(vllm_config)

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        with set_current_vllm_config(self.vllm_config):
            return [get_kv_cache_spec(self.vllm_config)]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        backends = get_current_attn_backends(self.vllm_config)
        return [[layout.name for layout in get_supported_kv_cache_layouts(backends)]]

    def determine_available_memory(self) -> list[int]:
        return [2048 * GIB]

    def collective_rpc(self, *arguments: Any, **named: Any) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        """Workers would do the rest; nothing runs here."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: None


def plan(config: PretrainedConfig, **engine: Any) -> dict[str, Any]:
    """Starts an engine core on blockmgr for a model of this configuration."""
    plugin.register()
    planned: dict[str, Any] = {"groups": [], "refused": []}

    def planning(self: Any, vllm_config: Any) -> Any:
        made = original(self, vllm_config)
        planned["groups"] = [_group(group) for group in made.kv_cache_groups]
        return made

    original = EngineCore._initialize_kv_caches
    EngineCore._initialize_kv_caches = planning  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        try:
            arguments = EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                language_model_only=True,
                enforce_eager=True,
                load_format="dummy",
                additional_config={"blockmgr": {}},
                **engine,
            )
            EngineCore(arguments.create_engine_config(), Executor, log_stats=False)  # type: ignore[arg-type]
        except UnsupportedConfigError as error:
            planned["refused"] = list(error.reasons)
        finally:
            EngineCore._initialize_kv_caches = original  # type: ignore[method-assign]
    return planned


def _group(group: Any) -> dict[str, Any]:
    """What the port reads of a group, and its page."""
    spec = group.kv_cache_spec
    layers = list(iter_layer_specs(spec))
    read: dict[str, Any] = {
        "kind": get_kv_cache_spec_kind(spec).value,
        "spec": type(spec).__name__,
        "layers": len(group.layer_names),
        "block_size": spec.block_size,
        "page_bytes": spec.page_size_bytes,
        "is_cached": spec.prefix_cacheable,
    }
    for name in ATTRIBUTES:
        values = {getattr(layer, name, None) for layer in layers} - {None}
        if len(values) == 1 or name == "tokens_per_state":
            value = max(values, default=0)
            if value not in DEFAULTS:
                read[name] = float(value) if isinstance(value, Fraction) else value
    return read
