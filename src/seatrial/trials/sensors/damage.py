"""Copies of a checkpoint with two changed bytes in one file each, and whether a run refuses every one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.run import STEP_TAG
from seatrial.verdict import Outcome, Verdict

DAMAGE_SEEN = "damage: two changed bytes in any file of a checkpoint are seen"
FIRST_COPY = 1001
"""Number in the name of the first copy, above the steps that the run itself saves."""


def damaged_copies(evidence: RunEvidence, root: Path) -> dict[str, str]:
    """Copy a run's first checkpoint once for each of its files, with two bytes of that file changed.

    Args:
        evidence: of the run.
        root: folder of checkpoints of the run that is to find the copies.

    Returns:
        The file that is damaged, by the name of the copy.

    Raises:
        NotGivenError: the target names no checkpoints, or saves each as a part of a larger folder.
        BlockedError: the checkpoint cannot be copied.
    """
    job = evidence.job
    if job.checkpoint_dir is None or not job.checkpoint_steps or job.checkpoint_form != "step_{step}/policy":
        raise NotGivenError("the target does not say that each step is saved in a folder step_N")
    source = job.checkpoint_dir / f"step_{job.checkpoint_steps[0]}"
    copies = {}
    try:
        files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
        for number, name in enumerate(files, FIRST_COPY):
            copy = root / f"step_{number}"
            shutil.copytree(source, copy)
            content = bytearray((copy / name).read_bytes())
            for place in (len(content) // 3, 2 * len(content) // 3):
                content[place] ^= 1
            (copy / name).write_bytes(content)
            copies[copy.name] = str(name)
    except (OSError, IndexError) as error:
        raise BlockedError(f"{source} cannot be copied and damaged: {error!r}") from error
    return copies


def damage_seen(evidence: RunEvidence, copies: Mapping[str, str]) -> Verdict:
    """Return whether a run refused every damaged copy: its console log names each, and it began at the beginning.

    Raises:
        BlockedError: its log cannot be read.
    """
    try:
        lines = evidence.launched.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BlockedError(f"{evidence.launched.log_path}: {error.strerror}") from error
    silent = [
        name
        for copy, name in copies.items()
        if not any(f"{copy}," in line or f"{copy}:" in line for line in lines)
    ]
    series = read_logs(evidence.job.log_dir).series.get(STEP_TAG)
    steps = [] if series is None else series.steps.tolist()
    good = bool(copies) and not silent and steps[:1] == [1]
    return Verdict(
        name=DAMAGE_SEEN,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=f"no line says that a checkpoint is damaged in {', '.join(silent)}; the run logged the steps {steps}"
        if silent
        else f"{len(copies)} damaged copies, the run logged the steps {steps}",
        value=f"{len(copies) - len(silent)} of {len(copies)} seen",
        bound="each has a line, and the run begins at step 1",
        num_samples=len(copies),
    )
