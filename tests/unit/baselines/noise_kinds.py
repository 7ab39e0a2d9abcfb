"""Made runs by kind of noise. Shape of all: [runs, steps]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Runs = npt.NDArray[np.float64]


def white(random: np.random.Generator, num_runs: int, num_steps: int) -> Runs:
    """Normal noise at each step."""
    return random.normal(size=(num_runs, num_steps))


def autocorrelated(random: np.random.Generator, num_runs: int, num_steps: int) -> Runs:
    """A stationary autoregression with coefficient 0.9."""
    steps = random.normal(size=(num_runs, num_steps))
    for step in range(1, num_steps):
        steps[:, step] = 0.9 * steps[:, step - 1] + np.sqrt(1 - 0.81) * steps[:, step]
    return steps


def heavy_tailed(random: np.random.Generator, num_runs: int, num_steps: int) -> Runs:
    """Student's t with 3 degrees of freedom at each step."""
    return random.standard_t(3, size=(num_runs, num_steps))


def lognormal(random: np.random.Generator, num_runs: int, num_steps: int) -> Runs:
    """The exponential of normal noise at each step."""
    return random.lognormal(size=(num_runs, num_steps))


def drifting(random: np.random.Generator, num_runs: int, num_steps: int) -> Runs:
    """A random walk."""
    return np.cumsum(random.normal(size=(num_runs, num_steps)), axis=1)


def heavy_tailed_between_runs(random: np.random.Generator, num_runs: int, num_steps: int) -> Runs:
    """Each run off as a whole by Student's t with 3 degrees of freedom, with little noise at each step."""
    return random.standard_t(3, size=(num_runs, 1)) + 0.1 * white(random, num_runs, num_steps)


def lognormal_between_runs(random: np.random.Generator, num_runs: int, num_steps: int) -> Runs:
    """Each run off as a whole by a lognormal number with sigma 0.5, with little noise at each step."""
    return random.lognormal(0, 0.5, size=(num_runs, 1)) + 0.1 * white(random, num_runs, num_steps)


NOISE_KINDS: tuple[Callable[[np.random.Generator, int, int], Runs], ...] = (
    white,
    autocorrelated,
    heavy_tailed,
    lognormal,
    drifting,
    heavy_tailed_between_runs,
    lognormal_between_runs,
)
