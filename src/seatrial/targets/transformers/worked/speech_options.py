"""Worked examples of the options of Whisper's `generate`: first ids, prompts, lengths, processors, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.scores import ids_of
from seatrial.targets.transformers.worked.speech import MIXIN, PREVIOUS, config_of, model_of, row_of


def _starts(made: Any) -> list[Any]:
    """Return the first ids of decoders, by languages, tasks, times and older options."""
    found = []
    detected: list[Any] = []

    def detect(**given: Any) -> Tensor:
        detected.append(sorted(given))
        return torch.tensor([11, 10])

    for options in (
        {}, {"language": "en"}, {"language": "German", "task": "translate"}, {"language": ["de", "<|en|>"]},
        {"task": "translate"}, {"language": "en", "return_timestamps": True}, {"lang_to_id": None, "task_to_id": None},
        {"forced_decoder_ids": [[1, 11], [2, 21], [3, 99]]}, {"forced_decoder_ids": [[1, None], [2, 20]]},
        {"forced_decoder_ids": [[1, 11], [2, 20], [3, 99]], "return_timestamps": True},
        {"forced_decoder_ids": [[1, 11], [2, 20]], "language": "en"},
    ):  # fmt: skip
        config, model = config_of(**options), model_of(made)
        if config.lang_to_id is None:
            del config.lang_to_id, config.task_to_id
        model.detect_language = detect
        ids = model._retrieve_init_tokens(
            torch.zeros(2, 1, 4), 2, config, SimpleNamespace(forced_decoder_ids=None), 4, {}
        )
        found.append(ids.tolist())
    return [*found, len(detected)]


def _refused_starts(made: Any) -> list[bool]:
    found = []
    for options in (
        {"language": "xx"}, {"language": "fr"}, {"language": ["en"]}, {"task": "sing"}, {"language": "en"},
        {"forced_decoder_ids": [[1, 11], [3, 20]]},
    ):  # fmt: skip
        model = model_of(made)
        model.detect_language = lambda **given: torch.tensor([11, 10])
        try:
            model._retrieve_init_tokens(
                torch.zeros(2, 1, 4), 2, config_of(**options), SimpleNamespace(forced_decoder_ids=None), 4, {}
            )
            found.append(False)
        except ValueError:
            found.append(True)
    return found


def _prepared(made: Any) -> list[Any]:
    """Return the segments that prompts make."""
    found = []
    for prompt, kind in ((None, "first-segment"), ([PREVIOUS, 5], "first-segment"), ([6, 5], "first-segment"),
                         ([PREVIOUS, 5], "all-segments")):  # fmt: skip
        config = config_of(prompt_condition_type=kind, prev_sot_token_id=PREVIOUS)
        got = made._prepare_segments(None if prompt is None else torch.tensor(prompt), 2, config)
        found.append([[one["tokens"].tolist() for one in row] for row in got])
    return found


def _lengths(made: Any) -> list[Any]:
    """Return the largest lengths and numbers of new ids after those of the decoder."""
    found = []
    for longest, new, number in ((4, None, 3), (9, None, 3), (4, None, 9), (4, 6, 3), (None, None, 3)):
        config = config_of(max_length=longest, max_new_tokens=new)
        model = model_of(made)
        model._set_max_new_tokens_and_length(model.config, torch.zeros(1, number), config)
        found.append([config.max_length, config.max_new_tokens])
    return found


def _too_long(made: Any) -> None:
    model = model_of(made)
    model._set_max_new_tokens_and_length(
        model.config, torch.zeros(1, 7), config_of(max_length=None, max_new_tokens=6)
    )


def _several(made: Any) -> list[Any]:
    """Return the rows of several answers, and of one."""
    found = []
    for number in (None, 2):
        config = config_of(num_return_sequences=number)
        got = model_of(made)._expand_variables_for_generation(
            torch.arange(2.0)[:, None, None],
            torch.tensor([3, 4]),
            torch.tensor([8, 9]),
            ids_of([5], [6]),
            2,
            True,
            config,
        )
        found.append([one.flatten().int().tolist() if isinstance(one, Tensor) else one for one in got])
        found.append(config.num_return_sequences)
    return found


def _processors(made: Any) -> list[Any]:
    """Return the processors of options in their order, and the options that are left."""
    config = config_of(return_timestamps=True, suppress_tokens=[5], begin_suppress_tokens=[6], no_speech_threshold=0.5,
                     eos_token_id=2, bos_token_id=1)  # fmt: skip
    found = model_of(made)._retrieve_logit_processors(config, ["own"], 3, 2, "cpu")
    return [
        [type(one).__name__ for one in found], config.suppress_tokens, config.begin_suppress_tokens,
        [found[0].no_speech_token, found[0].is_scores_logprobs, found[0].begin_index], found[1].begin_index,
    ]  # fmt: skip


def _settings(made: Any) -> list[Any]:
    """Return options after those of a call: outputs, times, thresholds, conditions."""
    found: list[Any] = []
    for given, times, logs in (
        (None, False, None),
        (True, False, None),
        (False, True, None),
        (False, False, -1.0),
    ):
        config = config_of(return_dict_in_generate="own")
        got = made._set_return_outputs(given, times, logs, config)
        found.append([got, config.return_dict_in_generate, getattr(config, "output_scores", None),
                      getattr(config, "output_attentions", None), config.return_token_timestamps])  # fmt: skip
    for given, short in ((None, True), (True, True), (None, False), (True, False)):
        config = config_of(return_timestamps=None)
        found.append([model_of(made)._set_return_timestamps(given, short, config), config.return_timestamps])
    bare = SimpleNamespace()
    found.append([model_of(made)._set_return_timestamps(None, True, bare), bare.return_timestamps])
    config = config_of(logprob_threshold=-2.0, condition_on_prev_tokens=True)
    made._set_thresholds_and_condition(config, None, 1.5, 0.6, None)
    made._set_prompt_condition_type(config, "all-segments")
    found.append([config.logprob_threshold, config.compression_ratio_threshold, config.no_speech_threshold,
                  config.condition_on_prev_tokens, config.prompt_condition_type])  # fmt: skip
    return found


def _refused_settings(made: Any) -> list[bool]:
    calls: Sequence[Callable[[], Any]] = (
        lambda: model_of(made)._set_return_timestamps(False, False, config_of()),
        lambda: model_of(made)._set_return_timestamps(True, True, SimpleNamespace()),
        lambda: made._set_prompt_condition_type(config_of(condition_on_prev_tokens=False), "all-segments"),
        lambda: made._set_prompt_condition_type(config_of(condition_on_prev_tokens=True), "none"),
        lambda: made._set_language_and_task("en", None, None, config_of(is_multilingual=False)),
        lambda: made._set_language_and_task("en", None, None, SimpleNamespace()),
    )
    found = []
    for call in calls:
        try:
            call()
            found.append(False)
        except ValueError:
            found.append(True)
    return found


# Source: the documentation of WhisperGenerationMixin.generate.
SPEECH_OPTION_ROWS: Sequence[Row] = (
    row_of(MIXIN, "the first ids", _starts,
         [[[3, 11, 99], [3, 10, 99]], [[3, 10, 20, 99], [3, 10, 20, 99]], [[3, 11, 21, 99], [3, 11, 21, 99]], [[3, 11,
          20, 99], [3, 10, 20, 99]], [[3, 11, 21, 99], [3, 10, 21, 99]], [[3, 10, 20], [3, 10, 20]], [[3, 99], [3,
          99]], [[3, 11, 21, 99], [3, 11, 21, 99]], [[3, 11, 20, 99], [3, 10, 20, 99]], [[3, 11, 20], [3, 11, 20]],
          [[3, 10, 20, 99], [3, 10, 20, 99]], 3]),
    row_of(MIXIN, "languages and tasks that are refused", _refused_starts, [True] * 4 + [False, True]),
    row_of(MIXIN, "segments of prompts", _prepared,
         [[[], []], [[[5]], [[5]]], [[[6, 5]], [[6, 5]]], [[], []]]),
    row_of(MIXIN, "lengths after ids of the decoder", _lengths,
         [[7, None], [12, None], [9, None], [4, 6], [None, None]], "5.24"),
    row_of(MIXIN, "ids that are too many", _too_long, Refused("max_target_positions")),
    row_of(MIXIN, "rows of several answers", _several,
         [[[0, 1], 2, [0, 1], [3, 4], [8, 9], [5, 6], [True, True]], None, [[0, 1, 2, 3], 4, [0, 0, 1, 1], [3, 3, 4,
          4], [8, 8, 9, 9], [5, 5, 6, 6], [True, True, True, True]], 1]),
    row_of(MIXIN, "processors of scores", _processors,
         [["WhisperNoSpeechDetection", "SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor",
          "WhisperTimeStampLogitsProcessor", "str"], None, None, [98, True, 3], 3]),
    row_of(MIXIN, "options of a call", _settings,
         [["own", "own", None, None, False], [True, True, None, None, False], [False, True, True, True, True], [False,
          True, True, None, False], [100, None], [100, True], [100, True], [100, True], [121, None], [-2.0, 1.5, 0.6,
          True, "all-segments"]]),
    row_of(MIXIN, "options of a call that are refused", _refused_settings, [True] * 6),
)  # fmt: skip
