"""Steps of distillation from another model: GKD's and GOLD's divergence, and weighted log-ratios (IW-OPD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.trl.compared.definitions.setting import (
    Setting,
    average,
    divergence,
    entropy_of,
    logits_of,
    mean,
    picked,
)


def conversations(setting: Setting) -> list[tuple[list[int], list[int]]]:
    """Return prompt and answer of each row of messages; the answer is sampled on policy (`lmbda` of 1), or given."""
    found = []
    for row in setting.rows:
        prompt = setting.prompt_ids(row["messages"][:-1])
        *asked, said = row["messages"]
        is_sampled = setting.option("lmbda") == 1
        answer = setting.sampled(prompt) if is_sampled else setting.answer_ids(asked, [said])
        found.append((prompt, answer))
    return found


def generalized(setting: Setting) -> Tensor:
    """Return the mean over answers' tokens of GOLD's divergence."""
    temperature, each = setting.option("temperature"), []
    for prompt, answer in conversations(setting):
        student, teacher = (
            (logits_of(model, prompt, answer) / temperature).log_softmax(-1)
            for model in (setting.policy, setting.teacher)
        )
        each.append(divergence(student, teacher.detach(), setting.option("beta")))
    loss = torch.cat(each).mean()
    _log_loss(setting, loss)
    return loss


def sampled(setting: Setting) -> Tensor:
    """Return the mean over sampled completions' tokens of the divergence from the teacher."""
    temperature, each, entropies, drawn = setting.option("temperature"), [], [], []
    for row in setting.rows:
        prompt = setting.prompt_ids(row["prompt"])
        drawn.append(setting.sampled(prompt))
        student, teacher = (
            logits_of(model, prompt, drawn[-1]) / temperature for model in (setting.policy, setting.teacher)
        )
        entropies.append(entropy_of(student))
        logs = student.log_softmax(-1), teacher.log_softmax(-1).detach()
        each.append(divergence(*logs, setting.option("beta")))
    setting.log_lengths(drawn)
    setting.scalars["entropy"] = float(torch.cat(entropies).mean())
    return torch.cat(each).mean()


def served(setting: Setting) -> Tensor:
    """Return the mean over sampled completions' tokens of the divergence on what a server returns for the teacher."""
    each, drawn = [], []
    for row in setting.rows:
        prompt = setting.prompt_ids(row["prompt"])
        drawn.append(setting.sampled(prompt))
        student, teacher = (
            (logits_of(model, prompt, drawn[-1]) / setting.option("temperature")).log_softmax(-1)
            for model in (setting.policy, setting.teacher)
        )
        each.append(_supported(setting, student, teacher.detach(), drawn[-1]))
    setting.log_lengths(drawn)
    return torch.cat(each).mean()


def scored(setting: Setting) -> Tensor:
    """Return the mean over sampled completions' tokens of the divergence on what a teacher's scores have of them.

    The forward divergence is on the teacher's likeliest tokens and the sampled one.
    """
    option: Any = setting.option
    each, drawn, prompts, own_entropies, entropies = [], [], [], [], []
    for row in setting.rows:
        prompt = setting.prompt_ids(row["prompt"])
        ids = setting.sampled(prompt)
        student, teacher = (
            (logits_of(model, prompt, ids) / option("teacher_temperature")).log_softmax(-1)
            for model in (setting.policy, setting.teacher)
        )
        own_entropies.append(entropy_of(student))
        for place, token in enumerate(ids):
            likeliest = teacher[place].topk(option("teacher_top_k")).indices.tolist()
            support = (
                [*likeliest, token] if option("beta") == 0 else [*likeliest[: option("beta") < 1], token]
            )
            parts = [
                _on(values[place], sorted({*support}), option("add_tail_bucket"))
                for values in (student, teacher)
            ]
            entropies.append(-(parts[1].exp() * parts[1]).sum().detach())
            each.append(divergence(parts[0][None], parts[1].detach()[None], option("beta"))[0])
        drawn.append(ids)
        prompts.append(prompt)
    loss = torch.stack(each).mean()
    lengths = [len(one) + len(other) for one, other in zip(prompts, drawn, strict=True)]
    num_trained = sum(map(len, drawn))
    setting.scalars |= {
        "jsd": float(loss),
        "entropy": float(torch.cat(own_entropies).mean()),
        "teacher_entropy": float(average(entropies)),
        "sample/forwarded_tokens_mean": mean(lengths),
        "sample/forwarded_tokens_max": max(lengths),
        "sample/trained_tokens_mean": num_trained / len(drawn),
        "batch/masked_token_frac": 1 - num_trained / sum(lengths),
        "batch/samples_per_row": len(drawn),
        "batch/row_tokens_mean": sum(lengths),
        "batch/row_tokens_max": sum(lengths),
        "batch/row_imbalance": 1.0,
        "batch/pad_frac": 0.0,
    }
    return loss


