"""Completions of several turns with calls of tools: their script, the template that writes them, and the tools.

A call is written `{name(text=letters)}` after the words of a turn. The tokens between two turns are those that the
template writes: written here a second time, by hand, so that a trainer that puts others there is seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}{{ '{' + call['function']['name'] + '(' }}"
    "{% for key, value in call['function']['arguments'].items() %}{{ key + '=' + value }}{% endfor %}{{ ')}' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% elif message['role'] == 'tool' %}"
    "{{ '#' + message['name'] + ':' + message['content'] + '\\n' }}{% else %}{{ '[' + message['content'] + ']' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<' }}{% endif %}"
)
"""Of user's, assistant's and tools' turns; the line ends after the end token of an answer, as in many templates."""
CALL = re.compile(r"\{(\w+)\((?:text=(\w*))?\)\}")


def shout(text: str) -> str:
    """
    Write a text in capitals.

    Args:
        text: The text.

    Returns:
        The text in capitals.
    """
    return text.upper()


def refuse(text: str) -> str:
    """
    Refuse a text.

    Args:
        text: The text.

    Returns:
        Nothing.
    """
    raise ValueError(f"no {text}")


def mirror(text: str) -> str:
    """
    Write a text backwards.

    Args:
        text: The text.

    Returns:
        The text backwards.
    """
    return text[::-1]


async def _awaited(text: str) -> str:
    return mirror(text)


_awaited.__name__, _awaited.__doc__ = mirror.__name__, mirror.__doc__
ASYNC_TOOLS = "async_tool_dict"
"""A name in the trainer's source where the release awaits tools."""


def tools(*, are_awaited: bool) -> list[Any]:
    """Return the tools; `mirror` is a coroutine function where the release awaits them."""
    return [shout, refuse, _awaited if are_awaited else mirror]


class Environment:
    """An environment of one rollout, which numbers the calls since its last reset."""

    def __init__(self) -> None:
        """Start with a number that no result should show."""
        self._number = 90

    def reset(self, **_: Any) -> str | None:
        """Begin a new rollout, and add nothing to the prompt."""
        self._number = 0
        return None

    def shout(self, text: str) -> str:
        """
        Write a text in capitals, with the number of the call.

        Args:
            text: The text.

        Returns:
            The text in capitals, and the number.
        """
        self._number += 1
        return f"{text.upper()}{self._number}"


class Counting(Environment):
    """An environment that adds to the prompt, numbers calls in small letters, and rewards them."""

    def reset(self, **row: Any) -> str:
        """Begin a new rollout, and return what is added to the prompt."""
        self._number = 0
        return observation(row["place"])

    def shout(self, text: str) -> str:
        """
        Write a text in small letters, with the number of the call.

        Args:
            text: The text.

        Returns:
            The text in small letters, and the number.
        """
        self._number += 1
        return f"{text.lower()}{self._number}"

    def get_reward(self) -> float:
        """Return the reward of the calls of the rollout."""
        return reward_of_calls(self._number)


ENVIRONMENTS: Mapping[str, type[Environment]] = {"loud": Environment, "counting": Counting}
"""By the word in the column `environment`."""


def environment_of(number: int) -> str:
    """Return the kind of environment of an example."""
    return "counting" if number % 3 else "loud"


def observation(number: int) -> str:
    """Return what the counting environment adds to the prompt of an example."""
    return "o" * (number % 4)


def reward_of_calls(number: int) -> float:
    """Return what the counting environment rewards this number of calls with."""
    return number / 4 - 0.3


class Turn(NamedTuple):
    """What the model says in a turn, and what it calls."""

    words: str
    calls: tuple[tuple[str, str], ...] = ()
    number: int | None = None
    """Of the first call, where an environment numbers them."""
    is_small: bool = False
    """Whether the environment answers in small letters."""

    @property
    def text(self) -> str:
        """The turn as the model writes it."""
        return self.words + "".join(f"{{{name}(text={text})}}" for name, text in self.calls)

    @property
    def results(self) -> list[str]:
        """What each call returns; the error of one that raises."""
        if self.number is not None:
            return [
                f"{text if self.is_small else text.upper()}{self.number + place}"
                for place, (_, text) in enumerate(self.calls)
            ]
        return [_result(name, text) for name, text in self.calls]

    @property
    def suffix(self) -> str:
        """The text between the turn and the next one."""
        pairs = zip(self.calls, self.results, strict=True)
        return "\n" + "".join(f"#{name}:{result}\n" for (name, _), result in pairs) + "<"


def _result(name: str, text: str) -> str:
    if name == "refuse":
        return str({"error": f"no {text}"})
    return text.upper() if name == "shout" else text[::-1]


PLANS: Sequence[Sequence[Sequence[str]]] = (
    ((),),
    (("shout",), ()),
    (("mirror",), ("shout",), ()),
    (("shout", "refuse"), ()),
    (("shout", "shout"), ("mirror",), ("shout",), ()),
)
"""The calls of each turn, one completion a line."""
MIXED: Sequence[Sequence[Sequence[str]]] = ((("mirror", "shout"), ()), ((),))
"""A call of a tool that is awaited before one of a tool that is not."""
ENVIRONMENT: Sequence[Sequence[Sequence[str]]] = (
    (("shout",), ("shout", "shout"), ()),
    ((),),
    (("shout", "shout"), ("shout",), ()),
)
"""Calls of an environment's only method."""


def script(rng: Any, letters: Sequence[str], number: int, kind: str) -> tuple[Turn, ...]:
    """Return the turns of a completion, for a kind of `Setup.tools` or of environment."""
    is_numbered, is_small = kind in (*ENVIRONMENTS, "environment"), kind == "counting"
    plans = ENVIRONMENT if is_numbered else MIXED if kind == "mixed" else PLANS

    def word(shortest: int, longest: int) -> str:
        return "".join(map(str, rng.choice(list(letters), size=int(rng.integers(shortest, longest + 1)))))

    turns: list[Turn] = []
    for calls in plans[number % len(plans)]:
        first = 1 + sum(len(turn.calls) for turn in turns) if is_numbered else None
        turns.append(Turn(word(2, 5), tuple((name, word(2, 4)) for name in calls), first, is_small))
    return tuple(turns)


def parsed(text: str) -> dict[str, Any]:
    """Return the message of a sampled turn."""
    calls = [
        {"type": "function", "function": {"name": name, "arguments": {"text": argument}}}
        for name, argument in CALL.findall(text)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text.partition("{")[0]}
    return {**message, "tool_calls": calls} if calls else message


def prepare(tokenizer: Any) -> None:
    """Give a tokenizer the template, and the parser of turns that a trainer looks for."""
    tokenizer.chat_template = TEMPLATE

    def parse_response(ids: Sequence[int], *_: Any, **__: Any) -> dict[str, Any]:
        return parsed(str(tokenizer.decode(list(ids), skip_special_tokens=True)))

    tokenizer.parse_response = parse_response
    tokenizer.response_schema = tokenizer.response_template = {"type": "object"}


def spoken(turns: Sequence[Turn], num_called: int) -> str:
    """Return the contents of all messages, of which so many turns' calls have results."""
    found = []
    for number, turn in enumerate(turns):
        found += [turn.words, *(turn.results if number < num_called else [])]
    return "".join(found)


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the contents of messages."""
    return "".join(str(one["content"]) for one in messages)
