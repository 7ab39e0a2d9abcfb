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
