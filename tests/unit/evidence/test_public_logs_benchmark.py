"""The comparison with independent readers sees what is equal, and what is not."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.unit.evidence.event_writers import write_series

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks/public_logs.py"
ROWS = [{"step": step, "loss": 1.0, "text": "x", "nan": float("nan")} for step in range(1, 6)]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("public_logs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {
        "trainer_state.json": json.dumps({"global_step": 5, "log_history": ROWS}),
        "list.json": json.dumps(ROWS),
        "columns.json": json.dumps({"loss": [1.0, 2.0], "kl": [0.5, 0.25]}),
        "log.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "log.csv": "iteration,loss,note\n1,0.5,\n2,0.25,x\n",
        "verl.log": "(pid=1) step:1 - a:0.5 - b:nan\n(pid=1) step:2 - a:0.5\n",
        "trl.out": "{'loss': 0.5, 'epoch': 0.5}\n{'loss': nan, 'epoch': 1.0}\n",
        "loop.log": "[x] 1/9 | loss=0.5 | reward=0.5\n[x] 2/9 | loss=0.5 | reward=0.5\n",
    }
    for name, text in texts.items():
        (tmp_path / name.partition(".")[0]).mkdir(exist_ok=True)
        (tmp_path / name.partition(".")[0] / name).write_text(text)
    write_series(tmp_path / "events" / "events.out.tfevents.1", {"loss": [1.0] * 4})
    return tmp_path


def run(script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["public_logs.py", str(folder)])
    return int(script.main())


def test_counts_of_every_form_are_equal(
    script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(script, folder, monkeypatch)
    out = capsys.readouterr().out
    assert code == 0, out
    assert len(out.splitlines()) == 10 and out.endswith("all counts are equal\n")


def test_a_point_that_is_lost_shows(
    script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "json_lines", lambda path: [("loss", step) for step in range(4)])
    assert run(script, folder, monkeypatch) == 1
    assert [line.split("/")[0] for line in capsys.readouterr().out.splitlines() if "DIFFERS" in line] == [
        "log"
    ]
