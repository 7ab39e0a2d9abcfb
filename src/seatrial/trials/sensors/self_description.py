"""What a run says of itself and of its checkpoints, against the record of imports, names of files, and this machine.

What it says of its processes, its policy and its generator against its options is in `sensors/processes.py`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.exported import READ

EVENTS = "events.out.tfevents.*"
"""Names of TensorBoard's files: `events.out.tfevents.<seconds>.<host>.<process>`."""
PROGRAMS = ("refrl", "__main__.py")
"""How a command of refrl begins: its script, or the file that `python -m refrl` runs."""
RUN_ID = re.compile("[0-9a-f]{32}")
NO_DIGEST = "0" * 64
"""In place of the digest of training_info.json, while it is computed."""
PYTHON_WORDS, NUMPY_WORDS, TORCH_HEX = 625, 624, 10112
"""Sizes of the saved states of the three global random streams."""


def described_wrongly(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what a run says wrongly of itself in `run_info.json`.

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
    if evidence.launched.argv[0] == sys.executable:
        yield from _wrong_origins(facts)


def _wrong_processes(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield processes and hosts that are not those of the run; of ranks on other hosts nothing is known here."""
    if options["cluster.num_processes"] > 1 or options["cluster.placement"] == "ray":
        return
    by = facts.get("placement", {}).get("by")
    pids = {one.pid for one in evidence.imports}
    started = {one.pid for one in evidence.imports if one.ppid not in pids}
    right = facts.get("pid")
    if started and right not in started:
        yield f"the process is recorded as {right}, the command started {sorted(started)}"
    if by != "inline":
        yield f"the only rank is recorded to be placed by {by}, and it is the command's own process"
    if evidence.launched.argv[0] == sys.executable and facts.get("host") != socket.gethostname():
        yield f"the host is recorded as {facts.get('host')}, the run was started on {socket.gethostname()}"
    files = [path.name.split(".") for path in evidence.job.log_dir.rglob(EVENTS)]
    if files and not any(name[-1] == str(right) for name in files):
        yield f"the process is recorded as {right}, no file of events is of it"


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
