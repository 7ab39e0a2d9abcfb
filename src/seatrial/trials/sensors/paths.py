"""What a run's log and rows show of the path through a model that only one architecture has."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.weights import compare_weights, stored_tensors
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import Sensor
from seatrial.verdict import Outcome, Verdict

Judge = Callable[[RunEvidence], tuple[list[str], str, int]]
"""Returns what is wrong, what was seen, and on how many values that rests."""
FLOAT_GAP, INT8_GAP = 1e-5, 0.05
"""Nats by which sampler and trainer differ on average: rounding in float32 is a hundredth of the first, the second is
the bound of a smoke in bfloat16."""
LOAD = "train/moe/tokens_per_expert/"
LOAD_RATIO = "train/moe/load_max_over_mean"


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
    return read_object(folder / "config.json")


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises:
        BlockedError: it cannot be read.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BlockedError(f"{path} cannot be read: {error}") from error
    return found


def run_facts(evidence: RunEvidence) -> dict[str, Any]:
    """Return what a run says of itself (`run_info.json`); nothing where it does not."""
    try:
        text = (evidence.job.ledger_dir / "run_info.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found


def first_step_of_command(evidence: RunEvidence) -> int:
    """Return the first step that the last start of a run takes: after the one that it records to resume from."""
    attempts = run_facts(evidence).get("attempts") or [{}]
    resumed_from = attempts[-1].get("resumed_from")
    return evidence.job.first_step if resumed_from is None else int(resumed_from) + 1


def by_step(evidence: RunEvidence, tag: str) -> Mapping[int, float]:
    """Return the values of a series by step; none where it was not logged."""
    series = evidence.series(tag)
    return {} if series is None else dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def by_step_and_name(evidence: RunEvidence, prefix: str) -> dict[int, dict[str, float]]:
    """Return the values of all series that begin with a prefix, by step and by the rest of their names.

    A step without any has an empty mapping.
    """
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for tag in evidence.log.series:
        if tag.startswith(prefix):
            for step, value in by_step(evidence, tag).items():
                found[step][tag.removeprefix(prefix)] = value
    return found


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
        loads = [of.get(step, math.nan) for of in logged]
        ratio = by_step(evidence, LOAD_RATIO).get(step, math.nan)
        if updates == 1 and not math.isclose(ratio, max(loads) * len(loads) / sum(loads), rel_tol=1e-5):
            wrong.append(
                f"step {step}: {LOAD_RATIO} is {ratio:g}, the most loaded expert of {loads} has another"
            )
        if not abs(load - number * layers * chosen) < 0.5:
            wrong.append(f"step {step}: the experts got {load:g} tokens, not {number} x {layers} x {chosen}")
        if not 0 < balance.get(step, math.nan) < len(logged):
            wrong.append(
                f"step {step}: the balance loss is {balance.get(step)}, not within 0 and {len(logged)}"
            )
    return wrong[:3], f"{sum(tokens.values())} tokens x {layers} layers x {chosen} experts", len(tokens)


def draft_tensors(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every tensor of the draft head moved: of the half that takes hidden states, and of the half that takes tokens."""
    final = evidence.job.final_model / "draft"
    if not any(final.glob("*.safetensors")):
        return [f"the run left no draft head at {final} ({evidence.launched.describe()})"], "no head", 1
    changes = compare_weights(evidence.job.initial_model / "draft", final).changes
    names = {change.name for change in changes}
    wrong = [f"{change.name} did not move" for change in changes if not change.num_changed]
    wrong += [
        f"there is no {name}" for name in ("hidden_proj.weight", "embed_proj.weight") if name not in names
    ]
    return wrong[:3], f"{len(changes)} tensors of the draft head moved", len(changes)


