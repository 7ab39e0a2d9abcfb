"""The sampling loop: prefill distinct prompts once, draw a token per row, drop rows that are finished.

Shapes: P distinct prompts, B rows, R rows that still run, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from refrl.generation.base import FinishReason, SamplingParams
from refrl.generation.decoder import Decoder, pad_prompts
from refrl.generation.sampling import draw
from refrl.media import stack


class KeptRecorder:
    """The kept ids of each row's tokens, in the order in which they were sampled.

    The ids of a step lie end to end (int32), so that a flat distribution, which keeps most of a large vocabulary,
    costs its own ids and does not widen those of the other rows.
    """

    def __init__(self) -> None:
        """Start without a token."""
        self._steps: list[tuple[Sequence[int], Sequence[int]]] = []
        self._ids_M: list[torch.Tensor] = []

    @property
    def has_any(self) -> bool:
        """Whether a filter was on."""
        return bool(self._steps)

    def add(self, rows: Sequence[int], kept_RV: torch.Tensor, counts: Sequence[int]) -> None:
        """Record one token of each of these rows.

        Args:
            rows: the row that each line of `kept_RV` belongs to; not changed afterwards.
            kept_RV: true on kept ids.
            counts: how many each line has. The host knows them, so the device is not waited for.
        """
        self._steps.append((rows, counts))
        self._ids_M.append(torch.nonzero_static(kept_RV, size=sum(counts))[:, 1].int())

    def rows(self, num_rows: int) -> list[tuple[tuple[int, ...], ...]]:
        """Return the kept ids, ascending, of every token of each row."""
        ids = torch.cat(self._ids_M).tolist()
        gathered: list[list[tuple[int, ...]]] = [[] for _ in range(num_rows)]
        start = 0
        for rows, counts in self._steps:
            for row, count in zip(rows, counts, strict=True):
                gathered[row].append(tuple(ids[start : start + count]))
                start += count
        return [tuple(kept) for kept in gathered]


@dataclass(frozen=True)
class SampledRow:
    """What was sampled for one row."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    kept_ids: tuple[tuple[int, ...], ...] | None = None
    """Ids that the filters kept at each token; None where none is on."""


@dataclass
class _Running:
    """The rows that still run, in the order of the decoder's cache; column r belongs to row `rows[r]`."""

    rows: list[int]
    uniforms_TR: torch.Tensor
    ids_TR: torch.Tensor
    logprobs_TR: torch.Tensor

    def harvest(self, columns: Sequence[int], num_tokens: int, into: list[SampledRow | None]) -> None:
        """Write the first `num_tokens` tokens of these columns to their rows.

        Raises:
            FloatingPointError: a log-probability is not finite.
        """
        ids_TR, logprobs_TR = self.ids_TR[:num_tokens, columns], self.logprobs_TR[:num_tokens, columns]
        check_finite(logprobs_TR)
        for column, ids, logprobs in zip(columns, ids_TR.T.tolist(), logprobs_TR.T.tolist(), strict=True):
            into[self.rows[column]] = SampledRow(tuple(ids), tuple(logprobs))

    def keep(self, columns: torch.Tensor) -> None:
        """Keep these columns, in this order."""
        self.rows = [self.rows[column] for column in columns.tolist()]
        self.uniforms_TR = self.uniforms_TR[:, columns]
        self.ids_TR = self.ids_TR[:, columns]
        self.logprobs_TR = self.logprobs_TR[:, columns]


def check_finite(logprobs: torch.Tensor) -> None:
    """Refuse log-probabilities that no distribution has.

    Raises:
        FloatingPointError: one is not finite.
    """
    if not bool(torch.isfinite(logprobs).all()):
        raise FloatingPointError(
            "the model's logits are not finite, so there is no distribution to sample from: look for NaN in the "
            "weights (a diverged or half-loaded model)"
        )


