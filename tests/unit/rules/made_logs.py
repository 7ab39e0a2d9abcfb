"""Logs of made runs under TRL's names: a healthy one, and changes that break it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from seatrial.evidence.runlog import RunLog, Series

Floats = npt.NDArray[np.float64]
NUM_STEPS = 120


def log_of(columns: Mapping[str, Floats]) -> RunLog:
    """Return a log with one series a column, at steps 1, 2, ..."""
    series = {
        tag: Series(tag=tag, steps=np.arange(1, len(values) + 1), values=np.asarray(values, dtype=float))
        for tag, values in columns.items()
    }
    return RunLog(sources=["made"], series=series)


def healthy(seed: int = 0, number: int = NUM_STEPS) -> dict[str, Floats]:
    """Return columns of a run that learns: reward from 0.2 to 0.8, entropy falls to a third, KL climbs to 0.1."""
    random = np.random.default_rng(seed)
    done = np.arange(number) / number
    reward = 0.2 + 0.6 * done + 0.05 * random.standard_normal(number)
    return {
        "train/loss": 1e-2 * random.standard_normal(number),
        "train/reward": reward,
        "train/reward_std": 0.3 + 0.05 * random.random(number),
        "train/frac_reward_zero_std": np.round(4 * random.random(number)) / 8,
        "train/grad_norm": np.exp(0.3 * random.standard_normal(number)),
        "train/learning_rate": 1e-5 * np.minimum(1, np.arange(number) / 5) * (1 - 0.9 * done),
        "train/entropy": 1.2 - 0.8 * done + 0.02 * random.standard_normal(number),
        "train/kl": 0.1 * done + 1e-3 * random.random(number),
        "train/clip_ratio/region_mean": 0.02 * random.random(number),
        "train/completions/mean_length": 60 + 5 * random.standard_normal(number),
        "train/completions/clipped_ratio": 0.1 * random.random(number),
        "train/sampling/sampling_logp_difference/mean": 0.01 + 0.002 * random.random(number),
        "train/sampling/importance_sampling_ratio/mean": 1 + 0.01 * random.standard_normal(number),
        "eval/reward": reward.copy(),
        "train/step_time": 2 + 0.1 * random.random(number),
    }


def preference(seed: int = 0, number: int = NUM_STEPS) -> dict[str, Floats]:
    """Return columns of a DPO run that learns."""
    random = np.random.default_rng(seed)
    done = np.arange(number) / number
    return {
        "train/loss": 0.69 - 0.2 * done + 0.02 * random.standard_normal(number),
        "train/grad_norm": np.exp(0.3 * random.standard_normal(number)),
        "train/learning_rate": 1e-6 * (1 - 0.9 * done),
        "train/rewards/accuracies": np.clip(0.5 + 0.2 * done + 0.05 * random.standard_normal(number), 0, 1),
        "train/rewards/margins": done + 0.1 * random.standard_normal(number),
        "train/rewards/chosen": 0.1 * random.standard_normal(number),
        "train/rewards/rejected": -done,
        "train/logps/chosen": -100 + random.standard_normal(number),
    }
