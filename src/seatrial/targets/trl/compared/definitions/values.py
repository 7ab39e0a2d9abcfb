"""Steps that regress on optimal values (A*-PO), and on a geometric mean of ratios (GMPO)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import torch
from torch import Tensor

from seatrial.targets.trl.compared.definitions.setting import (
    Setting,
    average,
    entropy_of,
    logits_of,
    logprobs_of,
    mean,
    picked,
)


def optimal_values(setting: Setting) -> Tensor:
    """Return the loss of A*-PO (Brantley et al. 2025): a log-ratio is regressed on the reward over the value."""
    one, two, samples = (setting.option(name) for name in ("beta1", "beta2", "num_value_samples"))
    rows = []
    for row in setting.rows:
        prompt = setting.prompt_ids(row["prompt"])
        drawn = [setting.reward(row, setting.sampled(prompt, number)) for number in range(samples)]
        if setting.option("filter_all_incorrect") and not any(drawn):
            continue
        value = one * log(mean(exp(reward / one) for reward in drawn))
        ids = setting.sampled(prompt)
        policy = logprobs_of(setting.policy, prompt, ids).sum()
        reference = logprobs_of(setting.first, prompt, ids).sum().detach()
        rows.append((two * (policy - reference), setting.reward(row, ids), value))
    setting.evaluates = len(rows) == len(setting.rows)  # evaluated rows are all kept
    setting.scalars |= {
        "reward": mean(reward for _, reward, _ in rows),
        "v_star": mean(value for _, _, value in rows),
        "advantage": mean(reward - value for _, reward, value in rows),
        "implicit_reward": float(average(ratio for ratio, _, _ in rows)),
    }
    return average((ratio - (reward - value)) ** 2 for ratio, reward, value in rows)


def advantages(setting: Setting, rewards: Sequence[float], size: int) -> list[float]:
    """Return rewards less the mean of their group, over a deviation of the group, of all, or none."""
    found: list[float] = []
    kind = setting.option("scale_rewards", "group")
    whole = torch.tensor(rewards, dtype=torch.float64).std()
    for first in range(0, len(rewards), size):
        group = torch.tensor(rewards[first : first + size], dtype=torch.float64)
        scale = 1.0 if kind == "none" else (whole if kind == "batch" else group.std()) + 1e-4
        found += ((group - group.mean()) / scale).tolist()
    return found


def geometric_mean(setting: Setting) -> Tensor:
    """Return the loss of GMPO (Zhao et al. 2025): clipped log-ratios, signed by the advantage, averaged over tokens."""
    size = setting.option("num_generations")
    temperature = setting.option("temperature", 1.0)
    low = setting.option("epsilon")
    high = setting.option("epsilon_high", low)
    beta = setting.option("beta", 0.0)
    drawn = []
    for row in setting.rows:
        prompt = setting.prompt_ids(row["prompt"])
        drawn += [(row, prompt, setting.sampled(prompt, number)) for number in range(size)]
    rewards = [setting.reward(row, ids) for row, _, ids in drawn]
    gains = advantages(setting, rewards, size)
    losses, entropies, kls, clipped = [], [], [], []
    for (_, prompt, ids), gain in zip(drawn, gains, strict=True):
        logits = logits_of(setting.policy, prompt, ids) / temperature
        own = picked(logits.log_softmax(-1), ids)
        old = logprobs_of(setting.sampler, prompt, ids, temperature).detach()
        ratio = own - old
        limited = (
            torch.minimum(ratio, ratio.clamp(-low, high))
            if gain > 0
            else torch.maximum(ratio, ratio.clamp(-low, high))
        )
        loss = -gain * limited.mean().exp()
        entropies.append(entropy_of(logits))
        if beta:
            reference = logprobs_of(setting.first, prompt, ids, temperature).detach()
            kls.append((reference - own).exp() - (reference - own) - 1)
            loss = loss + beta * kls[-1].mean()
        is_clipped = (ratio > high) if gain > 0 else (ratio < -low) & (gain < 0)
        clipped.append((is_clipped.double(), gain))
        losses.append(loss)
    setting.scalars |= {
        "entropy": float(torch.cat(entropies).mean()),
        "clip_ratio/region_mean": float(torch.cat([one for one, _ in clipped]).mean()),
        "clip_ratio/low_mean": float(torch.cat([one * (gain < 0) for one, gain in clipped]).mean()),
        "clip_ratio/high_mean": float(torch.cat([one * (gain > 0) for one, gain in clipped]).mean()),
        "clip_ratio/low_min": min(float((one * (gain < 0)).mean()) for one, gain in clipped),
        "clip_ratio/high_max": max(float((one * (gain > 0)).mean()) for one, gain in clipped),
        **({"kl": float(torch.cat(kls).mean())} if beta else {}),
    }
    return average(losses)
