"""Whether a release may be published: ``python -m tests.publication WHEEL-OR-SDIST ...``.

It must have the version of this tree, which must have a dated section in the changelog, and the
URLs of the project. Exit code 1, with a line for each obstacle, if it must not be published.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
LABELS = ("Source", "Documentation", "Issues", "Changelog")
PLACEHOLDER = re.compile(r"example\.|OWNER|localhost", re.IGNORECASE)


def metadata_of(file: Path) -> Metadata:
    """The core metadata of a wheel or a source distribution."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            [name] = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
            return Metadata.from_email(wheel.read(name))
    with tarfile.open(file) as sdist:
        [member] = [
            each
            for each in sdist.getmembers()
            if each.name.count("/") == 1 and each.name.endswith("/PKG-INFO")
        ]
        text = sdist.extractfile(member)
        assert text is not None  # a PKG-INFO is a plain file
        return Metadata.from_email(text.read())


def obstacles(metadata: Metadata, root: Path = ROOT) -> list[str]:
    """The obstacles to its publication, one per line; empty if there are none."""
    found = []
    version = str(metadata.version)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if version != project["version"]:
        found.append(f"version is {version}, pyproject.toml has {project['version']}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    ):
        found.append(f"CHANGELOG.md has no dated section for {version}")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if not re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE):
        found.append(f"CITATION.cff does not have the version {version}")
    urls = metadata.project_urls or {}
    for label in LABELS:
        url = urls.get(label, "")
        if not url:
            found.append(f"[project.urls] has no {label}: see docs/releasing.md")
        elif not url.startswith("https://") or PLACEHOLDER.search(url):
            found.append(f"[project.urls] {label} must be a public https address, got {url}")
    return found


def main() -> int:
    """Check each file that is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.publication", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="wheels and source distributions")
    refused = False
    for file in parser.parse_args().files:
        found = obstacles(metadata_of(file))
        refused |= bool(found)
        for each in found or ["may be published"]:
            print(f"{file.name}: {each}")
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
