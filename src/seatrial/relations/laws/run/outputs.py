"""R22.left, R21.left: the log, the rows, the run's own record and the export on disk are what the run did."""

from __future__ import annotations

import math
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.command import Defaults
from seatrial.relations.contracts.left import LeftRow, LeftRun, unjudgeable
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.options import as_tuple
from seatrial.relations.measures.rates import RATES
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.evidence import same
from seatrial.relations.records.run import RunRow
from seatrial.relations.runs import dotted, left

WHOLE = "timing/train/total_step_time"
PARTS = ("logprob_inference_prep", "policy_and_reference_logprobs", "policy_training")
"""Phases that follow one another within a step, by NeMo RL's names; generation may run at the same time."""
PASSWORD = "hunter22"
OTHER_SEED = 5
"""Added to the seed, so that no law runs with seed 0, which is what a lost seed looks like."""


@dataclass(frozen=True, kw_only=True)
class LeftCase(Case):
    """Options of a run that writes everything that it can."""

    options: Mapping[str, Any]
    seed: int

    def left(self, stack: Any) -> LeftRun:
        """Return what the run wrote."""
        return left(stack, self.options, self.seed)


def _cases(**options: Any) -> Any:
    validated = {"grpo__val_period": 1, "grpo__val_at_start": True, "grpo__max_val_samples": 3}
    chosen = dotted(options or validated)
    return lambda stack, seed, tidy: LeftCase(options=chosen, seed=seed + OTHER_SEED)


WRITTEN = Relation(
    id="R22.left",
    name="run-writes-what-it-did",
    component="left_run",
    statement="A run's log, its rows and its own record contain what it did, and nothing else.",
    catalogue="SB020 SB055 SB188 SB214 SB278 SB362 SB364 SB368 SB374",
    cost="CPU, seconds",
    cases=_cases(),
    seeded=False,
)
DIRECTORIES = Relation(
    id="R21.left",
    name="run-leaves-whole-directories",
    component="left_run",
    statement="A finished run leaves whole, readable directories, the tokenizer exported, nothing temporary.",
    catalogue="SB188 SB299 SB300",
    cost="CPU, seconds",
    cases=_cases(),
    seeded=False,
)


@WRITTEN.law("every scalar", "values of zero left out, a step's scalars logged a step later")
def every_scalar_is_logged(stack: Any, case: LeftCase) -> Measure:
    """Check that the log has every scalar of every step and validation, for any value."""
    found = case.left(stack)
    given: list[tuple[str, Any]] = [("train", one) for one in found.record.steps]
    given += [("validation", one) for one in found.record.validations]
    wrong = [] if given else ["no step was recorded"]
    for prefix, one in given:
        for name, value in one.metrics.items():
            logged = [point for step, point in found.series.get(f"{prefix}/{name}", ()) if step == one.step]
            if not same(logged, [float(np.float32(value))]):
                wrong.append(f"{prefix}/{name} of step {one.step} is {value:.6g}, logged {logged}")
    return Measure.count(wrong, "scalars that are missing in the log, or have another value there")


@WRITTEN.law("documented series", "names cut or doubled, a phase that is no longer timed")
def series_are_documented(stack: Any, case: LeftCase) -> Measure:
    """Compare the names of the logged series with those of the manual."""
    names, documented = case.left(stack).series, stack.documented_series()
    wrong = [
        f"{name} is not documented" for name in names if not any(fnmatch(name, one) for one in documented)
    ]
    wrong += [
        f"there is no {pattern}"
        for pattern, always in documented.items()
        if always and not any(fnmatch(name, pattern) for name in names)
    ]
    return Measure.count(wrong, "series of the log that are not those of the manual")


