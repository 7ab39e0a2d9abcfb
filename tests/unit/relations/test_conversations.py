"""The laws of conversations with system turns, tools and thinking: a plain template obeys, planted faults are seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from seatrial.relations.cases.conversations import Conversation, Part, Turn, make_conversation
from seatrial.relations.contracts.conversations import TokenRow
from seatrial.relations.engine import run_relation
from seatrial.relations.facts import StackFacts
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

END = 1


@dataclass
class PlainTemplate:
    """One id a character; a fault is one line that differs."""

    fault: str = ""
    pad_id: int = 0
    conversation_keeps: Literal["start", "end"] | None = "start"
    thinking_kept: Literal["all", "last"] = "all"
    facts: StackFacts = StackFacts()  # noqa: RUF009  frozen
    conversation_parts: frozenset[Part] = frozenset({"system", "tools", "thinking"})
    eos_id: int = END

    def decode(self, ids: Sequence[int]) -> str:
        """Show the end token as such."""
        return "".join("<end>" if token == END else chr(token) for token in ids)

    def serve_conversation(self, conversation: Conversation, *, add_generation_prompt: bool) -> list[int]:
        """Write the tools, then each turn."""
        ids = list(self._row(conversation, serves=True, finished=not add_generation_prompt).ids)
        return [*ids, *map(ord, "assistant:")] if add_generation_prompt else ids

    def train_conversation(self, conversation: Conversation, *, max_length: int | None) -> TokenRow:
        """Mark the answers with their ends."""
        ids, counted = self._row(conversation, serves=False, finished=True)
        if self.fault == "end by pad id":
            counted = [int(on and token != self.pad_id) for token, on in zip(ids, counted, strict=True)]
        if max_length is None or self.conversation_keeps is None:
            return TokenRow(ids, counted)
        start = (self.conversation_keeps == "start") != (self.fault == "other side cut")
        first = 0 if start else max(0, len(ids) - max_length)
        marks = first if self.fault != "marks cut from the start" else 0
        return TokenRow(ids[first : first + max_length], counted[marks : marks + max_length])

    def _row(self, conversation: Conversation, *, serves: bool, finished: bool) -> TokenRow:
        ids, counted = [], []
        without_tools = self.fault == "tools served alone" and not serves
        tools = () if without_tools else conversation.tools
        turns = list(conversation.turns)
        if self.fault == "system in finished rows alone" and not finished:
            turns = [turn for turn in turns if turn.role != "system"]
        if self.fault == "system dropped":
            turns = [turn for turn in turns if turn.role != "system"]
        if self.fault == "first result dropped":
            turns = [
                turn
                for turn, after in zip(turns, [*turns[1:], Turn(role="user")], strict=True)
                if not turn.role == after.role == "tool"
            ]
        header = f"tools {' '.join(tools)}\n" if tools else ""
        ids += map(ord, header)
        counted += [0] * len(header)
        last_user = max(place for place, turn in enumerate(turns) if turn.role == "user")
        for place, turn in enumerate(turns):
            hides = self.thinking_kept == "last" or self.fault == "earlier thinking dropped"
            thinking = f"<{turn.thinking}>" if turn.thinking and not (hides and place < last_user) else ""
            said = turn.content + "".join(f"{call.name}({', '.join(call.words)})" for call in turn.calls)
            trains = turn.role == "assistant" or (self.fault == "results train" and turn.role == "tool")
            before = [int(trains and self.fault == "header trains")] * (len(turn.role) + 1)
            inner = [int(trains and self.fault != "thinking does not train")] * len(thinking)
            outer = [int(trains and not (self.fault == "calls do not train" and turn.calls))] * len(said)
            ids += [*map(ord, f"{turn.role}:{thinking}{said}"), END]
            counted += [*before, *inner, *outer, int(trains)]
        if self.facts.trains == "last":
            first = max(place for place, on in enumerate(counted) if not on)
            counted = [int(place > first) for place in range(len(counted))]
        return TokenRow(ids, counted)


def broken(stack: PlainTemplate, *, tidy: bool = False) -> list[str]:
    """Return the laws that a template breaks."""
    (relation,) = select(["R16.conversations"])
    verdict = run_relation(relation, stack, seeds=[0], tidy=tidy)
    assert verdict.outcome in (Outcome.PASS, Outcome.FAIL), verdict
    return list(verdict.details.get("laws_broken", []))


@pytest.mark.parametrize(
    "stack",
    [
        PlainTemplate(),
        PlainTemplate(pad_id=END, conversation_keeps="end"),
        PlainTemplate(thinking_kept="last", facts=StackFacts(trains="last"), conversation_keeps=None),
    ],
)
def test_a_plain_template_obeys(stack: PlainTemplate) -> None:
    """With padding of its own or not, cut or not, thinking of all turns or the last."""
    assert broken(stack) == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("system dropped", "all is shown, a system turn"),
        ("system in finished rows alone", "prompts are prefixes, a system turn"),
        ("thinking does not train", "answers alone train, thinking before the answer"),
        ("earlier thinking dropped", "prompts are prefixes, thinking in an earlier answer too"),
        ("calls do not train", "answers alone train, a tool that is called"),
        ("results train", "answers alone train, a tool that is called"),
        ("tools served alone", "serving is training, a tool that is called"),
        ("first result dropped", "all is shown, two results of tools in a row"),
        ("other side cut", "a longer row is cut"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(PlainTemplate(fault))


def test_an_end_that_is_padding_is_seen() -> None:
    """And marks that are cut from the other side than their ids."""
    assert "end tokens train where padding is the end token" in broken(
        PlainTemplate("end by pad id", pad_id=END)
    )
    assert "a longer row is cut" in broken(
        PlainTemplate("marks cut from the start", conversation_keeps="end")
    )


def test_a_plain_conversation_hides_what_is_about_others() -> None:
    """No system, no tools, no thinking."""
    faults = ("system dropped", "thinking does not train", "results train", "first result dropped")
    assert [broken(PlainTemplate(fault), tidy=True) for fault in faults] == [[], [], [], []]


def test_what_a_template_does_not_know_is_declared() -> None:
    """The laws about it are excluded, with the reason."""
    (relation,) = select(["R16.conversations"])
    stack = PlainTemplate("system dropped", conversation_parts=frozenset({"tools", "thinking"}))
    verdict = run_relation(relation, stack, seeds=[0])
    assert verdict.outcome is Outcome.PASS
    assert "conversation_parts has no system" in verdict.reason


def test_shorter_conversations_keep_the_system() -> None:
    """The first exchange goes."""
    (shorter,) = make_conversation(0, "thinking before").smaller()
    assert [turn.role for turn in shorter.turns] == ["user", "assistant"]
    assert not list(make_conversation(0, "system").smaller())
