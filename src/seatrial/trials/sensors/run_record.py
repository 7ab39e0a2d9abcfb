"""Verdict on what a run records of itself: its start, its seed, and the facts of each checkpoint."""

from __future__ import annotations

import hashlib
import math
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.options import flat, loop_of, options_of, steps_of, updates_of
from seatrial.trials.sensors.paths import (
    by_step,
    first_step_of_command,
    model_facts,
    read_object,
    run_facts,
    sensor,
)
from seatrial.trials.sensors.saved import saved_steps
from seatrial.trials.sensors.self_description import checkpoint_described_wrongly, described_wrongly

INFO = "training_info.json"
CLOCK = 2.0
"""Seconds between a file's time and the clock that the run reads; file systems round to 2 at most."""


def record_is_true(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The record says when and how the run started, and each checkpoint what it holds and at which step.

    Raises:
        NotGivenError: the target does not say how it configured the run.
        BlockedError: a file cannot be read.
    """
    options, facts = options_of(evidence), run_facts(evidence)
    wrong = [*_wrong_start(evidence, facts, options), *described_wrongly(evidence, facts, options)]
    job, number = evidence.job, 1
    steps = [] if job.checkpoint_dir is None else saved_steps(job.checkpoint_dir, job.checkpoint_form)
    kept = _kept(evidence, options)
    if kept is not None and steps != kept:
        wrong.append(f"there are checkpoints of the steps {steps}, the best and the latest are {kept}")
    for step in steps:
        assert job.checkpoint_dir is not None
        folder = job.checkpoint_dir / job.checkpoint_form.split("/")[0].format(step=step)
        if not (folder / INFO).exists():
            continue
        number += 1
        said = read_object(folder / INFO)
        of_step = (
            *_wrong_facts(evidence, step, said, options),
            *_wrong_files(folder, said),
            *checkpoint_described_wrongly(folder, said, options),
        )
        wrong += [f"{folder.name}: {what}" for what in of_step]
        if said.get("run_id") != facts.get("run_id"):
            wrong.append(f"{folder.name} is of another run than run_info.json")
    return wrong[:3], f"the start, and {number - 1} checkpoints", number


RECORD_TRUE = sensor(
    "the run records its start and its checkpoints truly", "seed, time, steps, digests", record_is_true
)


def _kept(evidence: RunEvidence, options: Mapping[str, Any]) -> list[int] | None:
    """Return the steps whose checkpoints stay; None where the options do not say."""
    period, number = options["checkpointing.save_period"], options["checkpointing.keep_top_k"]
    job = evidence.job
    if not options["checkpointing.enabled"] or not period or job.first_step > 1 or not _has_info(evidence):
        return None
    due = {*range(period, job.num_steps, period), job.num_steps}
    if number is None:
        return sorted(due)
    values = _metric(evidence, options)
    sign = 1.0 if options["checkpointing.higher_is_better"] else -1.0
    ranked = sorted(due, key=lambda step: (sign * values.get(step, -sign * math.inf), step), reverse=True)
    return sorted({*ranked[:number], job.num_steps})


def _has_info(evidence: RunEvidence) -> bool:
    """Return whether the run writes checkpoints in refrl's form."""
    folder = evidence.job.checkpoint_dir
    return folder is not None and any(folder.glob(f"*/{INFO}"))


def _metric(evidence: RunEvidence, options: Mapping[str, Any]) -> Mapping[int, float]:
    """Return the values of the metric that ranks checkpoints, by step; none where there is no metric."""
    name = options["checkpointing.metric_name"]
    if name is None:
        return {}
    loop, _, tag = name.partition(":")
    return by_step(evidence, f"{'validation' if loop == 'val' else loop}/{tag}")


def _wrong_start(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the record of how the run started."""
    seed = options[f"{loop_of(options)}.seed"]
    if facts.get("seed") != seed:
        yield f"the seed is recorded as {facts.get('seed')}, the run has {seed}"
    words = list(evidence.launched.argv)[-len(facts.get("argv", ())) + 1 :]
    if len(facts.get("argv", ())) < 2 or not _same_words(facts["argv"][1:], words):
        yield "the recorded command is not the one that was run"
    path = evidence.job.ledger_dir / "run_info.json"
    try:
        written = path.stat().st_mtime
    except OSError as error:
        raise BlockedError(f"{path}: {error.strerror}") from error
    started = facts.get("started_at", math.nan)
    if not written - evidence.launched.seconds - CLOCK <= started <= written + CLOCK:
        yield f"the run is recorded to have started at {started}, its record was written at {written}"
    ranks = facts.get("placement", {}).get("ranks", ())
    if len(ranks) != options["cluster.num_processes"]:
        yield f"{len(ranks)} ranks are recorded, the run has {options['cluster.num_processes']}"
    device = options["cluster.device"]
    if device != "auto" and not str(facts.get("device")).startswith(device):
        yield f"the device is recorded as {facts.get('device')}, the run has {device}"
    model = str(facts.get("policy", {}).get("model"))
    kinds = model_facts(evidence.job.initial_model).get("architectures", ())
    if facts.get("policy", {}).get("name") == "hf" and not model.endswith(tuple(kinds)):
        yield f"the model is recorded as {model}, its folder has {kinds}"
    if evidence.launched.argv[0] == sys.executable:
        for name, version in facts.get("versions", {}).items():
            right = platform.python_version() if name == "python" else _installed(name)
            if _public(version) != _public(right):
                yield f"the version of {name} is recorded as {version}, installed is {right}"


def _installed(name: str) -> str:
    """Return the version of a package as its files have it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(name), "__version__", None))