@WRITTEN.law("one point per step", "a scalar that is logged when it is not zero, or twice")
def one_point_per_step(stack: Any, case: LeftCase) -> Measure:
    """Check that every series of steps has exactly one point at every step."""
    found = case.left(stack)
    steps = [one.step for one in found.record.steps]
    wrong = [
        f"{name} at steps {[step for step, _ in points]}"
        for name, points in found.series.items()
        if name.startswith(("train/", "timing/train/", "performance/"))
        and [step for step, _ in points if step in steps] != steps
    ]
    return Measure.count(wrong, "series without exactly one point at every step")


@WRITTEN.law("seconds", "start and end swapped, a phase counted twice, another unit")
def seconds_are_possible(stack: Any, case: LeftCase) -> Measure:
    """Check that seconds are positive, that phases fit into their step, and steps into the run."""
    found = case.left(stack)
    timed = {name: dict(points) for name, points in found.series.items() if name.startswith("timing/")}
    wrong = [
        f"{name} of step {step} is {value:.3g}"
        for name, points in timed.items()
        for step, value in points.items()
        if not 0 <= value < math.inf
    ]
    whole = timed.get(WHOLE, {})
    if not whole:
        wrong.append(f"there is no {WHOLE}")
    if not sum(whole.values()) <= found.seconds:
        wrong.append(f"steps of {sum(whole.values()):.3g} s in a run of {found.seconds:.3g} s")
    for step, value in whole.items():
        parts = sum(timed.get(f"timing/train/{name}", {}).get(step, 0.0) for name in PARTS)
        if not 0 < parts <= value * (1 + 1e-5):  # float32 sums
            wrong.append(f"step {step}: phases of {parts:.3g} s in {value:.3g} s")
    return Measure.count(wrong, "seconds that are impossible")


@WRITTEN.law("rows on disk", "rows of another step, in another order, with the weights' next version")
@WRITTEN.law(
    "rows on disk, some masked",
    "a mask from before the filters, or of ones",
    cases=_cases(
        grpo__val_period=1, grpo__val_at_start=True, grpo__max_val_samples=3, grpo__overlong_filtering=True
    ),
)
def rows_on_disk_are_the_trained_ones(stack: Any, case: LeftCase) -> Measure:
    """Compare the rows on disk with the recorded rows, field by field."""
    found = case.left(stack)
    made = [(step.step, row) for _, step, row in found.record.rows()]
    if len(made) == len(found.rows):
        wrong = [
            f"step {step}, row of prompt {row.prompt_id}: {name}"
            for (step, row), written in zip(made, found.rows, strict=True)
            for name in _unequal_fields(step, row, written)
        ]
    else:
        wrong = [f"{len(found.rows)} rows of {len(made)}"]
    return Measure.count(wrong, "rows on disk that are not those trained on")


def _unequal_fields(step: int, row: RunRow, written: LeftRow) -> list[str]:
    """Return the fields in which a row on disk differs from the recorded row."""
    pairs: dict[str, tuple[Any, Any]] = {
        "step": (step, written.step),
        "prompt_id": (row.prompt_id, written.prompt_id),
        "token_ids": ((*row.prompt_ids, *row.ids), written.token_ids),
        "completion": (row.completion, written.completion),
        "sampling_logprobs": (row.sampling_logprobs, written.sampling_logprobs),
        "reward": (row.reward, written.reward),
        "advantage": (row.advantage, written.advantage),
    }
    if written.mask is not None:
        pairs["mask"] = (row.mask, written.mask)
    if written.weight_version is not None:
        pairs["weight_version"] = (row.weight_version, written.weight_version)
    return [name for name, (one, other) in pairs.items() if not same(one, other)]


