"""R31.model_updates: a trainer's updates of a model, over mini-batches, epochs and micro-batches, and what they log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

MODEL_UPDATES = relation_of(
    "model_updates",
    "updates-of-a-model-are-their-definition",
    "Weights after updates over mini-batches and epochs, and what each update logs, equal those in float64.",
)
Role = Literal["actor", "reference", "critic"]
V = 7
"""Tokens; the model's logits, or its value, depend on one token alone."""
CLIP, VALUE_CLIP = (0.2, 0.28), 0.3
KL, ENTROPY = 0.1, 0.05
"""Coefficients of the actor's loss."""
NO_CAP = 1e3
"""Bound on the ratio of tokens with a negative advantage, which none reaches."""
BOUND = 1e-5
"""Some tens of float32 steps, each with a gradient of some tens of tokens."""


class Answer(NamedTuple):
    """A row that trains."""

    prompt: list[int]
    ids: list[int]
    mask: list[int]
    old: list[float]
    """Log-probabilities of a policy before, or a critic's values before."""
    targets: list[float]
    """Advantages, or returns."""
    reference: list[float]


class Updates(NamedTuple):
    """How a model is updated."""

    mini: int
    """Rows of a mini-batch: each is one step of the optimizer, which is SGD."""
    micro: int
    """Rows of a micro-batch."""
    tokens: int | None = None
    """Tokens of a micro-batch, in place of its rows."""
    epochs: int = 1
    """Times that an update goes through its rows."""
    updates: int = 1
    packed: bool = True
    """Whether rows go through the model without padding."""
    clip: float = 1e9
    """Largest norm of a gradient."""
    rate: float = 0.5
    warmup: int = 0
    """Updates until the rate is reached, in equal steps from 0 on."""


def trained(role: Role, table: Tensor, rows: Sequence[Answer], plan: Updates, part: str) -> Any:
    """Return the weights after updates, or a measure of each update: its mean over mini-batches.

    Args:
        role: actor or critic.
        table: [V, V] logits of the next token by the token before, or [V, 1] its value.
        rows: of every update.
        plan: of the updates.
        part: `weights`, or one of `MEASURES`.
    """
    weights, logged = table.double().clone(), []
    for number in range(plan.updates):
        rate = plan.rate * (min(1.0, number / plan.warmup) if plan.warmup else 1.0)
        own: list[dict[str, float]] = []
        for start in [*range(0, len(rows), plan.mini)] * plan.epochs:
            given = weights.clone().requires_grad_()
            terms = _terms(role, given, rows[start : start + plan.mini])
            (gradient,) = torch.autograd.grad(terms["loss"], given)
            norm = float(gradient.norm())
            if math.isfinite(norm):
                weights = weights - rate * min(1.0, plan.clip / (norm + 1e-6)) * gradient
            own.append({name: float(term.detach()) for name, term in terms.items()} | {"norm": norm})
        logged.append(
            {name: math.fsum(one[name] for one in own) / len(own) for name in own[0]} | {"rate": rate}
        )
    if part == "weights":
        return weights
    return [one[part] for one in logged]


MEASURES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "actor": {"losses": ("loss", "surrogate", "divergence", "entropy"), "shares": ("clipped", "distance")},
    "critic": {"losses": ("loss", "error"), "shares": ("clipped", "value")},
}
"""What an update logs in addition to its norm and its rate; those of a loss do not depend on micro-batches."""


def _terms(role: Role, table: Tensor, rows: Sequence[Answer]) -> dict[str, Tensor]:
    """Return loss and measures of a mini-batch: means over rows of means over their training tokens."""
    parts: dict[str, list[Tensor]] = {}
    for row in rows:
        given, ids = (
            table[torch.tensor([*row.prompt, *row.ids][len(row.prompt) - 1 : -1])],
            torch.tensor(row.ids),
        )
        old, targets, reference = (
            torch.tensor(one).double() for one in (row.old, row.targets, row.reference)
        )
        if role == "critic":
            values = given[:, 0]
            near = torch.minimum(torch.maximum(values, old - VALUE_CLIP), old + VALUE_CLIP)
            errors, near_errors = (values - targets) ** 2, (near - targets) ** 2
            own = {
                "error": torch.maximum(errors, near_errors) / 2,
                "clipped": (near_errors > errors).double(),
                "value": values,
            }
        else:
            logprobs = given.log_softmax(-1)
            chosen = logprobs.gather(-1, ids[:, None])[:, 0]
            ratio = (chosen - old).exp()
            plain, near = -targets * ratio, -targets * ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
            gap = reference - chosen
            own = {
                "surrogate": torch.maximum(plain, near),
                "divergence": gap.exp() - gap - 1,
                "entropy": -(logprobs.exp() * logprobs).sum(-1),
                "clipped": (near > plain).double(),
                "distance": old - chosen,
            }
        shown = torch.tensor(row.mask).bool()
        for name, term in own.items():
            parts.setdefault(name, []).append(term[shown].mean())
    terms = {name: torch.stack(one).mean() for name, one in parts.items()}
    if role == "critic":
        return {"loss": terms["error"], **terms}
    loss = terms["surrogate"] + KL * terms["divergence"] - ENTROPY * terms["entropy"]
    return {"loss": loss, **terms}