def _public(version: object) -> str:
    """Return a version without the label of a build (`2.11.0` of `2.11.0+cu130`), which metadata may leave out."""
    return str(version).partition("+")[0]


def _same_words(recorded: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether words are those that were recorded, whose secrets may be masked."""
    return len(recorded) == len(words) and all(
        one == other or "***" in one for one, other in zip(recorded, words, strict=True)
    )


def _wrong_facts(
    evidence: RunEvidence, step: int, said: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what a checkpoint says wrongly of its run."""
    metric = _metric(evidence, options).get(step)
    wanted = {
        "step": step,
        "seed": options[f"{loop_of(options)}.seed"],
        "world_size": options["cluster.num_processes"],
    }
    for key, value in wanted.items():
        if said.get(key) != value:
            yield f"{key} is {said.get(key)}, not {value}"
    updates, drawn = _progress(evidence, step, options)
    for key, right, found in (
        ("updates", updates, said.get("policy", {}).get("num_updates_done")),
        ("prompts that were drawn", drawn, said.get("parts", {}).get("prompts", {}).get("num_drawn")),
    ):
        if right is not None and found is not None and found != right:
            yield f"it counts {found} {key}, up to its step there are {right}"
    held = said.get("metric")
    if (held is None) != (metric is None) or (
        held is not None and metric is not None and not math.isclose(held, metric, rel_tol=1e-6)
    ):
        yield f"its metric is {held}, {options['checkpointing.metric_name']} is logged as {metric}"
    recorded = dict(flat(said.get("config", {})))
    differs = [option for option, value in options.items() if recorded.get(option) != value]
    if differs and first_step_of_command(evidence) == 1:  # else an earlier start may have had other options
        yield f"{differs[0]} is {recorded.get(differs[0])!r}, the run has {options[differs[0]]!r}"


def _progress(evidence: RunEvidence, step: int, options: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the updates and the prompts drawn up to a step; None where the rows do not say."""
    if evidence.job.first_step > 1:
        return None, None
    if loop_of(options) == "sft":
        return step, step * int(options["policy.train_global_batch_size"])
    try:
        rows = steps_of(evidence)
    except NotGivenError:
        return None, None
    updates = sum(len(updates_of(rows.get(number, []), options)) for number in range(1, step + 1))
    is_even = not (options["grpo.use_dynamic_sampling"] or options["grpo.async_grpo.enabled"])
    return updates, step * int(options["grpo.num_prompts_per_step"]) if is_even else None


def _wrong_files(folder: Path, said: Mapping[str, Any]) -> Iterator[str]:
    """Yield files that are not the ones that a checkpoint lists, or have other bytes."""
    held = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {INFO}
    sizes, digests = said.get("files", {}), said.get("digests", {})
    for name in sorted(held ^ set(sizes)):
        yield f"{name} is {'not listed' if name in held else 'missing'}"
    for name in sorted(held & set(sizes)):
        content = (folder / name).read_bytes()
        if len(content) != sizes[name] or hashlib.sha256(content).hexdigest() != digests.get(name):
            yield f"{name} has other bytes than its size and digest say"
