"""Verdict on the console: each line of a step or a validation shows what the run logs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import flat, loop_of, options_of
from seatrial.trials.sensors.paths import by_step, first_step_of_command, read_object, sensor
from seatrial.trials.sensors.prompts import validation_rows

STEP = re.compile(r"step +(\d+)/(\d+)  (\S+ \S+(?:  \S+ \S+)*)")
"""`step 3/60  reward 0.412  loss 0.0123`."""
VALIDATION = re.compile(r"step (\d+)  validation accuracy (\S+) \((\d+) held-out prompts\)")
OTHER_NAMES = {"seconds": "timing/train/total_step_time"}
"""Series by the name that the console has for them, where it is not that of `train/`."""
SHOWN = {
    "grpo": (
        "reward",
        "loss",
        "grad_norm",
        "lr",
        "token_mult_prob_error",
        "mean_gen_tokens_per_sample",
        "seconds",
    ),
    "sft": ("loss", "grad_norm", "lr", "global_valid_toks", "seconds"),
}
"""What a line shows where it is logged, at any value, by the loop."""
DIGITS = 5.1e-4
"""Relative difference of a number from its four digits."""
THOUSANDTH = 5.1e-4
"""The same of a number with three digits behind the point, absolute."""


def console_is_the_log(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every step and every validation has its line, once, with the logged values.

    Raises:
        NotGivenError: the target does not say how the run is configured.
        BlockedError: the console's output or the log cannot be read.
    """
    options = options_of(evidence)
    wanted = SHOWN[loop_of(options)]
    evidence.need_whole_log()
    path = evidence.launched.log_path
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BlockedError(f"{path}: {error.strerror}") from error
    steps = [match for match in map(STEP.fullmatch, lines) if match]
    validations = [match for match in map(VALIDATION.fullmatch, lines) if match]
    job, first = evidence.job, first_step_of_command(evidence)
    numbers = [int(match[1]) for match in steps]
    wrong = []
    if numbers != list(range(first, job.num_steps + 1)):
        wrong.append(f"the console has lines of the steps {numbers}")
    values = [dict(part.split(" ") for part in match[3].split("  ")) for match in steps]
    series = {
        name: by_step(evidence, OTHER_NAMES.get(name, f"train/{name}"))
        for name in {*wanted, *itertools.chain(*values)}
    }
    for match, shown in zip(steps, values, strict=True):
        wrong += _wrong_values(series, int(match[1]), shown, wanted)
        if int(match[2]) != job.num_steps:
            wrong.append(f"step {match[1]}: the console says that there are {match[2]} steps")
    held_out, logged = validation_rows(evidence), by_step(evidence, "validation/accuracy")
    due = [step for step in logged if step >= first or first == 1]
    if [int(match[1]) for match in validations] != due:
        wrong.append(f"the console has {len(validations)} lines of validations, logged are the steps {due}")
    for match in validations:
        step = int(match[1])
        if not abs(float(match[2]) - logged.get(step, math.nan)) <= THOUSANDTH:
            wrong.append(f"step {step}: the console shows a validation accuracy of {match[2]}")
        if int(match[3]) != len(held_out.get(step, ())):
            wrong.append(f"step {step}: the console counts {match[3]} held-out prompts")
    wrong += _wrong_resume(evidence, lines, options)
    number = len(steps) + len(validations)
    return wrong[:3], f"{len(steps)} steps and {len(validations)} validations", number


CONSOLE = sensor(
    "console: every step and validation has its line", "with the logged values", console_is_the_log
)


def _wrong_resume(evidence: RunEvidence, lines: Sequence[str], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield that the console does not say from which checkpoint a run continues, or with which changed options.

    Raises:
        BlockedError: the checkpoint cannot be read.
    """
    last, folder = first_step_of_command(evidence) - 1, evidence.job.checkpoint_dir
    shown = [line for line in lines if line.startswith("resuming ")]
    path = None if folder is None else folder / f"step_{last}"
    if last == 0 or path is None or not (path / "training_info.json").exists():
        if last == 0 and shown:
            yield f"the console says {shown[0]!r}, and the run begins at its first step"
        return
    before = dict(flat(read_object(path / "training_info.json").get("config", {})))
    wanted = {f"resuming after step {last} from {path}"} | {
        f"resuming with a changed option: {name} was {before.get(name)!r}, is {options.get(name)!r}"
        for name in {*before, *options}
        if before.get(name) != options.get(name)
    }
    yield from (f"the console does not say {line!r}" for line in sorted(wanted - set(shown)))
    yield from (f"the console says {line!r}" for line in sorted(set(shown) - wanted))


def _wrong_values(
    series: Mapping[str, Mapping[int, float]], step: int, shown: Mapping[str, str], wanted: Sequence[str]
) -> Iterator[str]:
    """Yield values that are not those of the log, and those that are logged and not shown.

    Args:
        series: what is logged, by the console's name of it and by step.
        step: of the line.
        shown: the line's values by name.
        wanted: names that a line shows where they are logged.
    """
    for name in wanted:
        if name not in shown and step in series[name]:
            yield f"step {step}: the console does not show {name}, logged is {series[name][step]:.7g}"
    for name, text in shown.items():
        value = series[name].get(step, math.nan)
        if not math.isclose(float(text), value, rel_tol=DIGITS):
            yield f"step {step}: the console shows {name} {text}, logged is {value:.7g}"
