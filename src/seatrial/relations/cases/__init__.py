"""The case generator: rollouts that are adversarial by default, from a seed.

Equal, tidy inputs hide the bugs that relations look for. The default rollout has prompts and completions of unequal
length, groups of unequal size whose rows are not adjacent, one fully masked row, one completion of a single token,
one group of identical rewards, one long row, tool output in the middle of a completion, ids that equal the pad and
end ids, and advantages of both signs; the policy has moved beyond both bounds of the usual clip. `tidy` switches all
of that off: what is left is what most tests of other projects use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.facts import facts_of
from seatrial.relations.records import Row


@dataclass(frozen=True, kw_only=True)
class Rollout(Case):
    """Rows of one optimizer batch with the facts that are common to them."""

    rows: tuple[Row, ...]
    vocab_size: int
    temperature: float
    pad_id: int
    eos_id: int
    seed: int
    tidy: bool = False
    """Whether the traps are off; relations then apply a tidy transformation too (halves, reversed order)."""

    def smaller(self) -> Iterator[Rollout]:
        """Yield rollouts with fewer rows, then shorter ones, then with temperature 1."""
        half = len(self.rows) // 2
        if half > 1:
            yield replace(self, rows=self.rows[:half])
            yield replace(self, rows=self.rows[half:])
        if len(self.rows) > 1:
            for drop in range(len(self.rows)):
                yield replace(self, rows=self.rows[:drop] + self.rows[drop + 1 :])
        for index, row in enumerate(self.rows):
            for shorter in _shorter(row):
                yield replace(self, rows=(*self.rows[:index], shorter, *self.rows[index + 1 :]))
        if self.temperature != 1.0:
            yield replace(self, temperature=1.0)

    def describe(self) -> Mapping[str, Any]:
        """Return the rollout as JSON values."""
        return {
            "vocab_size": self.vocab_size,
            "temperature": self.temperature,
            "pad_id": self.pad_id,
            "eos_id": self.eos_id,
            "seed": self.seed,
            "rows": [
                {
                    "prompt_ids": list(row.prompt_ids),
                    "completion_ids": list(row.completion_ids),
                    "completion_mask": list(row.completion_mask),
                    "prompt_id": row.prompt_id,
                    "reward": row.reward,
                    "advantage": round(row.advantage, 6),
                }
                for row in self.rows
            ],
        }


def _shorter(row: Row) -> Iterator[Row]:
    length = len(row.completion_ids)
    if length > 1:
        keep = slice(0, max(1, length // 2))
        yield replace(
            row,
            completion_ids=row.completion_ids[keep],
            completion_mask=row.completion_mask[keep],
            sampling_logprobs=row.sampling_logprobs[keep],
            old_logprobs=row.old_logprobs[keep],
            ref_logprobs=row.ref_logprobs[keep],
        )
    if len(row.prompt_ids) > 1:
        yield replace(row, prompt_ids=row.prompt_ids[: len(row.prompt_ids) // 2])


def rollout_for(stack: Any, seed: int, tidy: bool, **more: Any) -> Rollout:
    """Return a rollout that the stack's declared facts allow; see `make_rollout`."""
    masked_row = more.pop("masked_row", facts_of(stack).masked_rows)
    return make_rollout(seed, tidy=tidy, masked_row=masked_row, **more)


def square_rollout(stack: Any, seed: int, tidy: bool) -> Rollout:
    """Return a rollout with as many rows as its longest completion has tokens, without a fully masked row.

    One number a row, and one number a token of a row, then have shapes that broadcast against each other unnoticed.
    """
    rollout = rollout_for(stack, seed, tidy, masked_row=False)
    rows = sorted(rollout.rows, key=lambda row: -len(row.completion_ids))
    num_rows = len(rows[0].completion_ids)
    kept = [row for row in rollout.rows if row in rows[:num_rows]][:num_rows]
    return replace(rollout, rows=tuple(kept))


def rollout_of_model(stack: Any, seed: int, tidy: bool) -> Rollout:
    """Return a small rollout whose ids are of the stack's own vocabulary."""
    return rollout_for(stack, seed, tidy, vocab_size=stack.vocab_size, num_prompts=3, num_generations=2)


