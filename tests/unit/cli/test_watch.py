"""`seatrial watch`: exit codes, following, ending a run, telling an address."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.unit.rules.made_logs import healthy
from tests.unit.rules.test_monitor import rows

from seatrial.cli import main

WRITER = """
import sys, time, json
for line in open(sys.argv[1]).read().splitlines():
    with open(sys.argv[2], "a") as log:
        log.write(line + chr(10))
    time.sleep(0.02)
time.sleep(120)
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The log of a run whose reward collapses and whose learning rate becomes 1, from step 61 on."""
    columns = healthy()
    columns["train/reward"][60:] = 0
    columns["train/learning_rate"][60:] = 1
    path = tmp_path / "broken.jsonl"
    path.write_text(rows(columns, 0, 120))
    return path


def test_a_broken_run_fails_and_says_what_to_do(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule, the step, the value, a chart, the remedy; JSON holds every verdict."""
    assert main(["watch", str(broken), "--json", str(tmp_path / "out.json")]) == 1
    said = capsys.readouterr().out
    assert "Fail    rule learning-rate-huge\n        value 1, bound < 0.2" in said
    assert "from step 61" in said and "Next: stop; the weights are gone" in said
    assert "train/learning_rate up to step 61, there 1" in said
    assert said.strip().splitlines()[-1].startswith("Fail: ")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["outcome"] == "Fail"
    assert {verdict["outcome"] for verdict in document["verdicts"]} == {"Fail", "Pass", "Skipped"}


