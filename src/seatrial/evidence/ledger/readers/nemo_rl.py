"""NeMo RL's rows: `train_data_step<N>.jsonl` with `idx` and a cell of each tensor of the padded batch.

Source: nemo_rl/algorithms/grpo.py (`log_data`) and nemo_rl/utils/logger.py (`log_batched_dict_as_jsonl`), main at
2026-11. Columns by token run over the padded row: place t holds the log-probability of token t, 0 in the prompt and in
padding. Earlier versions write no tokens and no mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.evidence.ledger.readers.base import (
    Numbers,
    ReadOptions,
    integer,
    integers,
    number,
    numbers,
    optional,
    required,
    rows_by_step,
)
from seatrial.evidence.ledger.schema import LedgerRow

NAME = "NeMo RL"
FILE = re.compile(r"train_data_step(\d+)\.jsonl")
_SAME = 1e-6
"""Spread of advantages over a row's tokens that is rounding, relative to the largest."""


class _Cells(NamedTuple):
    """The padded columns of a row, None where they are not written."""

    length: int
    token_ids: tuple[int, ...] | None
    mask: tuple[float, ...] | None
    sampled: tuple[float, ...] | None
    scored: tuple[float, ...] | None

    @property
    def start(self) -> int:
        """Place of the first token of the completion: the first that the loss counts, or else that was sampled."""
        for column in (self.mask, self.sampled):
            first = next((place for place, value in enumerate(column or ()) if value), None)
            if first is not None:
                return first
        return self.length


def claims(file: Path, row: Mapping[str, Any] | None) -> bool:
    """Say whether rows have NeMo RL's number and rewards."""
    return bool(FILE.fullmatch(file.name)) and row is not None and {"idx", "rewards"} <= row.keys()


def read(files: Sequence[Path], options: ReadOptions) -> list[LedgerRow]:
    """Read NeMo RL's rows; prompts are identified by their tokens, else by their text or order.

    Raises:
        BlockedError: a row is damaged.
        OSError: a file cannot be read.
    """
    prompts = Numbers()
    return rows_by_step(files, FILE, options, lambda row, step, _: _row(row, step, prompts, options))


def _row(row: Mapping[str, Any], step: int, prompts: Numbers, options: ReadOptions) -> LedgerRow:
    index = required(row, "idx", integer)
    cells = _cells(row)
    prompt, completion = _texts(row.get("content"))
    advantage, by_token = _advantage(row, cells)
    kept = optional(row, "sample_loss_mask", number)
    key: object = prompt if prompt is not None else (step, index // (options.group_size or 1))
    if cells.token_ids is not None:
        key = cells.token_ids[: cells.start]
    return LedgerRow(
        step=step,
        index=index,
        prompt_id=prompts(key),
        prompt=prompt,
        completion=completion,
        token_ids=None if cells.token_ids is None else cells.token_ids[: cells.length],
        prompt_length=None if cells.token_ids is None else cells.start,
        loss_mask=cells.mask,
        filtered=None if kept is None else kept == 0,
        generation_logprobs=_of_completion(cells.sampled, cells),
        prev_logprobs=_of_completion(cells.scored, cells),
        reward=optional(row, "filtered_rewards" if "filtered_rewards" in row else "rewards", number),
        advantage=advantage,
        token_advantages=by_token,
        misplaced=tuple(_misplaced(cells)),
    )


def _cells(row: Mapping[str, Any]) -> _Cells:
    """Return the padded columns.

    Raises:
        ValueError: they differ in length, or are shorter than the row.
    """
    cells = _Cells(
        length=required(row, "input_lengths", integer),
        token_ids=optional(row, "token_ids", integers),
        mask=optional(row, "token_loss_mask", numbers),
        sampled=optional(row, "generation_logprobs", numbers),
        scored=optional(row, "prev_logprobs", numbers),
    )
    widths = {len(column) for column in cells[1:] if column is not None}
    if len(widths) > 1 or not 0 < cells.length <= max(widths, default=cells.length):
        raise ValueError(f"columns of {sorted(widths)} tokens for a row of {cells.length}")
    return cells


def _of_completion(column: tuple[float, ...] | None, cells: _Cells) -> tuple[float, ...] | None:
    return None if column is None else column[cells.start : cells.length]


def _misplaced(cells: _Cells) -> Iterator[str]:
    """Yield what the sampler logged where the loss says that nothing was sampled."""
    if cells.sampled is None or cells.mask is None:
        return
    for name, places in (
        ("prompt", range(cells.start)),
        ("padding", range(cells.length, len(cells.sampled))),
    ):
        if odd := [place for place in places if cells.sampled[place]]:
            yield (
                f"the mask leaves out {len(odd)} sampled tokens, the first at {odd[0]}: it takes them for {name}"
            )


def _texts(content: object) -> tuple[str | None, str | None]:
    """Return prompt and completion of a conversation's messages; a longer conversation has no single completion."""
    if (
        not isinstance(content, list)
        or len(content) < 2
        or not all(isinstance(text, str) for text in content)
    ):
        return None, None
    return content[0], content[1] if len(content) == 2 else None


def _advantage(row: Mapping[str, Any], cells: _Cells) -> tuple[float | None, tuple[float, ...] | None]:
    """Return the row's advantage, or those of its tokens where they are not one number."""
    if not isinstance(row.get("advantages"), list):
        return optional(row, "advantages", number), None
    values = required(row, "advantages", numbers)
    if len(values) == 1:
        return values[0], None
    mask = cells.mask or (1.0,) * len(values)
    own = slice(cells.start, cells.length)
    trained = [value for value, weight in zip(values[own], mask[own], strict=False) if weight]
    if not trained:
        return (values[0], None) if len(set(values)) == 1 else (None, values)
    spread = max(trained) - min(trained)
    # A NaN makes the spread NaN: "not >" would take it for one number.
    if spread <= _SAME * max(1.0, abs(trained[0])) or all(value != value for value in trained):
        return trained[0], None
    return None, tuple(trained)
