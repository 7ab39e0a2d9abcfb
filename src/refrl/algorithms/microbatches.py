"""Cutting a batch into micro-batches: by a number of rows, or by a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Sequence

from refrl.algorithms.batching import Batch


def split_by_rows(num_rows: int, micro_batch_size: int) -> list[list[int]]:
    """Return the rows of each micro-batch, in order; the last one is smaller where the size does not divide.

    Losses divide by global counts, so a smaller micro-batch weighs no row differently.

    Raises:
        ValueError: a number that is not positive.
    """
    if num_rows < 1 or micro_batch_size < 1:
        raise ValueError(f"num_rows={num_rows} and micro_batch_size={micro_batch_size} must be positive")
    rows = list(range(num_rows))
    return [rows[start : start + micro_batch_size] for start in range(0, num_rows, micro_batch_size)]


def split_by_tokens(
    prompt_lens: Sequence[int], completion_lens: Sequence[int], max_tokens: int
) -> list[list[int]]:
    """Return micro-batches that stay within a budget of padded tokens (dynamic batching).

    The padded tokens of a micro-batch are its rows times its longest prompt plus its longest completion. Rows are
    taken from the longest to the shortest, a micro-batch is filled before the next is opened, and every row is in
    exactly one. Deterministic: rows of equal length keep their order.

    Raises:
        ValueError: no rows, or a row that alone exceeds the budget (the message names it).
    """
    if not prompt_lens or len(prompt_lens) != len(completion_lens):
        raise ValueError(
            f"{len(prompt_lens)} prompts and {len(completion_lens)} completions: need as many, and some"
        )
    lengths = [prompt + completion for prompt, completion in zip(prompt_lens, completion_lens, strict=True)]
    micro_batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if lengths[row] > max_tokens:
            raise ValueError(f"row {row} has {lengths[row]} tokens, more than the budget of {max_tokens}")
        grown = [*micro_batches[-1], row] if micro_batches else [row]
        width = max(prompt_lens[member] for member in grown) + max(
            completion_lens[member] for member in grown
        )
        if micro_batches and len(grown) * width <= max_tokens:
            micro_batches[-1] = grown
        else:
            micro_batches.append([row])
    return micro_batches


def micro_batches_by_tokens(batch: Batch, max_tokens: int) -> list[Batch]:
    """Cut a batch by `split_by_tokens`, each micro-batch trimmed to its own longest prompt and completion.

    Raises:
        ValueError: as `split_by_tokens`.
    """
    groups = split_by_tokens(batch.prompt_lens_B.tolist(), batch.completion_lens_B.tolist(), max_tokens)
    return [batch.rows(rows, trim=True) for rows in groups]
