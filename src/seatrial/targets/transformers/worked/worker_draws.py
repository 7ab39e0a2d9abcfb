"""Worked examples of Transformers' collators with a seed in workers of a DataLoader: each worker draws by its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import PAD, START, tiny_tokenizer
from seatrial.targets.common.worked_rows import Row

SEED, NUM_ROWS, NUM_WORKERS, LONGEST = 7, 6, 2, 64
Batches = list[tuple[list[Any], list[Any]]]
"""Ids and labels of each."""


def _tokenizer() -> Any:
    made = tiny_tokenizer()
    made.add_special_tokens({"mask_token": START, "pad_token": PAD})
    return made


def _collator(made: Any, options: Mapping[str, Any], seed: int) -> Any:
    try:
        return made(_tokenizer(), mlm_probability=0.4, seed=seed, **options)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise NotServed(str(error)) from error


def _rows() -> list[dict[str, list[int]]]:
    return [{"input_ids": list(range(10 + row, 10 + row + LONGEST))} for row in range(NUM_ROWS)]


def _values(batch: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    return batch["input_ids"].tolist(), batch["labels"].tolist()


def _places(batch: tuple[list[Any], list[Any]]) -> list[Any]:
    return [[label == -100 for label in row] for row in batch[1]]


def _loaded(collate: Any, **options: Any) -> Batches:
    loader: Any = torch.utils.data.DataLoader
    rows: Any = _rows()
    return [_values(batch) for batch in loader(rows, batch_size=1, collate_fn=collate, **options)]


def _drawn(made: Any, options: Mapping[str, Any]) -> Batches:
    """Return the batches of workers by the definition: worker w gets every batch of its turn, and draws by seed + w."""
    rows: Any = _rows()
    found: Batches = [([], [])] * NUM_ROWS
    for worker in range(NUM_WORKERS):
        collate = _collator(made, options, SEED + worker)
        for number in range(worker, NUM_ROWS, NUM_WORKERS):
            found[number] = _values(collate([rows[number]]))
    return found


def _workers(options: Mapping[str, Any], made: Any) -> list[str]:
    """Return where workers do not draw by seeds of their own, with any number of draws before they are forked."""
    wrong, rows = [], _rows()
    due = _drawn(made, options)
    alone = _collator(made, options, SEED)
    one_process = [_values(alone([row])) for row in rows]
    forked: dict[str, Any] = {"num_workers": NUM_WORKERS, "multiprocessing_context": "fork", "timeout": 60}
    for before in (0, 1, 2):
        what = f"{before} batches before"
        collate = _collator(made, options, SEED)
        found = [_values(collate([row])) for row in rows[:before]]
        if found != one_process[:before]:
            wrong.append(f"{what}: other draws in the first process")
        for epoch in range(2):
            found = _loaded(collate, **forked)
            if _places(found[0]) == _places(found[1]):
                wrong.append(f"{what}, epoch {epoch}: two workers draw the same")
            if found != due:
                wrong.append(f"{what}, epoch {epoch}: other draws than of the seeds of the workers")
        rest = [_values(collate([row])) for row in rows[before:]]
        if rest != one_process[before:]:
            wrong.append(f"{what}: the first process continues with other draws after its workers")
    if _loaded(_collator(made, options, SEED)) != one_process:
        wrong.append("no workers: other draws")
    return wrong[:4]


MASKS = "transformers:DataCollatorForLanguageModeling"
FORMS: Mapping[str, Mapping[str, Any]] = {
    "torch": {},
    "NumPy": {"return_tensors": "np"},
    "tokens at random": {"mask_replace_prob": 0.5, "random_replace_prob": 0.5},
}
# Source: the documentation of DataCollatorForLanguageModeling: the seed of a worker is the seed and its number.
WORKER_ROWS: Sequence[Row] = tuple(
    Row("batches", MASKS, f"draws of workers, {name}", partial(_workers, options), [], since="5.24")
    for name, options in FORMS.items()
)
