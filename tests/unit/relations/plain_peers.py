"""Plain functions of workers, corrections, reward functions and data sets, as R31 defines them."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.laws.utilities.corrections import CORRECTION_FUNCTIONS
from seatrial.relations.laws.utilities.data_sets import prompt_row
from seatrial.relations.laws.utilities.reward_calls import REWARD_FUNCTIONS
from seatrial.relations.laws.utilities.workers import WORKER_FUNCTIONS

END = "."


def prompts(files: Sequence[Sequence[dict[str, Any]]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of all files, the first ones or drawn ones."""
    records = [record for own in files for record in own]
    limit = options.get("max_samples", -1)
    if options.get("shuffle"):
        return [prompt_row(one) for one in random.Random(options["seed"]).sample(records, limit)]
    kept = records[: limit if limit > 0 else len(records) - len(records) % options.get("parts", 1)]
    return [prompt_row(one, options.get("extras", True)) for one in kept]


def pairs(files: Sequence[Sequence[dict[str, str]]], options: Mapping[str, Any]) -> list[Any]:
    """Return letters as ids."""
    end = END if options.get("add_eos", True) else ""
    records = [record for own in files for record in own][: options.get("max_samples")]
    size = options["max_length"]

    def row(text: str) -> tuple[list[int], list[int]]:
        ids = [ord(one) for one in text][:size]
        gap = [0] * (size - len(ids))
        return ids + gap, [1] * len(ids) + gap

    return [
        [row(record["prompt"] + record[name] + end) for name in ("chosen", "rejected")] for record in records
    ]


def messages(turns: Sequence[Mapping[str, str]], media: Mapping[str, Sequence[str]]) -> list[Any]:
    """Return the pieces of each message."""
    left = {kind: iter(names) for kind, names in media.items()}

    def piece(text: str) -> tuple[str, str]:
        kind = text[1:-1]
        return (kind, next(left[kind])) if text in ("<image>", "<video>") else ("text", text)

    return [[piece(one) for one in re.split("(<image>|<video>)", turn["content"]) if one] for turn in turns]


PEERS: Mapping[str, Callable[..., Any]] = {
    **{one.name: one.right for one in (*WORKER_FUNCTIONS, *CORRECTION_FUNCTIONS, *REWARD_FUNCTIONS)},
    "prompts of files": prompts,
    "pairs of files": pairs,
    "messages with media": messages,
}
