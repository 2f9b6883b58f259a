"""``blockmgr generate``."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
from rich import box
from rich.table import Table

from blockmgr import __version__
from blockmgr.cli.common import WrongInput, one_line_errors, repeat_command
from blockmgr.cli.options import debug_option, how_options_of
from blockmgr.errors import BlockMgrError, MissingExtraError, UnsupportedModelError
from blockmgr.lab.report import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.ports.engine import Engine, EngineReport, Generation, Sample

__all__ = ["WORDS", "generate"]

_TEXT: Final = """\
the manager of and block it is blocks with in tokens to that its one prompt cached an from first
sequence no for engine or on copy are parent not hit yes has only last admit when token same
match as what two other if extras use rate prompts commit child by them table idle at source run
next free every step pool order fork does takes stats shared prefix policies own never model
full eviction each can you states second need may index do digest write why this tail so share
sequences plan owned out namespace look find copies cache all after writes which was then shares
root reuse policy needs moves list key images identity finds count computed both because without
up trace they their tables retention replay range ports place partial page nothing memory into
image how holds handle freed forks design compares change before admission your until turn three
than tests stays slots sizes shows sharing set runs request nodes node models keys keeps
internal have hash forward evicts evicted equal ends digests children call beam be any another
yet would within windows where used too there start sliding size search says room report plot
part over names more misses missed long handed glossary generate fresh computes compute chat
calls becomes append apart always value times these tensors tenants tenant take such soon slot
see security section scheduler salt result rates queues questions planned pins pin owns others
orphans new most measure make looks live library leaves leaf large kept hold four
"""
WORDS: Final = tuple(_TEXT.split())


RESULT_SAYS_NO: Final = 1

# Prompts with a common prefix, so that they share blocks.
DEMO_PROMPTS: Final = tuple(
    "You are a helpful assistant. Answer in one short sentence. " + question
    for question in ("What is a block?", "What is a block table?", "Who may write to a block?")
)


@click.command(short_help="Continue prompts with a model on this manager.")
@click.argument("words", nargs=-1, metavar="[MODEL_DIR] [PROMPT]...")
@click.option("--demo", is_flag=True, help="Use a tiny seeded model; nothing is downloaded.")
@click.option("--max-new-tokens", default=20, show_default=True, help="Tokens to generate at most.")
@click.option(
    "--temperature", default=0.0, show_default=True, help="0 takes the most likely token."
)
@click.option(
    "--seed", default=0, show_default=True, help="Seed of the first sample of each prompt."
)
@click.option("--n", default=1, show_default=True, help="Samples of each prompt.")
@click.option("--beams", default=0, show_default=True, help="Beams of a beam search; 0: sample.")
@how_options_of("block_size", "min_partial_tokens", "dedup")
@click.option(
    "--num-blocks",
    type=click.IntRange(min=1),
    help="Size of the pool.  [default: what fits 1 GiB]",
)
@click.option("--device", default="cpu", show_default=True, help="Device of weights and K/V.")
@click.option("--check", is_flag=True, help="Exit with 1 if model.generate gives other tokens.")
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON instead of text.")
@debug_option
@click.pass_context
def generate(
    ctx: click.Context,
    /,
    *,
    words: tuple[str, ...],
    demo: bool,
    check: bool,
    json_wanted: bool,
    debug: bool,
    **settings: Any,
) -> None:
    """Continue PROMPTS with the model in MODEL_DIR, and print what sharing saved.

    With --demo there is no MODEL_DIR. Its model is not trained: it reads bytes and writes words
    that have no meaning, and --check is on.
    """
    if not demo and len(words) < 2:
        raise click.UsageError("give a MODEL_DIR and at least one PROMPT, or --demo", ctx)
    if settings["beams"] > 0 and (settings["temperature"] or settings["n"] > settings["beams"]):
        raise click.UsageError("--beams takes no --temperature, and returns --n of its beams", ctx)
    checked = check or demo
    with one_line_errors(ctx, show_traceback=debug):
        engine, encode, decode = _demo(settings) if demo else _load(words[0], settings)
        _say_what_is_ignored(engine, settings, check=checked)
        texts = (words or DEMO_PROMPTS) if demo else words[1:]
        tokens = [encode(text) for text in texts]
        found = _run(engine, tokens, settings)
        differing = _differing(engine, tokens, found, settings) if checked else []
    report = engine.report()
    if json_wanted:
        _print_json(texts, found, report, decode, equal=not differing if checked else None)
    else:
        _print_text(texts, found, decode)
        _print_report(report, sys.stdout)
    if checked:
        click.echo(f"equal to model.generate: {'no' if differing else 'yes'}", err=True)
    command = repeat_command(ctx, ("seed",), {}, leave_out=("words", "debug"))
    # A prompt may begin with a dash; arguments after the two dashes are not options.
    command = " ".join([command, *["--"][: len(words)], *map(shlex.quote, words)])
    seed = settings["seed"]
    click.echo(f"blockmgr {__version__}, seed {seed}, repeat with: {command}", err=True)
    if differing:
        ctx.exit(RESULT_SAYS_NO)


def _engine_options(settings: dict[str, Any]) -> dict[str, Any]:
    names = ("block_size", "num_blocks", "min_partial_tokens", "dedup")
    # Prompts of one step can share blocks, because this engine's attention writes before it reads.
    return {"early_commit": True, **{name: settings[name] for name in names}}


def _device(settings: dict[str, Any]) -> str:
    import torch  # noqa: PLC0415

    name: str = settings["device"]
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that torch has here, got {name!r}") from error
    return name


def _quiet_transformers() -> None:
    try:
        import torch  # noqa: F401, PLC0415
        from transformers.utils import logging  # noqa: PLC0415  (an extra; seconds to import)
    except ImportError as error:
        raise MissingExtraError("transformers", "blockmgr generate") from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _load(
    model_dir: str, settings: dict[str, Any]
) -> tuple[Engine, Callable[[str], list[int]], Callable[[list[int]], str]]:
    _quiet_transformers()
    from blockmgr.ports.engine import Engine  # noqa: PLC0415

    tokenizer = _tokenizer(model_dir)
    try:
        with warnings.catch_warnings():
            # _say_what_is_ignored prints it in one line.
            warnings.filterwarnings("ignore", "the model's generation config", UserWarning)
            engine = Engine.from_pretrained(
                model_dir, device=_device(settings), **_engine_options(settings)
            )
    except UnsupportedModelError as error:
        raise WrongInput(str(error)) from error
    except (BlockMgrError, ValueError, TypeError, OSError):
        raise
    except Exception as error:  # libraries raise anything for damaged files
        raise WrongInput(f"cannot load {model_dir!r}: {_first_line(error)}") from error
    return (
        engine,
        lambda text: list(tokenizer(text)["input_ids"]),
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
    )


def _tokenizer(model_dir: str) -> Any:
    """Load the tokenizer before the weights: it is faster to load, and missing more often."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    if not (Path(model_dir) / "config.json").is_file():
        raise WrongInput(f"no config.json in {model_dir!r}, so it is no model directory")
    try:
        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    except Exception as error:  # libraries raise anything for a folder without a tokenizer
        raise WrongInput(f"no tokenizer in {model_dir!r}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _demo(
    settings: dict[str, Any],
) -> tuple[Engine, Callable[[str], list[int]], Callable[[list[int]], str]]:
    _quiet_transformers()
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    from blockmgr.ports.engine import Engine  # noqa: PLC0415

    torch.manual_seed(0)  # seed of the model; --seed is for the samples
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    model = model.to(_device(settings))
    options = _engine_options(settings)
    options["num_blocks"] = options["num_blocks"] or 4096
    engine = Engine(model, **options)
    return (
        engine,
        lambda text: list(text.encode()),
        lambda tokens: " ".join(WORDS[t] for t in tokens),
    )


