"""R6, R9, R12 and R23.architectures: models with their own paths: images, sounds, experts, draft heads, int8 samplers.

Each path is compared with its class in Transformers on the rows that a run trained: what is sampled, what is scored,
and the raw gradient of every tensor, as for any other model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Excluded, F, Measure, Relation
from seatrial.relations.laws.run.gradients import gradients_error
from seatrial.relations.laws.run.logprobs import (
    old_error,
    reference_error,
    sampling_error,
    training_moves_every_tensor,
)
from seatrial.relations.laws.run.updates import STEP_BOUND, AdamW
from seatrial.relations.laws.run.validation import GREEDY, greedy_error
from seatrial.relations.oracles.options import learning_rate
from seatrial.relations.oracles.runs import (
    all_logprobs,
    balance_loss,
    completion_logits,
    norm_of,
    weights_before,
)
from seatrial.relations.records.run import RunRecord, StepRecord
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.worst import relative_error

BOUND = 1e-4
"""Of logged scalars, relative above 1: float32 sums over the tokens of a step."""
LEVELS = 127
"""Of int8, symmetric."""
OPTIONS: Mapping[str, dict[str, Any]] = {
    # A sampler with separate weights: what a sync leaves out stays as it was.
    "image": {"policy__generation__colocated__enabled": False},
    "audio": {},
    "experts": {"policy__router_aux_loss_coef": 0.3, "policy__train_global_batch_size": 8},
    "drafts": {
        "policy__draft__enabled": True,
        "policy__train_global_batch_size": 8,
        "policy__train_micro_batch_size": 3,
        "policy__scheduler__name": "linear",
    },
    "experts and drafts": {
        "policy__draft__enabled": True,
        "policy__router_aux_loss_coef": 0.3,
        "policy__train_global_batch_size": 8,
        "policy__train_micro_batch_size": 3,
    },
}
SUSPECTS = {
    "image": "an image of another row, or in another layout; a tower that is not trained, or not copied to the sampler",
    "audio": "a sound of another row, or in another layout; a tower that is not trained",
    "experts": "routing weights that are scaled otherwise, experts in another order, a router without a gradient",
    "drafts": "a draft that is off by one, judged at another temperature, or whose gradient reaches the policy",
    "experts and drafts": "of two auxiliary losses the last one alone",
}
MEDIA = ("image", "audio")
SEEN = (*MEDIA, "experts")


def _relation(kind: str, name: str, statement: str, catalogue: str) -> Relation:
    return Relation(
        id=f"{kind}.architectures",
        name=name,
        component="architectures",
        statement=statement,
        catalogue=catalogue,
        cost="CPU, seconds",
        seeded=False,
    )


SAMPLED = _relation(
    "R6",
    "own-paths-sample-as-configured",
    "Images, sounds, experts and int8 weights sample as the plain model does with the same weights.",
    "SB013 SB251 SB266 SB356 SB360",
)
SCORED = _relation(
    "R9",
    "own-paths-score-old-and-reference",
    "Old and reference log-probabilities of such models are those of their weights; every tensor trains.",
    "SB013 SB104 SB143 SB303 SB345",
)
GRADIENTS = _relation(
    "R12",
    "own-paths-have-their-gradients",
    "Raw gradients through an architecture's own path are autograd's; so are routers' and drafts'.",
    "SB013 SB099 SB109 SB143",
)
VALIDATED = _relation(
    "R23",
    "own-paths-validate-as-trained",
    "A greedy validation takes the likeliest token of the step's weights, given the row's own media.",
    "SB013 SB131 SB390",
)


def architecture_laws(
    relation: Relation, names: Sequence[str], what: str, **options: Any
) -> Callable[[F], F]:
    """Return a decorator that makes a law of each architecture.

    Args:
        relation: of the laws.
        names: of the architectures.
        what: the laws' name after the architecture's.
        options: of the runs, which override the architecture's.
    """
    laws = [
        relation.law(
            f"{name}: {what}",
            SUSPECTS[name],
            cases=run_cases(policy__model_name=name, **{**OPTIONS[name], **options}),
            excluded=needs_architecture(name),
        )
        for name in names
    ]

    def register(measure: F) -> F:
        for law in laws:
            law(measure)
        return measure

    return register


def needs_architecture(name: str) -> Excluded:
    """Return a law's `excluded` for stacks without an architecture."""
    return lambda stack: (
        None if name in getattr(stack, "architectures", ()) else f"architectures has no {name}"
    )


