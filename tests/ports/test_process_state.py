"""What belongs to the whole process stays as it is, at every moment: other threads see it.

Each function that sets such state reports its calls, so that a change that is undone later is found
as well.
"""

from __future__ import annotations

import locale
import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ports.engine_models import model_of

import torch  # isort: skip  (engine_models skips this file where there is none)
import transformers  # isort: skip

from blockmgr import BlockManager  # isort: skip
from blockmgr.kv import KVBlocks, ModelShape, PagedKVCache, segments_from  # isort: skip
from blockmgr.lab.replay import ReplayConfig, replay  # isort: skip
from blockmgr.lab.study import parse_capacities  # isort: skip
from blockmgr.lab.sweep import sweep  # isort: skip
from blockmgr.lab.workloads import generate  # isort: skip
from blockmgr.ports.engine import Engine, Sampling  # isort: skip
from blockmgr.ports.transformers import PagedModel, check_config, load_model  # isort: skip

SETTERS: tuple[tuple[Any, str], ...] = (
    (torch, "set_default_dtype"),
    (torch, "set_default_device"),
    (torch, "set_default_tensor_type"),
    (torch, "set_num_threads"),
    (torch, "set_num_interop_threads"),
    (torch, "use_deterministic_algorithms"),
    (torch, "set_float32_matmul_precision"),
    (torch, "manual_seed"),
    (torch.backends.cuda, "enable_flash_sdp"),
    (transformers.utils.logging, "set_verbosity"),
    (transformers.utils.logging, "disable_progress_bar"),
    (locale, "setlocale"),
    (logging, "disable"),
    (logging, "basicConfig"),
    (np, "seterr"),
    (np.random, "seed"),
    (random, "seed"),
    (os, "chdir"),
    (os, "umask"),
    (signal, "signal"),
    (sys, "setswitchinterval"),
    (sys, "setrecursionlimit"),
    (warnings, "simplefilter"),
    (warnings, "filterwarnings"),
)


def paged(model: Any) -> PagedModel:
    return PagedModel.with_cache(model, 40, None)


def copies() -> None:
    cache = PagedKVCache(
        8, 4, ModelShape(num_layers=2, num_kv_heads=1, head_dim=8, dtype=torch.bfloat16)
    )
    manager = BlockManager(8, 4)
    parent = manager.admit([1, 2, 3, 4, 5, 6])
    manager.commit(parent, 6)
    [child] = manager.fork(parent)
    manager.append(child, [7])
    cache.copy(manager.take_copies())
    pairs = [(torch.zeros(8, 4, 8), torch.zeros(8, 4, 8))]
    KVBlocks(segments_from(pairs, layout="block token axis2"), block_size=4)


def sampled(model: Any) -> None:
    engine = Engine(model, num_blocks=60)
    engine.generate([[1, 2, 3]], Sampling(max_new_tokens=2, temperature=1.0, seed=1))
    engine.beam_search([[1, 2, 3]], num_beams=2, max_new_tokens=2)


ENTRIES: dict[str, Callable[[Any, Path], object]] = {
    "Engine": lambda model, _: Engine(model, num_blocks=40),
    "generate": lambda model, _: sampled(model),
    "PagedModel": lambda model, _: paged(model),
    "check_config": lambda model, _: check_config(model.config),
    "kv": lambda *_: copies(),
    "replay": lambda *_: replay(generate("parallel-sampling", 0), 4000, ReplayConfig()),
    "sweep": lambda *_: sweep(
        generate("parallel-sampling", 0), parse_capacities("50%"), ReplayConfig(), jobs=1
    ),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The setters that were called."""
    found: list[str] = []
    for owner, name in SETTERS:
        original = getattr(owner, name)

        def record(
            *given: Any, _name: str = f"{owner.__name__}.{name}", _of: Any = original, **named: Any
        ) -> Any:
            found.append(_name)
            return _of(*given, **named)

        monkeypatch.setattr(owner, name, record)
    return found


@pytest.mark.parametrize("model", ["Llama", "Bamba"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_call_changes_what_belongs_to_the_process(
    entry: str, model: str, calls: list[str], tmp_path: Path
) -> None:
    made = model_of(model)
    calls.clear()
    before = dict(os.environ), torch.get_default_dtype(), warnings.filters[:]
    ENTRIES[entry](made, tmp_path)
    assert calls == []
    assert (dict(os.environ), torch.get_default_dtype(), warnings.filters[:]) == before


def test_loading_weights_changes_only_the_default_type_and_puts_it_back(
    calls: list[str], tmp_path: Path
) -> None:
    """transformers does so; ``load_model`` says it."""
    model_of("Llama").save_pretrained(tmp_path)
    calls.clear()
    before = torch.get_default_dtype()
    load_model(tmp_path, dtype=torch.bfloat16)
    assert set(calls) <= {"torch.set_default_dtype"}
    assert torch.get_default_dtype() == before


def test_a_setter_is_noticed_although_its_change_is_undone(calls: list[str]) -> None:
    calls.clear()
    torch.set_default_dtype(torch.get_default_dtype())
    assert calls == ["torch.set_default_dtype"]
