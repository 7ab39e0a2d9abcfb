"""R16.prompt_rows holds on a plain data set of prompts, and each law breaks on the fault that it is about."""

from collections.abc import Sequence

import pytest

from seatrial.relations.contracts.prompt_rows import Messages, PromptRow, Truncation
from seatrial.relations.engine import run_relation
from seatrial.relations.laws.data.prompt_rows import PROMPT_ROWS, cut
from seatrial.verdict import Outcome


class PlainPrompts:
    """A data set of characters, with a fault by name."""

    pad_id = 0

    def __init__(self, fault: str = "") -> None:
        """Keep the fault."""
        self.fault = fault

    def prompt_ids(self, messages: Messages) -> list[int]:
        return [ord(letter) for one in messages for letter in f"{one['role'][0]}:{one['content']};"] + [1]

    def prompt_rows(
        self, conversations: Sequence[Messages], *, max_length: int, filtered: bool, truncation: Truncation
    ) -> Sequence[PromptRow]:
        rows = [(number, self.prompt_ids(one)) for number, one in enumerate(conversations)]
        if self.fault == "another order":
            rows = rows[::-1]
        if filtered:
            limit = max_length - (self.fault == "a bound that is off by one")
            rows = [(number, ids) for number, ids in rows if len(ids) <= limit]
        longest = max((len(ids) for _, ids in rows), default=0)
        if truncation == "error" and longest > max_length and self.fault != "cut without notice":
            raise ValueError("a longer prompt")
        sides: dict[str, Truncation] = {"left": "right", "right": "left"}
        how = sides.get(truncation, truncation) if self.fault == "the other side" else truncation
        kept = [(number, list(cut(ids, max_length, how))) for number, ids in rows]
        return [
            PromptRow(
                number=number,
                ids=ids,
                padded=[0] * (max_length - len(ids)) + ids,
                mask=[0] * (max_length - len(ids)) + [1] * len(ids),
                positions=list(range(max_length))
                if self.fault == "positions of padding"
                else [0] * (max_length - len(ids)) + list(range(len(ids))),
            )
            for number, ids in kept
        ]


def test_a_plain_data_set_holds() -> None:
    """With the cases of several seeds."""
    verdict = run_relation(PROMPT_ROWS, PlainPrompts(), seeds=[0, 1, 2])
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("another order", "ids"),
        ("a bound that is off by one", "longer prompts are left out"),
        ("cut without notice", "longer prompts are refused"),
        ("the other side", "cut at the start"),
        ("positions of padding", "padding and positions"),
    ],
)
def test_a_fault_breaks_the_law_about_it(fault: str, law: str) -> None:
    """Others may break as well."""
    verdict = run_relation(PROMPT_ROWS, PlainPrompts(fault), seeds=[0], shrink_seconds=0)
    assert verdict.outcome is Outcome.FAIL
    assert law in verdict.details["laws_broken"]
