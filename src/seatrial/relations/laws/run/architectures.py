"""R6, R9 and R12 of models with a path that only they have: images, sounds, experts, draft heads, int8 samplers.

The path is held to the class of Transformers that it belongs to, on the rows that a run trained: what is sampled, what
is scored, and the raw gradient of every tensor, as for any other model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.run.gradients import gradients_error
from seatrial.relations.laws.run.logprob_errors import largest, old_error, reference_error, sampling_error
from seatrial.relations.laws.run.logprobs import tensors_at_rest
from seatrial.relations.laws.run.updates import STEP_BOUND, AdamW
from seatrial.relations.oracles.runs import (
    all_logprobs,
    balance_loss,
    completion_logits,
    learning_rate,
    norm_of,
    weights_before,
)
from seatrial.relations.records.run import RunRecord, RunRow, StepRecord
from seatrial.relations.runs import RunCase, run_cases

BOUND = 1e-4
"""Of logged scalars, relative above 1: float32 sums over the tokens of a step."""
LEVELS = 127
"""Of int8, symmetric."""
OPTIONS: Mapping[str, dict[str, Any]] = {
    # A sampler with weights of its own: what a sync leaves out stays as it was.
    "sees": {"policy__generation__colocated__enabled": False},
    "hears": {},
    "experts": {"policy__router_aux_loss_coef": 0.3, "policy__train_global_batch_size": 8},
    "drafts": {
        "policy__draft__enabled": True,
        "policy__train_global_batch_size": 8,
        "policy__train_micro_batch_size": 3,
        "policy__scheduler__name": "linear",
    },
}
SUSPECTS = {
    "sees": "an image of another row, or in another layout; a tower that is not trained, or not copied to the sampler",
    "hears": "a sound of another row, or in another layout; a tower that is not trained",
    "experts": "routing weights that are scaled otherwise, experts in another order, a router without a gradient",
    "drafts": "a draft that is off by one, judged at another temperature, or whose gradient reaches the policy",
}
INT8 = {
    "policy__generation__quantization": "int8",
    "policy__generation__colocated__enabled": False,
    "loss_fn__importance_sampling": "truncated",
}


def architecture_law(
    name: str, what: str, measure: Callable[[Any, RunCase], Measure | None], **options: Any
) -> Law:
    """Return a law of runs of one architecture; the model and what serves it stay in a smaller case.

    Args:
        name: of the architecture.
        what: it says.
        measure: how far it holds.
        options: of its runs, beside those of the architecture.
    """
    chosen = {"policy__model_name": name, **OPTIONS[name], **options}

    return Law(
        name=f"{name}: {what}",
        make=run_cases(tuple(chosen), **chosen),
        measure=measure,
        excluded=without(name),
        seeded=False,
        suspects=SUSPECTS[name],
    )


def without(name: str) -> Callable[[Any], str | None]:
    """Return a law's `excluded`: why a stack is not asked about one architecture."""
    return lambda stack: (
        None if name in getattr(stack, "architectures", ()) else f"architectures has no {name}"
    )


def _no_int8(stack: Any) -> str | None:
    return None if "int8" in getattr(stack, "quantizations", ()) else "quantizations has no int8"


def rounded_to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with every matrix but embedding and head off by its rounding: one scale a row, to nearest."""
    kept = ("embed_tokens.weight", "lm_head.weight")
    return {
        name: value if value.ndim != 2 or name.endswith(kept) else _rounded(value)
        for name, value in weights.items()
    }


def _rounded(weight_OI: Tensor) -> Tensor:
    scale_O1 = weight_OI.double().abs().amax(1, keepdim=True) / LEVELS
    levels_OI = torch.where(scale_O1 > 0, weight_OI.double() / scale_O1, 0.0)
    return (levels_OI.round() * scale_O1).to(weight_OI.dtype)


def _int8_sampling_error(stack: Any, case: RunCase) -> Measure:
    """The sampler's log-probabilities are those of the rounded weights of the step before."""
    record = case.record(stack)
    rounded = replace(
        record,
        initial_weights=rounded_to_int8(record.initial_weights),
        steps=tuple(
            replace(step, weights_after=rounded_to_int8(step.weights_after)) for step in record.steps
        ),
    )
    return sampling_error(stack, case, rounded)


