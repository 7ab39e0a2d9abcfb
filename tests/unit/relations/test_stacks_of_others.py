"""What kept laws from other people's stacks: leaks into later rows, last turns alone, methods beyond a contract."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from typing_extensions import get_protocol_members

from seatrial.relations.contracts import COMPONENTS
from seatrial.relations.engine import run_relation
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import Row, StepResult
from seatrial.relations.registry import select
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.verdict import Outcome


class Packed:
    """Scores that depend on a row's own tokens, and on those of another row where that is planted."""

    vocab_size = 37
    sees = 0

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        """Return a pseudo-random number for each token, made from what stands before it."""
        return [
            tuple(
                -random.Random(str((row.prompt_ids, row.completion_ids[:place]))).random()
                for place in range(len(row.completion_ids))
            )
            for row in rows
        ]

    def score_packed(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        """Return the same, moved by a token of the row before or after."""
        moved = []
        for index, scores in enumerate(self.score(rows, temperature)):
            other = index + self.sees
            leak = rows[other].completion_ids[0] / 100 if self.sees and 0 <= other < len(rows) else 0.0
            moved.append(tuple(score + leak for score in scores))
        return moved

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """No gradients: these laws are about scores."""
        return StepResult(loss=0.0, gradients={})

    gradients_packed = gradients


@pytest.mark.parametrize("sees", [-1, 1])
def test_a_leak_is_seen_in_whichever_row_it_arrives(sees: int) -> None:
    """In a causal model it arrives in later rows only: a look at the first row alone never sees it."""
    stack = Packed()
    (relation,) = select(["R4.packing"])
    assert "neighbours are not seen" in run_relation(relation, stack, seeds=[0]).details["laws"]
    stack.sees = sees
    assert "neighbours are not seen" in run_relation(relation, stack, seeds=[0]).details["laws_broken"]


class LastTurn:
    """A tokenizer of one id a character that trains the last answer alone."""

    bos_id, eos_id, pad_id = None, 1, 0

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> list[int]:
        """Write each turn as its role, its characters and the end token."""
        ids = [token for message in messages for token in self._turn(message)]
        return [*ids, *self._role("assistant")] if add_generation_prompt else ids

    def training_row(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[int]]:
        """Mark the last answer."""
        ids = self.encode_chat(messages, add_generation_prompt=False)
        trained = len(messages[-1]["content"]) + 1
        return ids, [0] * (len(ids) - trained) + [1] * trained

    def decode(self, ids: Sequence[int]) -> str:
        """Show the end token as such."""
        return "".join("<end>" if token == self.eos_id else chr(token) for token in ids)

    def _role(self, role: str) -> list[int]:
        return [2, *map(ord, role)]

    def _turn(self, message: Mapping[str, str]) -> list[int]:
        return [*self._role(message["role"]), *map(ord, message["content"]), self.eos_id]


def test_a_stack_that_trains_the_last_turn_says_so() -> None:
    """Undeclared, the other answers are missed."""
    stack: Any = LastTurn()
    (relation,) = select(["R16.chat"])
    assert run_relation(relation, stack).outcome is Outcome.FAIL
    stack.facts = StackFacts(trains="last")
    assert run_relation(relation, stack).outcome is Outcome.PASS


@pytest.mark.parametrize("name", ["R10.update", "R10.step", "R5.policy", "R17.advantages", "R4.plan"])
def test_laws_call_nothing_but_what_the_contract_of_their_component_has(name: str) -> None:
    """And what a stack declares: an adapter is written from the contract."""
    (relation,) = select([name])
    allowed = {*get_protocol_members(COMPONENTS[relation.component]), "facts"}
    reference = ReferenceComponents()
    members = {key: getattr(reference, key) for key in allowed if hasattr(reference, key)}
    assert run_relation(relation, type("Minimal", (), {})(), seeds=[0]).outcome is Outcome.NOT_REQUESTED
    minimal = type(
        "Minimal",
        (),
        {key: staticmethod(value) if callable(value) else value for key, value in members.items()},
    )()
    assert run_relation(relation, minimal, seeds=[0]).outcome is Outcome.PASS
