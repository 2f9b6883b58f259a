"""Finds the compiled core when this package is imported from its sources.

``pip install .`` installs the package with its core. A program started in the clone imports the
sources instead, which have no core; it then uses the installed core that was built from them.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

__all__ = ["folder_with_core"]

STUB = "_core.pyi"


def folder_with_core(sources: Path) -> Path:
    """The installed package whose ``_core`` matches these sources.

    Args:
        sources: The folder ``blockmgr`` that is being imported.

    Raises:
        ImportError: There is none, or it was built from other sources.
    """
    again = f"{sys.executable} -m pip install {str(sources.parent)!r}"
    try:
        installed = metadata.distribution("blockmgr")
    except metadata.PackageNotFoundError:
        raise ImportError(
            f"blockmgr is not installed in this environment, so it has no _core; run: {again}"
        ) from None
    folder = Path(str(installed.locate_file("blockmgr")))
    if not any(folder.glob("_core*.so")):
        raise ImportError(f"blockmgr is installed in {folder} without its _core; run: {again}")
    expected = _version_of(sources)
    if expected not in (None, installed.version):
        raise ImportError(
            f"blockmgr {installed.version} is installed in {folder}, and these sources are "
            f"{expected}; run: {again}"
        )
    if (folder / STUB).read_bytes() != (sources / STUB).read_bytes():
        raise ImportError(
            f"blockmgr is installed in {folder} from sources whose _core has other functions; "
            f"run: {again}"
        )
    return folder


def _version_of(sources: Path) -> str | None:
    """The version in the clone's ``pyproject.toml``; None if this is not a clone."""
    try:
        project = tomllib.loads((sources.parent / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    version = project.get("project", {}).get("version")
    return version if isinstance(version, str) else None
