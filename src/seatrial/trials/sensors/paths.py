"""What a run's log and rows show of the path through a model that only one architecture has."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import Sensor
from seatrial.verdict import Outcome, Verdict

Judge = Callable[[RunEvidence], tuple[list[str], str, int]]
"""Returns what is wrong, what was seen, and on how many values that rests."""
LOAD = "train/moe/tokens_per_expert/"


def sensor(name: str, bound: str, judge: Judge) -> Sensor:
    """Return a question to the evidence of a run; seen on nothing, it fails."""

    def ask(evidence: RunEvidence) -> Verdict:
        wrong, seen, number = judge(evidence)
        good = not wrong and number > 0
        return Verdict(
            name=name,
            outcome=Outcome.PASS if good else Outcome.FAIL,
            reason="; ".join(wrong) or seen,
            value=seen,
            bound=bound,
            num_samples=number,
        )

    return Sensor(name, ask)


def model_facts(folder: Path) -> dict[str, Any]:
    """Return config.json of a model.

    Raises:
        BlockedError: it cannot be read.
    """
    try:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BlockedError(f"{folder}/config.json cannot be read: {error}") from error
    return found


def by_step(evidence: RunEvidence, tag: str) -> Mapping[int, float]:
    """Return the values of a series by step; none where it was not logged."""
    series = evidence.series(tag)
    return {} if series is None else dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def expert_load(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every token of every trained row went through K experts of each layer, and padding through none."""
    facts = model_facts(evidence.job.initial_model)
    layers, chosen = facts["num_hidden_layers"], facts["num_experts_per_tok"]
    tokens: Counter[int] = Counter()
    for row in evidence.ledger:
        if any(row.loss_mask or ()):
            tokens[row.step] += len(row.token_ids or ())
    logged = [by_step(evidence, f"{LOAD}{number}") for number in range(facts["num_experts"])]
    balance = by_step(evidence, "train/moe/router_aux_loss")
    updates = evidence.job.num_updates_per_step or 1
    wrong = []
    for step, number in sorted(tokens.items()):
        load = math.fsum(of.get(step, math.nan) for of in logged) * updates
        if not abs(load - number * layers * chosen) < 0.5:
            wrong.append(f"step {step}: the experts got {load:g} tokens, not {number} x {layers} x {chosen}")
        if not 0 < balance.get(step, math.nan) < len(logged):
            wrong.append(
                f"step {step}: the balance loss is {balance.get(step)}, not within 0 and {len(logged)}"
            )
    return wrong[:3], f"{sum(tokens.values())} tokens x {layers} layers x {chosen} experts", len(tokens)
