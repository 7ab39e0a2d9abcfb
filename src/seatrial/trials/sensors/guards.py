"""The verdict on what the guards saw inside a run."""

from __future__ import annotations

import json

from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import Sensor
from seatrial.verdict import Outcome, Verdict

NAME = "guards hold"
BITS = "guard bits after sync"


def _hold(evidence: RunEvidence) -> Verdict:
    """Every guard was asked, and none failed or was blocked; a run that left no record of them fails."""
    path = evidence.job.guards_file
    if path is None or not path.is_file():
        reason = "the run left no record of its guards: it did not end, or nothing watched it"
        return Verdict(name=NAME, outcome=Outcome.FAIL, reason=reason)
    found = json.loads(path.read_text(encoding="utf-8"))
    failed = {name: one["failed"]["reason"] for name, one in found.items() if one["failed"]}
    asked = sum(one["asked"] for one in found.values())
    if failed:
        name, reason = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return Verdict(name=NAME, outcome=Outcome.FAIL, reason=f"{name}: {reason}{more}", num_samples=asked)
    if blocked := [
        f"{name}: {one['blocked']['reason']}" for name, one in found.items() if one.get("blocked")
    ]:
        return Verdict(name=NAME, outcome=Outcome.BLOCKED, reason="; ".join(blocked), num_samples=asked)
    if not asked:
        return Verdict(name=NAME, outcome=Outcome.SKIPPED, reason="not triggered: no guard was asked")
    return Verdict(
        name=NAME, outcome=Outcome.PASS, reason=f"{len(found)} guards, asked {asked} times", num_samples=asked
    )


def _read_back(evidence: RunEvidence) -> Verdict:
    """The generator's tensors were read back at every sync, at least one a step, and have the policy's bits."""
    path = evidence.job.guards_file
    found = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
    one = found.get(BITS, {"asked": 0, "failed": None})
    num_steps = evidence.job.num_steps
    good = one["asked"] >= num_steps and not one["failed"]
    return Verdict(
        name=READ_BACK.name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=one["failed"]["reason"]
        if one["failed"]
        else f"read back and compared at {one['asked']} syncs",
        value=float(one["asked"]),
        bound=f">= {num_steps} syncs, every tensor of each bitwise equal",
        num_samples=one["asked"],
    )


GUARDS_HOLD = Sensor(NAME, _hold)
READ_BACK = Sensor("the generator's tensors, read back, have the policy's bits", _read_back)
