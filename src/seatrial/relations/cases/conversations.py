"""Made conversations: system turns, tools, thinking, each with words that occur nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from seatrial.relations.cases.case import Case

Part = Literal["system", "tools", "thinking"]


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool with one argument."""

    name: str
    words: tuple[str, ...]
    listed: bool = False
    """Whether the argument is a list of words."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The argument by its name."""
        return {"city": list(self.words) if self.listed else self.words[0]}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    """What the assistant wrote before its answer."""
    calls: tuple[ToolCall, ...] = ()

    @property
    def pieces(self) -> tuple[str, ...]:
        """The words that the served turn must have, in order."""
        calls = [piece for call in self.calls for piece in (call.name, *call.words)]
        return tuple(piece for piece in (self.thinking, self.content, *calls) if piece)

    def message(self) -> dict[str, Any]:
        """Return the form that chat templates take; thinking is in `reasoning_content`."""
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls
        ]
        return {
            "role": self.role,
            "content": self.content,
            **({"reasoning_content": self.thinking} if self.thinking is not None else {}),
            **({"tool_calls": calls} if calls else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Conversation(Case):
    """Turns of which the last is the assistant's."""

    turns: tuple[Turn, ...]
    tools: tuple[str, ...] = ()
    """Names of the tools that the model may call."""
    seed: int = 0

    def smaller(self) -> Iterator[Conversation]:
        """Yield the conversation without its first exchange of user and assistant."""
        roles = [turn.role for turn in self.turns]
        if roles.count("user") > 1:
            second = [place for place, role in enumerate(roles) if role == "user"][1]
            kept = tuple(turn for turn in self.turns[:1] if turn.role == "system")
            yield replace(self, turns=(*kept, *self.turns[second:]))

    def describe(self) -> Mapping[str, Any]:
        """Return messages and tools as JSON values."""
        return {"seed": self.seed, "messages": self.messages(), "tools": list(self.tools)}

    def upto(self, count: int) -> Conversation:
        """Return the conversation of the first turns."""
        return replace(self, turns=self.turns[:count])

    def messages(self) -> list[dict[str, Any]]:
        """Return the turns in the form that chat templates take."""
        return [turn.message() for turn in self.turns]

    def schemas(self) -> list[dict[str, Any]]:
        """Return the tools in the form that chat templates take."""
        argument = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        return [
            {
                "type": "function",
                "function": {"name": name, "description": f"Look up {name}.", "parameters": argument},
            }
            for name in self.tools
        ]


Kind = Literal["plain", "system", "thinking", "thinking before", "tool", "two tools"]
NEEDS: Mapping[Kind, tuple[Part, ...]] = {
    "plain": (),
    "system": ("system",),
    "thinking": ("thinking",),
    "thinking before": ("thinking",),
    "tool": ("tools",),
    "two tools": ("tools",),
}
"""What a template must support to render a conversation of a kind."""


def make_conversation(seed: int, kind: Kind) -> Conversation:
    """Return a conversation of one kind; every word is drawn and occurs once.

    Args:
        seed: of the words.
        kind: `thinking` has thinking in its one answer, `thinking before` in two; `tool` has a call, its result
            and an answer; `two tools` has two calls with lists in one turn, and two
            results in a row.
    """
    words = _words(seed)

    def said(role: Literal["system", "user", "assistant", "tool"], **more: Any) -> Turn:
        return Turn(role=role, content=next(words), **more)

    def called(count: int) -> Turn:
        calls = tuple(
            ToolCall(
                name=f"find_{next(words)}",
                words=tuple(next(words) for _ in range(number + 1)),
                listed=count > 1,
            )
            for number in range(count)
        )
        return Turn(role="assistant", calls=calls)

    turns: Sequence[Turn]
    if kind == "system":
        turns = (said("system"), said("user"), said("assistant"))
    elif kind == "thinking":
        turns = (said("user"), said("assistant", thinking=next(words)))
    elif kind == "thinking before":
        turns = tuple(
            turn for _ in range(2) for turn in (said("user"), said("assistant", thinking=next(words)))
        )
    elif kind in ("tool", "two tools"):
        count = 1 if kind == "tool" else 2
        turns = (said("user"), called(count), *(said("tool") for _ in range(count)), said("assistant"))
    else:
        turns = (said("user"), said("assistant"), said("user"), said("assistant"))
    tools = tuple(call.name for turn in turns for call in turn.calls)
    return Conversation(turns=tuple(turns), tools=tools, seed=seed)


def _words(seed: int) -> Iterator[str]:
    """Yield words of letters that do not repeat, and none of which is in another."""
    rng = np.random.default_rng([seed, 16])
    number = 0
    while True:
        letters = "".join(chr(ord("b") + int(letter)) for letter in rng.integers(0, 20, size=4))
        yield f"{letters}z{chr(ord('A') + number % 26)}"
        number += 1
