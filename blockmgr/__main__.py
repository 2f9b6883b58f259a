"""``python -m blockmgr``, and what the ``blockmgr`` command runs."""

from __future__ import annotations

import sys

from blockmgr.errors import MissingExtraError

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its extra, say in one line how to get it."""
    try:
        from blockmgr import cli  # noqa: PLC0415  (needs click, which is an extra)
    except MissingExtraError as error:
        sys.exit(_refuse(error))
    cli.main()


def _refuse(error: MissingExtraError) -> int:
    sys.stderr.write(f"error: {error}\n")
    return 2


if __name__ == "__main__":
    main()
