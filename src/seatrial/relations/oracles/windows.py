"""The float64 oracle of a window of rollouts: the policy gradient of its rows, one at a time, without padding."""

from __future__ import annotations

import copy
from typing import Any

import torch

from seatrial.relations import oracles
from seatrial.relations.cases.windows import WindowCase, WindowSpec
from seatrial.relations.oracles.objectives import StepOracle, differentiate, token_logprobs


def window(stack: Any, case: WindowCase) -> StepOracle:
    """Return the gradient of a window. The loss is the surrogate's value at ratio 1."""
    spec: WindowSpec = stack.window_spec
    model = copy.deepcopy(stack.objective_model()).double().eval()
    advantages = _advantages(case, spec)
    trained = [row for row in case.rows if case.is_trained(row)]
    tokens = sum(len(row.completion_ids) for row in trained)
    total = torch.zeros((), dtype=torch.float64)
    for row, advantage in zip(case.rows, advantages, strict=True):
        if not case.is_trained(row):
            continue
        ids_S = torch.tensor([*row.prompt_ids, *row.completion_ids])
        logprobs = token_logprobs(stack.objective_logits(model, ids_S), ids_S, case.temperature)
        own_T = logprobs[len(row.prompt_ids) - 1 :]
        divisors = {
            "token": tokens,
            "sequence": len(own_T) * len(case.rows),
            "sequence-sum": len(case.rows),
        }
        ratio_T = (own_T - own_T.detach()).exp()
        total = total - advantage * ratio_T.sum() / divisors[spec.reduction]
    return differentiate(model, total)


def _advantages(case: WindowCase, spec: WindowSpec) -> list[float]:
    """Return an advantage a row; a row without a reward has none, and is in no baseline."""
    scored = [index for index, row in enumerate(case.rows) if row.reward is not None]
    prompts = {row.prompt_ids: number for number, row in enumerate(case.rows)}
    groups = [prompts[case.rows[index].prompt_ids] for index in scored]
    rewards = [float(case.rows[index].reward or 0.0) for index in scored]
    given = oracles.advantages(rewards, groups, spec.advantage)
    advantages = [0.0] * len(case.rows)
    for index, advantage in zip(scored, given, strict=True):
        advantages[index] = advantage
    return advantages
