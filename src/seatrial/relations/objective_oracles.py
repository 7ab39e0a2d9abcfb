"""Float64 oracles of objectives: one sequence at a time, without padding, packing or batches, from the definitions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.examples import Example, ObjectiveSpec


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
    spec: ObjectiveSpec = stack.objective_spec
    model = copy.deepcopy(stack.objective_model()).double().eval()
    given = stack.objective_reference()
    reference = None if given is None else copy.deepcopy(given).double().eval()
    loss = (
        _supervised(stack, model, examples, spec)
        if spec.kind == "sft"
        else _preference(stack, model, reference, examples, spec)
    )
    return differentiate(model, loss)


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


def _score(
    stack: Any,
    model: Any,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    spec: ObjectiveSpec,
    prompt_trains: bool = False,
) -> _Scored:
    """Score one sequence, truncated as the spec says; the first token of all is never predicted."""
    ids = [*prompt_ids, *completion_ids]
    trained = [prompt_trains] * len(prompt_ids) + [True] * len(completion_ids)
    if spec.max_length is not None:
        kept = slice(None, spec.max_length) if spec.keep == "start" else slice(-spec.max_length, None)
        ids, trained = ids[kept], trained[kept]
    ids_S = torch.tensor(ids)
    logprobs = token_logprobs(stack.objective_logits(model, ids_S), ids_S)
    return _Scored(tokens_T=logprobs[torch.tensor(trained[1:], dtype=torch.bool)])


def _supervised(stack: Any, model: Any, examples: Sequence[Example], spec: ObjectiveSpec) -> Tensor:
    prompts = spec.trains == "all"
    scored = [_score(stack, model, one.prompt_ids, one.completion_ids, spec, prompts) for one in examples]
    tokens = sum(len(one.tokens_T) for one in scored)
    return -torch.stack([one.total for one in scored]).sum() / tokens


def _preference(
    stack: Any, model: Any, reference: Any, examples: Sequence[Example], spec: ObjectiveSpec
) -> Tensor:
    losses, likely = [], []
    for one in examples:
        assert one.rejected_ids is not None
        chosen = _score(stack, model, one.prompt_ids, one.completion_ids, spec)
        rejected = _score(stack, model, one.prompt_ids, one.rejected_ids, spec)
        margin = chosen.total - rejected.total
        if spec.kind == "dpo":
            with torch.no_grad():
                ref_chosen = _score(stack, reference, one.prompt_ids, one.completion_ids, spec)
                ref_rejected = _score(stack, reference, one.prompt_ids, one.rejected_ids, spec)
            margin = margin - (ref_chosen.total - ref_rejected.total)
        losses.append(
            -spec.beta * torch.nn.functional.logsigmoid(_log_odds(chosen.mean) - _log_odds(rejected.mean))
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
    return -torch.nn.functional.logsigmoid(spec.beta * margin)


def _log_odds(mean: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of the geometric mean of a completion's probabilities."""
    return mean - torch.log1p(-mean.exp())