def draft_tokens(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The head learned from every trained token that has two before it, and its drafts have a chance to be accepted."""
    tokens: Counter[int] = Counter()
    for row in evidence.ledger:
        tokens[row.step] += sum(map(bool, (row.loss_mask or ())[2:]))
    logged, rates = (
        by_step(evidence, "train/draft/num_tokens"),
        by_step(evidence, "train/draft/acceptance_rate"),
    )
    wrong = [
        f"step {step}: the draft head saw {logged.get(step)} tokens an update, the rows have {number}"
        for step, number in sorted(tokens.items())
        if not abs(logged.get(step, math.nan) * evidence.job.num_updates_per_step - number) < 0.5
    ]
    wrong += [
        f"step {step}: the acceptance rate is {rates.get(step)}, not within 0 and 1"
        for step in sorted(tokens)
        if not 0 < rates.get(step, math.nan) <= 1
    ]
    seen = ", ".join(f"{rate:.3f}" for rate in rates.values())
    return wrong[:3], f"acceptance {seen}, on {sum(tokens.values())} tokens", len(tokens)


def tower_moved(evidence: RunEvidence, part: str, first: str) -> tuple[list[str], str, int]:
    """The image or sound reached the loss: every tensor of the tower moved, its first layer and the projector too.

    Args:
        evidence: of the run.
        part: name of the tower.
        first: tensor that takes the image or sound; an input of zeros leaves it without a gradient.
    """
    frozen = tuple(evidence.job.frozen)
    changes = {
        change.name: change
        for change in evidence.weights.changes
        if part in change.name or "multi_modal_projector" in change.name
    }
    trains = {name: one for name, one in changes.items() if not (frozen and name.endswith(frozen))}
    wrong = [f"{name} did not move" for name, one in trains.items() if not one.num_changed]
    wrong += [
        f"there is no {name}"
        for name in (first, "multi_modal_projector")
        if not any(name in one for one in trains)
    ]
    return wrong[:3], f"{len(trains)} tensors of {part} and projector moved", len(trains)


def media_rows(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Each row holds as many placeholders as the model makes features, and none was sampled."""
    facts = model_facts(evidence.job.initial_model)
    token = facts.get("image_token_index", facts.get("audio_token_index"))
    wrong = []
    for row in evidence.ledger:
        ids, length = row.token_ids or (), row.prompt_length or 0
        if not ids[:length].count(token) or ids[length:].count(token):
            wrong.append(
                f"step {row.step} row {row.index}: placeholders are {_places(ids, token)} of {len(ids)} tokens"
            )
    return wrong[:3], f"{len(evidence.ledger)} rows with an image or a sound", len(evidence.ledger)


def _places(ids: Sequence[int], token: int | None) -> list[int]:
    return [place for place, one in enumerate(ids) if one == token]


def int8_layers(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The engine says that it holds every linear layer in int8: all matrices but the embedding and the head."""
    tensors = stored_tensors(evidence.job.initial_model)
    layers = [
        name
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2 and "embed_tokens" not in name and "lm_head" not in name
    ]
    said = run_facts(evidence).get("generator", "")
    bound = f"{len(layers)} layers in int8"
    wrong = [] if bound in str(said).split(", ") else [f"the generator is {said!r}, not one of {bound}"]
    return wrong, str(said), len(layers)


def int8_gap(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """At every step sampler and trainer differ by more than rounding in float32 and by at most the smoke's bound."""
    gaps: dict[int, list[float]] = defaultdict(list)
    for row in evidence.ledger:
        pairs = zip(row.generation_logprobs or (), row.prev_logprobs or (), strict=True)
        gaps[row.step] += [abs(sampled - scored) for sampled, scored in pairs]
    means = {step: math.fsum(of) / max(1, len(of)) for step, of in sorted(gaps.items())}
    corrected = by_step(evidence, "train/sampling_importance_ratio")
    wrong = [
        f"step {step}: {mean:.3g} nats apart on average, not within {FLOAT_GAP:g} and {INT8_GAP:g}"
        for step, mean in means.items()
        if not FLOAT_GAP < mean < INT8_GAP
    ]
    wrong += [
        f"step {step}: the importance weight is {corrected.get(step, 1.0)}: nothing was corrected"
        for step in means
        if corrected.get(step, 1.0) == 1.0  # what it should be follows from the rows (`defined`)
    ]
    seen = ", ".join(f"{mean:.3g}" for mean in means.values())
    return wrong[:3], f"{seen} nats apart on average", sum(map(len, gaps.values()))
