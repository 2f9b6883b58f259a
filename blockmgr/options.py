"""Tables of options: dataclasses whose fields state bounds or choices, which one function checks.

A table says name, type, default and bounds of an option in its field, and the text in its
docstring, where ``help`` and editors look for it. What else needs them reads the table: signatures,
the core's options, the command line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ParamSpec

from blockmgr.arguments import whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Bound", "check_options", "names_nearest", "rule", "same_option", "spells_options"]

P = ParamSpec("P")

Bound = int | str | None
"""A number, or the attribute of the table that has it; None for no bound."""


def rule(
    low: Bound = None,
    high: Bound = None,
    *,
    choices: Sequence[str] = (),
    or_function: bool = False,
    needs: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """The ``metadata`` of a field of a table. A field whose default is a bool needs none.

    Args:
        low: Smallest number. With it, the option is a whole number, or None if that is the default.
        high: Largest number.
        choices: The valid names. With them, the option is a name.
        or_function: Whether a function is valid instead of a name.
        needs: Name of the option without which this one must have its default.
        text: One line for the command line; None for no option there.
    """
    return {
        "low": low,
        "high": high,
        "choices": choices,
        "or_function": or_function,
        "needs": needs,
        "text": text,
    }


def same_option(
    table: type[DataclassInstance], name: str, default: Any = MISSING, *, text: str | None = None
) -> Any:
    """A field with the rule of a field of another table, and its default unless another is given.

    Args:
        table: The other table.
        name: Name of the field.
        default: Default of the new field.
        text: As in ``rule``.
    """
    [row] = (row for row in fields(table) if row.name == name)
    default = row.default if default is MISSING else default
    return field(default=default, metadata={**row.metadata, "text": text})


def check_options(table: DataclassInstance) -> None:
    """Checks every field of a table, in order; flags first, because bounds may depend on them.

    Whole numbers become ints.

    Args:
        table: An instance of the table; ``__post_init__`` is the place for the call.

    Raises:
        ValueError: A value is out of its bounds, no valid name, or needs another option.
        TypeError: A value is of the wrong type.
    """
    rows = fields(table)
    for row in rows:
        if isinstance(row.default, bool) and not isinstance(getattr(table, row.name), bool):
            raise TypeError(f"{row.name} must be a bool, got {getattr(table, row.name)!r}")
    for row in rows:
        value, checks = getattr(table, row.name), row.metadata
        if not checks or (value is None and row.default is None):
            continue
        if checks["choices"] and not (checks["or_function"] and callable(value)):
            _check_name(row.name, value, checks["choices"])
        if checks["low"] is not None:
            value = whole(
                row.name, value, _number(checks["low"], table), _number(checks["high"], table)
            )
            object.__setattr__(table, row.name, value)
        if (needs := checks["needs"]) and value != row.default and not getattr(table, needs):
            raise ValueError(f"{row.name} must be {row.default!r} without {needs}, got {value}")


def _number(bound: int | str, table: DataclassInstance) -> int:
    number: int = getattr(table, bound) if isinstance(bound, str) else bound
    return number


def _check_name(name: str, value: object, choices: Sequence[str]) -> None:
    one_of = f"{name} must be one of {', '.join(choices)}, got {value!r}"
    if not isinstance(value, str):
        raise TypeError(one_of)
    if value not in choices:
        raise ValueError(one_of + _nearest(value, choices))


def _nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def spells_options(
    table: type[DataclassInstance], options: type
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Gives an ``__init__`` with ``**options`` the signature of the options it takes.

    ``help`` and ``inspect.signature`` then show each of them that is not an argument already, with
    type and default, and ``help`` shows its text in the table. The error about an unknown option
    names the class and the nearest option.

    Args:
        table: The table that has the options, in order.
        options: The ``TypedDict`` that names those to take.
    """

    def spelled(call: Callable[P, None]) -> Callable[P, None]:
        signature = inspect.signature(call)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        known = {each.name for each in own}
        more = [
            inspect.Parameter(
                row.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=dict(row.default) if isinstance(row.default, Mapping) else row.default,
                annotation=row.type,
            )
            for row in fields(table)
            if row.name in options.__annotations__ and row.name not in known
        ]
        checked = names_nearest(call, [*known, *(each.name for each in more)])
        checked.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *more]
        )
        checked.__doc__ = call.__doc__ or _help_on(table, checked)
        return checked

    return spelled


def _help_on(table: type[DataclassInstance], call: Callable[..., None]) -> str | None:
    """A docstring with the text that the table has on each parameter; None under ``python -OO``."""
    if table.__doc__ is None:
        return None
    texts: dict[str, list[str]] = {}
    attributes = inspect.cleandoc(table.__doc__).partition("Attributes:\n")[2].partition("\n\n")[0]
    for line in attributes.splitlines():
        name, colon, text = line.strip().partition(": ")
        if colon and line.startswith("    ") and not line.startswith("     "):
            texts[name] = [text]
        else:
            texts[next(reversed(texts))].append(line.strip())
    arguments = [
        f"        {name}: " + "\n            ".join(texts[name])
        for name in inspect.signature(call).parameters
        if name in texts
    ]
    return "\n".join(["Take the options.", "", "    Args:", *arguments, "    "])


def names_nearest(call: Callable[P, None], names: Sequence[str] | None = None) -> Callable[P, None]:
    """An ``__init__`` whose error about an unknown option names the nearest known option.

    Args:
        call: The ``__init__``.
        names: Names of its options; None for those of its signature.
    """
    known = list(inspect.signature(call).parameters if names is None else names)

    @functools.wraps(call)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        for name in given:
            if name not in known:
                raise TypeError(
                    f"{type(args[0]).__name__} has no option {name!r}{_nearest(name, known)}"
                )
        call(*args, **given)

    return checked
