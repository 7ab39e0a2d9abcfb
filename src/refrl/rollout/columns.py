"""Rollouts as columns and tags of the data plane, and back: what comes out is equal to what went in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refrl.data_plane.columns import Value
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example

FIELDS = (
    "input_ids",
    "input_lengths",
    "prompt_lengths",
    "generation_logprobs",
    "token_mask",
    "kept_ids",
    "kept_lengths",
    "rewards",
    "content",
)
"""Tokens of prompt and completion; how many they are, and how many are the prompt's. Of the completion's tokens: the
log-probability, whether each was sampled (an empty row: all were), the ids that the filter of sampling kept, end to
end, and how many at each (empty: no filter was on). The reward, and the rest of a row as JSON."""
TAGS = ("weight_version", "group_id", "reward", "prompt_id")
"""Oldest weights that any row of the group began with, in optimizer steps; number of the group; the verifier's reward,
before any shaping; prompt."""


def to_columns(rollouts: Rollouts) -> dict[str, Value]:
    """Return the fields of rows, jagged where they have a value a token."""
    completions, scores = rollouts.completions, rollouts.scores
    prompt_lens = [len(row.prompt_ids) for row in completions]
    lens = [len(row.prompt_ids) + len(row.ids) for row in completions]
    return {
        "input_ids": _jagged([(*row.prompt_ids, *row.ids) for row in completions], np.int64),
        "input_lengths": torch.tensor(lens),
        "prompt_lengths": torch.tensor(prompt_lens),
        # Python's floats, which are wider than torch's default: they come back as they are.
        "generation_logprobs": _jagged([row.logprobs for row in completions], np.float64),
        "token_mask": _jagged([row.mask or () for row in completions], np.uint8),
        "kept_ids": _jagged([list(chain(*(row.kept_ids or ()))) for row in completions], np.int64),
        "kept_lengths": _jagged([[*map(len, row.kept_ids or ())] for row in completions], np.int64),
        "rewards": torch.tensor(scores.rewards, dtype=torch.float64),
        "content": _objects(_content(rollouts, row) for row in range(len(completions))),
    }


def to_tags(rollouts: Rollouts, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Return the tags of rows, given the number of each row's group."""
    versions: dict[int, int] = {}
    for number, row in zip(numbers, rollouts.completions, strict=True):
        versions[number] = min(row.weight_version, versions.get(number, row.weight_version))
    return [
        {
            "weight_version": versions[number],
            "group_id": number,
            "reward": reward,
            "prompt_id": example.prompt_id,
        }
        for number, reward, example in zip(numbers, rollouts.scores.verified, rollouts.examples, strict=True)
    ]


def from_columns(columns: Mapping[str, Any]) -> Rollouts:
    """Return the rows of fields that were read with the layout `jagged`."""
    content = columns["content"]
    rewards = columns["rewards"].tolist()
    failed = [row["failed"] for row in content]
    penalties = [row["penalty"] for row in content]
    is_shaped = None not in penalties
    return Rollouts(
        examples=[Example(**row["example"]) for row in content],
        completions=_completions(columns),
        texts=[row["text"] for row in content],
        scores=Scores(
            rewards,
            num_errors=sum(failed),
            first_error=next((row["error"] for row in content if row["failed"]), None),
            penalties=penalties if is_shaped else None,
            failed=failed,
            unshaped=[row["verified"] for row in content] if is_shaped else None,
        ),
    )


def _content(rollouts: Rollouts, row: int) -> dict[str, Any]:
    example, completion, scores = rollouts.examples[row], rollouts.completions[row], rollouts.scores
    return {
        "example": dict(vars(example)),
        "text": rollouts.texts[row],
        "finish_reason": completion.finish_reason,
        "weight_version": completion.weight_version,
        "version_segments": [list(segment) for segment in completion.version_segments],
        "failed": scores.failed[row],
        "error": scores.first_error if scores.failed[row] else None,
        "penalty": None if scores.penalties is None else scores.penalties[row],
        "verified": scores.verified[row],
    }


def _completions(columns: Mapping[str, Any]) -> list[Completion]:
    names = ("input_ids", "generation_logprobs", "token_mask", "kept_ids", "kept_lengths")
    lists = zip(*([row.tolist() for row in columns[name]] for name in names), strict=True)
    rows = zip(lists, columns["prompt_lengths"].tolist(), columns["content"], strict=True)
    return [
        Completion(
            prompt_ids=tuple(tokens[:prompt_len]),
            ids=tuple(tokens[prompt_len:]),
            logprobs=tuple(logprobs),
            finish_reason=content["finish_reason"],
            kept_ids=_split(kept, kept_lens) if kept_lens else None,
            weight_version=content["weight_version"],
            version_segments=tuple((first, version) for first, version in content["version_segments"]),
            mask=tuple(mask) or None,
        )
        for (tokens, logprobs, mask, kept, kept_lens), prompt_len, content in rows
    ]


def _split(values: Sequence[int], lens: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    ends = list(accumulate(lens))
    return tuple(tuple(values[end - length : end]) for end, length in zip(ends, lens, strict=True))


def _jagged(rows: Sequence[Sequence[Any]], dtype: type[np.generic]) -> list[Tensor]:
    lens = [len(row) for row in rows]
    return list(torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype, sum(lens))).split(lens))


def _objects(values: Iterable[Any]) -> np.ndarray:
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def to_plain(rollouts: Rollouts) -> dict[str, Any]:
    """Return rollouts as JSON values."""
    return {
        "examples": [asdict(example) for example in rollouts.examples],
        "completions": [asdict(completion) for completion in rollouts.completions],
        "texts": list(rollouts.texts),
        "scores": asdict(rollouts.scores),
    }


def from_plain(fields: Mapping[str, Any]) -> Rollouts:
    """Make rollouts of their plain form.

    Raises:
        ValueError: the columns have different lengths.
    """
    columns = ("examples", "completions", "texts")
    lens = {name: len(fields[name]) for name in columns} | {"rewards": len(fields["scores"]["rewards"])}
    if len(set(lens.values())) > 1:
        raise ValueError(f"rollouts of a checkpoint have columns of lengths {lens}")
    return Rollouts(
        examples=[Example(**example) for example in fields["examples"]],
        completions=[_completion(completion) for completion in fields["completions"]],
        texts=list(fields["texts"]),
        scores=Scores(**fields["scores"]),
    )


def _completion(fields: Mapping[str, Any]) -> Completion:
    """Make a completion of its plain form; lists, as JSON has them, become tuples."""
    return Completion(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
