"""Verdict on what a resumed run says: where it continues, and every option that is another than at its first start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import flat, options_of
from seatrial.trials.sensors.paths import first_step_of_command
from seatrial.verdict import Outcome, Verdict

RESUME_SAID = "diamond: the console says where it resumes, and which options changed"
RESUMED = re.compile(r"resuming after step (\d+) from (\S+)")
CHANGED = re.compile(r"resuming with a changed option: (\S+) was (.*), is (.*)")


def resume_is_said(first: RunEvidence, resumed: RunEvidence) -> Verdict:
    """Judge whether the console names the step of the checkpoint, and each changed option with both values, once.

    Args:
        first: the start that ended early.
        resumed: the start that continued it.

    Raises:
        NotGivenError: the target does not say how a run is configured.
        BlockedError: the console's output cannot be read.
    """
    path = resumed.launched.log_path
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BlockedError(f"{path}: {error.strerror}") from error
    steps = [int(match[1]) for match in map(RESUMED.fullmatch, lines) if match]
    said = sorted(match.groups() for match in map(CHANGED.fullmatch, lines) if match)
    old, new = (_values(options_of(of)) for of in (first, resumed))
    wanted = sorted((name, old.get(name, "None"), new.get(name, "None")) for name in old.keys() | new.keys()
                    if old.get(name) != new.get(name))  # fmt: skip
    wrong = []
    if steps != [first_step_of_command(resumed) - 1]:
        wrong.append(f"the console resumes after the steps {steps}, the record has step "
                     f"{first_step_of_command(resumed) - 1}")  # fmt: skip
    wrong += [
        f"no line says that {name} was {was}, is {now}"
        for name, was, now in wanted
        if (name, was, now) not in said
    ]
    wrong += [
        f"a line says that {name} was {was}, is {now}"
        for name, was, now in said
        if (name, was, now) not in wanted
    ]
    return Verdict(
        name=RESUME_SAID,
        outcome=Outcome.FAIL if wrong else Outcome.PASS,
        reason="; ".join(wrong[:3]) or f"after step {steps[0]}, with {len(said)} changed options",
        value=float(len(wrong)),
        bound="one line of the checkpoint, one of each changed option",
        num_samples=1 + len(wanted),
    )


def _values(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each option's value; an empty section has none."""
    return {name: repr(value) for name, value in flat(options) if value != {}}
