"""Checks: closed expressions over logged series, judged after a run."""

from seatrial.checks.evaluate import evaluate_check
from seatrial.checks.known_ranges import KNOWN_RANGES, clip_ranges
from seatrial.checks.language.grammar import parse_check
from seatrial.checks.language.nodes import Check
from seatrial.checks.language.truth import Interval
from seatrial.checks.lint import Finding, FindingKind, lint_check

__all__ = [
    "KNOWN_RANGES",
    "Check",
    "Finding",
    "FindingKind",
    "Interval",
    "clip_ranges",
    "evaluate_check",
    "lint_check",
    "parse_check",
]