def _say_what_is_ignored(engine: Engine, settings: dict[str, Any], *, check: bool) -> None:
    from blockmgr.ports.transformers.generation import ignored_settings  # noqa: PLC0415

    draws = settings["temperature"] > 0
    ignored = ignored_settings(engine.model.model.generation_config, draws=draws)
    if not ignored:
        return
    names = ", ".join(f"{name}={value!r}" for name, value in ignored.items())
    said = f"the model's generation config sets {names}, which is not applied here"
    if check:
        raise WrongInput(f"{said}, but model.generate applies it, so --check cannot succeed")
    click.echo(f"warning: {said}", err=True)


def _run(engine: Engine, tokens: list[list[int]], settings: dict[str, Any]) -> list[Generation]:
    from blockmgr.ports.engine import Sampling  # noqa: PLC0415

    if settings["beams"]:
        return engine.beam_search(
            tokens,
            settings["beams"],
            settings["max_new_tokens"],
            num_return=min(settings["n"], settings["beams"]),
            progress=True,
        )
    names = ("max_new_tokens", "temperature", "seed", "n")
    sampling = Sampling(**{name: settings[name] for name in names})
    return engine.generate(tokens, sampling, progress=True)


def _differing(
    engine: Engine, tokens: list[list[int]], found: list[Generation], settings: dict[str, Any]
) -> list[int]:
    """Indices of the prompts for which ``model.generate`` gives other tokens in any sample."""
    return [
        i
        for i, (prompt, generation) in enumerate(zip(tokens, found, strict=True))
        if [sample.tokens for sample in generation.samples] != _said(engine, prompt, settings)
    ]


