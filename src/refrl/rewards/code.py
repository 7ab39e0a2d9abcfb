"""Rewards code by running it: the share of tests whose output is right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from refrl.config import ConfigError
from refrl.rewards.sandbox import SandboxLimits, isolation, run_python
from refrl.rewards.verifiers import VerifierError

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def extract_code(completion: str) -> str:
    """Return the last fenced block, or the whole text where there is none."""
    blocks = _FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion


def sandbox_of(verifiers: Iterable[str | None]) -> str | None:
    """Return which sandbox holds the programs of a run, in words; None where none of its verifiers runs any.

    Raises:
        ConfigError: no kind of sandbox runs on this machine.
    """
    if "code_output" not in verifiers:
        return None
    try:
        return isolation().describe()
    except VerifierError as error:
        raise ConfigError(f"data.verifier=code_output: {error}; choose another verifier") from error


def code_output(completion: str, answer: str, limits: SandboxLimits | None = None) -> float:
    """Return the share of tests that the program passes.

    A test passes where the program ends with exit code 0 and prints what is expected; line ends and trailing spaces
    do not count. What is expected never enters the sandbox. A program that crashes, loops, or runs into a limit has
    failed its test: that is a judgement, and no error of the verifier.

    Args:
        completion: a Python program, bare or in a fenced block.
        answer: JSON list of tests, `[{"stdin": "2 3\\n", "stdout": "5\\n"}, ...]`.
        limits: of each test.

    Raises:
        VerifierError: the tests are malformed, or the sandbox cannot be set up.
    """
    program, tests = extract_code(completion), _tests(answer)
    passed = 0
    for stdin, expected in tests:
        result = run_python(program, stdin, limits)
        passed += result.succeeded and _lines(result.stdout) == _lines(expected)
    return passed / len(tests)


_CALL, _END = b"print(", b")"


def program_form(completion: str, answer: str) -> float:
    """Return how near a completion is to the form `print(...)` with any argument; the answer is ignored.

    The mean similarity of its first six bytes and of its last to that form, each 1 - |difference| / 255. Next to
    `code_output` in `data.verifiers` it rewards partial progress of a model that has never written a program; alone it
    rewards wrong programs.
    """
    code = extract_code(completion).strip().encode()
    places = [*zip(code[:-1], _CALL, strict=False), *zip(code[-1:], _END, strict=True)] if code else []
    return sum(1 - abs(one - other) / 255 for one, other in places) / (len(_CALL) + len(_END))


def _tests(answer: str) -> list[tuple[str, str]]:
    try:
        tests: Any = json.loads(answer)
        pairs = [(test.get("stdin", ""), test["stdout"]) for test in tests]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise VerifierError(
            f"code_output needs a JSON list of tests with stdin and stdout as the answer, got {answer[:80]!r}"
        ) from error
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise VerifierError(f"code_output needs at least one test with texts, got {answer[:80]!r}")
    return pairs


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
