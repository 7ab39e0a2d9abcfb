"""Verifiers: completion text and answer in, a reward between 0 and 1 out."""

from refrl.rewards.scoring import Scores, make_verifier, score_completions
from refrl.rewards.verifiers import VERIFIERS, VerifierError

__all__ = ["VERIFIERS", "Scores", "VerifierError", "make_verifier", "score_completions"]
