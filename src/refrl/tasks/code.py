"""The code task: a program that prints the value of an expression, judged by running it."""

from __future__ import annotations

import json
from dataclasses import dataclass

OPERATORS = "+-*"


@dataclass(frozen=True)
class CodePrintTask:
    """`print 3+4:` -> `print(3+4)`, over all pairs of numbers below `limit` and so many operators.

    The answer is a list of tests for the verifier `code_output`, which runs the completion in its sandbox. A program
    that computes and one that prints the value as a constant are both right.
    """

    limit: int = 10
    num_operators: int = 1
    """1 is `+` alone, 2 adds `-`, 3 adds `*`."""

    verifier = "code_output"
    name = "code_print"

    def __post_init__(self) -> None:
        """Refuse a space without expressions (ValueError)."""
        if self.limit < 2:
            raise ValueError(f"limit={self.limit} must be at least 2")
        if not 1 <= self.num_operators <= len(OPERATORS):
            raise ValueError(f"num_operators={self.num_operators} must lie between 1 and {len(OPERATORS)}")

    @property
    def num_examples(self) -> int:
        """Ordered pairs, with every operator."""
        return self.num_operators * self.limit**2

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and, as JSON, the tests of one number."""
        left, operator, right = self._terms(number)
        value = {"+": left + right, "-": left - right, "*": left * right}[operator]
        return f"print {left}{operator}{right}:", json.dumps([{"stdin": "", "stdout": f"{value}\n"}])

    def solution(self, number: int) -> str:
        """Return a program that passes."""
        left, operator, right = self._terms(number)
        return f"print({left}{operator}{right})"

    def _terms(self, number: int) -> tuple[int, str, int]:
        operator, pair = divmod(number, self.limit**2)
        left, right = divmod(pair, self.limit)
        return left, OPERATORS[operator], right
