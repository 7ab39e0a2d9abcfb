"""Four rows of each kind of data set of TRL, as texts of letters."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.targets.common.tiny import ORDINARY

NUM_ROWS = 4
LENGTHS = ((3, 2, 5), (6, 4, 1), (1, 6, 3), (4, 1, 4))
"""Letters of the prompt, of an answer and of another one, by row."""
EQUAL = 4


def made_rows(
    kind: str, *, equal: bool, held_out: bool, tokenizer: Any, batch: int = 0
) -> list[dict[str, Any]]:
    """Return the rows of a kind; `equal` gives all prompts one length, and all answers; `batch` other texts."""
    stream = random.Random(f"{kind} {held_out}" + f" {batch}" * (batch > 0))

    def text(length: int) -> str:
        return "".join(stream.choice(ORDINARY) for _ in range(EQUAL if equal else length))

    parts = [tuple(text(length) for length in lengths) for lengths in LENGTHS]
    return [MAKERS[kind](part, number, tokenizer) for number, part in enumerate(parts)]


def _steps(part: Sequence[str], number: int, tokenizer: Any) -> dict[str, Any]:
    return {"prompt": part[0], "completions": [part[1], part[2]], "labels": [True, number % 2 == 0]}


MAKERS: Mapping[str, Callable[[Sequence[str], int, Any], dict[str, Any]]] = {
    "prompts": lambda part, number, tokenizer: {"prompt": part[0]},
    "chats": lambda part, number, tokenizer: {"prompt": [{"role": "user", "content": part[0]}]},
    "privileged": lambda part, number, tokenizer: {"prompt": part[0], "privileged_context": part[1]},
    "pairs": lambda part, number, tokenizer: dict(zip(("prompt", "chosen", "rejected"), part, strict=True)),
    "triples": lambda part, number, tokenizer: {
        **dict(zip(("prompt", "chosen", "rejected"), part, strict=True)),
        "reference": part[1][::-1] + "Q",
    },
    "labels": lambda part, number, tokenizer: {
        "prompt": part[0],
        "completion": part[1],
        "label": number % 2 == 0,
    },
    "steps": _steps,
    "messages": lambda part, number, tokenizer: {
        "messages": [{"role": "user", "content": part[0]}, {"role": "assistant", "content": part[1]}]
    },
    "completions": lambda part, number, tokenizer: {"prompt": part[0], "completion": part[1]},
    "ids": lambda part, number, tokenizer: {"input_ids": tokenizer(part[0])["input_ids"]},
}


def with_turns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of texts as one of conversations."""
    return {
        name: [{"role": ROLES[name], "content": value}] if name in ROLES else value
        for name, value in row.items()
    }


def with_several_turns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as a conversation in which a system, a user and an assistant have spoken before."""
    made = with_turns(row) if isinstance(row.get("prompt"), str) else row
    place = "messages" if "messages" in row else "prompt"
    asked = made[place][0]["content"]
    before = [
        {"role": "system", "content": f"S{asked[:1]}"},
        {"role": "user", "content": f"{asked[::-1]}B"},
        {"role": "assistant", "content": f"A{asked}"},
    ]
    return {**made, place: [*before, *made[place]]}


def as_pairs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return pairs of answers in place of rows with labels."""
    half = len(rows) // 2
    return [
        {
            "prompt": row["prompt"],
            "chosen": f"C{row['completion']}",
            "rejected": f"R{other['completion']}",
        }
        for row, other in zip(rows[:half], rows[half:], strict=True)
    ]


def as_joined_pairs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `as_pairs` with prompts that are the beginning of both answers."""
    return [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")} for row in as_pairs(rows)]


def pairs_as_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with labels that `as_pairs` are: the chosen answers first."""
    return [
        {"prompt": row["prompt"], "completion": row[name], "label": name == "chosen"}
        for name in ("chosen", "rejected")
        for row in as_pairs(rows)
    ]


OF_ALL_ROWS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]] = {
    "pairs": as_pairs,
    "joined pairs": as_joined_pairs,
    "pairs as rows": pairs_as_rows,
}
PAIRED = ("pairs", "joined pairs")
"""Variations of `OF_ALL_ROWS`: forms of the same rows with labels."""


def prompt_of(row: Mapping[str, Any], tokenizer: Any) -> str:
    """Return the text of a row's prompt."""
    if "input_ids" in row:
        return str(tokenizer.decode(row["input_ids"]))
    prompt = row["messages"][:1] if "messages" in row else row["prompt"]
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def as_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of texts that the template of `tiny` makes of the same conversations."""
    return {
        name: f"<|im_start|>user\n{value}<|im_end|><|im_start|>assistant\n" if name == "prompt" else value
        for name, value in row.items()
    }


ROLES: Mapping[str, str] = {
    "prompt": "user",
    **dict.fromkeys(("chosen", "rejected", "reference", "completion"), "assistant"),
}


def rewards_of(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
    """Return a reward of each completion, 0 or 1, which depends on its text alone."""
    return [float(sum(map(ord, _text(one))) % 2) for one in completions]


def graded(prompts: Sequence[Any], completions: Sequence[Any], grade: Sequence[int], **_: Any) -> list[float]:
    """Return a reward of each completion that depends on a column too."""
    return [
        (sum(map(ord, _text(one))) + 3 * number) % 5 / 4
        for one, number in zip(completions, grade, strict=True)
    ]


def graded_in_part(
    prompts: Sequence[Any], completions: Sequence[Any], grade: Sequence[int], **_: Any
) -> list[float | None]:
    """Return `graded`, and none for every third completion or so."""
    given = graded(prompts, completions, grade)
    return [
        None if sum(map(ord, _text(one))) % 3 == 0 else value
        for one, value in zip(completions, given, strict=True)
    ]


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
