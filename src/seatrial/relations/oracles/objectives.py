"""Float64 oracles of objectives: one sequence at a time, without padding, packing or batches, from the definitions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.oracles.preferences import Completion, Pair, mixed_loss, pair_of


@dataclass(frozen=True, kw_only=True)
class StepOracle:
    """What an optimizer batch's loss and gradient are."""

    loss: float
    gradients: Mapping[str, Tensor]
    """By the model's own parameter names, float64."""


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """Log-probabilities of the tokens of one sequence that train."""

    tokens_T: Tensor

    @property
    def total(self) -> Tensor:
        return self.tokens_T.sum()

    @property
    def mean(self) -> Tensor:
        return self.tokens_T.mean()


def objective(stack: Any, examples: Sequence[Example]) -> StepOracle:
    """Return loss and gradient of the examples together, by the definition of what the stack declares."""
    model = copy.deepcopy(stack.objective_model()).double().eval()
    given = stack.objective_reference()
    reference = None if given is None else copy.deepcopy(given).double().eval()
    return differentiate(model, objective_loss(stack, model, reference, examples))


def objective_loss(stack: Any, model: Any, reference: Any, examples: Sequence[Example]) -> Tensor:
    """Return the loss of the examples together.

    Args:
        stack: declares the objective, and gives the logits of a model.
        model: in float64, in any form that `stack.objective_logits` takes.
        reference: likewise; None without one.
        examples: of one optimizer batch.
    """
    spec: ObjectiveSpec = stack.objective_spec
    if spec.kind == "sft":
        return _supervised(stack, model, examples, spec)
    if spec.kind == "reward":
        return _reward(stack, model, examples)
    if spec.kind == "kto":
        return _labelled(stack, model, reference, examples, spec)
    if spec.kind == "gkd":
        return _distilled(stack, model, reference, examples, spec)
    if spec.kind == "dpo":
        return mixed_loss([_pair(stack, model, reference, one, spec) for one in examples], spec)
    return _preference(stack, model, examples, spec)


def differentiate(model: Any, loss: Tensor) -> StepOracle:
    """Return a loss with its gradient in every parameter of the model that trains."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return StepOracle(
        loss=float(loss.detach()),
        gradients={
            name: torch.zeros_like(named[name]) if gradient is None else gradient
            for name, gradient in zip(named, gradients, strict=True)
        },
    )


def token_logprobs(logits_SV: Tensor, ids_S: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probability of every id but the first, [S - 1]."""
    logprobs_SV = torch.log_softmax(logits_SV[:-1].double() / temperature, dim=-1)
    return logprobs_SV.gather(1, ids_S[1:, None]).squeeze(1)


def _kept(ids: Sequence[Any], spec: ObjectiveSpec) -> Sequence[Any]:
    if spec.max_length is None:
        return ids
    return ids[: spec.max_length] if spec.keep == "start" else ids[-spec.max_length :]


def kept_tokens(
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    spec: ObjectiveSpec,
    prompt_trains: bool | Sequence[bool] = False,
) -> tuple[Tensor, Tensor]:
    """Return the ids of one sequence, truncated as the spec says, and whether each but the first trains."""
    of_prompt = [prompt_trains] * len(prompt_ids) if isinstance(prompt_trains, bool) else [*prompt_trains]
    trained = of_prompt + [True] * len(completion_ids)
    ids_S = torch.tensor(_kept([*prompt_ids, *completion_ids], spec))
    return ids_S, torch.tensor(_kept(trained, spec)[1:], dtype=torch.bool)


def prompt_targets(example: Example, spec: ObjectiveSpec) -> bool | Sequence[bool]:
    """Return whether the tokens of a prompt train, all alike or each by itself."""
    return example.answered if spec.trains == "answers" else spec.kind == "sft" and spec.trains == "all"


def _score(
    stack: Any,
    model: Any,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    spec: ObjectiveSpec,
    prompt_trains: bool = False,
) -> _Scored:
    """Score one sequence, truncated as the spec says; the first token of all is never predicted."""
    ids_S, trained = kept_tokens(prompt_ids, completion_ids, spec, prompt_trains)
    return _Scored(tokens_T=token_logprobs(stack.objective_logits(model, ids_S), ids_S)[trained])


