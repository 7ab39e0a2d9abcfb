"""The laws of engines hold on a sound toy engine, and each fault breaks the one that is about it."""

import random
import threading

import pytest

from seatrial.relations.engine import first_violation
from seatrial.relations.records import Sampled
from seatrial.relations.registry import select


class ToyEngine:
    """Draws ids for all prompts, a token at a time, until it is told to give up."""

    def __init__(self, seed: int, fault: str | None) -> None:
        self._seed, self._fault = seed, fault
        self._stream = random.Random(seed)
        self._given_up = threading.Event()

    def generate(self, prompts, *, max_new_tokens):
        if self._fault == "stream begins anew":
            self._stream = random.Random(self._seed)
        if self._fault == "stream of its own":
            self._stream = random.Random()
        rows = [[] for _ in prompts]
        is_long = len(prompts) > 100
        for _ in range(max_new_tokens):
            for row in rows:
                row.append(self._stream.randrange(100))
            if self._fault != "deaf" and self._given_up.wait(0.01 * is_long):
                break
        reason = "abort" if len(rows[0]) < max_new_tokens else "length"
        return [
            Sampled(
                prompt_ids=tuple(prompt), ids=tuple(row), logprobs=(0.0,) * len(row), finish_reason=reason
            )
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    def abort(self):
        self._given_up.set()

    def resume(self):
        if self._fault != "never resumes":
            self._given_up.clear()

    def close(self):
        """Nothing is held."""


class Toy:
    def __init__(self, fault: str | None = None) -> None:
        self._fault = fault

    def open_engine(self, *, seed):
        return ToyEngine(seed, self._fault)


@pytest.mark.parametrize(
    ("fault", "relation"),
    [
        ("stream begins anew", "R26.engine"),
        ("stream of its own", "R26.engine"),
        ("deaf", "R19.engine"),
        ("never resumes", "R19.engine"),
    ],
)
def test_a_fault_breaks_its_law(fault: str, relation: str) -> None:
    (chosen,) = select([relation])
    assert first_violation(chosen, Toy()) is None
    violation = first_violation(chosen, Toy(fault))
    assert violation is not None
    assert violation.raised is None, violation.raised
