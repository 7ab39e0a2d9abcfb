"""Verdicts on the ledger of a trial: each law of `seatrial.evidence.ledger.laws`, with the facts of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from seatrial.evidence.ledger.law import verdict_of
from seatrial.evidence.ledger.laws import LAWS
from seatrial.evidence.ledger.laws.advantages import rule_named
from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow
from seatrial.targets.base import TrainingJob
from seatrial.verdict import Verdict

LedgerSensor = Callable[[Sequence[LedgerRow], TrainingJob], Verdict]


def facts_of(job: TrainingJob) -> LedgerFacts:
    """Return what a training job declares of its rows."""
    advantage = job.advantage
    allowed = job.max_verifier_error_share
    ends = job.configuration.get("policy", {}).get("generation", {}).get("stop_token_ids")
    return LedgerFacts(
        num_steps=job.num_steps,
        num_rows_per_step=job.num_rows_per_step,
        group_size=job.num_generations_per_prompt,
        num_updates_per_step=job.num_updates_per_step,
        precision=job.precision,
        vocabulary_size=job.vocabulary_size,
        max_verifier_error_share=LedgerFacts.max_verifier_error_share if allowed is None else allowed,
        byte_level=job.byte_level,
        end_ids=None if ends is None else frozenset(ends),
        verifier=job.verifier,
        max_lag=None if job.max_lag is None else job.max_lag * job.num_updates_per_step,
        lag_is_exact=job.lag_is_exact,
        advantage_rules=()
        if advantage is None
        else (rule_named(advantage.estimator, advantage.scale, advantage.epsilon),),
    )


def _judge(name: str, rows: Sequence[LedgerRow], job: TrainingJob) -> Verdict:
    return verdict_of(f"ledger: {name}", LAWS[name], rows, facts_of(job))


LEDGER_SENSORS: Mapping[str, LedgerSensor] = MappingProxyType(
    {f"ledger: {name}": partial(_judge, name) for name in LAWS}
)
"""A sensor for each law, by the name of its verdict."""


def ledger_verdicts(rows: Sequence[LedgerRow], job: TrainingJob) -> list[Verdict]:
    """Return every verdict on a ledger."""
    return [judge(rows, job) for judge in LEDGER_SENSORS.values()]