def _supervised(stack: Any, model: Any, examples: Sequence[Example], spec: ObjectiveSpec) -> Tensor:
    losses, tokens = [], 0
    for one in examples:
        ids_S, trained = kept_tokens(one.prompt_ids, one.completion_ids, spec, prompt_targets(one, spec))
        logprobs_TV = torch.log_softmax(stack.objective_logits(model, ids_S)[:-1].double(), -1)[trained]
        own_T = logprobs_TV.gather(1, ids_S[1:, None][trained])[:, 0]
        weights_T = own_T.detach().exp() if spec.weights_tokens else torch.ones_like(own_T)
        smoothed_T = (1 - spec.label_smoothing) * own_T + spec.label_smoothing * logprobs_TV.mean(-1)
        losses.append(-(weights_T * smoothed_T).sum())
        tokens += len(own_T)
    return torch.stack(losses).sum() / tokens


def _reward(stack: Any, model: Any, examples: Sequence[Example]) -> Tensor:
    """Score whole sequences by what the model says at their last token."""

    def scored(prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> Tensor:
        score: Tensor = stack.objective_logits(model, torch.tensor([*prompt_ids, *completion_ids]))[-1, 0]
        return score

    losses = []
    for one in examples:
        assert one.rejected_ids is not None
        chosen, rejected = (scored(one.prompt_ids, ids) for ids in (one.completion_ids, one.rejected_ids))
        centred = stack.objective_spec.centre * (chosen + rejected) ** 2
        losses.append(-logsigmoid(chosen - rejected - one.margin) + centred)
    return torch.stack(losses).mean()


def reference_points(stack: Any) -> Callable[[Sequence[Example]], float]:
    """Return a function that gives the mean log-ratio of each prompt with the completion of the example before it.

    It is not clipped to 0 as in the loss.
    """
    model, reference = (
        copy.deepcopy(one).double().eval() for one in (stack.objective_model(), stack.objective_reference())
    )

    def point_of(examples: Sequence[Example]) -> float:
        with torch.no_grad():
            return float(_mismatched(stack, model, reference, examples, stack.objective_spec))

    return point_of


def _mismatched(
    stack: Any, model: Any, reference: Any, examples: Sequence[Example], spec: ObjectiveSpec
) -> Tensor:
    ratios = [
        _score(stack, model, one.prompt_ids, before.completion_ids, spec).total
        - _score(stack, reference, one.prompt_ids, before.completion_ids, spec).total
        for one, before in zip(examples, [examples[-1], *examples[:-1]], strict=True)
    ]
    return torch.stack(ratios).mean()


def _labelled(
    stack: Any, model: Any, reference: Any, examples: Sequence[Example], spec: ObjectiveSpec
) -> Tensor:
    with torch.no_grad():
        point = (
            _mismatched(stack, model, reference, examples, spec).clamp_min(0)
            if spec.reference_point == "batch"
            else torch.zeros((), dtype=torch.float64)
        )
    losses = []
    for one in examples:
        with torch.no_grad():
            given = _score(stack, reference, one.prompt_ids, one.completion_ids, spec).total
        above = _score(stack, model, one.prompt_ids, one.completion_ids, spec).total - given - point
        weight, sign = (spec.desirable_weight, 1) if one.desirable else (spec.undesirable_weight, -1)
        losses.append(weight * (1 - torch.sigmoid(spec.beta * sign * above)))
    return torch.stack(losses).mean()


def _distilled(
    stack: Any, model: Any, reference: Any, examples: Sequence[Example], spec: ObjectiveSpec
) -> Tensor:
    divergences = []
    for one in examples:
        ids = torch.tensor(_kept([*one.prompt_ids, *one.completion_ids], spec))
        trained = _kept([False] * len(one.prompt_ids) + [True] * len(one.completion_ids), spec)
        with torch.no_grad():
            teacher_SV = _distribution(stack, reference, ids, spec)
        student_SV = _distribution(stack, model, ids, spec)
        chosen = torch.tensor(trained[1:], dtype=torch.bool)
        divergences.append(_divergence(teacher_SV[:-1][chosen], student_SV[:-1][chosen], spec.beta))
    return torch.cat(divergences).mean()


def _distribution(stack: Any, model: Any, ids_S: Tensor, spec: ObjectiveSpec) -> Tensor:
    logits_SV: Tensor = stack.objective_logits(model, ids_S)
    return torch.log_softmax(logits_SV.double() / spec.temperature, -1)


def _divergence(teacher_TV: Tensor, student_TV: Tensor, beta: float) -> Tensor:
    """Return the generalised Jensen-Shannon divergence of log-probabilities, one a token."""

    def kl(one_TV: Tensor, other_TV: Tensor) -> Tensor:
        return (one_TV.exp() * (one_TV - other_TV)).sum(-1)

    if beta in (0, 1):
        return kl(student_TV, teacher_TV) if beta else kl(teacher_TV, student_TV)
    mixture_TV = (beta * teacher_TV.exp() + (1 - beta) * student_TV.exp()).log()
    return beta * kl(teacher_TV, mixture_TV) + (1 - beta) * kl(student_TV, mixture_TV)


def _pair(stack: Any, model: Any, reference: Any, one: Example, spec: ObjectiveSpec) -> Pair:
    """Return a pair as policy and reference score it."""

    def completion(ids: Sequence[int]) -> Completion:
        ids_S, trained = kept_tokens(one.prompt_ids, ids, spec)
        logits_SV = stack.objective_logits(model, ids_S)
        with torch.no_grad():
            reference_T = token_logprobs(stack.objective_logits(reference, ids_S), ids_S)[trained]
            squares_T = torch.log_softmax(logits_SV[:-1].double(), -1).mul(2).logsumexp(-1)[trained]
        return Completion(
            policy_T=token_logprobs(logits_SV, ids_S)[trained], reference_T=reference_T, sharpness_T=squares_T
        )

    assert one.rejected_ids is not None
    return pair_of(completion(one.completion_ids), completion(one.rejected_ids), spec)


def _preference(stack: Any, model: Any, examples: Sequence[Example], spec: ObjectiveSpec) -> Tensor:
    """Return CPO's and ORPO's loss, which have no reference."""
    losses, likely = [], []
    for one in examples:
        assert one.rejected_ids is not None
        chosen = _score(stack, model, one.prompt_ids, one.completion_ids, spec)
        rejected = _score(stack, model, one.prompt_ids, one.rejected_ids, spec)
        scores = [one.mean if spec.per_token else one.total for one in (chosen, rejected)]
        margin = _transformed(scores[0], spec) - _transformed(scores[1], spec)
        losses.append(
            -spec.beta * logsigmoid(_log_odds(chosen.mean) - _log_odds(rejected.mean))
            if spec.kind == "orpo"
            else _pair_loss(margin, spec)
        )
        whole = _score(stack, model, one.prompt_ids, one.completion_ids, spec, spec.nll_over == "all")
        likely.append(whole.tokens_T)
    return torch.stack(losses).mean() - spec.nll_weight * torch.cat(likely).mean()


def _pair_loss(margin: Tensor, spec: ObjectiveSpec) -> Tensor:
    if spec.form == "hinge":
        return torch.relu(1 - spec.beta * margin)
    if spec.form == "ipo":
        return (margin - 1 / (2 * spec.beta)) ** 2
    x = spec.beta * margin - spec.target
    return -(1 - spec.label_smoothing) * logsigmoid(x) - spec.label_smoothing * logsigmoid(-x)


def _transformed(score: Tensor, spec: ObjectiveSpec) -> Tensor:
    """Return a log-probability as AlphaPO's reward."""
    return (1 - torch.exp(-spec.power * score)) / spec.power if spec.power else score


def _log_odds(mean: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of the geometric mean of a completion's probabilities."""
    return mean - torch.log1p(-mean.exp())
