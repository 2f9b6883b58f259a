"""Several users of one model: engines and ``generate``, in threads and nested.

A hook inside a layer stops a thread until the test lets it continue, so the test, not the clock,
chooses every order.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.ports.engine_models import (
    MIXED,
    NEW_TOKENS,
    STOPS,
    Tokens,
    beam_truth,
    greedy_truth,
    model_of,
    tokens_of,
)

import torch  # isort: skip  (engine_models skips this file where there is none)
from transformers import PretrainedConfig, PreTrainedModel  # isort: skip

from blockmgr import ReentrancyError, UnsupportedModelError
from blockmgr.ports.engine import Engine, Sampling

GREEDY = Sampling(max_new_tokens=NEW_TOKENS)
PROMPTS = MIXED[:4]
PATIENCE_S = 120  # time limit of a hanging test; other waits are much shorter


def own_model(name: str = "Llama") -> PreTrainedModel:
    """A copy, so that hooks and changes affect only one test."""
    return copy.deepcopy(model_of(name))


def engine_on(model: PreTrainedModel, **options: Any) -> Engine:
    return Engine(model, **{"num_blocks": 400, "block_size": 4, "max_seqs": 32, **options})


def layer_of(model: PreTrainedModel, index: int) -> torch.nn.Module:
    layer: torch.nn.Module = model.model.layers[index]
    return layer


def said_by_generate(model: PreTrainedModel) -> Tokens:
    found = []
    for prompt in PROMPTS:
        row = torch.tensor([prompt])
        arguments: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
        with torch.no_grad():
            rows = model.generate(
                row, attention_mask=torch.ones_like(row), pad_token_id=0, **arguments
            )
        found.append([rows[0, len(prompt) :].tolist()])
    return found


class Halted(threading.Thread):
    """A thread that stops once inside a layer, before or after its attention."""

    def __init__(self, call: Callable[[], Any], layer: torch.nn.Module, *, after: bool) -> None:
        super().__init__(daemon=True)
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        add = layer.register_forward_hook if after else layer.register_forward_pre_hook
        # A function is shared when a test copies the model; this thread cannot be copied.
        self._hook = add(lambda *_: self._halt())
        self.start()
        assert self.inside.wait(PATIENCE_S), self.error

    def _halt(self) -> None:
        if threading.current_thread() is self and not self.inside.is_set():
            self.inside.set()
            assert self.go_on.wait(PATIENCE_S)

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def finish(self) -> Any:
        self.go_on.set()
        self.join(PATIENCE_S)
        self._hook.remove()
        if self.error is not None:
            raise self.error
        return self.result


def greedy(engine: Engine) -> Tokens:
    return tokens_of(engine.generate(PROMPTS, GREEDY))


@contextmanager
def unchanged(model: PreTrainedModel) -> Iterator[None]:
    """The configs of a model do not change, in this or any other thread."""
    before = pickle.dumps(model.config), dict(vars(model.config)), model.config._attn_implementation
    yield
    after = pickle.dumps(model.config), dict(vars(model.config)), model.config._attn_implementation
    assert after == before
    assert before[2] != "blockmgr"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("first_out", [0, 1])
def test_two_engines_inside_a_layer_of_one_model(first_out: int, after: bool) -> None:
    """The thread that leaves the model first does not affect the other one."""
    model = own_model()
    truth = greedy_truth("Llama", PROMPTS)
    engines = [engine_on(model), engine_on(model, block_size=8)]
    with unchanged(model):
        threads = [
            Halted(lambda e=engine: greedy(e), layer_of(model, 0), after=after)  # type: ignore[misc]
            for engine in engines
        ]
        assert threads[first_out].finish() == truth
        assert threads[1 - first_out].finish() == truth
    for engine in engines:  # their cached blocks are right as well
        assert greedy(engine) == truth
        assert engine.report().hit_tokens > 0
        engine.manager.check_invariants()


@pytest.mark.parametrize("after", [False, True])
def test_the_models_own_generate_while_an_engine_is_inside_a_layer(after: bool) -> None:
    model = own_model("Mistral")
    truth = greedy_truth("Mistral", PROMPTS)
    engine = engine_on(model)
    with unchanged(model):
        thread = Halted(lambda: greedy(engine), layer_of(model, 1), after=after)
        assert model.config._attn_implementation == "sdpa"
        assert said_by_generate(model) == truth
        assert said_by_generate(copy.deepcopy(model)) == truth
        assert thread.finish() == truth
    assert greedy(engine) == truth


def test_an_engine_while_the_models_own_generate_is_inside_a_layer() -> None:
    model = own_model()
    truth = greedy_truth("Llama", PROMPTS)
    engine = engine_on(model)
    with unchanged(model):
        thread = Halted(lambda: said_by_generate(model), layer_of(model, 1), after=False)
        assert greedy(engine) == truth
        assert thread.finish() == truth


def test_beams_of_one_engine_beside_samples_of_another() -> None:
    model = own_model()
    beams, samples = engine_on(model), engine_on(model, chunk_size=3)

    def search() -> Tokens:
        return tokens_of(
            beams.beam_search(PROMPTS, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
        )

    thread = Halted(search, layer_of(model, 1), after=False)
    assert greedy(samples) == greedy_truth("Llama", PROMPTS)
    assert thread.finish() == beam_truth("Llama", PROMPTS, 4)


def test_an_engine_inside_a_layer_of_another() -> None:
    """Nested in one thread: by a hook."""
    model = own_model()
    truth = greedy_truth("Llama", PROMPTS)
    outer, inner = engine_on(model), engine_on(model)
    nested: list[Tokens] = []

    def call(*_: Any) -> None:
        if not nested:
            nested.append([])
            nested[0] = greedy(inner)

    with layer_of(model, 1).register_forward_pre_hook(call), unchanged(model):
        assert greedy(outer) == truth
    assert nested == [truth]
    assert greedy(inner) == truth


def test_the_plain_model_inside_its_own_layer_is_refused_and_an_engine_recovers() -> None:
    """In the thread of a forward the engine owns the model, but not other models."""
    model, other = own_model(), own_model()
    truth = greedy_truth("Llama", PROMPTS)
    engine = engine_on(model)
    calls: list[PreTrainedModel] = [other, model]

    def call(*_: Any) -> None:
        if calls:
            assert said_by_generate(calls.pop(0)) == truth

    with (
        layer_of(model, 1).register_forward_pre_hook(call),
        unchanged(model),
        pytest.raises(UnsupportedModelError, match="called again, by a hook"),
    ):
        greedy(engine)
    assert not calls
    assert greedy(engine) == truth
    assert said_by_generate(model) == truth


def test_an_exception_inside_a_layer_leaves_model_and_engine_as_they_were() -> None:
    model = own_model()
    truth = greedy_truth("Llama", PROMPTS)
    engine = engine_on(model)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of luck")

    with unchanged(model):
        with (
            layer_of(model, 1).register_forward_hook(fail),
            pytest.raises(RuntimeError, match="out of luck"),
        ):
            greedy(engine)
        assert said_by_generate(model) == truth
        assert greedy(engine) == truth


def test_layers_with_configs_of_their_own() -> None:
    model = own_model()
    for module in model.modules():
        if isinstance(getattr(module, "config", None), PretrainedConfig):
            module.config = copy.deepcopy(module.config)
    truth = greedy_truth("Llama", PROMPTS)
    engine = engine_on(model)
    with unchanged(model):
        thread = Halted(lambda: greedy(engine), layer_of(model, 1), after=False)
        assert said_by_generate(model) == truth
        assert thread.finish() == truth


def test_a_replaced_config_is_noticed_and_looked_at_after_a_reset() -> None:
    """Otherwise the layer would attend only to the batch, and its K/V would never be written."""
    model = own_model()
    engine = engine_on(model)
    layer_of(model, 1).self_attn.config = copy.deepcopy(model.config)
    with pytest.raises(UnsupportedModelError, match=r"layers \[0\] of 2 attended"):
        greedy(engine)
    engine.reset()
    assert greedy(engine) == greedy_truth("Llama", PROMPTS)


@pytest.mark.parametrize("how", ["wrapped", "one layer"])
def test_a_compiled_model(how: str) -> None:
    torch._dynamo.reset()
    [prompt] = MIXED[:1]
    few = Sampling(max_new_tokens=3)
    truth = [sample[:3] for sample in greedy_truth("Llama", [prompt])[0]]
    plain = own_model()
    model: Any = plain
    if how == "wrapped":
        model = torch.compile(plain, backend="eager")
    else:
        layer_of(plain, 1).compile(backend="eager")
    engine = engine_on(model)
    assert tokens_of(engine.generate([prompt], few)) == [truth]
    with torch.no_grad():
        row = torch.tensor([prompt])
        assert torch.allclose(model(row).logits, model_of("Llama")(row).logits, atol=1e-4)
    engine.reset()
    assert tokens_of(engine.generate([prompt], few)) == [truth]
    torch._dynamo.reset()


def test_a_model_compiles_whole_beside_an_engine() -> None:
    """The hooks in transformers cause no graph break for users of the plain model."""
    torch._dynamo.reset()
    model = own_model()
    greedy(engine_on(model))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    row = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        found = compiled(row, use_cache=False).logits
        assert torch.allclose(found, model_of("Llama")(row).logits, atol=1e-4)
    torch._dynamo.reset()


def test_one_engine_in_two_threads_is_refused() -> None:
    model = own_model()
    engine = engine_on(model)
    thread = Halted(lambda: greedy(engine), layer_of(model, 1), after=False)
    with pytest.raises(ReentrancyError):
        greedy(engine)
    with pytest.raises(ReentrancyError):
        engine.reset()
    assert thread.finish() == greedy_truth("Llama", PROMPTS)
