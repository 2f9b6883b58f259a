"""Every file in examples/ runs, and prints what examples/README.md shows."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockmgr.ports.vllm.options import Options

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SHOWN = dict(
    re.findall(
        r"^    python examples/(\w+\.py)$\n\n```text\n(.*?)```",
        PAGE,
        flags=re.MULTILINE | re.DOTALL,
    )
)
NOTEBOOK = "hit_rate_study.ipynb"
NEEDS_MORE = {"vllm_on_blockmgr.py"}
NEEDED = {"two_engines_and_an_index.py": ("msgspec", "zmq", "starlette", "prometheus_client")}


def test_the_page_names_every_example_and_shows_what_those_that_run_here_print() -> None:
    files = {path.name for path in EXAMPLES.glob("*.*") if path.suffix in {".py", ".ipynb"}}
    assert set(re.findall(r"^## \[(\w+\.\w+)\]", PAGE, flags=re.MULTILINE)) == files
    assert set(SHOWN) == files - NEEDS_MORE - {NOTEBOOK}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_prints_what_the_page_shows(name: str) -> None:
    for module in NEEDED.get(name, ()):
        pytest.importorskip(module, reason="an extra of this example")
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SHOWN[name]


def shown_by(cell: dict[str, Any]) -> str:
    return "".join(line for output in cell["outputs"] for line in output["text"])


def test_the_notebook_prints_what_it_and_the_page_show() -> None:
    cells = json.loads((EXAMPLES / NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    printed = []
    for cell in code:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec("".join(cell["source"]), names)
        printed.append(out.getvalue())
    assert printed == [shown_by(cell) for cell in code]
    [shown] = re.findall(rf"^## \[{NOTEBOOK}\].*?```text\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert "".join(printed) == shown


def test_the_scheduler_has_sixty_lines() -> None:
    assert len((EXAMPLES / "scheduler.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_vllm_example_uses_options_that_exist() -> None:
    tree = ast.parse((EXAMPLES / "vllm_on_blockmgr.py").read_text(encoding="utf-8"))
    [given] = [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "additional_config"
    ]
    assert Options.read(given["blockmgr"]).report_every
