"""The sampling loop over a static decoder: blocks of tokens, and a look at what ended between them.

Shapes: P distinct prompts, B rows, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from refrl.generation.base import SamplingParams
from refrl.generation.decoder import pad_prompts
from refrl.generation.decoding import SampledRow, check_finite, compacting_order
from refrl.generation.static.decoder import StaticDecoder


def decode_in_blocks(
    decoder: StaticDecoder,
    prompts: Sequence[tuple[int, ...]],
    params: SamplingParams,
    uniforms_BT: torch.Tensor,
    *,
    stop_ids: frozenset[int],
    pad_token_id: int,
    gives_up: Callable[[], bool] = lambda: False,
) -> list[SampledRow]:
    """Sample a completion for each of B prompts; equal prompts are read into the cache once.

    A row that ends inside a block is cut at its end token; what the block sampled after it is dropped.

    Args:
        decoder: holds the model.
        prompts: ids of each row's prompt.
        params: how tokens are drawn.
        uniforms_BT: the random numbers of each row (`sampling.row_uniforms`), on the decoder's device.
        stop_ids: ids that end a row.
        pad_token_id: fills the unused slots of short prompts.
        gives_up: called after each block; if it returns true, rows that still run are returned as they are.

    Raises:
        FloatingPointError: the model's logits are not finite.
    """
    num_rows, num_tokens = uniforms_BT.shape
    distinct = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    device = uniforms_BT.device
    prompt_of_row_B = torch.tensor([distinct[prompt] for prompt in prompts], device=device)
    decoder.start(pad_prompts(list(distinct), pad_token_id, device), prompt_of_row_B, uniforms_BT, params)

    running = list(range(num_rows))
    ids: list[list[int]] = [[] for _ in range(num_rows)]
    logprobs: list[list[float]] = [[] for _ in range(num_rows)]
    kept: list[list[tuple[int, ...]]] = [[] for _ in range(num_rows)]
    num_sampled, num_read = 1, 0
    while True:
        block_ids, block_logprobs = decoder.sampled(num_read)
        block_kept = decoder.kept()
        lengths = [_length(column, stop_ids) for column in zip(*block_ids, strict=True)]
        taken = torch.tensor(lengths, device=device)
        within = torch.arange(len(block_ids), device=device)[:, None] < taken
        check_finite(block_logprobs[within])
        values = block_logprobs.T.tolist()
        for column, row in enumerate(running):
            ids[row] += [line[column] for line in block_ids[: lengths[column]]]
            logprobs[row] += values[column][: lengths[column]]
        if block_kept is not None:
            _add_kept(kept, running, block_kept & within[..., None], lengths)
        going = [column for column, row in enumerate(running) if ids[row][-1] not in stop_ids]
        num_read = num_sampled
        if not going or num_sampled == num_tokens or gives_up():
            break
        if len(going) < len(running):
            ended = [column for column in range(len(running)) if column not in set(going)]
            order = compacting_order(len(running), ended)
            decoder.keep(order)
            running = [running[column] for column in order]
        block = min(decoder.block_tokens, num_tokens - num_sampled)
        decoder.run(block)
        num_sampled += block
    rows = [SampledRow(tuple(one), tuple(other)) for one, other in zip(ids, logprobs, strict=True)]
    if block_kept is None:
        return rows
    return [replace(row, kept_ids=tuple(own)) for row, own in zip(rows, kept, strict=True)]


def _length(ids: Sequence[int], stop_ids: frozenset[int]) -> int:
    """Return how many of a row's ids count: up to and with the first that ends it."""
    return next((place for place, token in enumerate(ids, start=1) if token in stop_ids), len(ids))


def _add_kept(
    kept: list[list[tuple[int, ...]]], running: Sequence[int], kept_TRV: torch.Tensor, lengths: Sequence[int]
) -> None:
    """Append the kept ids, ascending, of every counted token of a block to its row."""
    counts = kept_TRV.sum(-1).tolist()
    flat = iter(kept_TRV.nonzero()[:, 2].tolist())
    for token, of_rows in enumerate(counts):
        for column, count in enumerate(of_rows):
            if token < lengths[column]:
                kept[running[column]].append(tuple(next(flat) for _ in range(count)))