architecture_laws(SAMPLED, SEEN, "the sampler's log-probabilities")(sampling_error)
architecture_laws(
    SAMPLED, ["image"], "the sampler's log-probabilities, on two processes", cluster__num_processes=2
)(sampling_error)
architecture_laws(SCORED, SEEN, "old log-probabilities")(old_error)
architecture_laws(SCORED, SEEN, "reference log-probabilities")(reference_error)
architecture_laws(SCORED, SEEN, "training moves every tensor")(training_moves_every_tensor)
architecture_laws(GRADIENTS, SEEN, "raw gradients")(gradients_error)
architecture_laws(VALIDATED, SEEN, "greedy validations", **GREEDY)(greedy_error)


def _needs_int8(stack: Any) -> str | None:
    return None if "int8" in getattr(stack, "quantizations", ()) else "quantizations has no int8"


@SAMPLED.law(
    "int8: the sampler's log-probabilities",
    "rounding towards zero, one scale for all rows, weights that are rounded once and never again",
    cases=run_cases(
        policy__generation__quantization="int8",
        policy__generation__colocated__enabled=False,
        loss_fn__importance_sampling="truncated",
    ),
    excluded=_needs_int8,
)
def int8_sampling_error(stack: Any, case: RunCase) -> Measure:
    """Compare the sampler's log-probabilities with those of the rounded weights of the step before."""
    record = case.record(stack)
    rounded = replace(
        record,
        initial_weights=rounded_to_int8(record.initial_weights),
        steps=tuple(
            replace(step, weights_after=rounded_to_int8(step.weights_after)) for step in record.steps
        ),
    )
    return sampling_error(stack, case, rounded)


def rounded_to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with every matrix but embedding and head rounded to nearest, with one scale per row."""
    kept = ("embed_tokens.weight", "lm_head.weight")
    return {
        name: value if value.ndim != 2 or name.endswith(kept) else _rounded(value)
        for name, value in weights.items()
    }


def _rounded(weight_OI: Tensor) -> Tensor:
    scale_O1 = weight_OI.double().abs().amax(1, keepdim=True) / LEVELS
    levels_OI = torch.where(scale_O1 > 0, weight_OI.double() / scale_O1, 0.0)
    return (levels_OI.round() * scale_O1).to(weight_OI.dtype)


@architecture_laws(SCORED, SEEN, "what trains is what its class trains")
def class_decides_what_trains(stack: Any, case: RunCase) -> Measure:
    """Compare the trained tensors with those that the class trains: loading may freeze or unfreeze tensors."""
    record, name = case.record(stack), case.options["policy.model_name"]
    wrong = sorted(record.trainable ^ frozenset(stack.trained_by_class(name)))
    return Measure.count(
        wrong if record.trainable else ["nothing trains"],
        "tensors that train though their class freezes them, or the reverse",
    )


def _metric_errors(step: StepRecord, expected: Mapping[str, float]) -> list[tuple[float, str]]:
    return [
        (relative_error(step.metrics.get(name, math.nan), value), f"step {step.step}, {name}")
        for name, value in expected.items()
    ]


@architecture_laws(GRADIENTS, ["experts", "experts and drafts"], "balance loss and load")
@torch.no_grad()
def balance_and_load(stack: Any, case: RunCase) -> Measure:
    """Compare the logged balance loss and loads with those of the step's rows; a step is one update."""
    record, found = case.record(stack), []
    for step in record.steps:
        before = weights_before(record, step, 0)
        loads: dict[int, float] = {}
        for row in step.rows:
            for probs_TE, chosen_TK in stack.routing(before, (*row.prompt_ids, *row.ids)):
                for expert in range(probs_TE.shape[1]):
                    loads[expert] = loads.get(expert, 0.0) + float((chosen_TK == expert).sum())
        expected = {
            "moe/router_aux_loss": float(balance_loss(stack, before, step.rows)),
            "moe/load_max_over_mean": max(loads.values()) * len(loads) / sum(loads.values()),
            **{f"moe/tokens_per_expert/{expert}": load for expert, load in loads.items()},
        }
        found += _metric_errors(step, expected)
    return Measure.largest(found, BOUND, "logged balance loss or load against that of the rows")


