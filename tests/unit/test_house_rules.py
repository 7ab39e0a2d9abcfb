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


@pytest.mark.parametrize("name", SOURCES)
def test_a_module_is_read_in_one_sitting(name: str) -> None:
    """No module over 400 lines."""
    assert len((ROOT / name).read_text().splitlines()) <= 400


FORBIDDEN_CALLS = {"eval", "exec", "compile"}


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_is_evaluated_or_unpickled(name: str) -> None:
    """No eval, exec or pickle; torch.load only with weights_only=True; no shell strings."""
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            assert not {"pickle", "cloudpickle", "dill"} & {module.split(".")[0] for module in modules}
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        assert called not in FORBIDDEN_CALLS, f"{name}:{node.lineno}"
        assert called not in {"os.system", "os.popen"}, f"{name}:{node.lineno}"
        assert keywords.get("shell") != "True", f"{name}:{node.lineno}"
        if called == "torch.load":
            assert keywords.get("weights_only") == "True", f"{name}:{node.lineno}"


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
