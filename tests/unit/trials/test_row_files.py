"""What a trial says of files of rows that some reader would cut otherwise."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.row_files import rows_have_lines

ROW = {"completion": "a\u2028b"}


def said(folder: Path, content: str | None) -> str:
    """Return what is wrong with a file of rows."""
    if content is not None:
        (folder / "train_data_step1.jsonl").write_text(content, encoding="utf-8")
    job: Any = SimpleNamespace(configuration={"grpo": {"seed": 0}}, ledger_dir=folder)
    return "; ".join(rows_have_lines(RunEvidence(job, None, []))[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (json.dumps(ROW) + "\n", ""),
        ("{}\n" + json.dumps(ROW, ensure_ascii=False) + "\n", "line 2 is not in ASCII"),
        ("{}\n[1]\n", "line 2 is no JSON object"),
        ('{"a":\n1}\n', "line 1 is no JSON object"),
        ("{}\x0c{}\n{}\x1c\n", "line 4 is no JSON object"),
    ],
)
def test_a_line_is_one_object_for_every_reader(tmp_path: Path, content: str, wrong: str) -> None:
    """Also for those that end lines at U+2028 or at a form feed."""
    found = said(tmp_path, content)
    assert wrong in found
    assert bool(found) is bool(wrong)


def test_a_run_without_rows_is_not_judged(tmp_path: Path) -> None:
    """No file is no evidence."""
    with pytest.raises(NotGivenError, match="no files of rows"):
        said(tmp_path, None)
