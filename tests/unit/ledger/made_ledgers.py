"""A right ledger of long random completions, and writers of the forms that stacks leave it in."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from seatrial.evidence.ledger.schema import LedgerRow

BOS, EOS, PAD = 257, 258, 256
NUM_STEPS, NUM_PROMPTS, GROUP, LIMIT = 3, 4, 4, 12
Rows = list[LedgerRow]
Spoiler = Callable[[Rows], Rows]


def right_ledger(seed: int = 0) -> Rows:
    """Return rows of three steps of four groups of four, every column written and every law kept.

    A token's probability is 1/64 give or take: completions of 8 to 12 tokens cannot repeat by chance. Advantages are
    those of GRPO with a sample deviation, worked out here by hand.
    """
    source = random.Random(seed)
    rows: Rows = []
    for step in range(1, NUM_STEPS + 1):
        for group in range(NUM_PROMPTS):
            rewards = [source.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(GROUP - 2)] + [0.0, 1.0]
            rows += [
                _row(source, step, group * GROUP + place, reward, advantage)
                for place, (reward, advantage) in enumerate(zip(rewards, grpo(rewards), strict=True))
            ]
    return rows


def grpo(rewards: list[float], epsilon: float = 1e-6) -> list[float]:
    """Return (r - mean) / (sample deviation + epsilon)."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (deviation + epsilon) for reward in rewards]


def _row(source: random.Random, step: int, index: int, reward: float, advantage: float) -> LedgerRow:
    number = (step - 1) * NUM_PROMPTS + index // GROUP
    prompt = f"prompt {number}"
    stops = source.random() < 0.5
    letters = [source.randrange(33, 97) for _ in range(source.randrange(8, LIMIT) if stops else LIMIT)]
    sampled = [*letters, EOS] if stops else letters
    sampled = sampled[:LIMIT] if not stops else sampled
    logprobs = tuple(math.log(1 / 64) + source.uniform(-0.5, 0.5) for _ in sampled)
    given = [BOS, *prompt.encode()]
    return LedgerRow(
        step=step,
        index=index,
        prompt_id=number,
        prompt=prompt,
        prompt_text=f"<|bos|>{prompt}",
        completion=bytes(letters).decode(),
        answer="right",
        token_ids=(*given, *sampled),
        prompt_length=len(given),
        loss_mask=(*[0.0] * len(given), *[1.0] * len(sampled)),
        filtered=False,
        generation_logprobs=logprobs,
        prev_logprobs=tuple(value + source.uniform(-1e-6, 1e-6) for value in logprobs),
        reference_logprobs=tuple(value - source.uniform(0, 1e-2) for value in logprobs),
        kept_support_sizes=tuple(source.randrange(2, 64) for _ in sampled),
        reward=reward,
        length_penalty=0.0,
        verifier="somebody's own",
        verifier_error=False,
        advantage=advantage,
        finish_reason="stop" if stops else "length",
        weight_version=step - 1,
    )


def place(rows: Rows, step: int, index: int) -> int:
    """Return where a row stands in the list."""
    return next(number for number, row in enumerate(rows) if (row.step, row.index) == (step, index))


def change(step: int, index: int, /, **fields: object) -> Spoiler:
    """Return a spoiler of one row; a callable makes a cell from the row."""

    def spoil(rows: Rows) -> Rows:
        number = place(rows, step, index)
        cells = {name: value(rows[number]) if callable(value) else value for name, value in fields.items()}
        rows[number] = replace(rows[number], **cells)
        return rows

    return spoil


def exchange(first: tuple[int, int], second: tuple[int, int], *columns: str) -> Spoiler:
    """Return a spoiler that gives two rows one another's cells."""

    def spoil(rows: Rows) -> Rows:
        one, other = rows[place(rows, *first)], rows[place(rows, *second)]
        rows[place(rows, *first)] = replace(one, **{name: getattr(other, name) for name in columns})
        rows[place(rows, *second)] = replace(other, **{name: getattr(one, name) for name in columns})
        return rows

    return spoil


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _steps(rows: Rows) -> list[tuple[int, Rows]]:
    return [(step, [row for row in rows if row.step == step]) for step in sorted({row.step for row in rows})]


def write_refrl(folder: Path, rows: Rows) -> None:
    """Write refrl's form: a line a row, under the names of the schema."""
    for step, of_step in _steps(rows):
        cells = [{key: cell for key, cell in asdict(row).items() if cell is not None} for row in of_step]
        _write(folder / f"train_data_step{step}.jsonl", cells)


def write_nemo_rl(folder: Path, rows: Rows) -> None:
    """Write NeMo RL's form: the tensors of the padded batch, row by row."""
    width = max(len(row.token_ids or ()) for row in rows) + 3

    def padded(before: int, values: Iterable[float], fill: float = 0.0) -> list[float]:
        cells = [fill] * before + list(values)
        return cells + [fill] * (width - len(cells))

    for step, of_step in _steps(rows):
        _write(
            folder / f"train_data_step{step}.jsonl",
            (
                {
                    "idx": row.index,
                    "content": [row.prompt, row.completion],
                    "rewards": row.reward,
                    "input_lengths": len(row.token_ids or ()),
                    "token_ids": padded(0, row.token_ids or (), PAD),
                    "token_loss_mask": padded(0, row.loss_mask or ()),
                    "sample_loss_mask": 1.0,
                    "advantages": [row.advantage] * width,
                    "generation_logprobs": padded(row.prompt_length or 0, row.generation_logprobs or ()),
                    "prev_logprobs": padded(row.prompt_length or 0, row.prev_logprobs or ()),
                }
                for row in of_step
            ),
        )


def write_verl(folder: Path, rows: Rows) -> None:
    """Write verl's form: texts and scores."""
    for step, of_step in _steps(rows):
        _write(
            folder / f"{step}.jsonl",
            (
                {
                    "input": f"user\n{row.prompt}\nassistant\n",
                    "output": row.completion,
                    "gts": row.answer,
                    "score": row.reward,
                    "step": row.step,
                    "acc": row.reward == 1,
                }
                for row in of_step
            ),
        )


def write_trl_table(folder: Path, rows: Rows) -> None:
    """Write TRL's table as JSON, one a step."""
    columns = ["step", "prompt", "completion", "score", "advantage"]
    folder.mkdir(parents=True, exist_ok=True)
    for step, of_step in _steps(rows):
        data = [[row.step, row.prompt, row.completion, row.reward, row.advantage] for row in of_step]
        (folder / f"completions_{step}.table.json").write_text(json.dumps({"columns": columns, "data": data}))


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "refrl": write_refrl,
    "NeMo RL": write_nemo_rl,
    "verl": write_verl,
    "TRL": write_trl_table,
}
