"""Worked examples of the parts of Whisper's `generate`: segments, starts, prompts, thresholds, times of tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.scores import ids_of

PLACE = "transformers.models.whisper.generation_whisper"
TIMES, PAD, START, PREVIOUS = 100, 0, 3, 4
"""The first id of a time, of padding, of a start, and of a start of what was before."""


def model_of(made: Any, **options: Any) -> Any:
    kind: Any = type("Whisper", (made, nn.Module), {"device": torch.device("cpu")})
    model: Any = object.__new__(kind)
    nn.Module.__init__(model)
    sizes = {"max_target_positions": 12, "vocab_size": 120, "decoder_layers": 1, "median_filter_width": 3}
    model.config = SimpleNamespace(**{**sizes, **options})
    return model


def config_of(**options: Any) -> Any:
    known = {"lang_to_id": {"<|en|>": 10, "<|de|>": 11}, "task_to_id": {"transcribe": 20, "translate": 21}}
    own = {"no_timestamps_token_id": TIMES - 1, "return_timestamps": False, "pad_token_id": PAD}
    return SimpleNamespace(**{"decoder_start_token_id": START, **own, **known, **options})


def _median(function: Any) -> list[Any]:
    rows = torch.tensor([[[5.0, 1.0, 9.0, 2.0, 8.0], [0.0, 0.0, 3.0, 0.0, 0.0]]])
    return [function(rows, 3).tolist(), function(rows, 5).tolist(), function(rows[..., :1], 3).tolist()]


def _even(function: Any) -> None:
    function(torch.zeros(1, 1, 5), 2)


def _warped(function: Any) -> list[Any]:
    """Return the paths of the least cost through matrices."""
    found = []
    for rows in (
        [[0, 5, 5], [5, 0, 5], [5, 5, 0]],
        [[0, 0, 5, 5], [5, 5, 0, 0]],
        [[0, 9], [0, 9], [9, 0]],
        [[1, 1, 1]],
    ):
        found.append([one.tolist() for one in function(np.array(rows, dtype=float))])
    return found


SEGMENTS: Sequence[Any] = (
    [{"tokens": torch.tensor([5, 6])}, {"tokens": torch.tensor([7, 101, 101])}],
    [{"tokens": torch.tensor([8])}], [], None,
)  # fmt: skip


def _padded(function: Any) -> list[Any]:
    """Return rows of segments: on each side, cut, of one width, with a start, without a second time at an end."""
    found = []
    begin = torch.tensor([PREVIOUS])
    for options in (
        {}, {"padding_side": "left"}, {"cut_off_length": 3}, {"cut_off_length": 6, "padding": "max_length"},
        {"bos_token_tensor": begin, "padding_side": "left", "cut_off_length": 4},
        {"skip_ending_double_timestamps": True, "timestamp_begin": TIMES},
        {"bos_token_tensor": begin, "cut_off_length": 6, "padding": "max_length", "padding_side": "left"},
    ):  # fmt: skip
        found.append(function(copy.deepcopy(list(SEGMENTS)), PAD, "cpu", **options).tolist())
    times = {
        "result": {"token_timestamps": torch.arange(9.0)},
        "idxs": (2, 4),
        "tokens": torch.tensor([5, 6]),
    }
    rows = [[times, {**times, "idxs": (5, 7)}], [times]]
    found += [one.tolist() for one in function(rows, PAD, "cpu", return_token_timestamps=True)]
    return found


def _flawed(function: Any) -> list[bool]:
    found = []
    for options in ({"padding_side": "up"}, {"padding": "none"}, {"padding": "max_length"}):
        try:
            function(list(SEGMENTS[:1]), PAD, "cpu", **options)
            found.append(False)
        except ValueError:
            found.append(True)
    return found


def _segments(made: Any) -> list[Any]:
    """Return segments of ids with times, from and to when they are, and how far the sound is read."""
    found = []
    for ids in (
        [100, 5, 6, 105], [100, 5, 105, 105, 6, 7, 110, 110], [100, 5, 105, 105, 6, 110], [100, 5, 105, 105, 6], [5, 6],
        [100, 5, 6], [100, 5, 105, 105, 110, 110], [103, 5, 6, 107, 8],
    ):  # fmt: skip
        for times in (False, True):
            outputs = [{}, {"token_timestamps": torch.arange(12.0)}]
            segments, offset = made._retrieve_segment(
                seek_sequence=torch.tensor(ids), seek_outputs=outputs, time_offset=torch.tensor([0.0, 30.0]),
                timestamp_begin=TIMES, seek_num_frames=torch.tensor([9, 60]), time_precision=0.5,
                time_precision_features=0.25, input_stride=2, prev_idx=1, idx=1, return_token_timestamps=times,
                decoder_input_ids=torch.zeros(1, 2),
            )  # fmt: skip
            if times:
                found.append([one["token_timestamps"].tolist() for one in segments])
                continue
            found.append(
                [
                    *(
                        [float(one["start"]), float(one["end"]), one["tokens"].tolist(), list(one["idxs"])]
                        for one in segments
                    ),
                    int(offset),
                ]
            )
    return found


def _decoded(made: Any) -> list[Any]:
    """Return the ids that decoders begin with: after segments of before, with prompts, of some rows alone."""
    found = []
    before = [
        [{"tokens": torch.tensor([5, 6, 7])}],
        [{"tokens": torch.tensor([8, 101, 101])}],
        [{"tokens": torch.tensor([9])}],
    ]
    prompt = torch.tensor([PREVIOUS, 15])
    for segments, rows, conditions, prompts, options in (
        ([[], [], []], [0, 1, 2], [True] * 3, None, {}), (before, [0, 1, 2], [True] * 3, None, {}),
        (before, [2, 0], [True, False, True], None, {}), (before, [0, 1], [False] * 3, None, {}),
        (before, [0, 1], [False] * 3, prompt, {}),
        (before, [0, 1], [True] * 3, prompt, {"prompt_condition_type": "all-segments"}),
        (before, [0, 1], [True] * 3, prompt, {}), (before, [1], [True] * 3, None, {"cache_implementation": "static"}),
        (before, [0, 1], [True] * 3, None, {"prev_sot_token_id": None}),
    ):  # fmt: skip
        config = {
            "prev_sot_token_id": PREVIOUS,
            "prompt_condition_type": "first-segment",
            "cache_implementation": None,
        }
        ids, left = made._prepare_decoder_input_ids(
            cur_bsz=len(rows), init_tokens=ids_of([3, 10], [3, 11], [3, 12]), current_segments=segments,
            batch_idx_map=rows, do_condition_on_prev_tokens=conditions, prompt_ids=prompts,
            generation_config=config_of(**{**config, **options}), config=SimpleNamespace(max_target_positions=10),
            device="cpu", suppress_tokens=[30, 31, 32], timestamp_begin=TIMES, kwargs={"decoder_attention_mask": 1},
        )  # fmt: skip
        mask = left.get("decoder_attention_mask")
        found.append([ids.tolist(), mask if mask is None else mask.int().tolist()])
    given = made._prepare_decoder_input_ids(
        2, ids_of([3], [3]), [], [0, 1], [], None, config_of(), SimpleNamespace(max_target_positions=10), "cpu", None,
        TIMES, {"decoder_input_ids": ids_of([7], [8])},
    )  # fmt: skip
    return [*found, given[0].tolist(), given[1]]


def _parts(made: Any) -> list[Any]:
    """Return the parts of sounds that are read, and the rows that are left."""
    sounds = torch.arange(24.0).reshape(2, 1, 12)
    found: list[Any] = []
    for seek, frames, rows in (
        ([0, 8], [4, 4], [0, 1]),
        ([3, 10], [4, 2], [0, 1]),
        ([3, 10, 4], [4, 2, 3], [2, 1]),
    ):
        got = made._get_input_segment(sounds, torch.tensor(seek), torch.tensor(frames), 4, 2, rows)
        found.append(got[:, 0].int().tolist())
    many = torch.arange(4.0)[:, None, None]
    for seek, limits, rows in (
        ([4, 9, 2, 9], [9] * 4, [0, 1, 2, 3]),
        ([9, 9, 0, 0], [9, 9, 5, 5], [1, 2, 3]),
        ([0] * 4, [9] * 4, [0, 1]),
    ):
        got, left, places = made._maybe_reduce_batch(
            many[rows], torch.tensor(seek), torch.tensor(limits), len(rows), rows
        )
        found.append([got.flatten().int().tolist(), left, places])
    return [*found, made._get_input_segment(None, None, None, 4, 1, [0])]


def _frames(made: Any) -> list[Any]:
    mask = ids_of([1, 1, 1, 0], [1, 1, 0, 0])
    calls = [(1, None, 9, False), (2, mask, 4, False), (2, None, 4, True), (2, mask, 4, True)]
    found = [[one.tolist() for one in made._retrieve_max_frames_and_seek(*call)] for call in calls]
    total = made._retrieve_total_input_frames
    states = torch.zeros(2, 5, 3)
    return [
        *found,
        list(total(torch.zeros(2, 8, 7), 2, {})),
        list(total(None, 2, {"encoder_outputs": states})),
    ]


def _no_mask(made: Any) -> None:
    made._retrieve_max_frames_and_seek(2, None, 4, False)


def _average(made: Any) -> list[Any]:
    """Return mean log-probabilities of ids, with a temperature, and of more scores or ids, and a ratio of sizes."""
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.6, 0.2]])
    scores = tuple(row.log()[None, :][0] for row in probs)
    call = made._retrieve_avg_logprobs
    found = [
        call(scores, torch.tensor([0, 2, 1]), 0.0),
        call(tuple(one / 0.5 for one in scores), torch.tensor([0, 2, 1]), 0.5),
        call(scores, torch.tensor([0, 2]), 0.0), call(scores, torch.tensor([9, 0, 2, 1]), 1.0),
    ]  # fmt: skip
    ratios = [
        made._retrieve_compression_ratio(torch.tensor([7] * 40), 51865),
        made._retrieve_compression_ratio(torch.arange(40), 200),
    ]
    return [*(round(float(one), 4) for one in found), *(round(float(one), 3) for one in ratios)]


def _again(made: Any) -> list[Any]:
    """Return whether ids are drawn again, and whether a part is left out as one without speech."""
    found = []
    from transformers.generation.logits_process import WhisperNoSpeechDetection

    detector: Any = WhisperNoSpeechDetection(no_speech_token=1, begin_index=1)
    detector._no_speech_prob = torch.tensor([0.0, 0.7])
    for ratio, logs, silence in (
        (None, None, None), (1.0, None, None), (99.0, None, None), (None, -0.1, None), (None, -9.0, None),
        (None, -0.1, 0.6), (None, -0.1, 0.8), (1.0, -9.0, 0.6),
    ):  # fmt: skip
        config = config_of(
            compression_ratio_threshold=ratio, logprob_threshold=logs, no_speech_threshold=silence
        )
        scores = tuple(torch.zeros(3) for _ in range(40))
        found.append(list(model_of(made)._need_fallback(
            torch.tensor([2] * 40), [{}, {"scores": scores}], 1, [detector], config, 51865, 0.0
        )))  # fmt: skip
    return found


class _Outputs(dict[str, Any]):
    """Outputs whose entries are attributes too."""

    __getattr__ = dict.__getitem__


def _token_times(made: Any) -> list[Any]:
    """Return the times of ids by two heads: of all frames, of as many, of each row, and after ids that are given."""
    generator = torch.Generator().manual_seed(0)
    path = (torch.arange(10)[None] / 2 - torch.arange(5)[:, None]).abs().mul(-1).exp()
    maps = torch.stack(
        [torch.stack([path, path.flip(1), path + 0.1 * torch.rand(5, 10, generator=generator)])] * 2
    )
    maps[1] = maps[1].roll(2, dims=-1)
    outputs = _Outputs(
        sequences=torch.zeros(2, 6),
        cross_attentions=[(maps[:, :, :1],), *((maps[:, :, at : at + 1],) for at in range(1, 5))],
    )
    found = []
    options: Sequence[Mapping[str, Any]] = (
        {}, {"num_frames": 16}, {"num_frames": torch.tensor([20, 12])}, {"num_frames": torch.tensor([14, 14])},
        {"num_input_ids": 1}, {"num_input_ids": 2, "time_precision": 1.0},
    )  # fmt: skip
    model = model_of(made)
    for given in options:
        more = {"num_input_ids": 0, **given}
        found.append(
            [
                [round(float(one), 3) for one in row]
                for row in model._extract_token_timestamps(outputs, [[0, 1], [0, 2], [0, 0]], **more)
            ]
        )
    outputs["beam_indices"] = ids_of([0, 1, 1, 1, -1], [1, 1, 0, 0, 0])
    found.append(
        [
            [round(float(one), 3) for one in row]
            for row in model._extract_token_timestamps(outputs, [[0, 0]], num_input_ids=1)
        ]
    )
    return found


def row_of(name: str, what: str, call: Callable[[Any], Any], right: Any, since: str = "4.57") -> Row:
    return Row("samplers", f"{PLACE}:{name}", what, call, right, since=since)


MIXIN = "WhisperGenerationMixin"
# Sources: the documentation of WhisperGenerationMixin.generate; Radford et al. 2022, section 4.5.
SPEECH_ROWS: Sequence[Row] = (
    row_of("_median_filter", "medians", _median,
         [[[[1.0, 5.0, 2.0, 8.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]]], [[[5.0, 2.0, 5.0, 2.0, 8.0], [0.0, 0.0, 0.0, 0.0,
          0.0]]], [[[5.0], [0.0]]]]),
    row_of("_median_filter", "an even width", _even, Refused("odd")),
    row_of("_dynamic_time_warping", "paths", _warped,
         [[[0, 1, 2], [0, 1, 2]], [[0, 0, 1, 1], [0, 1, 2, 3]], [[0, 1, 2], [0, 0, 1]], [[0, 0, 0], [0, 1, 2]]]),
    row_of("_pad_to_max_length", "rows of segments", _padded,
         [[[5.0, 6.0, 7.0, 101.0, 101.0], [8.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0,
          0.0]], [[5.0, 6.0, 7.0, 101.0, 101.0], [0.0, 0.0, 0.0, 0.0, 8.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0,
          0.0, 0.0]], [[7.0, 101.0, 101.0], [8.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [[5.0, 6.0, 7.0,
          101.0, 101.0, 0.0, 0.0], [8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0,
          0.0, 0.0, 0.0, 0.0, 0.0, 0.0]], [[4, 6, 7, 101, 101], [0, 0, 0, 4, 8], [0, 0, 0, 0, 4], [0, 0, 0, 0, 4]],
          [[5.0, 6.0, 7.0, 101.0], [8.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], [[0, 4, 5, 6, 7,
          101, 101], [0, 0, 0, 0, 0, 4, 8], [0, 0, 0, 0, 0, 0, 4], [0, 0, 0, 0, 0, 0, 4]], [[5, 6, 5, 6], [5, 6, 0,
          0]], [[2.0, 3.0, 5.0, 6.0], [2.0, 3.0, 3.0, 3.0]]]),
    row_of("_pad_to_max_length", "options that are refused", _flawed, [True] * 3),
    row_of(MIXIN, "segments of ids with times", _segments,
         [[[30.0, 32.5, [100, 5, 6, 105], [2, 6]], 60], [[32.0, 33.0, 34.0, 35.0]], [[30.0, 32.5, [100, 5, 105], [2,
          5]], [32.5, 35.0, [105, 6, 7, 110, 110], [5, 10]], 20], [[32.0, 33.0, 34.0], [35.0, 36.0, 37.0, 38.0,
          39.0]], [[30.0, 32.5, [100, 5, 105], [2, 5]], [32.5, 35.0, [105, 6, 110], [5, 8]], 60], [[32.0, 33.0, 34.0],
          [35.0, 36.0, 37.0]], [[30.0, 32.5, [100, 5, 105, 105], [2, 6]], 10], [[32.0, 33.0, 34.0, 35.0]], [[30.0,
          45.0, [5, 6], [2, 4]], 60], [[32.0, 33.0]], [[30.0, 45.0, [100, 5, 6], [2, 5]], 60], [[32.0, 33.0, 34.0]],
          [[30.0, 32.5, [100, 5, 105], [2, 5]], [32.5, 32.5, [105], [5, 6]], [35.0, 35.0, [110, 110], [6, 8]], 20],
          [[32.0, 33.0, 34.0], [35.0], [36.0, 37.0]], [[30.0, 33.5, [103, 5, 6, 107, 8], [2, 7]], 60], [[32.0, 33.0,
          34.0, 35.0, 36.0]]]),
    row_of(MIXIN, "ids after those of before", _decoded,
         [[[[3, 10], [3, 11], [3, 12]], None], [[[4, 5, 6, 7, 3, 10], [0, 4, 8, 101, 3, 11], [0, 0, 4, 9, 3, 12]],
          [[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]], [[[0, 0, 4, 9, 3, 12], [4, 5, 6, 7, 3, 10]],
          [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]], [[[3, 10], [3, 11]], None], [[[4, 15, 3, 10], [4, 15, 3, 11]],
          None], [[[4, 15, 5, 6, 7, 3, 10], [0, 4, 15, 8, 101, 3, 11]], [[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1,
          1]]], [[[4, 5, 6, 7, 3, 10], [0, 4, 8, 101, 3, 11]], [[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]]], [[[0, 0, 4,
          8, 101, 3, 11]], [[0, 0, 1, 1, 1, 1, 1]]], [[[31, 5, 6, 7, 3, 10], [0, 31, 8, 101, 3, 11]], [[1, 1, 1, 1, 1,
          1], [0, 1, 1, 1, 1, 1]]], [[7], [8]], {}]),
    row_of(MIXIN, "parts of sounds", _parts,
         [[[0, 1, 2, 3], [20, 21, 22, 23]], [[3, 4, 5, 6], [22, 23, 0, 0]], [[4, 5, 6, 0], [22, 23, 0, 0]], [[0, 2],
          2, [0, 2]], [[2, 3], 2, [2, 3]], [[0, 1], 2, [0, 1]], None]),
    row_of(MIXIN, "frames", _frames,
         [[[9], [0]], [[3, 2], [0, 0]], [[4, 4], [0, 0]], [[4, 4], [0, 0]], [2, 7], [2, 10]]),
    row_of(MIXIN, "several sounds without a mask", _no_mask, Refused("attention_mask")),
    row_of(MIXIN, "mean probabilities and ratios", _average,
         [-0.4757, -0.4757, -0.4581, -0.4757, 6.154, 0.833]),
    row_of(MIXIN, "ids that are drawn again", _again,
         [[False, False], [True, False], [False, False], [True, False], [False, False], [False, True], [True, False],
          [True, False]]),
    row_of(MIXIN, "times of ids", _token_times,
         [[[0.0, 0.02, 0.06, 0.1, 0.14, 0.14], [0.0, 0.06, 0.1, 0.14, 0.18, 0.18]], [[0.0, 0.02, 0.06, 0.1, 0.14,
          0.14], [0.0, 0.06, 0.1, 0.14, 0.14, 0.14]], [[0.0, 0.02, 0.06, 0.1, 0.14, 0.14], [0.0, 0.06, 0.1, 0.1, 0.1,
          0.1]], [[0.0, 0.02, 0.06, 0.12, 0.12, 0.12], [0.0, 0.06, 0.1, 0.12, 0.12, 0.12]], [[0.0, 0.0, 0.06, 0.1,
          0.14, 0.14], [0.0, 0.0, 0.1, 0.14, 0.18, 0.18]], [[0.0, 0.0, 0.0, 5.0, 7.0, 7.0], [0.0, 0.0, 0.0, 7.0, 9.0,
          9.0]], [[0.0, 0.0, 0.1, 0.14, 0.16, 0.16], [0.0, 0.0, 0.0, 0.1, 0.14, 0.14]]]),
)  # fmt: skip
