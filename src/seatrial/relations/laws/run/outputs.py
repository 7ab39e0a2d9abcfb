"""R22 and R21 of what a run leaves on disk: the log, the rows, the record of itself and the export are what it did."""

from __future__ import annotations

import math
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.relations.contracts.left import LeftRow, LeftRun, unjudgeable
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.evidence import same
from seatrial.relations.records.run import RunRow
from seatrial.relations.runs import left

WHOLE = "timing/train/total_step_time"
PARTS = ("logprob_inference_prep", "policy_and_reference_logprobs", "policy_training")
"""Phases that follow one another within a step, by NeMo RL's names; generation may go on beside them."""
OTHER_SEED = 5
"""Added to the seed, so that no law is tried with seed 0, which is what a seed that got lost looks like."""


@dataclass(frozen=True, kw_only=True)
class LeftCase:
    """Options of a run that writes what it can."""

    options: Mapping[str, Any]
    seed: int

    def smaller(self) -> Iterator[LeftCase]:
        """Nothing is smaller."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return seed and options."""
        return {"seed": self.seed, "options": dict(self.options)}

    def left(self, stack: Any) -> LeftRun:
        """Return what the run left."""
        return left(stack, self.options, self.seed)


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({'; '.join(wrong[:3]) or 'none'})")


def _scalars(stack: Any, case: LeftCase) -> Measure:
    """Every scalar that a step or a validation gave is in the log, whatever its value is."""
    found = case.left(stack)
    given = [("train", one) for one in found.record.steps]
    given += [("validation", one) for one in found.record.validations]  # type: ignore[misc]
    wrong = [] if given else ["no step was recorded"]
    for prefix, one in given:
        for name, value in one.metrics.items():
            logged = [point for step, point in found.series.get(f"{prefix}/{name}", ()) if step == one.step]
            if not same(logged, [float(np.float32(value))]):
                wrong.append(f"{prefix}/{name} of step {one.step} is {value:.6g}, logged {logged}")
    return _count(wrong, "scalars that are not in the log as they were")


def _known(stack: Any, case: LeftCase) -> Measure:
    names, documented = case.left(stack).series, stack.documented_series()
    wrong = [
        f"{name} is not documented" for name in names if not any(fnmatch(name, one) for one in documented)
    ]
    wrong += [
        f"there is no {pattern}"
        for pattern, always in documented.items()
        if always and not any(fnmatch(name, pattern) for name in names)
    ]
    return _count(wrong, "series of the log that are not those of the manual")


def _regular(stack: Any, case: LeftCase) -> Measure:
    """A series of steps has a point at every step, and a step one point."""
    found = case.left(stack)
    steps = [one.step for one in found.record.steps]
    wrong = [
        f"{name} at steps {[step for step, _ in points]}"
        for name, points in found.series.items()
        if name.startswith(("train/", "timing/train/", "performance/"))
        and [step for step, _ in points if step in steps] != steps
    ]
    return _count(wrong, "series that have not one point at every step")


def _seconds(stack: Any, case: LeftCase) -> Measure:
    """Seconds are positive, phases fit into their step, and steps into the run."""
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
    return _count(wrong, "seconds that cannot be")


def _rows(stack: Any, case: LeftCase) -> Measure:
    found = case.left(stack)
    made = [(step.step, row) for step in found.record.steps for row in step.rows]
    if len(made) != len(found.rows):
        return _count(
            [f"{len(found.rows)} rows of {len(made)}"], "rows on disk that are not those trained on"
        )
    wrong = [
        f"step {step}, row of prompt {row.prompt_id}: {name}"
        for (step, row), written in zip(made, found.rows, strict=True)
        for name in _unlike(step, row, written)
    ]
    return _count(wrong, "rows on disk that are not those trained on")


def _unlike(step: int, row: RunRow, written: LeftRow) -> list[str]:
    """Return the fields in which a row on disk is not the row."""
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


def _errors(stack: Any, case: LeftCase) -> Measure:
    """A row that the verifier cannot judge is marked, has no reward, and is counted; no other is."""
    found = case.left(stack)
    wrong, failures = [], 0
    for step in found.record.steps:
        rows = [row for row in found.rows if row.step == step.step]
        failed = [row for row in rows if unjudgeable(row.completion)]
        failures += len(failed)
        wrong += [
            f"step {step.step}: {row.completion!r} judged {row.judged}, reward {row.reward}"
            for row in rows
            if row.judged == unjudgeable(row.completion) or (not row.judged and row.reward)
        ]
        counted = step.metrics.get("num_verifier_errors")
        if counted != len(failed):
            wrong.append(f"step {step.step}: {len(failed)} errors, counted {counted}")
    if failures < 2:
        raise NotServed(
            "the verifier of this run could judge all rows but one: nothing is seen of its failures"
        )
    return _count(wrong, "failures not told")