def rows_of(case: Numbers, *, number: int = 8, even: bool = False) -> list[Answer]:
    """Return rows, some of whose answers have tokens inside or at the end that do not train.

    Args:
        case: of the law.
        number: of rows.
        even: whether three tokens of every row train, so that means over tokens and over rows agree.
    """
    generator = case.generator()

    def drawn(length: int, low: float, high: float) -> list[float]:
        return (torch.rand(length, generator=generator) * (high - low) + low).tolist()

    rows = []
    for place in range(number):
        prompt, answer = 1 + place % 3, 4 + (3 * place) % 5
        ids: list[int] = torch.randint(V, (prompt + answer,), generator=generator).tolist()
        mask = [1] * answer
        if even:
            off: list[int] = torch.randperm(answer, generator=generator)[3:].tolist()
            mask = [int(token not in off) for token in range(answer)]
        elif place % 2:
            mask[1] = mask[-1] = 0
        old, reference = drawn(answer, -2.5, -1.5), drawn(answer, -2.3, -1.6)
        rows.append(Answer(ids[:prompt], ids[prompt:], mask, old, drawn(answer, -2.0, 2.0), reference))
    return rows


def table_of(case: Numbers, role: Role) -> Tensor:
    """Return the weights of a model, whose log-probabilities are near those of the rows."""
    width = 1 if role == "critic" else V
    return 0.5 * torch.randn(V, width, generator=torch.Generator().manual_seed(case.seed + 1))


PLANS: Sequence[Updates] = (
    Updates(8, 8),
    Updates(8, 2, packed=False),
    Updates(4, 2, epochs=2, clip=0.05),
    Updates(2, 1, epochs=2, updates=2, rate=0.2),
    Updates(4, 4, tokens=24, updates=3, warmup=2, clip=0.2),
    Updates(8, 4, tokens=16, packed=False, epochs=3),
)


ROLES: Sequence[Role] = ("actor", "critic")


def _updates(case: Numbers, kind: str, *, even: bool = False) -> Iterable[Arguments]:
    for role in ROLES:
        for plan in PLANS:
            for part in MEASURES[role].get(kind, (kind,)):
                yield role, table_of(case, role), rows_of(case, even=even), plan, part


def _rates(case: Numbers) -> Iterable[Arguments]:
    for role in ROLES:
        for warmup in (0, 2, 3):
            plan = Updates(4, 4, updates=4, warmup=warmup)
            yield role, table_of(case, role), rows_of(case), plan


def _not_finite(case: Numbers) -> Iterable[Arguments]:
    """Yield rows of which one has no finite target: the step of its mini-batch is left out."""
    for role in ROLES:
        for place in (0, 5):
            rows = rows_of(case)
            rows[place] = rows[place]._replace(targets=[math.inf] * len(rows[place].ids))
            yield role, table_of(case, role), rows, Updates(2, 2), "weights"


def scored(role: Role, table: Tensor, rows: Sequence[Answer], plan: Updates) -> dict[str, list[list[float]]]:
    """Return log-probabilities and, of an actor, entropies, or a critic's values, of each row's answer."""
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        given = table.double()[torch.tensor([*row.prompt, *row.ids][len(row.prompt) - 1 : -1])]
        if role == "critic":
            found.setdefault("values", []).append(given[:, 0].tolist())
            continue
        logprobs = given.log_softmax(-1)
        chosen = logprobs.gather(-1, torch.tensor(row.ids)[:, None])[:, 0]
        found.setdefault("logprobs", []).append(chosen.tolist())
        if role == "actor":
            found.setdefault("entropies", []).append((-(logprobs.exp() * logprobs).sum(-1)).tolist())
    return found


def _scores(case: Numbers) -> Iterable[Arguments]:
    for role in ("actor", "reference", "critic"):
        for plan in (*PLANS[:2], *PLANS[-2:]):
            yield role, table_of(case, role), rows_of(case), plan


UPDATED = "updates of a model"
_LAWS: Sequence[tuple[str, str, Callable[[Numbers], Iterable[Arguments]]]] = (
    (
        "weights after updates",
        "gradients that are kept between mini-batches, a step for each micro-batch, epochs that are left out, a norm "
        "of a part that clips, micro-batches that count alike, a rate that moves with each mini-batch",
        partial(_updates, kind="weights"),
    ),
    (
        "losses that updates log",
        "the last mini-batch alone, sums over mini-batches, a term that is taken off in place",
        partial(_updates, kind="losses"),
    ),
    (
        "norms that updates log",
        "the last mini-batch alone, the norm after the clip",
        partial(_updates, kind="norm"),
    ),
    (
        "shares that updates log",
        "the last mini-batch alone, a share of all places",
        partial(_updates, kind="shares", even=True),
    ),
    (
        "updates that are not finite",
        "weights that become NaN, a skipped step that ends the update",
        _not_finite,
    ),
)
MODEL_UPDATE_FUNCTIONS = (
    *(
        Plain(name=UPDATED, law=law, suspects=suspects, cases=cases, right=trained, bound=BOUND)
        for law, suspects, cases in _LAWS
    ),
    Plain(
        name="rates of updates",
        law="rates that updates log",
        suspects="the rate of the next update",
        cases=_rates,
        right=partial(trained, part="rate"),
        bound=BOUND,
    ),
    Plain(
        name="scores of a model",
        law="scores of rows in any micro-batches",
        suspects="values of the token after, rows that are not put back in order, padding of another row",
        cases=_scores,
        right=scored,
        bound=1e-5,
    ),
)
add_laws(MODEL_UPDATES, MODEL_UPDATE_FUNCTIONS)
