"""`seatrial run`, `report` and `doctor`: wrong words are one message and exit 2, what is missing is exit 3."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.cli import main
from seatrial.errors import UsageError
from seatrial.trials.plan import parse_levels, select_trials
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome


@pytest.mark.parametrize(
    ("text", "levels"), [("0", [0]), ("0,6", [0, 6]), ("0-2,6", [0, 1, 2, 6]), ("6, 0", [0, 6]), ("3-3", [3])]
)
def test_levels(text: str, levels: list[int]) -> None:
    """Singles, ranges, any order."""
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["", "x", "0,", "-1", "2-1", "7", "0-9", "1.5", "0--2"])
def test_what_is_no_level(text: str) -> None:
    """It is refused by name."""
    with pytest.raises(UsageError, match="--level"):
        parse_levels(text)


def test_trials_by_level_and_by_name() -> None:
    """Both given: what both name."""
    assert [trial.name for trial in select_trials([0, 6], [])] == ["grpo-smoke", "learning-signal"]
    assert [trial.name for trial in select_trials(None, ["learning-signal"])] == ["learning-signal"]
    with pytest.raises(UsageError, match="not of level 0"):
        select_trials([0], ["learning-signal"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--level", "9"], "not within 0-6"),
        (["--trial", "grpo-smok"], "did you mean 'grpo-smoke'"),
        (["--target", "refrence"], "did you mean 'reference'"),
        (["grpo.sede=1"], "the nearest known key is 'grpo.seed'"),
        (["grpo.max_num_steps=lots"], "grpo.max_num_steps"),
        (["--seed", "-1"], "--seed -1: give 0 to"),
        (["--timeout", "0"], "--timeout 0 is not positive"),
        (["--resume", "nowhere"], "nowhere is no run directory"),
        (["--resume", ".", "--level", "0"], "--level goes with a new run"),
        (["--resume", ".", "grpo.max_num_steps=1"], "key=value go with a new run"),
    ],
)
def test_wrong_words_are_one_message_and_make_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    """Exit 2, no traceback, no run directory."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_empty_output_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be the current folder."""
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--output", ""])
    assert (
        "argument --output: expected a folder (an unset shell variable is empty)" in capsys.readouterr().err
    )


def test_a_missing_model_is_blocked_with_valid_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3; the run directory says why."""
    words = ["run", "--output", str(tmp_path), f"policy.model_name={tmp_path / 'none'}"]
    assert main(words) == 3
    (path,) = tmp_path.iterdir()
    results = read_results(path)
    assert results.outcome is Outcome.BLOCKED
    assert "is no folder" in results.requested_trials()[0].verdicts[-1].reason
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["Blocked", "level", "0", "grpo-smoke"]
    assert "is no folder" in lines[1]
    assert lines[2].split()[:2] == ["usual", "cause:"]
    assert lines[3].split()[0] == "next:"
    assert lines[4] == f"{len(results.trials) - 1} trials were not requested"
    assert "no evidence against the stack" in lines[5]
    assert lines[6].startswith("report: ")
    assert len(lines) == 7


@pytest.mark.parametrize(
    "option",
    ["policy.model_name=https://me:s3cr3t-pass@host.example/x", "data.task_args.password=s3cr3t-pass"],
)
def test_no_credential_of_an_option_is_stored_or_printed(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In no file of the run, results, pages and JUnit among them, and not on the console."""
    words = ["run", "-v", "--output", str(tmp_path), option]
    words += [f"policy.model_name={tmp_path / 'none'}"] if "password" in option else []
    assert main(words) in (1, 2, 3)
    printed = "".join(capsys.readouterr())
    assert "s3cr3t" not in printed
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"results.json", "junit.xml"} <= {path.name for path in files}
    for path in files:
        assert b"s3cr3t" not in path.read_bytes(), path


def test_verbose_prints_every_verdict_and_the_summary_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "-v", "--output", str(tmp_path), f"policy.model_name={tmp_path / 'none'}"]
    assert main(words) == 3
    printed = capsys.readouterr().out
    for part in ("proves:", "Result: Blocked", "Requested coverage:", "Limitations:"):
        assert part in printed


def test_no_permission_is_blocked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3, naming the folder. Root may write anywhere but into the kernel's own tree."""
    tmp_path.chmod(0o500)
    place = Path("/sys") if os.geteuid() == 0 else tmp_path
    assert main(["run", "--output", str(place / "runs")]) == 3
    error = capsys.readouterr().err
    assert f"cannot make {place / 'runs'}" in error
    assert "another --output" in error


def test_an_output_that_is_a_file_is_blocked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3, one message."""
    (tmp_path / "runs").write_text("")
    assert main(["run", "--output", str(tmp_path / "runs")]) == 3
    error = capsys.readouterr().err
    assert "cannot make" in error
    assert error.count("\n") == 1


def test_a_disk_that_is_full_from_the_start_is_blocked(tmp_path: Path) -> None:
    """A file size limit stands in for the disk: exit 3, one message, no half-written file."""
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))\n"
        "from seatrial.cli import main\n"
        f"raise SystemExit(main(['run', '--output', {str(tmp_path)!r}]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 3, ran.stderr
    assert "results.json: File too large; free space" in ran.stderr
    assert "Traceback" not in ran.stderr
    (path,) = tmp_path.iterdir()
    assert [item.name for item in path.iterdir()] == [".lock"]


@pytest.mark.parametrize(("content", "message"), [(None, "no log can be read there"), ("{", "results.json")])
def test_report_of_what_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    """Neither a run nor a log can be read there: Blocked."""
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    assert main(["report", str(tmp_path)]) == 3
    assert message in capsys.readouterr().err


def test_report_draws_the_same_views_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From results.json alone, with the exit code of the run's outcome."""
    assert main(["run", "--output", str(tmp_path), f"policy.model_name={tmp_path / 'none'}"]) == 3
    (path,) = tmp_path.iterdir()
    views = {name: (path / name).read_bytes() for name in ("report.md", "junit.xml")}
    for name in views:
        (path / name).unlink()
    assert main(["report", str(path)]) == 3
    assert {name: (path / name).read_bytes() for name in views} == views
    capsys.readouterr()


def test_doctor_passes_where_the_stack_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And names what it looked at."""
    assert main(["doctor", "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for word in ("python", "cores", "memory", "torch", "ray", "GPUs", "free (GiB)"):
        assert word in shown


def test_doctor_says_what_brings_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3 when the reference target cannot run here."""
    from seatrial.cli import doctor

    monkeypatch.setattr(doctor, "package_versions", lambda names: dict.fromkeys(names))
    assert main(["doctor"]) == 3
    assert "pip install 'seatrial[stack]'" in "".join(capsys.readouterr().out.split("\n"))
