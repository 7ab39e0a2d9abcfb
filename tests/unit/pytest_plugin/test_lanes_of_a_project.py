"""Lanes give the four configurations of the testing guide, and say what they left out and what they lacked."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]
Results = Callable[..., dict[str, Any]]

GUIDE_LANES = """
[tool.pytest.ini_options]
addopts = ["--strict-markers"]

[tool.seatrial.lanes.hf_gated]
flag = "--hf-gated"

[tool.seatrial.lanes.mcore]
flag = "--mcore-only"
mode = "only"

[tool.seatrial.lanes.vllm]
mode = "only"
"""
TESTS = """
import pytest

def test_default(): pass
@pytest.mark.hf_gated
def test_gated(): pass
@pytest.mark.mcore
def test_mcore(): pass
@pytest.mark.mcore
@pytest.mark.hf_gated
def test_mcore_gated(): pass
@pytest.mark.mcore
@pytest.mark.vllm
def test_mcore_vllm(): pass
"""
FILE = "tests/unit/test_it.py"


def _passed(outcome: pytest.RunResult) -> set[str]:
    pairs = re.findall(r"::test_(\w+) PASSED|PASSED \S+::test_(\w+)", outcome.stdout.str())
    return {first or second for first, second in pairs}


@pytest.mark.parametrize(
    "workers",
    [pytest.param((), id="one process"), pytest.param(("-n", "2"), id="xdist", marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        # The guide's configurations 1 to 4.
        ((), {"default"}),
        (("--hf-gated",), {"default", "gated"}),
        (("--mcore-only",), {"mcore"}),
        (("--mcore-only", "--hf-gated"), {"mcore", "mcore_gated"}),
        # A test of two backends runs when both are open.
        (("--mcore-only", "--vllm-only"), {"mcore", "mcore_vllm"}),
        # -m composes with the lanes and does not switch them off.
        (("-m", "not mcore"), {"default"}),
        (("-m", "hf_gated", "--hf-gated"), {"gated"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_flags_open_lanes(
    write: Write, run_pytest: Run, arguments: tuple[str, ...], runs: set[str], workers: tuple[str, ...]
) -> None:
    write({"pyproject.toml": GUIDE_LANES, FILE: TESTS})
    outcome = run_pytest("-v", *arguments, *workers)
    assert outcome.ret == 0
    assert _passed(outcome) == runs


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_what_is_left_out_is_counted_with_the_reason(
    write: Write, run_pytest: Run, results: Results, workers: tuple[str, ...]
) -> None:
    write({"pyproject.toml": GUIDE_LANES, FILE: TESTS})
    outcome = run_pytest("--tracker-results=r.json", *workers)
    if not workers:
        outcome.assert_outcomes(passed=1, deselected=4)
    outcome.stdout.fnmatch_lines(
        [
            "lanes: hf_gated (closed), mcore (closed), vllm (closed)",
            "seatrial: 1 left out: lane hf_gated + mcore is closed; --hf-gated --mcore-only opens it",
            "seatrial: 1 left out: lane hf_gated is closed; --hf-gated opens it",
        ]
    )
    assert sum(results("r.json")["summary"]["deselected"].values()) == 4


def test_all_left_out_is_not_green(write: Write, run_pytest: Run) -> None:
    write({"pyproject.toml": GUIDE_LANES, FILE: "import pytest\n@pytest.mark.vllm\ndef test_v(): pass\n"})
    outcome = run_pytest()
    assert outcome.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    outcome.stdout.fnmatch_lines(["seatrial: 1 left out: lane vllm is closed; --vllm-only opens it"])


def _lane(needs: str) -> str:
    return f'[tool.seatrial.lanes.backend]\nmode = "include"\nneeds = {needs}\n'


BACKEND_TESTS = """
import pytest

