"""Deterministic runs: each result excludes suspects for good (plain bisection)."""

from __future__ import annotations

import numpy as np

from seatrial.bisect.history import BoolArray
from seatrial.bisect.likelihood import Likelihoods


def exact_likelihoods(affected_PH: BoolArray, failed_P: BoolArray, passed_P: BoolArray) -> Likelihoods | None:
    """Return the likelihoods if a run fails exactly when it contains the culprit.

    Returns:
        None if no hypothesis explains the results: the command is not deterministic.
    """
    num_hypotheses = affected_PH.shape[1]
    consistent_H = affected_PH[failed_P].all(axis=0) & ~affected_PH[passed_P].any(axis=0)
    no_culprit = not failed_P.any() or not passed_P.any()
    possible_H1 = np.append(consistent_H, no_culprit and not consistent_H.any())
    if not possible_H1.any():
        return None
    passes, fails = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    before, after = np.tile(passes, (num_hypotheses + 1, 1)), np.tile(fails, (num_hypotheses + 1, 1))
    if failed_P.any():
        before[-1] = fails
    else:
        after[-1] = passes
    return Likelihoods(log_H1=np.where(possible_H1, 0.0, -np.inf), before_H1Q=before, after_H1Q=after)
