"""verl's scores of programs by a sandbox, which a fake answers by running them; see `contracts.texts.Reward`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.scores import PROGRAMS, Cases, VerlScore

SANDBOX = "verl.utils.reward_score.sandbox_fusion"
ECHO = "```python\nimport sys\nprint(repr(sys.stdin.read()))\n```"
ADD = "```python\ndef add(a, b):\n    return a + b\n```"
CASES: Cases = (
    *[case for case in PROGRAMS if "```" in case[1]],
    ({"inputs": [None, "None"], "outputs": ["''\n", "'None'\n"]}, ECHO, 1.0),
    ({"inputs": ["", "1\n2"], "outputs": ["''\n", "'1\\n2'\n"]}, ECHO, 1.0),
    ({"inputs": ["1\n2", '"a"\n"b"', "1\n2"], "outputs": ["3", "ab", "12"], "fn_name": "add"}, ADD, 2 / 3),
    (json.dumps({"inputs": ["3\n"], "outputs": ["'3\\n'"]}), ECHO, 1.0),
)
"""Those of programs in blocks; programs that print what they read, and one that is a function."""


class VerlSandbox(KnowsFailures, VerlScore):
    """`default_compute_score` with the address of a sandbox: each test is a request, with what the program reads."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "a program of a test without an input reads the word None",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.5"),
        ).of("R17.reward/reward of each answer"),
    )
    thorough = True
    data_source = "codecontests"
    others = ("apps", "codeforces", "taco")
    cases = CASES

    options: ClassVar[Mapping[str, Any]] = {
        "sandbox_fusion_url": "http://sandbox.invalid/run_code",
        "concurrent_semaphore": threading.Semaphore(2),
    }

    def __init__(self) -> None:
        """Find the function, and what sends requests."""
        super().__init__()
        find_name("verl", [f"{SANDBOX}.utils:call_sandbox_api"])

    def reward(self, problems: Any, completions: Any) -> list[float]:
        with mock.patch(f"{SANDBOX}.utils.requests.post", run):
            return super().reward(problems, completions)


def run(url: str, *, data: str, **_: Any) -> Any:
    """Return the response of a sandbox that ran the program of a request."""
    asked = json.loads(data)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", asked["code"]],
        input=asked["stdin"] or "",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    result = {
        "status": "Finished",
        "execution_time": 0.0,
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
    }
    answer = {
        "status": "Failed" if done.returncode else "Success",
        "compile_result": None,
        "run_result": result,
    }
    return SimpleNamespace(status_code=200, raise_for_status=lambda: None, json=lambda: answer, text="")


ADAPTERS: dict[str, type[Any]] = {"score-sandbox": VerlSandbox}