def test_a_sound_run_passes_and_says_what_more_could_be_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--missing` names the metric, and the rules that it would arm."""
    path = tmp_path / "sound.jsonl"
    path.write_text(rows(healthy(), 0, 120))
    assert main(["watch", str(path), "--missing"]) == 0
    said = capsys.readouterr().out
    assert "mismatch/mult_prob_error        mismatch-mult-prob-error" in said
    assert "grad_norm  " not in said.split("would arm")[1]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["{missing}"], 3, "no such file or folder"),
        (["{log}", "--rule", "kl-drif"], 2, "did you mean 'kl-drift'"),
        (["{log}", "--stop-on", "Fail"], 2, "--pid N"),
        (["{log}", "--interval", "1"], 2, "goes with --follow"),
        (["{log}", "--follow", "--job", "5", "--pid", "5"], 2, "name one"),
        (["{log}", "--follow", "--job", "train"], 2, "number of a Slurm job"),
        (["{log}", "--webhook", "ftp://x/y"], 2, "http://"),
        (["{log}", "--follow", "--stop-on", "Fail", "--pid", str(os.getpid())], 2, "that is this command"),
        (["{log}", "--rule", "staleness"], 5, ""),
        ([], 2, "name the folder"),
        (["--rules"], 0, ""),
    ],
)
def test_ends(
    words: list[str], status: int, told: str, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage, nothing to read, no rule with inputs."""
    places = {"missing": tmp_path / "none", "log": broken}
    assert main(["watch", *(word.format(**places) for word in words)]) == status
    assert told in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_following_ends_the_run_at_its_first_alarm(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that writes a row every 20 ms: it is ended by its id, and the watching exits 1."""
    log = tmp_path / "live.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(broken), str(log)])
    try:
        words = [
            "watch",
            str(log),
            "--follow",
            "--stop-on",
            "Fail",
            "--pid",
            str(writer.pid),
            "--interval",
            "0.1",
        ]
        assert main(words) == 1
        assert not psutil.pid_exists(writer.pid)
    finally:
        writer.kill()
        writer.wait()
    said = capsys.readouterr().out
    assert f"ended process {writer.pid}" in said
    assert "learning-rate-huge from step 61" in said


SQUEUE = r"""#!/bin/sh
case "$*" in *--jobs=4711\ *) ;; *) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;; esac
[ -e "$(dirname "$0")/job" ] && echo RUNNING
exit 0
"""
SCANCEL = """#!/bin/sh
[ "$1" = 4711 ] && rm "$(dirname "$0")/job"
"""


@pytest.mark.timeout(120)
def test_following_ends_a_slurm_job(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for squeue and scancel: the job is cancelled by its number; an unknown one is Blocked."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in (("squeue", SQUEUE), ("scancel", SCANCEL), ("job", "")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    words = ["watch", str(broken), "--follow", "--stop-on", "Fail", "--interval", "0.1", "--job"]
    assert main([*words, "4712"]) == 3
    assert "knows no such job" in capsys.readouterr().err
    assert (commands / "job").exists()
    assert main([*words, "4711"]) == 1
    assert "stopped job 4711" in capsys.readouterr().out
    assert not (commands / "job").exists()


@pytest.mark.timeout(120)
def test_following_ends_with_the_run(tmp_path: Path) -> None:
    """And its last rows are seen."""
    log = tmp_path / "live.jsonl"
    columns = healthy()
    columns["train/loss"][-1] = np.nan
    source = tmp_path / "source.jsonl"
    source.write_text(rows(columns, 0, 120))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER.replace("sleep(120)", "sleep(0)"), str(source), str(log)]
    )
    words = ["watch", str(log), "--follow", "--pid", str(writer.pid), "--interval", "0.1", "--rule", "finite"]
    reaper = threading.Thread(target=writer.wait)
    reaper.start()
    assert main(words) == 1
    reaper.join()


def test_following_ends_when_the_log_rests(broken: Path) -> None:
    """With `--idle`."""
    assert main(["watch", str(broken), "--follow", "--idle", "0.3", "--interval", "0.1", "--rule", "kl"]) == 0


@pytest.fixture
def heard() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """An address, and what was posted to it."""
    posted: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_is_told_of_each_alarm_once(
    broken: Path, heard: tuple[str, list[dict[str, object]]]
) -> None:
    """With the verdict; and an address that does not answer changes nothing."""
    address, posted = heard
    words = ["watch", str(broken), "--rule", "schedule", "--interval", "0.1", "--follow", "--idle", "0.5"]
    assert main([*words, "--webhook", address]) == 1
    assert [item["verdict"]["name"] for item in posted] == [  # type: ignore[index]
        "rule learning-rate-huge",
        "rule learning-rate-jumps",
    ]
    assert main([*words, "--webhook", "http://127.0.0.1:9/none"]) == 1


def write_runs(folder: Path, number: int) -> list[str]:
    """Write logs of healthy runs, and return where they lie."""
    paths = []
    for seed in range(number):
        path = folder / f"healthy-{seed}" / "metrics.jsonl"
        path.parent.mkdir()
        path.write_text(rows(healthy(seed), 0, 60))
        (path.parent / "config.yaml").write_text(f"lr: 1.0e-5\nseed: {seed}\n")
        paths.append(str(path))
    return paths


def test_a_run_is_held_to_earlier_healthy_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Quiet beside them; an entropy that lies a little lower alarms; another configuration arms nothing, says which."""
    paths = write_runs(tmp_path, 6)
    assert main(["watch", paths[5], "--baseline", *paths[:5]]) == 0
    assert "baseline-level" in capsys.readouterr().out
    columns = healthy(9)
    columns["train/entropy"] -= 0.1
    log = tmp_path / "new" / "metrics.jsonl"
    log.parent.mkdir()
    log.write_text(rows(columns, 0, 60))
    assert main(["watch", str(log)]) == 0
    assert main(["watch", str(log), "--baseline", *paths]) == 1
    said = capsys.readouterr().out
    assert "Fail    rule baseline-level" in said
    assert "train/entropy up to step" in said
    page = tmp_path / "page.html"
    assert main(["report", str(log), "--baseline", *paths, "--output", str(page)]) == 1
    assert "train/entropy" in page.read_text() and "baseline-level" in page.read_text()
    (log.parent / "config.yaml").write_text("lr: 2.0e-5\nseed: 9\n")
    assert main(["watch", str(log), "--baseline", *paths, "--json", str(tmp_path / "out.json")]) == 0
    verdicts = json.loads((tmp_path / "out.json").read_text())["verdicts"]
    assert [one["reason"] for one in verdicts if one["name"] == "rule baseline-level"] == [
        "not triggered: the healthy runs have another configuration: lr differs"
    ]


def test_healthy_runs_are_followed_against_and_may_be_a_recorded_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--follow` alarms as the look afterwards does; the file of `seatrial baseline record` holds several runs."""
    paths = write_runs(tmp_path, 5)
    recorded = tmp_path / "baseline.json"
    metrics = ["--metric", "train/entropy", "--metric", "train/kl"]
    assert main(["baseline", "record", "--output", str(recorded), "--allow-dirty", *metrics, *paths]) == 0
    columns = healthy(9)
    columns["train/entropy"] -= 0.1
    log = tmp_path / "new.jsonl"
    log.write_text(rows(columns, 0, 60))
    for baseline in (paths, [str(recorded)]):
        follow = ["--follow", "--idle", "0.01", "--interval", "0.01"]
        assert main(["watch", str(log), *follow, "--baseline", *baseline]) == 1
    assert "baseline-level from step" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "", "{", "\x00\x01", '{"step": 1}\n'])
def test_healthy_runs_that_cannot_be_read_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    """Not there, empty, cut, of no known form, without a series; the message names the option."""
    paths = write_runs(tmp_path, 5)
    bad = tmp_path / "bad.jsonl"
    if text is not None:
        bad.write_text(text)
    assert main(["watch", paths[0], "--baseline", *paths[1:], str(bad)]) == 3
    assert "--baseline" in capsys.readouterr().err


def test_a_run_is_no_evidence_for_its_own_health(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does a healthy run count twice; and what is missing names the option."""
    paths = write_runs(tmp_path, 5)
    assert main(["watch", paths[0], "--baseline", *paths]) == 2
    assert main(["watch", paths[0], "--baseline", *paths[1:], paths[1]]) == 2
    assert "names a log twice" in capsys.readouterr().err
    assert main(["watch", paths[0], "--missing"]) == 0
    assert "--baseline LOG" in capsys.readouterr().out


