"""The rules of the house, held on every commit."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
SOURCES = [
    name for name in TRACKED if name.startswith("src/") and name.endswith(".py") and (ROOT / name).exists()
]
TOOLS = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["lint-imports"],
        ["ruff", "check", "src", "tests", "benchmarks", "examples"],
        ["ruff", "format", "--check", "src", "tests", "benchmarks", "examples"],
        ["mypy"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_linters_agree(command: list[str]) -> None:
    """Import contracts, style and strict types."""
    ran = subprocess.run(
        [str(TOOLS / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]


def test_a_module_is_read_in_one_sitting() -> None:
    """No module over 400 lines."""
    assert [name for name in SOURCES if len((ROOT / name).read_text().splitlines()) > 400] == []


FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "os.system", "os.popen"}
MARKS = re.compile(
    "|".join([rf"\b{name}\b" for name in (*FORBIDDEN_IMPORTS, *FORBIDDEN_CALLS, "shell", "torch.load")])
)
"""Each of them is in a source that may run text or data; most sources have none and need not be parsed."""


def test_nothing_is_evaluated_or_unpickled() -> None:
    """No eval, exec or pickle; torch.load only with weights_only=True; no shell strings."""
    found = [f"{name}:{number}" for name in SOURCES for number in _unsafe_lines((ROOT / name).read_text())]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import os, dill.source",
        "from cloudpickle import loads",
        "eval(text)",
        "os.system(line)",
        "subprocess.run(line, shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_what_evaluates_or_unpickles_is_seen(line: str) -> None:
    """The rule can say no."""
    assert _unsafe_lines(line) == [1]


def _unsafe_lines(source: str) -> list[int]:
    """Return the numbers of the lines that may run text or data as code."""
    if not MARKS.search(source):
        return []
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.stmt | ast.expr) and _is_unsafe(node)]


def _is_unsafe(node: ast.stmt | ast.expr) -> bool:
    """Return whether an import or a call may run text or data as code."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
        return bool(FORBIDDEN_IMPORTS & {module.split(".")[0] for module in modules})
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    unsafe_load = called == "torch.load" and keywords.get("weights_only") != "True"
    return called in FORBIDDEN_CALLS or keywords.get("shell") == "True" or unsafe_load


def test_no_index_hosts_and_no_paths_of_a_machine() -> None:
    """What is committed names no package index and no folder of the machine it was written on."""
    index_words = re.compile(
        "|".join(["files.python" + "hosted", "pypi" + r"\.org/simple", "--find" + "-links"])
    )
    own_path = str(ROOT) if len(ROOT.parts) > 2 else os.devnull
    for name in TRACKED:
        path = ROOT / name
        if not path.is_file() or path.suffix in {".png", ".wandb", ".db", ".gz"}:
            continue
        text = path.read_text(errors="replace")
        assert not index_words.search(text), name
        assert own_path + "/" not in text, name


def test_refrl_is_light_to_read_and_seatrial_light_to_import() -> None:
    """`import seatrial` and the judging commands load neither torch nor transformers nor numpy at import."""
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, seatrial, seatrial.cli, seatrial.verdict, seatrial.pytest_plugin;"
            "print([m for m in ('torch', 'transformers', 'numpy', 'rich', 'tensorboard') if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "[]"


def test_judging_works_without_torch() -> None:
    """Modules of check, dump, tags, trend, bisect, report import with torch made unimportable."""
    names = ["check", "dump", "report", "doctor", "watch", "triage"]
    script = (
        "import sys; sys.modules.update(torch=None, transformers=None, ray=None)\n"
        "import importlib\n"
        f"for name in {names!r}: importlib.import_module('seatrial.cli.' + name)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
