"""Reading files line by line, and writing files completely or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.files import bounded_lines, check_output, printable, replacing


def lines(path: Path, most_bytes: int) -> list[tuple[int, bytes]]:
    with path.open("rb") as file:
        return list(bounded_lines(file, str(path), most_bytes))


def test_a_line_is_read_up_to_the_bound_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1234567\n\n12345678\n")
    assert lines(path, 9) == [(1, b"1234567\n"), (2, b"\n"), (3, b"12345678\n")]

    with pytest.raises(TraceFormatError) as caught:
        lines(path, 8)

    assert (caught.value.line, caught.value.column) == (3, 9)
    assert str(caught.value).startswith(f"{path}:3:9: found a line of more than 8 bytes")


def test_no_more_of_a_long_line_is_read_than_the_bound(tmp_path: Path) -> None:
    """A pipe whose line never ends: only a reader with a limit returns."""
    path = tmp_path / "endless"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"1" * 512)
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(TraceFormatError, match=":1:100001: found a line of more than 100000 bytes"):
        lines(path, 100_000)
    writer.join()


def test_a_file_takes_its_place_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"before")

    with replacing(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"

    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError(), KeyboardInterrupt()])
def test_a_failure_leaves_the_file_that_was_there_and_no_other(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"before")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half of it")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_the_file_that_is_replaced_or_of_any_new_one(
    tmp_path: Path,
) -> None:
    before, fresh, usual = (tmp_path / name for name in ("before", "fresh", "usual"))
    before.touch()
    before.chmod(0o640)
    for path in (before, fresh):
        with replacing(path) as file:
            file.write(b"x")
    usual.write_bytes(b"x")
    assert stat.S_IMODE(before.stat().st_mode) == 0o640
    assert fresh.stat().st_mode == usual.stat().st_mode


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with replacing(path) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(path) as file:
        file.write(b"x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)
    assert path.is_fifo()


@pytest.mark.parametrize("target", ["there", "missing"])
def test_a_symbolic_link_is_neither_followed_nor_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "there").write_bytes(b"before")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    message = f"must not be a symbolic link, got '{link}', which points to '{tmp_path / target}'"
    with pytest.raises(ValueError, match=message):
        check_output(link)
    with pytest.raises(ValueError, match=message), replacing(link):
        pass
    assert link.is_symlink()
    assert (tmp_path / "there").read_bytes() == b"before"
    assert not (tmp_path / "missing").exists()


def test_an_input_is_refused_as_output_under_any_of_its_names(tmp_path: Path) -> None:
    path, other = tmp_path / "trace.html", tmp_path / "other.html"
    path.write_bytes(b"x")
    other.hardlink_to(path)
    link = tmp_path / "link.html"
    link.symlink_to(path)
    for output, read in (
        (path, path),
        (other, path),
        (path, link),
        (tmp_path / "." / "trace.html", path),
    ):
        with pytest.raises(ValueError, match="output must not be the file that is read"):
            check_output(output, inputs=(None, read))
    fresh = tmp_path / "fresh.html"
    assert check_output(fresh, inputs=(path,)) == fresh


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("page.pdf", r"output must end in .html, got 'page.pdf'"),
        ("nowhere/page.html", r"output must go into a folder that exists"),
        ("folder.html", r"output must be a file, got the folder"),
    ],
)
def test_what_cannot_be_an_output_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ValueError, match=message):
        check_output(tmp_path / name, suffixes=(".html",))


def test_what_cannot_be_shown_becomes_an_escape_and_nothing_else_does() -> None:
    assert printable("Zürich 東京 $x.jsonl") == "Zürich 東京 $x.jsonl"
    assert printable("\x1b[2J\n\udc80\udcff\ud800\u2028") == r"\x1b[2J\n\x80\xff\ud800\u2028"
    printable("".join(map(chr, range(0x3000)))).encode("utf-8")