def _said(engine: Engine, prompt: list[int], settings: dict[str, Any]) -> list[list[int]]:
    """The tokens of each sample or beam by ``model.generate``, up to its stop token."""
    import torch  # noqa: PLC0415

    arguments: dict[str, Any] = {
        "max_new_tokens": settings["max_new_tokens"],
        "do_sample": False,
        "num_beams": settings["beams"] or 1,
    }
    seeds = [settings["seed"]]
    if settings["beams"]:
        arguments |= {
            "length_penalty": 1.0,
            "early_stopping": False,
            "num_return_sequences": settings["n"],
        }
    elif settings["temperature"] > 0:
        # Otherwise transformers draws from the 50 likeliest tokens, or as the model's files say.
        arguments |= {"do_sample": True, "top_k": 0, "top_p": 1.0}
        arguments["temperature"] = settings["temperature"]
        # Each sample has its own random generator, so each needs a separate call.
        seeds = [settings["seed"] + i for i in range(settings["n"])]
    model: Any = engine.model.model
    row = torch.tensor([prompt], device=engine.model.device)
    said: list[list[int]] = []
    for seed in seeds:
        torch.manual_seed(seed)
        with torch.no_grad():
            rows = model.generate(row, attention_mask=torch.ones_like(row), **arguments).tolist()
        said += (_ended(each[len(prompt) :], engine.model.stop_token_ids) for each in rows)
    return said


def _ended(tokens: list[int], stops: tuple[int, ...]) -> list[int]:
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


def _print_text(
    texts: tuple[str, ...], found: list[Generation], decode: Callable[[list[int]], str]
) -> None:
    for text, generation in zip(texts, found, strict=True):
        click.echo(f"> {text}")
        for sample in generation.samples:
            click.echo(decode(sample.tokens))
        click.echo("")


def _print_report(report: EngineReport, file: TextIO) -> None:
    """Print what sharing saved."""
    table = Table(show_header=False, box=box.SIMPLE)
    table.add_column()
    table.add_column(justify="right")
    rows = (
        ("prompt tokens", report.query_tokens),
        ("found in the cache", report.hit_tokens),
        ("tokens computed", report.computed_tokens),
        ("forwards", report.steps),
        ("blocks at the peak", report.peak_blocks),
        ("without sharing", report.peak_unshared_blocks),
        ("block copies", report.copies),
        ("preemptions", report.preemptions),
    )
    for name, value in rows:
        table.add_row(name, f"{value:,}")
    print_table(table, file)


def _print_json(
    texts: tuple[str, ...],
    found: list[Generation],
    report: EngineReport,
    decode: Callable[[list[int]], str],
    *,
    equal: bool | None,
) -> None:
    counts = {name: value for name, value in asdict(report).items() if not name.endswith("_s")}
    results = [
        {
            "prompt": text,
            "num_cached_tokens": generation.num_cached_tokens,
            "samples": [_as_dict(sample, decode) for sample in generation.samples],
        }
        for text, generation in zip(texts, found, strict=True)
    ]
    document: dict[str, Any] = {"report": counts, "results": results}
    if equal is not None:
        document["equal_to_model_generate"] = equal
    click.echo(json.dumps(document, indent=2, sort_keys=True))


def _as_dict(sample: Sample, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    return {
        "finish_reason": sample.finish_reason,
        "score": sample.score,
        "text": decode(sample.tokens),
        "tokens": sample.tokens,
    }