def _balance(stack: Any, case: RunCase) -> Measure:
    """With one update a step, the logged balance loss and loads are those of the step's rows."""
    record, found = case.record(stack), []
    for step in record.steps:
        before = weights_before(record, step, 0)
        loads: dict[str, float] = {}
        with torch.no_grad():
            loss = float(balance_loss(stack, before, step.rows))
            for row in step.rows:
                for _, chosen_TK in stack.routing(before, (*row.prompt_ids, *row.ids)):
                    for expert in chosen_TK.flatten().tolist():
                        name = f"moe/tokens_per_expert/{expert}"
                        loads[name] = loads.get(name, 0.0) + 1
        wanted = {"moe/router_aux_loss": loss, **loads}
        found += [(_off(step, name, value), f"step {step.step}, {name}") for name, value in wanted.items()]
    return largest(found, "logged balance loss or load against that of the rows", BOUND)


def _class_trains(stack: Any, case: RunCase) -> Measure:
    """What a run trains is what the class trains: loading may thaw what it freezes, or freeze what it trains."""
    record, asked = case.record(stack), case.options["policy.model_name"]
    wrong = sorted(record.trainable ^ frozenset(stack.trained_by_class(asked)))
    return Measure(
        error=float(len(wrong)) if record.trainable else math.inf,
        bound=0,
        what=f"tensors that train though their class freezes them, or the reverse ({(wrong or ['none'])[0]})",
    )


def _draft_metrics(stack: Any, case: RunCase) -> Measure:
    """With one update a step, what is logged of drafts is that of the step's rows and the weights before it."""
    record, found, beside = case.record(stack), [], case.record(stack).initial_beside
    for step in record.steps:
        with torch.no_grad():
            loss, accepted, number = _drafts(stack, record, step, beside)
            gradient = _draft_gradient(stack, record, step, beside)
        wanted = {
            "draft/loss": float(loss),
            "draft/acceptance_rate": float(accepted),
            "draft/num_tokens": float(number),
            "draft/grad_norm": norm_of(gradient),
        }
        found += [(_off(step, name, value), f"step {step.step}, {name}") for name, value in wanted.items()]
        beside = step.beside_after
    return largest(found, "logged scalar of drafts against that of the rows", BOUND)


def _draft_updates(stack: Any, case: RunCase) -> Measure:
    """The head after a step is AdamW's on the gradient of its loss, clipped by its own norm."""
    record = case.record(stack)
    oracle, beside, found = AdamW(record.options, facts_of(stack).decays), record.initial_beside, []
    for number, step in enumerate(record.steps, start=1):
        rate = learning_rate(record.options, number, len(record.steps))
        expected = oracle.step(beside, _draft_gradient(stack, record, step, beside), rate)
        for name, right in expected.items():
            rounding = 2.0**-22 * float(right.abs().max())
            error = float((step.beside_after[name].double() - right).abs().max())
            found.append((max(0.0, error - rounding) / rate, f"step {step.step}, {name}"))
        beside = step.beside_after
    return largest(found, "draft head after an update against AdamW, in units of the rate", STEP_BOUND * 10)


def _policy_is_alone(stack: Any, case: RunCase) -> Measure:
    """The policy trains as it does without a draft head, bit for bit."""
    one, other = case.record(stack), case.record(stack, policy__draft__enabled=False)
    wrong = [
        name for name, value in one.final_weights.items() if not torch.equal(value, other.final_weights[name])
    ]
    return Measure(
        error=float(len(wrong)) if one.final_weights else math.inf,
        bound=0,
        what=f"tensors of the policy that a draft head changes ({(wrong or ['none'])[0]})",
    )


