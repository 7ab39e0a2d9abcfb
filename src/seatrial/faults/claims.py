"""The claims of trials, each with the planted faults that break it: the table and its page, docs/evidence/claims.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from seatrial.packaged import read_table
from seatrial.targets.base import JobRequest
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.architectures import Architecture
from seatrial.trials.async_filter_flow import CLAIMS as ASYNC_CLAIMS
from seatrial.trials.async_filter_flow import AsyncFilterFlow
from seatrial.trials.base import Claim, Trial
from seatrial.trials.checkpointing import CheckpointSave, GrpoLora
from seatrial.trials.generation import MEGATRON, VLLM, GenerationMegatron, GenerationVllm
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.parallel import ParallelLayout
from seatrial.trials.plan import all_trials
from seatrial.trials.refit import RefitDelta, RefitNoncolocated, refit_claims
from seatrial.trials.resume_diamond import SftResumeDiamond
from seatrial.trials.supervised_smoke import DpoSmoke, SftSmoke

INTRODUCTION = """# Claims of trials

Each claim that a trial of the reference stack makes, a planted fault that breaks it, and the check that then fails.
A claim without a fault is open: nothing shows yet that the trial would fail without it. This page is generated from
`seatrial/faults/claims.yaml`: `make docs`. `tests/e2e/test_claims.py` runs each fault under its trial, and
`tests/peers` those of trials that need the environments of vLLM or Ray. One fault may break several claims, and trials
may share one. Trials of stacks without GRPO do not run on the reference stack: their faults are modes of a toy stack,
which `tests/unit/targets/test_claims_of_smokes.py` runs.
"""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A fault as an edit of one place. A `seatrial.faults.planting.Change`."""

    id: str
    what: str
    module: str
    old: str
    """Text that occurs exactly once in the module."""
    new: str


@dataclass(frozen=True, kw_only=True)
class FaultyRun:
    """A trial run with a planted fault, and the claims that it breaks."""

    trial: str
    fault: str
    breaks: Mapping[str, str]
    """The check that fails, by the claim."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A claim of a trial, the fault that breaks it, and the check that fails."""

    trial: str
    claim: str
    fault: str
    check: str


@cache
def claim_edits() -> tuple[Edit, ...]:
    """Return the faults that only this table has."""
    return tuple(Edit(**fields) for fields in _table()["edits"])


@cache
def faulty_runs() -> tuple[FaultyRun, ...]:
    """Return the runs of the reference stack's trials that show which fault breaks which claims."""
    return _runs("runs")


@cache
def toy_runs() -> tuple[FaultyRun, ...]:
    """Return the runs of trials for stacks without GRPO: a toy stack's, whose `mode` is the fault."""
    return _runs("toy")


def broken_claims() -> tuple[Broken, ...]:
    """Return every claim that a fault is known to break."""
    return tuple(
        Broken(trial=run.trial, claim=claim, fault=run.fault, check=check)
        for run in (*faulty_runs(), *toy_runs())
        for claim, check in run.breaks.items()
    )


def _runs(part: str) -> tuple[FaultyRun, ...]:
    return tuple(
        FaultyRun(trial=trial, fault=row["fault"], breaks=row["breaks"])
        for row in _table()[part]
        for trial in row["trials"]
    )


def claims_of(trial: Trial) -> Sequence[Claim]:
    """Return what a trial claims of the reference stack with the recipe as it is."""
    if isinstance(trial, SftResumeDiamond | ParallelLayout | SftSmoke | DpoSmoke):
        return trial.claims()
    if isinstance(trial, AsyncFilterFlow):
        return ASYNC_CLAIMS
    if isinstance(trial, GrpoSmoke):
        return trial.claims(_job("grpo-smoke"))
    if isinstance(trial, GrpoLora | CheckpointSave):
        return trial.claims(_job(f"grpo-{trial.name.removeprefix('grpo-')}"))
    if isinstance(trial, RefitDelta | RefitNoncolocated):
        return refit_claims(_job(trial.form.recipe), trial.form)
    if isinstance(trial, GenerationVllm | GenerationMegatron):
        form = VLLM if isinstance(trial, GenerationVllm) else MEGATRON
        return refit_claims(_job(form.recipe), form)
    if isinstance(trial, Architecture):
        return trial.claims(_job(trial.recipe))
    return [Claim(text=trial.proves, verdicts=("validation reward rises by more than chance (3 seeds)",))]


def page() -> str:
    """Return docs/evidence/claims.md."""
    return INTRODUCTION + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    known: dict[tuple[str, str], list[Broken]] = {}
    for one in broken_claims():
        known.setdefault((one.trial, one.claim), []).append(one)
    claims = [(trial, claim) for trial in all_trials() for claim in claims_of(trial)]
    closed = sum((trial.name, claim.text) in known for trial, claim in claims)
    left = len(claims) - closed
    yield f"\n{closed} of {len(claims)} claims have a fault that breaks them; {left} do not."
    named = ""
    for trial, claim in claims:
        if trial.name != named:
            named = trial.name
            yield f"\n## {named} (level {trial.level})\n\n| claim | fault | check that fails |\n|---|---|---|"
        found = known.get((trial.name, claim.text), [])
        faults = ", ".join(f"`{one.fault}`" for one in found) or "open"
        checks = ", ".join(dict.fromkeys(f"`{one.check}`" for one in found))
        yield f"| {claim.text} | {faults} | {checks} |"


def _job(recipe: str) -> Any:
    folder = Path("outputs")
    return ReferenceTarget().job(JobRequest(recipe=recipe, model=folder / "model", directory=folder, seed=0))


def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = read_table("seatrial.faults", "claims.yaml")
    return table
