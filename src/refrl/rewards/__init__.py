"""Verifiers: completion text and answer in, a reward between 0 and 1 out."""

from refrl.rewards.registry import VERIFIERS
from refrl.rewards.scoring import Scores, make_verifier, score_completions
from refrl.rewards.verifiers import VerifierError, VerifierTimeout

__all__ = ["VERIFIERS", "Scores", "VerifierError", "VerifierTimeout", "make_verifier", "score_completions"]