def _itself(stack: Any, case: LeftCase) -> Measure:
    """The run's record of itself names the seed and the options that were in force."""
    found = case.left(stack)
    wrong = [] if found.seed == case.seed else [f"seed {case.seed}, recorded {found.seed}"]
    known = {name: value for name, value in found.record.options.items() if name in found.options}
    wrong += [
        f"{name} was {value!r}, recorded {found.options[name]!r}"
        for name, value in known.items()
        if not same(_plain(value), _plain(found.options[name]))
    ]
    return _count(
        wrong if known else ["no option is recorded"], "facts of the run that its record has otherwise"
    )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def _paths(stack: Any, case: LeftCase) -> Measure:
    """Nothing is left but what the manual names: no temporary file, no directory that was not finished."""
    documented = stack.documented_paths()
    wrong = [
        path
        for path in case.left(stack).modes
        if not any(fnmatch(path, one) or (path[-1] == "/" and one.startswith(path)) for one in documented)
    ]
    return _count(wrong, "paths that a finished run leaves and no manual names")


def _readable(stack: Any, case: LeftCase) -> Measure:
    """What a run leaves can be read by whoever can read what is made beside it by plain means."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file").touch()
        (Path(folder) / "folder").mkdir()
        file, directory = (stat.S_IMODE((Path(folder) / name).stat().st_mode) for name in ("file", "folder"))
    wrong = [
        f"{path} {mode:o}"
        for path, mode in case.left(stack).modes.items()
        if (directory & 0o555 if path[-1] == "/" else file & 0o444) & ~mode
    ]
    return _count(wrong, "paths that are closed to others")


def _exported(stack: Any, case: LeftCase) -> Measure:
    found = case.left(stack)
    right = found.exported_ids == found.given_ids
    return _count([] if right else [f"{found.exported_ids}"], "exports without the tokenizer of the model")


def _nothing(stack: Any, case: LeftCase) -> Measure:
    """Rows, scalars and exports that are switched off are not written."""
    found = case.left(stack)
    wrong = [f"{len(found.rows)} rows"] * bool(found.rows) + [f"{len(found.series)} series"] * bool(
        found.series
    )
    wrong += ["an export"] * (found.exported_ids is not None)
    return _count(wrong, "what is switched off and written")


EVERYTHING: Mapping[str, Any] = {"grpo.val_period": 1, "grpo.val_at_start": True, "grpo.max_val_samples": 3}
FAILING = {**EVERYTHING, "data.verifier": "failing"}
MASKED = {**EVERYTHING, "grpo.overlong_filtering": True}
OFF = {
    "logger.tensorboard_enabled": False,
    "logger.log_train_data": False,
    "checkpointing.enabled": False,
    "grpo.max_num_steps": 1,
}


def _law(name: str, measure: Any, suspects: str, options: Mapping[str, Any] = EVERYTHING) -> Law:
    def make(stack: Any, seed: int, tidy: bool) -> LeftCase:
        return LeftCase(options=options, seed=seed + OTHER_SEED)

    return Law(name=name, make=make, measure=measure, suspects=suspects, seeded=False)


RELATIONS = (
    Relation(
        id="R22.left",
        name="run-writes-what-it-did",
        component="left_run",
        statement="The log, the rows and the record of itself that a run leaves are what it did, and nothing else.",
        catalogue=("SB020", "SB055", "SB188", "SB214", "SB278", "SB362", "SB364", "SB368", "SB374"),
        cost="CPU, seconds",
        laws=(
            _law("every scalar", _scalars, "values of zero left out, a step's scalars logged a step later"),
            _law("series of the manual", _known, "names cut or doubled, a phase that is timed no more"),
            _law("a point a step", _regular, "a scalar that is logged when it is not zero, or twice"),
            _law("seconds", _seconds, "start and end swapped, a phase counted twice, another unit"),
            _law(
                "rows on disk",
                _rows,
                "rows of another step, in another order, with the weights' next version",
            ),
            _law("rows on disk, some masked", _rows, "a mask from before the filters, or of ones", MASKED),
            _law(
                "failures of the verifier", _errors, "an error swallowed, errors counted by process", FAILING
            ),
            _law("the record of itself", _itself, "a default in place of what was configured"),
        ),
    ),
    Relation(
        id="R21.left",
        name="run-leaves-whole-directories",
        component="left_run",
        statement="A finished run leaves whole, readable directories, the tokenizer exported, nothing temporary.",
        catalogue=("SB188", "SB299", "SB300"),
        cost="CPU, seconds",
        laws=(
            _law("nothing else is left", _paths, "a copy in place of a move, a name of its own for each run"),
            _law("readable", _readable, "permissions of a temporary directory"),
            _law(
                "the tokenizer is exported",
                _exported,
                "weights alone, another tokenizer than was trained with",
            ),
            _law("what is off is not written", _nothing, "an option that nobody reads", OFF),
        ),
    ),
)
