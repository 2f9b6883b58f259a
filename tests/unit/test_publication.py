"""A release without URLs, or with versions that disagree, is refused."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from tests.publication import LABELS, ROOT, metadata_of, obstacles

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
URLS = {label: f"https://host.test/blockmgr/{label.lower()}" for label in LABELS}


def email(version: str = VERSION, urls: dict[str, str] = URLS) -> str:
    head = f"Metadata-Version: 2.4\nName: blockmgr\nVersion: {version}\n"
    return head + "".join(f"Project-URL: {label}, {url}\n" for label, url in urls.items())


def about(version: str = VERSION, urls: dict[str, str] = URLS) -> list[str]:
    return obstacles(Metadata.from_email(email(version, urls)))


def test_a_version_of_this_tree_with_every_address_may_be_published() -> None:
    assert about() == []


def test_a_release_without_addresses_is_refused_with_a_line_for_each() -> None:
    assert [line.split(":")[0] for line in about(urls={})] == [
        f"[project.urls] has no {label}" for label in LABELS
    ]


@pytest.mark.parametrize(
    "url", ["http://host.test/issues", "https://example.org/issues", "https://host.test/OWNER/x"]
)
def test_an_address_that_only_fills_the_place_is_refused(url: str) -> None:
    [line] = about(urls={**URLS, "Issues": url})
    assert line == f"[project.urls] Issues must be a public https address, got {url}"


def test_a_version_that_the_tree_does_not_have_is_refused() -> None:
    assert about(version="999.0") == [
        f"version is 999.0, pyproject.toml has {VERSION}",
        "CHANGELOG.md has no dated section for 999.0",
        "CITATION.cff does not have the version 999.0",
    ]


def test_the_metadata_is_read_from_wheels_and_from_source_distributions(tmp_path: Path) -> None:
    wheel = tmp_path / "blockmgr-1-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("blockmgr-1.dist-info/METADATA", email())
    text = tmp_path / "PKG-INFO"
    text.write_text(email(), encoding="utf-8")
    sdist = tmp_path / "blockmgr-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as tar:
        tar.add(text, "blockmgr-1/PKG-INFO")
        tar.add(text, "blockmgr-1/blockmgr.egg-info/PKG-INFO")
    for file in (wheel, sdist):
        assert metadata_of(file).project_urls == URLS


def test_each_version_of_the_changelog_can_be_read_in_a_minute() -> None:
    """A limit of some 300 words. The section Unreleased is shortened when it gets its version."""
    sections = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## [")[1:]
    words = {each.split("]")[0]: len(each.split()) for each in sections}
    assert {name for name, count in words.items() if count > 450} <= {"Unreleased"}
