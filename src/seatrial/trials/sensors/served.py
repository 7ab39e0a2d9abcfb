"""What served a run's policy, as the run says of itself from the objects that ran."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from typing import Any

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import RunEvidence
from seatrial.verdict import Outcome, Verdict

SERVED = "what was asked for served the policy"
PLACED = "what was asked for started the ranks"
MODULES = {
    "megatron": ("megatron", "pip install 'seatrial[megatron]'"),
    "ray": ("ray", "pip install 'seatrial[ray]'"),
}
"""What a backend or a placement needs, and the remedy where it is missing."""


def need(*parts: str) -> None:
    """Look whether backends and placements can run here.

    Raises:
        BlockedError: a package is missing.
    """
    for part in parts:
        module, remedy = MODULES.get(part, (None, ""))
        if module is not None and importlib.util.find_spec(module) is None:
            raise BlockedError(f"{part} needs the package {module}, which is not installed: {remedy}")


def served(
    evidence: RunEvidence,
    backend: str | None,
    mesh: Mapping[str, int],
    *,
    model: str = "",
    name: str = SERVED,
) -> Verdict:
    """Judge which backend, which layout and which class served the policy.

    Args:
        evidence: of the run.
        backend: its name; None: any.
        mesh: dimensions of more than one process.
        model: how the name of the model's class ends.
        name: of the verdict.
    """

    def judge(said: Any) -> tuple[str, bool]:
        live = {dimension: size for dimension, size in said["mesh"].items() if size > 1}
        found = f"{said['name']} {live}, {said['model']}, {sum(said['weights'].values())} tensors"
        good = said["name"] == (backend or said["name"]) and live == dict(mesh) and bool(said["weights"])
        return found, good and said["model"].endswith(model)

    bound = f"{backend or 'any backend'} {dict(mesh)} {model}".rstrip()
    return _judged(evidence, "policy", judge, name=name, bound=bound)


def placed(evidence: RunEvidence, placement: str, num_ranks: int) -> Verdict:
    """Judge what started the ranks of a run, and that each is a process of its own.

    Args:
        evidence: of the run.
        placement: as the run says of itself: `process`, `ray`.
        num_ranks: how many.
    """

    def judge(said: Any) -> tuple[str, bool]:
        processes = {(rank["node"], rank["pid"]) for rank in said["ranks"]}
        found = f"{said['by']}, {len(processes)} processes on {len({node for node, _ in processes})} nodes"
        return found, said["by"] == placement and len(processes) == len(said["ranks"]) == num_ranks

    return _judged(evidence, "placement", judge, name=PLACED, bound=f"{placement}, {num_ranks} processes")


def _judged(
    evidence: RunEvidence, part: str, judge: Callable[[Any], tuple[str, bool]], *, name: str, bound: str
) -> Verdict:
    """Judge a part of what a run says of itself, which is Fail where it does not say it."""
    path = evidence.job.ledger_dir / "run_info.json"
    try:
        found, good = judge(json.loads(path.read_text(encoding="utf-8"))[part])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found, good = f"{path} does not say it ({error!r})", False
    return Verdict(
        name=name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=found,
        value=found,
        bound=bound,
        num_samples=1,
    )
