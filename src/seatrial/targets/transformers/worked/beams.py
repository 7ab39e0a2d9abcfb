"""Worked examples of beam search in Transformers' `generate`: the ends, lengths, padding and scores of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.calls import (
    PAD,
    PROMPTS,
    START,
    VOCABULARY,
    batch,
    causal,
    encoding,
    next_logits,
)

LONGEST = 6
ENDS: Sequence[Sequence[int]] = ([], [9], list(range(0, 30, 3)))
"""Ids that end an answer: none, one, and a third of all."""
OPTIONS: Sequence[Mapping[str, Any]] = (
    {},
    {"num_return_sequences": 3},
    {"length_penalty": -2.0},
    {"length_penalty": 0.0, "early_stopping": "never"},
    {"length_penalty": -1.0, "early_stopping": "never", "num_return_sequences": 2},
    {"length_penalty": 3.0, "num_return_sequences": 2},
    {"early_stopping": True, "num_return_sequences": 3},
    {"early_stopping": True, "length_penalty": 0.5},
    {"min_new_tokens": 3, "length_penalty": -1.0},
    {"use_cache": False, "length_penalty": -2.0},
)


class _Scores:
    """Log-probabilities of the next ids of a model, of one row at a time."""

    def __init__(self, encodes: bool) -> None:
        """Take the causal model, or the one with an encoder."""
        self.encodes, self.kept = encodes, dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]]()

    def __call__(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Return those after a prompt and the start of its answer."""
        key = tuple(prompt), tuple(answer)
        if key not in self.kept:
            found = (
                next_logits(encoding(), prompt, [START, *answer]) if self.encodes
                else next_logits(causal(), [*prompt, *answer], None)
            )  # fmt: skip
            self.kept[key] = found.log_softmax(-1).tolist()
        return self.kept[key]

    def of(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """Return the sum of an answer."""
        return sum(self(prompt, answer[:place])[one] for place, one in enumerate(answer))


def _ended(row: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return a row up to its first end."""
    return list(row[: next((at for at, one in enumerate(row, 1) if one in ends), len(row))])


def _answers(pad: int, table: Sequence[Mapping[str, Any]], mixin: Any) -> list[str]:
    """Return where answers are not padded to the longest alone, not sorted, the same, or not scored by their ids."""
    wrong: list[str] = []
    for encodes in (False, True):
        scores = _Scores(encodes)
        model, (ids, mask) = (encoding(), batch("right")) if encodes else (causal(), batch())
        start = 1 if encodes else ids.shape[1]
        for ends, options in product(ENDS, table):
            given: dict[str, Any] = {
                "do_sample": False, "num_beams": 3, "max_new_tokens": LONGEST, "eos_token_id": ends or None,
                "pad_token_id": pad, **options,
            }  # fmt: skip
            copies = options.get("num_return_sequences", 1)
            for some in ([0, 1, 2], [0]):
                own = {**given, "input_ids": ids[some], "attention_mask": mask[some]}
                found = model.generate(**own, return_dict_in_generate=True, output_scores=True)
                what = f"{'encoding, ' if encodes else ''}{len(ends)} ends, {dict(options)}, rows {some}"
                fault = next(_faults(found, start, ends, pad, options.get("min_new_tokens", 0)), None)
                if fault is not None:
                    wrong.append(f"{what}: {fault}")
                    continue
                if len(some) == 1 and not torch.equal(model.generate(**own), found.sequences):
                    wrong.append(f"{what}: other ids without the scores")
                penalty = options.get("length_penalty", 1.0)
                answers = [_ended(row[start:], ends) for row in found.sequences.tolist()]
                due = [
                    scores.of(PROMPTS[some[row // copies]], answer) / len(answer) ** penalty
                    for row, answer in enumerate(answers)
                ]
                got = found.sequences_scores.tolist()
                wrong += unlike(got, due, f"{what}, scores", 1e-3)
                for first in range(0, len(got), copies):
                    one = got[first : first + copies]
                    if one != sorted(one, reverse=True):
                        wrong.append(f"{what}: scores {one} rise")
                    if len({*map(tuple, answers[first : first + copies])}) < copies:
                        wrong.append(f"{what}: the same answer twice")
    return wrong[:5]


def _faults(found: Any, start: int, ends: Sequence[int], pad: int, least: int) -> Iterator[str]:
    """Yield what is wrong with the shape of a result."""
    new = found.sequences[:, start:].tolist()
    answers = [_ended(row, ends) for row in new]
    longest = max(map(len, answers))
    for row, answer in zip(new, answers, strict=True):
        if len(row) != longest:
            yield f"{len(row)} new ids, the longest answer has {longest}"
        if row != answer + [pad] * (len(row) - len(answer)):
            yield f"{row} is not padded with {pad} after its end"
        if len(answer) < LONGEST and answer[-1] not in ends:
            yield f"{row} does not end"
        if len(answer) < least:
            yield f"{row} has {len(answer)} ids, {least} are the least"
    beams = found.beam_indices.tolist()
    lengths = [sum(one >= 0 for one in row) for row in beams]
    if lengths != [*map(len, answers)] or len(beams[0]) != longest:
        yield f"beams of {lengths} ids in {len(beams[0])}, {[*map(len, answers)]} are due"


def _best(mixin: Any) -> list[str]:
    """Return where a search with as many beams as there are answers does not return the best of them all."""
    wrong = []
    model, scores, few = causal(), _Scores(False), (4, 9, 11)
    for (ends, penalty), prompt in product(product(([9], [4, 9], []), (-2.0, -0.5, 0.0, 1.0, 3.0)), PROMPTS):
        found = model.generate(
            input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False, num_beams=27, num_return_sequences=2, max_new_tokens=3, eos_token_id=ends or None,
            pad_token_id=PAD, length_penalty=penalty, early_stopping="never",
            suppress_tokens=[one for one in range(VOCABULARY) if one not in few], return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        every = {tuple(_ended(one, ends)) for one in product(few, repeat=3)}
        due = sorted(
            ((scores.of(prompt, one) / len(one) ** penalty, one) for one in every), reverse=True
        )[:2]  # fmt: skip
        got = [tuple(_ended(row, ends)) for row in found.sequences[:, len(prompt) :].tolist()]
        if got != [one for _, one in due]:
            wrong.append(f"{ends} end, a penalty of {penalty}, {prompt}: {got}, {due} are due")
        wrong += unlike(found.sequences_scores.tolist(), [one for one, _ in due], f"{ends}, {penalty}", 1e-3)
    return wrong[:5]


def _beams(mixin: Any) -> list[Any]:
    """Return beams that continue and those that end, of one prompt with two beams, three ids and five scores."""
    top = torch.tensor([[-1.0, -2.0, -3.0, -4.0]])
    rows = torch.arange(12).view(1, 4, 3)
    held = SimpleNamespace(_gather_beams=mixin._gather_beams)
    ends = torch.tensor([[True, False, False, True]])
    running = mixin._get_running_beams_for_next_iteration(held, top, rows, rows + 100, ends, 2)
    after = []
    for early, full, open_, penalty in (
        (False, [[False, False]], True, 1.0), (True, [[True, True]], True, 1.0), (False, [[False, False]], False, 1.0),
        (False, [[False, False]], True, 0.0),
    ):  # fmt: skip
        kept, scores, _, done = mixin._update_finished_beams(
            held, sequences=rows[:, :2] + 50, topk_running_sequences=rows, beam_scores=torch.tensor([[-0.7, -9.0]]),
            topk_log_probs=top.clone(), beam_indices=rows[:, :2], topk_running_beam_indices=rows,
            is_early_stop_heuristic_unsatisfied=torch.tensor([[open_]]), is_sent_finished=torch.tensor(full),
            next_token_hits_stopping_criteria=ends, top_num_beam_mask=torch.tensor([True, True, False, False]),
            num_beams=2, cur_len=3, decoder_prompt_len=2, length_penalty=penalty, early_stopping=early,
        )  # fmt: skip
        after.append([kept[0, :, 0].tolist(), [round(float(one), 3) for one in scores[0]], done[0].tolist()])
    return [running[0][0, :, 0].tolist(), running[1][0].tolist(), running[2][0, :, 0].tolist(), *after]


def _continued(mixin: Any) -> list[Any]:
    """Return the best next ids of two prompts of two beams, with the beams that they follow."""
    held = SimpleNamespace(_gather_beams=mixin._gather_beams)
    logs = torch.tensor([[0.1, 0.5, 0.2, 0.4, 0.9, 0.3], [0.6, 0.5, 0.2, 0.1, 0.0, 0.7]])
    rows = torch.tensor([[[1, 0], [2, 0]], [[3, 0], [4, 0]]])
    found = mixin._get_top_k_continuations(
        held, accumulated_log_probs=logs, running_sequences=rows, running_beam_indices=torch.full((2, 2, 1), -1),
        cur_len=1, decoder_prompt_len=1, do_sample=False, beams_to_keep=3, num_beams=2, batch_size=2,
    )  # fmt: skip
    return [
        [[round(one, 3) for one in row] for row in found[0].tolist()],
        found[1].tolist(),
        found[2][:, :, 0].tolist(),
    ]


def _hopeful(mixin: Any) -> list[bool]:
    """Return whether beams can become better than those that ended, by each form of early stopping."""
    found = []
    for early, penalty, done, running in (
        (False, 1.0, True, -2.0), (False, 1.0, True, -3.0), ("never", 1.0, True, -3.0), ("never", 1.0, True, -5.0),
        ("never", -1.0, True, -0.3), ("never", -1.0, True, -0.6), (False, 1.0, False, -9.0),
    ):  # fmt: skip
        one = mixin._check_early_stop_heuristic(
            is_early_stop_heuristic_unsatisfied=torch.tensor([[True]]),
            running_beam_scores=torch.tensor([[running, -99.0]]), beam_scores=torch.tensor([[-0.5, -1.2]]),
            is_sent_finished=torch.tensor([[True, done]]) & done, cur_len=4, max_length=6, decoder_prompt_len=2,
            early_stopping=early, length_penalty=penalty,
        )  # fmt: skip
        found.append(bool(one[0, 0]))
    return found


def _going_on(mixin: Any) -> list[bool]:
    """Return whether a search continues: none, no hope, all full and early, all full, all that follow stop."""
    found = []
    for hope, full, stop, early in (
        (True, False, False, True), (False, False, False, False), (True, True, False, True), (True, True, False, False),
        (True, False, True, False),
    ):  # fmt: skip
        one = mixin._beam_search_has_unfinished_sequences(
            torch.tensor([[False], [hope]]), torch.tensor([[full, True]]), torch.tensor([[True, stop]]), early
        )
        found.append(bool(one))
    return found


PLACE = "transformers.generation.utils:GenerationMixin"
# Sources: the documentation of GenerationMixin.generate and of GenerationConfig (num_beams, early_stopping,
# length_penalty, num_return_sequences, pad_token_id, eos_token_id).
BEAM_ROWS: Sequence[Row] = (
    Row("edges", PLACE, "answers of beam search", partial(_answers, PAD, OPTIONS), [], since="4.57"),
    Row(
        "edges",
        PLACE,
        "answers of beam search that are padded with zero",
        partial(_answers, 0, OPTIONS[:1]),
        [],
        since="4.57",
        known=KnownFailure(
            "they are padded with the first end",
            finding="Transformers: padding of beams that end",
        ),
    ),
    Row("edges", PLACE, "the best answers of all", _best, [], since="4.57"),
    Row(
        "edges", PLACE, "beams that continue and end", _beams,
         [[3, 6], [-2.0, -3.0], [103, 106], [[0, 50], [-0.5, -0.7], [True, False]],
          [[50, 53], [-0.7, -9.0], [True, True]], [[50, 53], [-0.7, -9.0], [False, False]],
          [[50, 0], [-0.7, -1.0], [False, True]]], since="4.57"),
    Row(
        "edges", PLACE, "the best next ids", _continued,
         [[[0.9, 0.5, 0.4], [0.7, 0.6, 0.5]], [[[2, 1], [1, 1], [2, 0]], [[4, 2], [3, 0], [3, 1]]],
          [[1, 0, 1], [3, 2, 2]]], since="4.57"),
    Row("edges", PLACE, "beams that may become better", _hopeful, [True, False, True, False, True, False, True],
        since="4.57"),
    Row(
        "edges", PLACE, "searches that continue", _going_on, [True, False, False, True, False], since="4.57"),
)  # fmt: skip