def _on(values: Tensor, support: Sequence[int], has_tail: bool) -> Tensor:
    """Return log-probabilities [V] of tokens, with those of the rest in one more, or scaled to a sum of one."""
    kept = values[list(support)]
    if not has_tail:
        return kept.log_softmax(-1)
    return torch.cat([kept, (1 - kept.exp().sum()).clamp(min=1e-7).log()[None]])


def _log_loss(setting: Setting, loss: Tensor) -> None:
    setting.scalars["on_policy_loss" if setting.option("lmbda") == 1 else "off_policy_loss"] = float(loss)


def weighted(setting: Setting) -> Tensor:
    """Return the loss of IW-OPD, by log-ratios that weigh more the earlier they are; or a divergence."""
    option = setting.option
    pairs = [_kept(setting, *pair) for pair in conversations(setting)]
    temperature, each, weights, gains = option("temperature"), [], [], []
    for prompt, answer in pairs:
        student, teacher = (
            (logits_of(model, prompt, answer) / temperature).log_softmax(-1)
            for model in (setting.policy, setting.teacher)
        )
        teacher = teacher.detach()
        if option("distillation_objective") != "iw_opd":
            each.append(_supported(setting, student, teacher, answer))
            continue
        own, other = picked(student, answer), picked(teacher, answer)
        ratio = (other - own).detach()
        before = ratio.abs().cumsum(0) - ratio.abs()
        weight = 1 + option("iw_opd_gamma") * (1 - before / ratio.abs().sum())
        each.append(-own * weight * ratio)
        weights.append(weight)
        gains.append((weight * ratio, ratio.abs()))
    loss = torch.cat(each).mean()
    name = "on_policy" if option("lmbda") == 1 else "off_policy"
    lengths = [len(answer) for _, answer in pairs]
    _log_loss(setting, loss)
    setting.scalars |= {
        f"completions/{name}_mean_length": mean(lengths),
        f"completions/{name}_max_length": max(lengths),
        f"completions/{name}_min_length": min(lengths),
    }
    if name == "on_policy":
        limit = option("max_completion_length")
        setting.scalars["completions/truncated_fraction"] = mean(float(one >= limit) for one in lengths)
    if weights:
        flat = torch.cat(weights)
        setting.scalars |= {
            "iw_opd/mean_advantage": float(torch.cat([one for one, _ in gains]).mean()),
            "iw_opd/mean_abs_advantage": float(torch.cat([one for _, one in gains]).mean()),
            "iw_opd/mean_weight": float(flat.mean()),
            "iw_opd/min_weight": float(flat.min()),
            "iw_opd/max_weight": float(flat.max()),
        }
    return loss


def _kept(
    setting: Setting, prompt: Sequence[int], answer: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the beginning of a prompt, and as much of a given answer as fits behind it."""
    kept = prompt[: setting.option("max_prompt_length")]
    return kept, answer if setting.option("lmbda") == 1 else answer[
        : setting.option("max_length") - len(kept)
    ]


def _supported(setting: Setting, student: Tensor, teacher: Tensor, answer: Sequence[int]) -> Tensor:
    """Return the divergence [T] on the vocabulary, or on the likeliest tokens with or without the rest in one more.

    The support is the teacher's for the forward divergence, the student's for the reverse one, and both in between.
    With one token of each the student's is the sampled one, unless `reverse_kl_top_1_mode` says otherwise.
    """
    option: Any = setting.option
    beta, most = option("beta"), option("loss_top_k")
    if not most:
        return divergence(student, teacher, beta)
    found = []
    for place, token in enumerate(answer):
        own = student[place].topk(most).indices.tolist()
        if most == 1 and beta > 0 and option("reverse_kl_top_1_mode") == "sampled":
            own = [token]
        other = teacher[place].topk(most).indices.tolist()
        support = sorted({*(other if beta < 1 else ()), *(own if beta > 0 else ())})
        parts = [_on(values[place], support, option("loss_add_tail")) for values in (student, teacher)]
        found.append(divergence(parts[0][None], parts[1][None], beta)[0])
    return torch.stack(found)
