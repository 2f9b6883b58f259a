"""``--model``: the groups of a model's layers, and the bytes of its blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from blockmgr.cli.options import how_options_without, parsed
from blockmgr.lab.choices import hint, pick
from blockmgr.lab.models import NAMED, Model, named
from blockmgr.shapes import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "chosen_block_sizes",
    "chosen_model",
    "dtype_option",
    "engine_options",
    "forward_options",
    "model_option",
]

F = TypeVar("F", bound="Callable[..., Any]")


def model_option(command: F) -> F:
    """``--model``, as the text given."""
    return click.option(
        "--model",
        callback=parsed(_model),
        metavar="MODEL",
        help=f"A Hugging Face config.json, its folder, or one of {', '.join(NAMED)}: decides the "
        "groups of layers and the bytes of a block.",
    )(command)


def dtype_option(command: F) -> F:
    """``--dtype``."""
    return click.option(
        "--dtype",
        callback=parsed(_dtype),
        metavar="NAME",
        help=f"Element type of the cache: {', '.join(ELEMENTS)}.",
    )(command)


def forward_options(command: F) -> F:
    """``--forward-tokens`` and ``--prompt-end-stop``."""
    tokens = click.option(
        "--forward-tokens",
        type=click.IntRange(min=1),
        default=8192,
        show_default=True,
        help="Most tokens of a prompt that one forward computes, for models with several groups.",
    )
    stop = click.option(
        "--prompt-end-stop",
        type=click.IntRange(min=0),
        metavar="N",
        help="Also cache a state this many tokens before the end of each prompt, for models with "
        "recurrent states; needs --min-partial-tokens.",
    )
    return tokens(stop(command))


def engine_options(*without: str) -> Callable[[F], F]:
    """``--model``, ``--dtype``, ``how_options_without``, and ``forward_options``."""

    def add(command: F) -> F:
        how = how_options_without(*without)
        return model_option(dtype_option(how(forward_options(command))))

    return add


def _model(text: str) -> str:
    if text in NAMED or Path(text).exists():
        return text
    raise ValueError(
        f"model must be a config.json, its folder, or one of {', '.join(NAMED)}, "
        f"got {text!r}{hint(text, NAMED)}"
    )


def _dtype(name: str) -> str:
    return pick("dtype", name, ELEMENTS)


def chosen_model(text: str | None, dtype: str | None) -> Model | None:
    """The model that ``--model`` and ``--dtype`` describe; None without them.

    Raises:
        ValueError: The config describes no model, or a named model was given a dtype.
        OSError: The file cannot be read.
    """
    if text is None:
        return None
    if text in NAMED:
        if dtype is not None:
            raise ValueError(f"dtype must not be given for {text}, whose sizes are known")
        return named(text)
    return _of_config(Path(text), dtype)


def _of_config(path: Path, dtype: str | None) -> Model:
    try:
        return Model.from_config(str(path), path, dtype)
    except ValueError as error:
        # Raises if the config is wrong for a reason unrelated to groups.
        model = Model.as_one_group(str(path), path, dtype)
        click.echo(f"taken as one group of full attention: {error}", err=True)
        return model


def chosen_block_sizes(
    ctx: click.Context, parameter: str, sizes: tuple[int, ...], model: Model | None
) -> tuple[int, ...]:
    """The given block sizes, or the model's own.

    Args:
        ctx: Context of the command.
        parameter: Name of the option with the block sizes.
        sizes: Its value.
        model: The model of ``--model``.

    Raises:
        ValueError: A block of such a size cannot hold a state of the model.
    """
    if model is None or model.block_size is None:
        return sizes
    if ctx.get_parameter_source(parameter) is ParameterSource.DEFAULT:
        return (model.block_size,)
    for size in sizes:
        model.check_block_size(size)
    return sizes
