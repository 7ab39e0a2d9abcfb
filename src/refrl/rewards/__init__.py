"""Verifiers: completion text and answer in, a reward between 0 and 1 out."""

from refrl.rewards.scoring import (
    VERIFIERS,
    Scores,
    join_scores,
    make_verifier,
    make_weighted_verifier,
    score_completions,
)
from refrl.rewards.verifiers import RewardError, VerifierError, VerifierTimeout

__all__ = [
    "VERIFIERS",
    "RewardError",
    "Scores",
    "VerifierError",
    "VerifierTimeout",
    "join_scores",
    "make_verifier",
    "make_weighted_verifier",
    "score_completions",
]