def test_default(): pass
@pytest.mark.backend
def test_backend(): pass
"""


@pytest.mark.parametrize(
    ("needs", "message", "workers"),
    [
        (
            '{import = "no_such_backend"}',
            "*install no_such_backend so that it imports: ModuleNotFoundError*",
            (),
        ),
        ('{import = "broken_backend"}', "*install broken_backend so that it imports: OSError: libx.so*", ()),
        ('{env = ["HF_TOKEN"]}', "*set HF_TOKEN: it is not set, or empty*", ()),
        pytest.param(
            '{env = ["HF_TOKEN"]}',
            "*set HF_TOKEN: it is not set, or empty*",
            ("-n", "2"),
            marks=pytest.mark.nightly,
        ),
        ("{gpus = 999}", "*run where 999 GPUs are visible: * found*", ()),
    ],
    ids=["missing import", "broken import", "token", "token with xdist", "gpus"],
)
def test_a_requested_lane_without_its_need_is_blocked(
    write: Write, run_pytest: Run, results: Results, needs: str, message: str, workers: tuple[str, ...]
) -> None:
    write(
        {
            "pyproject.toml": _lane(needs),
            "broken_backend.py": "raise OSError('libx.so is not there')\n",
            FILE: BACKEND_TESTS,
        }
    )
    assert run_pytest(*workers).ret == 0  # closed, the lane needs nothing
    outcome = run_pytest("--backend", "--tracker-results=r.json", *workers)
    assert outcome.ret == 3
    outcome.assert_outcomes(passed=1, skipped=1)
    outcome.stdout.fnmatch_lines(["*= Blocked =*", message])
    assert results("r.json")["tests"][f"{FILE}::test_backend"]["outcome"] == "blocked"


def test_a_service_must_answer(write: Write, run_pytest: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        write({"pyproject.toml": _lane(f'{{service = "127.0.0.1:{port}"}}'), FILE: BACKEND_TESTS})
        assert run_pytest("--backend").ret == 0
    outcome = run_pytest("--backend")
    assert outcome.ret == 3
    outcome.stdout.fnmatch_lines([f"*start the service at 127.0.0.1:{port}: *"])


def test_a_blocked_lane_without_tests_is_blocked_all_the_same(write: Write, run_pytest: Run) -> None:
    write({"pyproject.toml": _lane("{gpus = 999}"), FILE: "def test_default(): pass\n"})
    assert run_pytest("--backend").ret == 3


def test_a_failure_is_worse_than_a_blocked_lane(write: Write, run_pytest: Run) -> None:
    write({"pyproject.toml": _lane("{gpus = 999}"), FILE: BACKEND_TESTS + "def test_fails(): assert False\n"})
    assert run_pytest("--backend").ret == 1


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        (
            "[tool.seatrial.lanes.x]\nmarkers = 'x'\n",
            "*tool.seatrial.lanes.x.markers is unknown; known keys:*",
        ),
        ("[tool.seatrial.lanes.x]\nmode = 'add'\n", "*lanes.x.mode must be 'include' or 'only', not 'add'*"),
        ("[tool.seatrial.lanes.x]\nflag = 'x'\n", "*lanes.x.flag must be an option such as '--x', not 'x'*"),
        ("[tool.seatrial.lanes.x]\nflag = '--verbose'\n", "*tool.seatrial.lanes.x.flag: *--verbose*"),
        ("[tool.seatrial.lanes.x.needs]\ngpu = 1\n", "*lanes.x.needs.gpu is unknown; known keys:*"),
        ("[tool.seatrial.lanes.x.needs]\ngpus = true\n", "*needs.gpus must be a number of GPUs, not True*"),
        ("[tool.seatrial.lanes.x.needs]\nservice = 'here'\n", "*needs.service 'here' must be host:port*"),
        ("[tool.seatrial.lane.x]\n", "*tool.seatrial.lane is unknown; known keys: *lanes*"),
        ("[tool.seatrial\n", "*pyproject.toml*"),
    ],
)
def test_a_wrong_declaration_is_one_message(write: Write, run_pytest: Run, lanes: str, message: str) -> None:
    write({"pyproject.toml": lanes, FILE: TESTS})
    outcome = run_pytest()
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    outcome.stderr.fnmatch_lines([message])
    assert "Traceback" not in outcome.stderr.str()