@architecture_laws(GRADIENTS, ["drafts", "experts and drafts"], "loss and acceptance")
def draft_metrics(stack: Any, case: RunCase) -> Measure:
    """Compare the logged scalars of drafts with those of the step's rows and weights; a step is one update."""
    record, found, draft = case.record(stack), [], case.record(stack).initial_draft_weights
    for step in record.steps:
        with torch.no_grad():
            loss, accepted, number = _drafts(stack, record, step, draft)
        expected = {
            "draft/loss": float(loss),
            "draft/acceptance_rate": float(accepted),
            "draft/num_tokens": float(number),
            "draft/grad_norm": norm_of(_draft_gradient(stack, record, step, draft)),
        }
        found += _metric_errors(step, expected)
        draft = step.draft_weights_after
    return Measure.largest(found, BOUND, "logged scalar of drafts against that of the rows")


@architecture_laws(GRADIENTS, ["drafts"], "updates")
def draft_updates(stack: Any, case: RunCase) -> Measure:
    """Compare the draft head after each step with AdamW on the gradient of its loss, clipped by its own norm."""
    record = case.record(stack)
    oracle, draft, found = AdamW(record.options, facts_of(stack).decays), record.initial_draft_weights, []
    for number, step in enumerate(record.steps, start=1):
        rate = learning_rate(record.options, number, len(record.steps))
        expected = oracle.step(draft, _draft_gradient(stack, record, step, draft), rate)
        for name, right in expected.items():
            rounding = 2.0**-22 * float(right.abs().max())
            error = float((step.draft_weights_after[name].double() - right).abs().max())
            found.append((max(0.0, error - rounding) / rate, f"step {step.step}, {name}"))
        draft = step.draft_weights_after
    return Measure.largest(
        found, STEP_BOUND * 10, "draft head after an update against AdamW, in units of the rate"
    )


@architecture_laws(GRADIENTS, ["drafts"], "the policy trains as without")
def policy_trains_as_without_drafts(stack: Any, case: RunCase) -> Measure:
    """Check that the policy trains as it does without a draft head, bit for bit."""
    one, other = case.record(stack), case.record(stack, policy__draft__enabled=False)
    wrong = [
        name for name, value in one.final_weights.items() if not torch.equal(value, other.final_weights[name])
    ]
    return Measure.count(
        wrong if one.final_weights else ["no weights"], "tensors of the policy that a draft head changes"
    )


def _draft_gradient(
    stack: Any, record: RunRecord, step: StepRecord, draft: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    with torch.enable_grad():
        leaves = {name: value.detach().clone().requires_grad_() for name, value in sorted(draft.items())}
        loss, _, _ = _drafts(stack, record, step, leaves)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def _drafts(
    stack: Any, record: RunRecord, step: StepRecord, draft: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, int]:
    """Return the mean over trained tokens of cross-entropy and of the chance that a draft is accepted; their number.

    A token is predicted from two positions before it; the chance is the sum over the vocabulary of the smaller of the
    policy's and the draft's probability (arXiv 2211.17192, theorem 3.5), both at the sampling temperature.
    """
    before, temperature = record.weights_at(step.step - 1), record.options["policy.generation.temperature"]
    losses, chances = [], []
    for row in step.rows:
        ids = (*row.prompt_ids, *row.ids)
        drafts_SV = all_logprobs(stack.draft_logits(before, draft, ids), temperature)
        policy_TV = all_logprobs(completion_logits(stack, before, row), temperature).detach()
        for token, trains in enumerate(row.mask):
            position = len(row.prompt_ids) + token
            if trains and position >= 2:
                losses.append(-drafts_SV[position - 2, ids[position]])
                chances.append(torch.minimum(drafts_SV[position - 2].exp(), policy_TV[token].exp()).sum())
    return torch.stack(losses).mean(), torch.stack(chances).mean(), len(losses)
