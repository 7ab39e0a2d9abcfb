"""`seatrial ledger`: its table, its JSON, its words."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.ledger.made_ledgers import WRITERS, Rows, change, right_ledger, write_refrl, write_verl

from seatrial.cli import main
from seatrial.evidence.ledger.laws import LAWS
from seatrial.verdict import EXIT_BLOCKED, EXIT_FAIL, EXIT_PASS, EXIT_USAGE, Outcome, Verdict


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a folder with the rows of a right run."""
    write_refrl(tmp_path / "logs", right_ledger())
    return tmp_path / "logs"


def test_the_table_tells_every_law(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(logs)]) == EXIT_PASS
    out = capsys.readouterr().out
    assert out.startswith("48 rows of refrl in 3 files\n")
    assert all(law in out for law in LAWS)
    assert "Pass: 16 checks: 15 Pass, 1 Skipped" in out


def test_the_json_holds_the_same(logs: Path, tmp_path: Path) -> None:
    write_refrl(logs, change(3, 1, advantage=2.5)(right_ledger()))
    assert main(["ledger", str(logs), "--json", str(tmp_path / "out.json")]) == EXIT_FAIL
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["schema_version"] == 1
    assert document["stack"] == "refrl"
    assert document["num_rows"] == 48
    assert document["outcome"] == "Fail"
    verdicts = [Verdict.from_json(verdict) for verdict in document["verdicts"]]
    assert [verdict.name for verdict in verdicts] == list(LAWS)
    assert {verdict.name for verdict in verdicts if verdict.outcome is Outcome.FAIL} == {
        "advantages recomputed equal the logged",
        "advantages follow the rewards of their group",
    }


@pytest.mark.parametrize(
    ("policy", "stated", "code", "held"),
    [
        ({"precision": "float32"}, [], EXIT_FAIL, ""),
        ({"precision": "bfloat16"}, [], EXIT_PASS, "held as bfloat16"),
        ({"precision": "float32"}, ["--precision", "bfloat16"], EXIT_PASS, "held as bfloat16"),
        ({"precision": "float32", "generation": {"quantization": "int8"}}, [], EXIT_PASS, "held as int8"),
        ({"precision": "of another kind"}, [], EXIT_PASS, "precision not known"),
    ],
)
def test_the_precision_is_that_of_the_runs_record(
    logs: Path,
    policy: dict[str, object],
    stated: list[str],
    code: int,
    held: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A token that is off by 0.01 nats is a fault in float32 and rounding in bfloat16; what is stated wins."""
    row = right_ledger()[0]
    first, *others = row.prev_logprobs or ()
    spoil = change(row.step, row.index, prev_logprobs=(first - 0.01, *others))
    write_refrl(logs, spoil(right_ledger()))
    (logs / "run_info.json").write_text(json.dumps({"config": {"policy": policy}}))
    assert main(["ledger", str(logs), *stated]) == code
    assert held in " ".join(capsys.readouterr().out.split())


def test_one_file_may_be_given(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(logs / "train_data_step2.jsonl")]) == EXIT_PASS
    assert "16 rows of refrl in 1 files" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "number"), [("2:", 32), (":2", 32), ("2:2", 16), ("3", 16), (":", 48)])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_some_steps_alone(
    write: Callable[[Path, Rows], None],
    words: str,
    number: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A step that is not asked for is not read, in any stack's form."""
    write(tmp_path, right_ledger())
    assert main(["ledger", str(tmp_path), "--steps", words]) == EXIT_PASS
    assert capsys.readouterr().out.startswith(f"{number} rows of ")


def test_no_row_of_the_steps_asked_for_is_blocked(logs: Path) -> None:
    assert main(["ledger", str(logs), "--steps", "7:"]) == EXIT_BLOCKED


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--group-size", "4", "--rows-per-step", "16", "--num-steps", "3"], EXIT_PASS),
        (["--group-size", "8"], EXIT_FAIL),
        (["--rows-per-step", "32"], EXIT_FAIL),
        (["--num-steps", "4"], EXIT_FAIL),
        (["--estimator", "grpo"], EXIT_PASS),
        (["--estimator", "dr_grpo"], EXIT_FAIL),
        (["--estimator", "undetermined"], EXIT_PASS),
        (["--precision", "float32"], EXIT_PASS),
        (["--temperature", "0"], EXIT_PASS),
        (["--max-lag", "0"], EXIT_PASS),
        (["--vocabulary-size", "100"], EXIT_FAIL),
        (["--verifier", "exact_match"], EXIT_FAIL),
        (["--reward", "=2"], EXIT_USAGE),
        (["--reward", "format=much"], EXIT_USAGE),
    ],
)
def test_what_is_said_of_a_run_is_held(logs: Path, words: list[str], code: int) -> None:
    assert main(["ledger", str(logs), *words]) == code


@pytest.mark.parametrize(
    "words",
    [
        ["--group-size", "0"],
        ["--estimator", "gae"],
        ["--temperature", "nan"],
        ["--max-lag", "-1"],
        ["--precision", "int3"],
    ],
)
def test_wrong_words_are_refused(logs: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ledger", str(logs), *words])
    assert ended.value.code == EXIT_USAGE


def test_a_lone_row_is_hardly_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row arms the laws of presence, and no law of groups."""
    write_verl(tmp_path, right_ledger()[:1])
    main(["ledger", str(tmp_path)])
    out = capsys.readouterr().out
    assert "Skipped advantages follow the rewards of their group" in out
    assert "Skipped advantages recomputed equal the logged" in out


def test_no_torch_is_loaded(logs: Path) -> None:
    """Rows of a run are judged where no torch, no pyarrow and no plotting is."""
    script = (
        "import sys\n"
        "from seatrial.cli import main\n"
        f"code = main(['ledger', {str(logs)!r}])\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'refrl', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == EXIT_PASS, ran.stderr