@WRITTEN.law(
    "failures of the verifier",
    "an error swallowed, errors counted by process",
    cases=_cases(
        grpo__val_period=1, grpo__val_at_start=True, grpo__max_val_samples=3, data__verifier="failing"
    ),
)
@WRITTEN.law(
    "failures of one verifier of several",
    "a part that cannot judge and counts as 0",
    cases=_cases(
        grpo__val_period=1, grpo__val_at_start=True, grpo__max_val_samples=3, data__verifier="several"
    ),
)
def verifier_failures_are_recorded(stack: Any, case: LeftCase) -> Measure:
    """Check that exactly the rows that the verifier cannot judge are marked and counted, and have no reward.

    Those of a validation are counted too.
    """
    found = case.left(stack)
    wrong, failures = [], 0
    for validation in found.record.validations:
        failed = sum(unjudgeable(completion) for _, completion, _ in validation.rows)
        if validation.metrics.get("num_verifier_errors") != failed:
            wrong.append(
                f"validation after step {validation.step}: {failed} errors, "
                f"counted {validation.metrics.get('num_verifier_errors')}"
            )
    for step in found.record.steps:
        rows = [row for row in found.rows if row.step == step.step]
        failed = sum(unjudgeable(row.completion) for row in rows)
        failures += failed
        wrong += [
            f"step {step.step}: {row.completion!r} judged {row.judged}, reward {row.reward}"
            for row in rows
            if row.judged == unjudgeable(row.completion) or (not row.judged and row.reward)
        ]
        if step.metrics.get("num_verifier_errors") != failed:
            wrong.append(
                f"step {step.step}: {failed} errors, counted {step.metrics.get('num_verifier_errors')}"
            )
    if failures < 2:
        raise NotServed("the verifier of this run fails on fewer than two rows, too few to judge the law")
    return Measure.count(wrong, "failures that are not reported")


@WRITTEN.law(
    "too many failures end the run",
    "a share of failures that nothing compares with its limit",
    cases=_cases(data__verifier="failing", grpo__max_verifier_error_share=0.0, grpo__max_num_steps=1),
)
def failures_beyond_the_limit_end_the_run(stack: Any, case: LeftCase) -> Measure:
    """Check that a run whose verifier fails on a larger share of rows than is allowed ends with an error."""
    try:
        found = case.left(stack)
    except NotServed:
        raise
    except Exception:  # noqa: BLE001  the stack chooses the type of its error
        return Measure.count([], "runs that continue")
    failed = sum(unjudgeable(row.completion) for row in found.rows)
    if not failed:
        raise NotServed("the verifier of this run fails on no row")
    return Measure.count(
        [f"{failed} of {len(found.rows)} rows are not judged, allowed are none"], "runs that continue"
    )


@WRITTEN.law(
    "no password",
    "a configuration that is written down unchanged",
    cases=_cases(
        policy__tokenizer__chat_template="byte",
        policy__max_total_sequence_length=128,
        data__system_prompt=f"See https://user:{PASSWORD}@host/x",
        grpo__max_num_steps=1,
    ),
)
def no_password_is_recorded(stack: Any, case: LeftCase) -> Measure:
    """Check that the password of a URL in an option is not in the run's own record."""
    options = case.left(stack).options
    wrong = [name for name, value in options.items() if PASSWORD in str(value)]
    return Measure.count(wrong if options else ["no option is recorded"], "options recorded with a password")


@WRITTEN.law(
    "rates",
    "tokens of prompts counted as sampled, another phase's seconds, a rate of the process in place of all",
)
@WRITTEN.law(
    "rates, some rows masked",
    "tokens that train in place of those sampled",
    cases=_cases(
        grpo__val_period=1, grpo__val_at_start=True, grpo__max_val_samples=3, grpo__overlong_filtering=True
    ),
)
def rates_are_counts_by_seconds(stack: Any, case: LeftCase) -> Measure:
    """Check that each logged rate is what the step's rows count, divided by the logged seconds of its phase."""
    found = case.left(stack)
    wrong, judged = [], 0
    for step in found.record.steps:
        sampled = sum(len(row.ids) for row in step.rows)
        counts = {"tokens": sampled + sum(len(row.prompt_ids) for row in step.rows), "sampled": sampled}
        counts["rows"] = len(step.rows)
        for name, (of, phase) in RATES.items():
            rate = dict(found.series.get(f"performance/{name}", ())).get(step.step)
            seconds = dict(found.series.get(f"timing/train/{phase}", ())).get(step.step)
            if rate is None or seconds is None:
                continue
            judged += 1
            if not math.isclose(rate * seconds, counts[of], rel_tol=1e-4):  # float32 in the log
                wrong.append(f"step {step.step}, {name}: {rate * seconds:.6g} {of} in place of {counts[of]}")
    if not judged:
        raise NotServed("no rate of a step is logged with the seconds of its phase")
    return Measure.count(wrong, "rates that are not those of the step's rows")


