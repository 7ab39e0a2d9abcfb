"""Checks: closed expressions over logged series, judged after a run."""

from seatrial.checks.evaluate import evaluate_check
from seatrial.checks.grammar import parse_check
from seatrial.checks.nodes import Check

__all__ = ["Check", "evaluate_check", "parse_check"]