def _draft_gradient(
    stack: Any, record: RunRecord, step: StepRecord, beside: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    with torch.enable_grad():
        leaves = {name: value.detach().clone().requires_grad_() for name, value in sorted(beside.items())}
        loss, _, _ = _drafts(stack, record, step, leaves)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def _drafts(
    stack: Any, record: RunRecord, step: StepRecord, beside: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, int]:
    """Return the mean over trained tokens of cross-entropy and of the chance that a draft is accepted; their number.

    A token is guessed from two places before it; the chance is the sum over the vocabulary of the smaller of the
    policy's and the draft's probability (arXiv 2211.17192, theorem 3.5), both at the temperature of sampling.
    """
    before, temperature = record.weights_at(step.step - 1), record.options["policy.generation.temperature"]
    losses, chances = [], []
    for row in step.rows:
        ids = (*row.prompt_ids, *row.ids)
        drafts_SV = all_logprobs(stack.draft_logits(before, beside, ids), temperature)
        policy_TV = all_logprobs(completion_logits(stack, before, row), temperature).detach()
        for token in _guessed(row):
            place = len(row.prompt_ids) + token
            losses.append(-drafts_SV[place - 2, ids[place]])
            chances.append(torch.minimum(drafts_SV[place - 2].exp(), policy_TV[token].exp()).sum())
    return torch.stack(losses).mean(), torch.stack(chances).mean(), len(losses)


def _guessed(row: RunRow) -> list[int]:
    return [token for token, trains in enumerate(row.mask) if trains and len(row.prompt_ids) + token >= 2]


def _off(step: StepRecord, name: str, wanted: float) -> float:
    given = step.metrics.get(name, math.nan)
    return abs(given - wanted) / max(1.0, abs(wanted))


BOTH = ("sees", "hears")
SEEN = (*BOTH, "experts")
RELATIONS = (
    Relation(
        id="R6.architectures",
        name="own-paths-sample-as-configured",
        component="architectures",
        statement="Images, sounds, experts and int8 weights sample as the plain model does with the same weights.",
        catalogue=("SB013", "SB251", "SB266", "SB356", "SB360"),
        cost="CPU, seconds",
        laws=(
            *(architecture_law(name, "the sampler's log-probabilities", sampling_error) for name in SEEN),
            architecture_law(
                "sees",
                "the sampler's log-probabilities, on two processes",
                sampling_error,
                cluster__num_processes=2,
            ),
            Law(
                name="int8: the sampler's log-probabilities",
                make=run_cases(tuple(INT8), **INT8),
                measure=_int8_sampling_error,
                excluded=_no_int8,
                seeded=False,
                suspects="rounding towards zero, one scale for all rows, weights that are rounded once and never again",
            ),
        ),
    ),
    Relation(
        id="R9.architectures",
        name="own-paths-score-old-and-reference",
        component="architectures",
        statement="Old and reference log-probabilities of such models are those of their weights; every tensor trains.",
        catalogue=("SB013", "SB104", "SB143", "SB303", "SB345"),
        cost="CPU, seconds",
        laws=(
            *(architecture_law(name, "old log-probabilities", old_error) for name in SEEN),
            *(architecture_law(name, "reference log-probabilities", reference_error) for name in SEEN),
            *(architecture_law(name, "training moves every tensor", tensors_at_rest) for name in SEEN),
            *(architecture_law(name, "what trains is what its class trains", _class_trains) for name in SEEN),
        ),
    ),
    Relation(
        id="R12.architectures",
        name="own-paths-have-their-gradients",
        component="architectures",
        statement="Raw gradients through an architecture's own path are autograd's; so are routers' and drafts'.",
        catalogue=("SB013", "SB099", "SB109", "SB143"),
        cost="CPU, seconds",
        laws=(
            *(architecture_law(name, "raw gradients", gradients_error) for name in SEEN),
            architecture_law("experts", "balance loss and load", _balance),
            architecture_law("drafts", "loss and acceptance", _draft_metrics),
            architecture_law("drafts", "updates", _draft_updates),
            architecture_law("drafts", "the policy trains as without", _policy_is_alone),
        ),
    ),
)