RUN = """
import json, os, sys, time
last, signal = int(sys.argv[2]), int(sys.argv[3])
with open(sys.argv[1], "w") as log:
    for step in range(1, last + 1):
        print(json.dumps({"step": step, "loss": 1 / step, "reward": step / 300}), file=log, flush=True)
time.sleep(1)
os.kill(os.getpid(), signal) if signal else sys.exit(0)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_collected", [False, True])
@pytest.mark.parametrize(
    ("last", "signal", "said"),
    [
        (94, 9, "crashed at step 94 of 300 (signal 9)"),
        (94, 15, "crashed at step 94 of 300 (signal 15)"),
        (94, 0, "ended early: the process ended at step 94 of 300"),
        (300, 0, None),
    ],
)
def test_a_run_that_dies_is_no_pass(
    last: int,
    signal: int,
    said: str | None,
    is_collected: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A signal, or an end before the last step of the configuration, fails; a run that ends in time passes."""
    log = tmp_path / "live.jsonl"
    (tmp_path / "config.yaml").write_text("trainer: {max_steps: 300}\n")
    writer = subprocess.Popen([sys.executable, "-c", RUN, str(log), str(last), str(signal)])
    reaper = threading.Thread(target=writer.wait)
    if is_collected:
        reaper.start()
    status = main(["watch", str(log), "--follow", "--pid", str(writer.pid), "--interval", "0.2"])
    shown = capsys.readouterr().out
    if said is None:
        assert status == 0
    else:
        assert status == 1
        # A kernel before 6.15 does not tell the status of a process that its parent has collected.
        assert said in shown or (is_collected and "ended early" in shown)
    if is_collected:
        reaper.join()
    else:
        writer.wait()