@WRITTEN.law("the record of the run", "a default in place of what was configured, defaults left out")
def run_records_itself(stack: Any, case: LeftCase) -> Measure:
    """Compare the seed and the options in the run's own record with the effective ones; each must be there."""
    found = case.left(stack)
    wrong = [] if found.seed == case.seed else [f"seed {case.seed}, recorded {found.seed}"]
    defaults = stack.effective_defaults() if isinstance(stack, Defaults) else {}
    wrong += [
        f"{name} is not recorded"
        for name in {**found.record.options, **defaults}
        if name not in found.options
    ]
    known = {name: value for name, value in found.record.options.items() if name in found.options}
    wrong += [
        f"{name} was {value!r}, recorded {found.options[name]!r}"
        for name, value in known.items()
        if not same(as_tuple(value), as_tuple(found.options[name]))
    ]
    return Measure.count(
        wrong if known else ["no option is recorded"], "facts of the run that differ in its record"
    )


@DIRECTORIES.law("nothing else is left", "a copy in place of a move, a separate name for each run")
def nothing_else_is_left(stack: Any, case: LeftCase) -> Measure:
    """Check that all paths are documented: no temporary file, no unfinished directory."""
    documented = stack.documented_paths()
    wrong = [
        path
        for path in case.left(stack).modes
        if not any(fnmatch(path, one) or (path[-1] == "/" and one.startswith(path)) for one in documented)
    ]
    return Measure.count(wrong, "paths that a finished run leaves and no manual names")


@DIRECTORIES.law("readable", "permissions of a temporary directory")
def paths_are_readable(stack: Any, case: LeftCase) -> Measure:
    """Check that every path is readable for everyone who can read a newly created file or folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file").touch()
        (Path(folder) / "folder").mkdir()
        file, directory = (stat.S_IMODE((Path(folder) / name).stat().st_mode) for name in ("file", "folder"))
    wrong = [
        f"{path} {mode:o}"
        for path, mode in case.left(stack).modes.items()
        if (directory & 0o555 if path[-1] == "/" else file & 0o444) & ~mode
    ]
    return Measure.count(wrong, "paths that are closed to others")


@DIRECTORIES.law("the tokenizer is exported", "weights alone, another tokenizer than was trained with")
def tokenizer_is_exported(stack: Any, case: LeftCase) -> Measure:
    """Compare the ids of the exported tokenizer with those of the model's."""
    found = case.left(stack)
    wrong = [] if found.exported_ids == found.given_ids else [f"{found.exported_ids}"]
    return Measure.count(wrong, "exports without the tokenizer of the model")


@DIRECTORIES.law(
    "disabled outputs are not written",
    "an option that nothing reads",
    cases=_cases(
        logger__tensorboard_enabled=False,
        logger__log_train_data=False,
        checkpointing__enabled=False,
        grpo__max_num_steps=1,
    ),
)
def disabled_outputs_are_not_written(stack: Any, case: LeftCase) -> Measure:
    """Check that rows, scalars and exports that are switched off are not written."""
    found = case.left(stack)
    wrong = [f"{len(found.rows)} rows"] * bool(found.rows)
    wrong += [f"{len(found.series)} series"] * bool(found.series)
    wrong += ["an export"] * (found.exported_ids is not None)
    return Measure.count(wrong, "disabled outputs that are written")
