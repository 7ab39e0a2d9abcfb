"""What a run says of its processes, its policy and its checkpoints, against other evidence of the same.

Other evidence is the record of imports, names of files, this machine, and the tensors that were saved.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.weights import stored_tensors
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.decoder import FAMILIES
from seatrial.trials.sensors.exported import READ
from seatrial.trials.sensors.paths import by_step, first_step_of_command, model_facts, read_object

EVENTS = "events.out.tfevents.*"
"""Names of TensorBoard's files: `events.out.tfevents.<seconds>.<host>.<process>`."""
PROGRAMS = ("refrl", "__main__.py")
"""How a command of refrl begins: its script, or the file that `python -m refrl` runs."""
CLOCK = 2.0
"""Seconds by which two readings of the clock may differ."""
RUN_ID = re.compile("[0-9a-f]{32}")
NO_DIGEST = "0" * 64
"""In place of the digest of training_info.json, while it is computed."""
PYTHON_WORDS, NUMPY_WORDS, TORCH_HEX = 625, 624, 10112
"""Sizes of the saved states of the three global random streams."""


def described_wrongly(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what a run says wrongly of itself in `run_info.json` and `parts.json`.

    Args:
        evidence: of the run.
        facts: `run_info.json`.
        options: by dotted name.

    Raises:
        BlockedError: a file cannot be read.
    """
    if not RUN_ID.fullmatch(str(facts.get("run_id"))):
        yield f"run_id is {facts.get('run_id')}, no UUID in hexadecimal"
    program = Path(str((facts.get("argv") or [""])[0])).name
    if program not in PROGRAMS:
        yield f"the recorded command begins with {program}, not with one of {', '.join(PROGRAMS)}"
    yield from _wrong_processes(evidence, facts, options)
    yield from _wrong_policy(evidence, facts, options)
    yield from _wrong_attempts(evidence, facts)
    if evidence.launched.argv[0] == sys.executable:
        yield from _wrong_origins(facts)


def _wrong_processes(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield processes and hosts that are not those of the run; of ranks on other hosts nothing is known here."""
    if options["cluster.num_processes"] > 1 or options["cluster.placement"] == "ray":
        return
    placement = facts.get("placement", {})
    (rank, *_) = placement.get("ranks") or [{}]
    pids = {one.pid for one in evidence.imports}
    started = {one.pid for one in evidence.imports if one.ppid not in pids}
    right = facts.get("pid")
    if started and right not in started:
        yield f"the process is recorded as {right}, the command started {sorted(started)}"
    if placement.get("by") != "inline" or rank.get("pid") != right:
        yield f"the only rank is recorded as process {rank.get('pid')}, by {placement.get('by')}, not as {right}"
    names = {facts.get("host"), rank.get("node")}
    if len(names) > 1:
        yield f"the host is recorded as {sorted(map(str, names))}"
    if evidence.launched.argv[0] == sys.executable and facts.get("host") != socket.gethostname():
        yield f"the host is recorded as {facts.get('host')}, the run was started on {socket.gethostname()}"
    files = [path.name.split(".") for path in evidence.job.log_dir.rglob(EVENTS)]
    if files and not any(name[-1] == str(right) for name in files):
        yield f"the process is recorded as {right}, no file of events is of it"
    parts = evidence.job.ledger_dir / "parts.json"
    if parts.exists():
        held = read_object(parts)
        if held.get("trainer") != right or len(set(held.values())) < len(held):
            yield f"parts.json has {held}, the trainer's process is {right}"


def _wrong_policy(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the layout, the number of tensors, the kernels and the engine that are recorded."""
    policy, job = facts.get("policy", {}), evidence.job
    mesh = policy.get("mesh") or {}
    if options["cluster.num_processes"] == 1 and math.prod(mesh.values()) != 1:
        yield f"the mesh is recorded as {mesh}, the run has one process"
    backend = job.backend or "hf"
    if policy.get("name") != backend:
        yield f"the policy is recorded as {policy.get('name')}, configured is {backend}"
    device, kernels = str(facts.get("device")), str(policy.get("kernels"))
    if backend == "hf" and device == "cpu" and not kernels.startswith("the model's own"):
        yield f"the kernels are recorded as {kernels!r} on {device}"
    engine, said = options["policy.generation.backend"], str(facts.get("generator"))
    version = facts.get("versions", {}).get(engine)
    if not said.startswith(engine) or (version is not None and said.split(",")[0] != f"{engine} {version}"):
        yield f"the engine is recorded as {said!r}, configured is {engine} and imported {version}"
    if backend != "hf" or job.frozen or model_facts(job.initial_model).get("model_type") not in FAMILIES:
        return
    trained = len(stored_tensors(job.adapter_dir or job.initial_model))
    if sum(policy.get("weights", {}).values()) != trained:
        yield f"{policy.get('weights')} tensors are recorded, {trained} train"


def _wrong_attempts(evidence: RunEvidence, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield starts that are not in order, missing, or later than what they wrote."""
    starts = facts.get("attempts") or []
    times = [one.get("started_at", math.nan) for one in starts]
    if not starts or times != sorted(times) or not times[-1] <= facts.get("started_at", math.nan):
        yield f"the starts are recorded at {times}, the last one's record begins at {facts.get('started_at')}"
    begun = facts.get("started_at", math.nan) - evidence.launched.seconds - CLOCK
    if starts and not times[-1] >= begun:
        yield f"the last start is recorded at {times[-1]}, the command began after {begun}"
    resumed = [one.get("resumed_from") for one in starts]
    if resumed[1:] != sorted(step for step in resumed[1:] if step is not None):
        yield f"the starts are recorded to resume from the steps {resumed}"
    earlier = min(by_step(evidence, "train/loss"), default=1) < first_step_of_command(evidence)
    if earlier and len(starts) < 2:
        yield f"{len(starts)} start is recorded, and the log holds steps of an earlier one"


def _wrong_origins(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield modules that are recorded to come from other files than this Python finds."""
    for name, file in facts.get("origins", {}).items():
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin != file:
            yield f"{name} is recorded to come from {file}, this Python finds {spec.origin}"


def checkpoint_described_wrongly(
    folder: Path, said: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what `training_info.json` of a complete run says wrongly of itself and of the random streams.

    Args:
        folder: of the checkpoint.
        said: its `training_info.json`.
        options: by dotted name.

    Raises:
        BlockedError: the file cannot be read.
    """
    if said.get("finished") is not False:
        yield f"finished is {said.get('finished')}, and the run took all its steps"
    for name in ("data", "frozen"):
        held = said.get("data") if name == "data" else said.get("policy", {}).get("frozen")
        if not re.fullmatch("[0-9a-f]{64}", str(held)):
            yield f"the digest {name} is {held}"
    streams, ranks = said.get("streams") or [], options["cluster.num_processes"]
    if len(streams) != ranks:
        yield f"it has the random streams of {len(streams)} processes, the run has {ranks}"
    for stream in streams:
        python, numpy_ = (list(stream.get(name) or ()) for name in ("python", "numpy"))
        sizes = (
            *(len(state[1]) if len(state) > 1 else 0 for state in (python, numpy_)),
            len(stream.get("torch") or ""),
        )
        if sizes != (PYTHON_WORDS, NUMPY_WORDS, TORCH_HEX):
            yield f"the states of its random streams have the sizes {sizes}"
    path = folder / "training_info.json"
    try:
        content, readers = path.read_bytes(), path.stat().st_mode & READ
        hidden = [one for one in folder.rglob("*") if one.is_file() and readers & ~one.stat().st_mode]
    except OSError as error:
        raise BlockedError(f"{folder}: {error.strerror}") from error
    if hidden:
        yield f"{hidden[0].name} cannot be read by all who can read training_info.json"
    digest = str(said.get("digest") or "")
    if digest and hashlib.sha256(content.replace(digest.encode(), NO_DIGEST.encode())).hexdigest() != digest:
        yield "training_info.json does not match its digest"