def test_an_exploded_run_before_the_last_one_in_a_file_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs appended to one file: the first has a NaN, which the last one does not hide."""
    broken = healthy()
    broken["train/loss"][80:] = np.nan
    path = tmp_path / "both.jsonl"
    path.write_text(rows(broken, 0, 120) + rows(healthy(1), 0, 120))
    assert main(["watch", str(path)]) == 1
    assert "run 1 of 2" in capsys.readouterr().out
    path.write_text(rows(healthy(), 0, 120) + rows(healthy(1), 0, 120))
    assert main(["watch", str(path)]) == 0


def test_each_writer_of_bare_names_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files with the same names at the same time: the second has zero gradients."""
    columns = {"loss": np.linspace(1, 0.5, 40), "reward": np.linspace(0, 1, 40), "grad_norm": np.ones(40)}
    (tmp_path / "a.jsonl").write_text(rows(columns, 0, 40))
    (tmp_path / "b.jsonl").write_text(rows({**columns, "grad_norm": np.zeros(40)}, 0, 40))
    assert main(["watch", str(tmp_path)]) == 1
    assert "b: the gradient norm is exactly zero" in capsys.readouterr().out


def test_a_log_without_evidence_of_learning_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names that were and were not recognised are printed, and the exit code is 5."""
    path = tmp_path / "unknown.jsonl"
    path.write_text(rows({"alpha": np.linspace(0, 1, 40)}, 0, 40))
    assert main(["watch", str(path)]) == 5
    said = capsys.readouterr().out
    assert "not recognised: alpha" in said
    assert "no rule of learning or stability could run" in said
    path.write_text(
        rows({"policy/entropy": np.linspace(2, 1, 40), "reward/mean": np.linspace(0, 1, 40)}, 0, 40)
    )
    assert main(["watch", str(path)]) == 0
    assert "reward/mean = reward/mean" in capsys.readouterr().out


def test_a_log_with_too_few_points_is_skipped_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.jsonl"
    path.write_text(rows({"loss": np.linspace(2, 1, 3), "reward": np.linspace(0, 1, 3)}, 0, 3))
    assert main(["watch", str(path)]) == 5
    assert "need more points (one has 3 of the 12 points that it needs)" in capsys.readouterr().out


def test_a_text_value_blocks_its_column_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other columns are judged; what was left out is said."""
    text = rows(healthy(), 0, 120).splitlines()
    row = json.loads(text[40])
    row["train/entropy"] = "n/a"
    text[40] = json.dumps(row)
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(text) + "\n")
    assert main(["watch", str(path)]) == 0
    said = capsys.readouterr().out
    assert "column not judged: train/entropy: 1 values are no numbers, the first is 'n/a' in line 41" in said
    assert "entropy-collapse" in said.split("not triggered: ")[1]


def test_two_ranks_in_one_console_row_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing says which value is whose."""
    lines = [
        f"step:{step} - actor/pg_loss:{1 / step} - critic/score/mean:{step / 50} - actor/grad_norm:{1 + step % 3}\n"
        for step in range(1, 40)
    ]
    lines[19] = "step:20 - actor/pg_loss:0.05 - step:21 - actor/pg_loss:0.04 - critic/score/mean:0.4\n"
    path = tmp_path / "train.log"
    path.write_text("".join(lines))
    assert main(["watch", str(path)]) == 3
    assert "two rows in one line" in capsys.readouterr().out


def test_a_deleted_run_of_mlflow_is_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files are still there: Blocked; a run that is active is read."""
    run = tmp_path / "0" / "run"
    (run / "metrics").mkdir(parents=True)
    (run / "metrics" / "grad_norm").write_text(
        "".join(f"{step}000 {step % 3 + 1} {step}\n" for step in range(1, 30))
    )
    (run / "meta.yaml").write_text("lifecycle_stage: deleted\n")
    assert main(["watch", str(tmp_path)]) == 3
    assert "no run that is not deleted has a metric" in capsys.readouterr().err
    (run / "meta.yaml").write_text("lifecycle_stage: active\n")
    assert main(["watch", str(tmp_path)]) == 0