def decode(
    decoder: Decoder,
    prompts: Sequence[tuple[int, ...]],
    params: SamplingParams,
    uniforms_BT: torch.Tensor,
    *,
    stop_ids: frozenset[int],
    pad_token_id: int,
    gives_up: Callable[[], bool] = lambda: False,
    media: Sequence[str | None] | None = None,
) -> list[SampledRow]:
    """Sample a completion for each of B prompts; equal prompts are read into the cache once.

    Args:
        uniforms_BT: the random numbers of each row (`sampling.row_uniforms`), on the decoder's device.
        stop_ids: ids that end a row.
        pad_token_id: fills the unused slots of short prompts.
        gives_up: asked after each token; where it says so, rows that still run are returned as they are.
        media: image or sound of each prompt; prompts with different ones are different.

    Raises:
        FloatingPointError: the model's logits are not finite.
    """
    device = uniforms_BT.device
    num_rows, num_tokens = uniforms_BT.shape
    keys = list(zip(prompts, media or [None] * num_rows, strict=True))
    distinct = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    prompt_of_row_B = torch.tensor([distinct[key] for key in keys], device=device)
    padded = pad_prompts([prompt for prompt, _ in distinct], pad_token_id, device)
    padded = replace(padded, media=stack([one for _, one in distinct]))
    logits_RV = decoder.prefill(padded)[prompt_of_row_B]
    decoder.expand(prompt_of_row_B)

    running = _Running(
        rows=list(range(num_rows)),
        uniforms_TR=uniforms_BT.T.contiguous(),
        ids_TR=torch.empty(num_tokens, num_rows, dtype=torch.long, device=device),
        logprobs_TR=torch.empty(num_tokens, num_rows, device=device),
    )
    sampled: list[SampledRow | None] = [None] * num_rows
    recorder = KeptRecorder()
    for token in range(num_tokens):
        if token > 0:
            logits_RV = decoder.step(running.ids_TR[token - 1])
        ids_R, logprobs_R, kept_RV = draw(logits_RV, running.uniforms_TR[token], params)
        running.ids_TR[token] = ids_R
        running.logprobs_TR[token] = logprobs_R
        if kept_RV is None:
            sampled_ids = ids_R.tolist()
        else:
            # One transfer for both: the device is waited for once a token, as without a filter.
            sampled_ids, counts = torch.stack([ids_R, kept_RV.sum(-1)]).tolist()
            recorder.add(running.rows, kept_RV, counts)
        ended = [column for column, sampled_id in enumerate(sampled_ids) if sampled_id in stop_ids]
        if ended:
            running.harvest(ended, token + 1, sampled)
            if len(ended) == len(running.rows):
                return _complete(sampled, recorder)
            going = torch.tensor(compacting_order(len(running.rows), ended), device=device)
            running.keep(going)
            decoder.keep(going)
        if gives_up():
            break
    running.harvest(range(len(running.rows)), token + 1, sampled)
    return _complete(sampled, recorder)


def finish_reason(ids: Sequence[int], params: SamplingParams, stop_ids: Collection[int]) -> FinishReason:
    """Return why a row ended after these ids."""
    if ids[-1] in stop_ids:
        return "stop"
    return "length" if len(ids) == params.max_new_tokens else "abort"


def compacting_order(num_rows: int, ended: Sequence[int]) -> list[int]:
    """Return the indices of the unfinished rows, such that as few as possible change their place.

    An unfinished row stays where it is or, if it is beyond the new end, moves into the place of a finished one.
    """
    holes = set(ended)
    num_going = num_rows - len(holes)
    fillers = (row for row in range(num_going, num_rows) if row not in holes)
    return [next(fillers) if row in holes else row for row in range(num_going)]


def _complete(sampled: Sequence[SampledRow | None], recorder: KeptRecorder) -> list[SampledRow]:
    rows = [row for row in sampled if row is not None]
    assert len(rows) == len(sampled), "a row was never harvested"
    if not recorder.has_any:
        return rows
    kept_ids = recorder.rows(len(rows))
    return [replace(row, kept_ids=kept) for row, kept in zip(rows, kept_ids, strict=True)]
