"""A task: a numbered space of prompts with answers; its fields are what `data.task_args` takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SubtractTask:
    """`12-7=` -> `5`, over all pairs of numbers below `limit`; the result may be negative."""

    limit: int = 40

    name = "subtract"
    verifier = "near_number"
    """Judges completions where `data.verifier` names nothing else."""

    def __post_init__(self) -> None:
        """Refuse a space without numbers (ValueError); the message names the argument."""
        if self.limit < 1:
            raise ValueError(f"limit={self.limit} must be at least 1")

    @property
    def num_examples(self) -> int:
        """Ordered pairs; different numbers must give different prompts."""
        return self.limit**2

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and the answer of one number below `num_examples`."""
        left, right = divmod(number, self.limit)
        return f"{left}-{right}=", str(left - right)