@lru_cache(maxsize=256)
def make_rollout(
    seed: int,
    *,
    vocab_size: int = 37,
    num_prompts: int = 4,
    num_generations: int = 3,
    tidy: bool = False,
    pad_id: int = 0,
    eos_id: int = 1,
    masked_row: bool = True,
    ends_inside: bool = False,
    longest_prompt: int = 7,
    longest_completion: int = 11,
) -> Rollout:
    """Return a rollout; the same seed and arguments give the same one, which is cached: it is immutable.

    Args:
        seed: of everything that is drawn.
        vocab_size: ids are below it.
        num_prompts: groups.
        num_generations: rows of each group; one group has one fewer.
        tidy: without traps, all rows of one length.
        pad_id: also occurs inside completions.
        eos_id: ends most completions.
        masked_row: whether one row has no training token.
        ends_inside: whether end tokens may occur before the end, with tokens after them.
        longest_prompt: in tokens.
        longest_completion: in tokens.
    """
    rng = np.random.default_rng([seed, vocab_size, num_prompts, num_generations, int(tidy)])
    rows = []
    for prompt in range(num_prompts):
        prompt_len = 4 if tidy else int(rng.integers(1, longest_prompt + 1))
        prompt_ids = _ids(rng, prompt_len, vocab_size, avoid=(pad_id, eos_id) if tidy else ())
        for generation in range(num_generations):
            length = 6 if tidy else int(rng.integers(1, longest_completion + 1))
            row = _row(rng, prompt, generation, prompt_ids, length, vocab_size, pad_id, eos_id, tidy)
            rows.append(row if tidy else _with_ends(row, eos_id, ends_inside))
    if not tidy:
        rows = _set_traps(rng, rows, num_generations, masked_row)
    return Rollout(
        rows=tuple(rows),
        vocab_size=vocab_size,
        temperature=1.0 if tidy else 0.7,
        pad_id=pad_id,
        eos_id=eos_id,
        seed=seed,
        tidy=tidy,
    )


def _ids(rng: np.random.Generator, count: int, vocab_size: int, avoid: tuple[int, ...]) -> tuple[int, ...]:
    allowed = [token for token in range(vocab_size) if token not in avoid]
    return tuple(int(token) for token in rng.choice(allowed, size=count))


def _row(
    rng: np.random.Generator,
    prompt: int,
    generation: int,
    prompt_ids: tuple[int, ...],
    length: int,
    vocab_size: int,
    pad_id: int,
    eos_id: int,
    tidy: bool,
) -> Row:
    ids = list(_ids(rng, length, vocab_size, avoid=(pad_id, eos_id) if tidy else ()))
    if not tidy and rng.random() < 0.7:
        ids[-1] = eos_id
    if not tidy and length > 3:
        ids[int(rng.integers(0, length - 1))] = pad_id
    old = -np.abs(rng.normal(2.0, 1.0, size=length)) - 0.01
    spread = 0.02 if tidy else 0.3
    return Row(
        prompt_ids=prompt_ids,
        completion_ids=tuple(ids),
        completion_mask=(1,) * length,
        prompt_id=100 + 7 * prompt,
        reward=float(generation % 2) if tidy else float(np.round(rng.normal(0.3, 1.0), 3)),
        advantage=float(2 * (generation % 2) - 1) if tidy else float(rng.normal()),
        sampling_logprobs=tuple((old + rng.normal(0, spread, size=length)).tolist()),
        old_logprobs=tuple(old.tolist()),
        ref_logprobs=tuple((old + rng.normal(0, spread, size=length)).tolist()),
    )


def _with_ends(row: Row, eos_id: int, inside: bool) -> Row:
    """Return the row with an end token in its middle, or with none before its last token."""
    ids = list(row.completion_ids)
    if inside and len(ids) > 2:
        ids[len(ids) // 2] = eos_id
    elif not inside:
        ids[:-1] = [eos_id + 1 if token == eos_id else token for token in ids[:-1]]
    return replace(row, completion_ids=tuple(ids))


def _set_traps(
    rng: np.random.Generator, rows: list[Row], num_generations: int, masked_row: bool
) -> list[Row]:
    """Add one fully masked row, one single token, one group of equal rewards, tool output, a smaller group."""
    one = min(1, len(rows) - 1)
    if masked_row:
        rows[0] = replace(rows[0], completion_mask=(0,) * len(rows[0].completion_mask))
    single = rows[one]
    rows[one] = replace(
        single,
        completion_ids=single.completion_ids[:1],
        completion_mask=(1,),
        sampling_logprobs=single.sampling_logprobs[:1],
        old_logprobs=single.old_logprobs[:1],
        ref_logprobs=single.ref_logprobs[:1],
    )
    for index in range(len(rows) - num_generations, len(rows)):
        rows[index] = replace(rows[index], reward=0.7)
    middle = len(rows) // 2
    if num_generations > 1 and len(rows) > 2 * num_generations:
        del rows[num_generations + 1]
    if len(rows[middle].completion_ids) > 4:
        mask = list(rows[middle].completion_mask)
        mask[1:3] = [0, 0]
        rows[middle] = replace(rows[middle], completion_mask=tuple(mask))
    return [rows[int(index)] for index in rng.permutation(len(rows))]
