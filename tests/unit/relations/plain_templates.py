"""Plain chat templates, collators, tiles and cuts of images, which the laws of `R31` accept."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.contracts.utilities import Template
from seatrial.relations.laws.utilities.collated import DEFINITIONS
from seatrial.relations.laws.utilities.images import split
from seatrial.relations.laws.utilities.tiled import (
    divergence,
    divergence_of,
    head,
    sampled_divergence,
    top_divergence,
    weighted_losses,
    with_rest,
    word_probabilities,
    words_of,
)

OWN = Template(
    name="own", trains=False, replaces="", takes_system=True, takes_tools=True, reads=True, thinks=False
)
TRAINING = OWN._replace(name="own_training", trains=True, replaces="own", reads=False)
CALL = re.compile(r"\{call\}(.*?)\{/call\}")
Turns = Sequence[Mapping[str, Any]]


def said(turn: Mapping[str, Any]) -> str:
    """Return a turn's content and calls."""
    calls = [json.dumps(one["function"]) for one in turn.get("tool_calls", ())]
    return turn["content"] + "".join(f"{{call}}{one}{{/call}}" for one in calls)


def written(template: Template, turns: Turns, opens: bool) -> str:
    """Return turns between brackets."""
    return "".join(f"[{one['role']}]{said(one)}<end>" for one in turns) + ("[assistant]" if opens else "")


def trained_spans(template: Template, turns: Turns) -> list[str]:
    """Return what the assistant says, each with its end."""
    return [f"{said(one)}<end>" for one in turns if one["role"] == "assistant"]


def read_answer(template: Template, prompt: str, answer: str, tools: Any) -> dict[str, Any]:
    """Return the turn of a text."""
    calls = [{"type": "function", "function": json.loads(one)} for one in CALL.findall(answer)]
    content = CALL.sub("", answer).removesuffix("<end>")
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def logits_divergence(student: Any, teacher: Any, alpha: float) -> Any:
    """Return the divergence of float64 log-probabilities."""
    return divergence_of(student.double().log_softmax(-1), teacher.double().log_softmax(-1), alpha)


MADE: dict[str, Callable[..., Any]] = {
    "templates": lambda: [OWN, TRAINING],
    "written": written,
    "trained spans": trained_spans,
    "template for training": {"own": "own_training", "own_training": None}.__getitem__,
    "takes tools": lambda template: True,
    "read answer": read_answer,
    "batch of rows": lambda kind, rows, options, pad: DEFINITIONS[kind](rows, options),
    "head in tiles": head,
    "divergence in tiles": divergence,
    "divergence of the largest": top_divergence,
    "divergence of logits": logits_divergence,
    "divergence of log-probabilities": lambda student, teacher, alpha: divergence_of(
        student.double(), teacher.double(), alpha
    ),
    "rest of ids": with_rest,
    "weighted losses": weighted_losses,
    "divergence of sampled ids": sampled_divergence,
    "words of two tokenizers": words_of,
    "probabilities of words": word_probabilities,
    "images of samples": split,
    "images joined again": dict,
}


class Made:
    """A stack with these functions, of which some may be replaced."""

    def __init__(self, **others: Callable[..., Any]) -> None:
        self.utilities: Mapping[str, Callable[..., Any]] = {**MADE, **others}
