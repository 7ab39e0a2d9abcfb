"""Steps on preferences without a reference policy on given answers, and on sampled pairs with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from seatrial.targets.trl.compared.definitions.setting import (
    Setting,
    average,
    entropy_of,
    logits_of,
    logprobs_of,
    mean,
    picked,
)


def triples(setting: Setting) -> Tensor:
    """Return the loss of TPO (Saeidi et al. 2024), and its limits by length and margin."""
    option = setting.option
    kind, beta, alpha = option("loss_type"), option("beta"), option("tpo_alpha", 0.0)
    names = ("chosen", "rejected", "reference")[: 3 if alpha else 2]
    found = {name: [(one.logits, one.ids) for one in own] for name, own in _answers(setting, names).items()}

    def likelihood(logits: Tensor, ids: Sequence[int]) -> Tensor:
        values = picked(logits.log_softmax(-1), ids)
        return values.mean() if kind in ("ipo", "tpo-l") else values.sum()

    chosen, rejected = ([likelihood(*one) for one in found[name]] for name in ("chosen", "rejected"))
    loss = average(
        _preference(setting, kind, beta, one - other) for one, other in zip(chosen, rejected, strict=True)
    )
    if alpha:
        nll = torch.cat([-picked(logits.log_softmax(-1), ids) for logits, ids in found["reference"]])
        loss = loss + alpha * nll.mean()
    entropies = torch.cat([entropy_of(logits) for name in names for logits, _ in found[name]])
    hits = torch.cat([logits.argmax(-1) == torch.tensor(ids) for logits, ids in found["chosen"]])
    setting.scalars |= {
        "entropy": float(entropies.mean()),
        "mean_token_accuracy": float(hits.double().mean()),
        **{
            f"logits/{name}": float(torch.cat([logits.mean(-1) for logits, _ in found[name]]).mean())
            for name in ("chosen", "rejected")
        },
        **_of_pairs(beta, chosen, rejected),
        "logps/chosen": float(average(chosen)),
        "logps/rejected": float(average(rejected)),
    }
    return loss


class Answer(NamedTuple):
    """An answer to a prompt, cut to the longest sequence."""

    whole: list[int]
    """Ids of both."""
    logits: Tensor
    """That predict the answer's tokens [T, V]."""
    ids: list[int]
    """Of the answer [T]."""


def _answers(setting: Setting, names: Sequence[str]) -> dict[str, list[Answer]]:
    """Return the answers of all rows in each of these columns."""
    cut = _cut(setting)
    found: dict[str, list[Answer]] = {name: [] for name in names}
    for row in setting.rows:
        prompt = setting.prompt_ids(row["prompt"])
        for name in names:
            answer = setting.answer_ids(row["prompt"], row[name])
            kept = cut([*((one, False) for one in prompt), *((one, True) for one in answer)])
            own = [one for one, is_answer in kept if is_answer]
            logits = logits_of(setting.policy, [one for one, is_answer in kept if not is_answer], own)
            found[name].append(Answer([one for one, _ in kept], logits, own[-len(logits) :]))
    return found


def _cut(setting: Setting) -> Any:
    limit = setting.option("max_length")
    if setting.option("truncation_mode", "keep_start") == "keep_end":
        return lambda kept: kept[-limit:]
    return lambda kept: kept[:limit]


def _preference(setting: Setting, kind: str, beta: float, margin: Tensor) -> Tensor:
    """Return the loss of a pair whose log-ratios differ by `margin`."""
    smoothing: float = setting.option("label_smoothing", 0.0)
    if kind == "ipo":
        return torch.square(margin - 1 / (2 * beta))
    if kind == "hinge":
        return torch.relu(1 - beta * margin)
    if kind == "tpo-l":
        margin = margin - setting.option("tpo_l_gamma") / beta
    if kind in ("simpo", "alphapo"):
        margin = margin - setting.option("simpo_gamma") / beta
    return -(1 - smoothing) * logsigmoid(beta * margin) - smoothing * logsigmoid(-beta * margin)


def likelihood_pairs(setting: Setting) -> Tensor:
    """Return the loss of CPO (Xu et al. 2024), of its other loss types, of SimPO and of AlphaPO."""
    kind, beta, power = setting.option("loss_type"), setting.option("beta"), setting.option("alpha", 0.0)
    is_mean = kind in ("ipo", "simpo", "alphapo")
    weight = 0.0 if kind == "alphapo" else setting.option("cpo_alpha", 0.0)
    found = _answers(setting, ("chosen", "rejected"))
    logprobs = {name: _logprobs(own, is_mean) for name, own in found.items()}

    def reward(value: Tensor) -> Tensor:
        shaped: Tensor = (1 - (-power * value).exp()) / power if power else value
        return shaped

    chosen, rejected = ([reward(one) for one in logprobs[name]] for name in ("chosen", "rejected"))
    loss = average(
        _preference(setting, kind, beta, one - other) for one, other in zip(chosen, rejected, strict=True)
    )
    nll = torch.cat([-picked(one.logits.log_softmax(-1), one.ids) for one in found["chosen"]]).mean()
    setting.scalars |= {
        **_of_pairs(beta, chosen, rejected),
        **_of_answers(setting, found, logprobs),
        "nll_loss": float(nll) if weight else 0.0,
    }
    total: Tensor = loss + weight * nll
    return total


