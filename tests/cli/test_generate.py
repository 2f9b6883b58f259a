"""``blockmgr generate``: a model on the command line, and the savings of sharing."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="generate runs a transformers model")
pytest.importorskip("transformers", reason="generate runs a transformers model")

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, MambaConfig

from blockmgr.cli.generate import WORDS as DEMO_WORDS

if TYPE_CHECKING:
    from tests.cli.conftest import Run

WORDS = ("<unk>", "a", "block", "is", "what", "who", "may", "write", "to", "it")
SHORT = ("generate", "--demo", "--max-new-tokens", "6")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A saved model whose tokenizer makes one token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "how",
    [
        (),
        ("--temperature", 0.8, "--seed", 4),
        ("--temperature", 0.8, "--n", 3),
        ("--beams", 4, "--block-size", 4),
        ("--beams", 4, "--n", 4),
    ],
    ids=str,
)
def test_the_demo_says_what_generate_says(run: Run, how: tuple[object, ...]) -> None:
    result = run(*SHORT, *how)
    assert result.exit_code == 0, result.stderr
    assert "equal to model.generate: yes" in result.stderr
    said = [line for line in result.stdout.splitlines()[:-8] if line and not line.startswith(">")]
    assert {word for line in said for word in line.split()} <= set(DEMO_WORDS)
    assert result.stdout.count("> You are a helpful assistant.") == 3
    report = dict(line.rsplit(maxsplit=1) for line in result.stdout.splitlines()[-8:])
    assert int(report["found in the cache"]) > 0
    assert int(report["blocks at the peak"]) < int(report["without sharing"])


def test_each_token_of_the_demo_has_a_word_of_its_own() -> None:
    assert len(DEMO_WORDS) == len(set(DEMO_WORDS)) == 256


WRONG: dict[str, Callable[[list[int]], list[int]]] = {
    "stops early": lambda tokens: tokens[:-1],
    "says nothing": lambda tokens: [],
    "goes on": lambda tokens: [*tokens, tokens[-1]],
    "changes a token": lambda tokens: [*tokens[:-1], tokens[-1] ^ 1],
}


@pytest.mark.parametrize("how", [(), ("--beams", 3, "--n", 3), ("--temperature", 1, "--n", 3)])
@pytest.mark.parametrize("name", WRONG)
def test_a_difference_in_the_last_sample_is_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, how: tuple[object, ...]
) -> None:
    generate = importlib.import_module("blockmgr.cli.generate")  # `cli.generate` is the command
    works = generate._run

    def wrong(*arguments: Any) -> Any:
        *first, last = works(*arguments)
        *others, sample = last.samples
        sample = replace(sample, tokens=WRONG[name](sample.tokens))
        return [*first, replace(last, samples=[*others, sample])]

    monkeypatch.setattr(generate, "_run", wrong)
    result = run(*SHORT, "--check", *how)
    assert result.exit_code == 1
    assert "equal to model.generate: no" in result.stderr


def test_a_sample_too_few_is_a_difference(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = importlib.import_module("blockmgr.cli.generate")
    works = generate._run
    monkeypatch.setattr(
        generate, "_run", lambda *a: [replace(g, samples=g.samples[:-1]) for g in works(*a)]
    )
    assert run(*SHORT, "--check", "--beams", 3, "--n", 2).exit_code == 1


@pytest.mark.parametrize("how", [(), ("--beams", 4, "--n", 4), ("--temperature", 2, "--n", 4)])
def test_samples_that_end_early_are_compared_up_to_their_end(
    run: Run, model_dir: Path, how: tuple[object, ...]
) -> None:
    GenerationConfig(eos_token_id=[2, 3, 5], pad_token_id=0).save_pretrained(model_dir)
    result = run("generate", model_dir, "who may write to it", "what is", "--check", "--json", *how)
    assert result.exit_code == 0, result.stderr
    samples = [s for each in json.loads(result.stdout)["results"] for s in each["samples"]]
    assert any(sample["finish_reason"] == "stop" for sample in samples)


def test_settings_that_are_not_applied_are_named(run: Run, model_dir: Path) -> None:
    asked = GenerationConfig(repetition_penalty=1.3, do_sample=True, min_p=0.1, temperature=0.6)
    asked.save_pretrained(model_dir)
    for how, names in (
        ((), "repetition_penalty=1.3"),
        (("--temperature", 1), "min_p=0.1, repetition_penalty=1.3"),
    ):
        result = run("generate", model_dir, "what is a block", *how)
        assert result.exit_code == 0
        said = f"the model's generation config sets {names}, which is not applied here"
        assert result.stderr.splitlines()[0] == f"warning: {said}"
        refused = run("generate", model_dir, "what is a block", "--check", *how)
        assert (refused.exit_code, refused.stdout) == (3, "")
        assert f"{said}, but model.generate applies it, so --check cannot succeed" in refused.stderr


def test_settings_of_drawn_tokens_leave_the_likeliest_alone(run: Run, model_dir: Path) -> None:
    GenerationConfig(do_sample=True, min_p=0.1, temperature=0.6).save_pretrained(model_dir)
    result = run("generate", model_dir, "what is a block", "--check")
    assert result.exit_code == 0, result.stderr
    assert "warning" not in result.stderr


def test_stderr_says_how_to_repeat_it(run: Run) -> None:
    first = run(*SHORT, "--temperature", "1", "--n", "2", "one prompt", "two")
    command = shlex.split(first.stderr.partition("repeat with: ")[2])
    assert command[0] == "blockmgr"
    assert run(*command[1:]).stdout == first.stdout


def test_json_holds_tokens_and_savings(run: Run) -> None:
    one, other = (run(*SHORT, "--json", "--beams", 3, "--n", 2, "hello") for _ in range(2))
    assert one.stdout_bytes == other.stdout_bytes
    document = json.loads(one.stdout)
    [result] = document["results"]
    assert result["prompt"] == "hello"
    assert [len(sample["tokens"]) for sample in result["samples"]] == [6, 6]
    assert result["samples"][0]["score"] >= result["samples"][1]["score"]
    assert document["report"]["peak_unshared_blocks"] >= document["report"]["peak_blocks"]


def test_a_model_directory_gives_text(run: Run, model_dir: Path) -> None:
    result = run("generate", model_dir, "who may write to it", "what is a block", "--check")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "> who may write to it"
    assert set(lines[1].split()) <= set(DEMO_WORDS)


def test_wrong_commands_and_wrong_input(run: Run, tmp_path: Path) -> None:
    for words, code, message in (
        ((), 2, "give a MODEL_DIR"),
        ((tmp_path,), 2, "at least one PROMPT"),
        ((tmp_path, "hello"), 3, "config.json"),
        (("--demo", "--n", 2), 2, "n must be 1 at temperature 0"),
        (("--demo", "--beams", 2, "--temperature", 1), 2, "--beams takes no --temperature"),
        (("--demo", "--beams", 2, "--n", 3), 2, "returns --n of its beams"),
        (("--demo", "--beams", -1), 2, "num_beams must be"),
        (("--demo", "--num-blocks", 0), 2, "--num-blocks"),
        (("--demo", "--temperature", 1e-45), 2, "temperature must be"),
        (("--demo", "--seed", 2**64), 2, "seed must be"),
        (("--demo", "--num-blocks", 1), 2, "the pool has 1"),
        (("--demo", "--device", "nowhere"), 2, "device must be"),
    ):
        result = run("generate", *words)
        assert result.exit_code == code
        assert result.stderr.startswith("error: ")
        assert message in result.stderr
        assert result.stdout == ""


def test_an_unsupported_model_is_wrong_input(run: Run, tmp_path: Path) -> None:
    MambaConfig().save_pretrained(tmp_path)
    result = run("generate", tmp_path, "hello")
    assert result.exit_code == 3
    assert "mamba: no layer has attention" in result.stderr


def test_damaged_weights_and_a_missing_tokenizer_are_wrong_input(
    run: Run, model_dir: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(model_dir, tmp_path / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    mute = shutil.copytree(model_dir, tmp_path / "mute")
    for file in mute.glob("token*"):
        file.unlink()
    for folder, message in ((damaged, "cannot load"), (mute, "no tokenizer in")):
        result = run("generate", folder, "hello")
        assert result.exit_code == 3
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_prompt_that_begins_with_a_dash_is_repeated_as_a_prompt(run: Run) -> None:
    result = run("generate", "--demo", "--max-new-tokens", 1, "--", "-x")
    assert result.exit_code == 0
    assert result.stderr.rstrip().endswith("-- -x")