def odds_of_pairs(setting: Setting) -> Tensor:
    """Return the loss of ORPO (Hong et al. 2024), whose likelihood is that of prompt and chosen answer."""
    beta = setting.option("beta")
    found = _answers(setting, ("chosen", "rejected"))
    logprobs = {name: _logprobs(own, True) for name, own in found.items()}
    chosen, rejected = logprobs["chosen"], logprobs["rejected"]
    log_odds = torch.stack([_log_odds(a) - _log_odds(b) for a, b in zip(chosen, rejected, strict=True)])
    nll = torch.cat([-logprobs_of(setting.policy, [], one.whole) for one in found["chosen"]]).mean()
    setting.scalars |= {
        **_of_pairs(beta, chosen, rejected),
        **_of_answers(setting, found, logprobs, leaves_out=1),  # which predicts nothing
        "nll_loss": float(nll),
        "log_odds_ratio": float(logsigmoid(log_odds).mean()),
        "log_odds_chosen": float(log_odds.mean()),
    }
    loss: Tensor = nll - beta * logsigmoid(log_odds).mean()
    return loss


def _log_odds(logprob: Tensor) -> Tensor:
    return logprob - torch.log1p(-logprob.exp())


def _logprobs(answers: Sequence[Answer], is_mean: bool) -> list[Tensor]:
    """Return the log-probability of each answer, summed or averaged over its tokens."""
    values = [picked(one.logits.log_softmax(-1), one.ids) for one in answers]
    return [one.mean() if is_mean else one.sum() for one in values]


def _of_answers(
    setting: Setting,
    found: Mapping[str, Sequence[Answer]],
    logprobs: Mapping[str, Sequence[Tensor]],
    leaves_out: int = 0,
) -> dict[str, float]:
    """Return the scalars of chosen and of rejected answers by themselves; logits without the last `leaves_out`."""
    own = {f"logps/{name}": float(average(values)) for name, values in logprobs.items()}
    if setting.equal:  # logits after padding count otherwise
        for name, answers in found.items():
            given = torch.tensor([one.whole for one in answers])
            logits = setting.policy(input_ids=given, use_cache=False).logits
            own[f"logits/{name}"] = float(logits[:, : given.shape[1] - leaves_out].mean())
    return own


def _of_pairs(beta: float, chosen: Sequence[Tensor], rejected: Sequence[Tensor]) -> dict[str, float]:
    """Return the scalars of implicit rewards."""
    return {
        "rewards/chosen": float(beta * average(chosen)),
        "rewards/rejected": float(beta * average(rejected)),
        "rewards/margins": float(beta * (average(chosen) - average(rejected))),
        "rewards/accuracies": mean(float(a > b) for a, b in zip(chosen, rejected, strict=True)),
    }


def sampled_pairs(setting: Setting) -> Tensor:
    """Return the loss of online DPO (Guo et al. 2024): of two samples, the one with the higher reward is chosen."""
    beta = setting.option("beta")
    beta = beta[0] if isinstance(beta, list) else beta
    penalty = setting.option("missing_eos_penalty", 0.0)
    ended, rewards, chosen, rejected, own = [], [], [], [], []
    kl, entropy = [], []
    for row in setting.rows:
        prompt = setting.prompt_ids(row["prompt"])
        pair = []
        for number in (0, 1):
            ids = setting.sampled(prompt, number)
            ended.append(setting.has_end(ids))
            reward = setting.reward(row, ids) - (0.0 if ended[-1] else penalty)
            policy = logprobs_of(setting.policy, prompt, ids)
            reference = logprobs_of(setting.reference, prompt, ids).detach()
            kl.append(float((policy - reference).sum().detach()))
            entropy.append(-float(policy.sum().detach()))
            pair.append((reward, policy.sum(), reference.sum()))
        best, other = pair if pair[0][0] >= pair[1][0] else pair[::-1]
        rewards.append((best[0], other[0]))
        own.append((best[1], other[1]))
        chosen.append(best[1] - best[2])
        rejected.append(other[1] - other[2])
    setting.scalars |= {
        **_of_pairs(beta, chosen, rejected),
        "objective/scores": mean(value for pair in rewards for value in pair),
        "objective/scores_margin": mean(one - other for one, other in rewards),
        "val/contain_eos_token": mean(map(float, ended)),
        "logps/chosen": float(average(one for one, _ in own)),
        "logps/rejected": float(average(other for _, other in own)),
        "beta": beta,
    }
    if setting.equal:  # padding counts in them otherwise: finding "TRL: padding in the log of online DPO"
        setting.scalars |= {
            "objective/kl": mean(kl),
            "objective/entropy": mean(entropy),
            "objective/non_score_reward": -beta * mean(kl),
            "objective/rlhf_reward": setting.scalars["objective/scores"] - beta * mean(kl),
        }
    kind = setting.option("loss_type")
    return average(
        _preference(setting, kind, beta, one - other) for one, other in zip(chosen, rejected, strict=True)
    )
