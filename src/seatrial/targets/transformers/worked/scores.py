"""Worked examples of processors of scores in Transformers that belong to a model, a decoder or a list of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row

OUT = -math.inf
FINDING = "Transformers: small functions of later releases"
PLACE = "transformers.generation.logits_process"


def ids_of(*rows: Sequence[int]) -> Tensor:
    return torch.tensor([list(row) for row in rows])


def _kept(scores: Tensor) -> list[list[int]]:
    """Return the places of each row that are left."""
    return [[place for place, one in enumerate(row) if one > OUT] for row in scores.tolist()]


def _codebooks(made: Any) -> list[Any]:
    processor = made(2, 3, 2)
    found = [processor(ids_of(range(2, 2 + length)), torch.zeros(1, 7)) for length in (2, 3, 4, 5)]
    return [_kept(one)[0] for one in found]


def _priority(made: Any) -> list[Any]:
    probs = torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.2, 0.3], [0.7, 0.1, 0.2]])
    one = made(eos_token_id=1, min_eos_p=0.25)(ids_of([5], [5], [5]), probs.log())
    several = made(eos_token_id=[1, 2], min_eos_p=0.25)(ids_of([5], [5], [5]), probs.log())
    off = made(eos_token_id=1, min_eos_p=None)(ids_of([5], [5], [5]), probs.log())
    return [_kept(one), _kept(several), _kept(off), torch.equal(one[0, 1], probs.log()[0, 1])]


def _timestamps(made: Any) -> dict[str, list[int]]:
    """Return the ids that are left, of which 4 ends, 6 says that there are no times and 7 to 11 are times."""
    config = {"no_timestamps_token_id": 6, "eos_token_id": 4, "bos_token_id": 3}
    own = {**config, "max_initial_timestamp_index": 1, "_detect_timestamp_from_logprob": False}
    table: Mapping[str, tuple[Mapping[str, Any], Sequence[int], Sequence[float]]] = {
        "the first id": (own, [], [0.0] * 12),
        "the first id, any time": ({**own, "max_initial_timestamp_index": None}, [], [0.0] * 12),
        "after a text and a time": (own, [7, 2, 9], [0.0] * 12),
        "after two times": (own, [7, 9], [0.0] * 12),
        "after a first time": (own, [8], [0.0] * 12),
        "after a time and a text": (own, [8, 2], [0.0] * 12),
        "times are likely together": (
            {**config, "max_initial_timestamp_index": 1}, [8, 2], [0.0] * 9 + [-0.5, -0.5, -0.5],
        ),
        "a text is more likely": ({**config, "max_initial_timestamp_index": 1}, [8, 2], [2.0] + [0.0] * 11),
    }  # fmt: skip
    found = {}
    for name, (options, ids, scores) in table.items():
        processor = made(SimpleNamespace(**options), begin_index=2)
        found[name] = _kept(processor(ids_of([1, 1, *ids]), torch.tensor([scores])))[0]
    return found


def _no_speech(made: Any) -> list[Any]:
    processor = made(no_speech_token=2, begin_index=1)
    scores = torch.tensor([[0.1, 0.4, 0.5], [0.25, 0.5, 0.25]]).log()
    logs = made(no_speech_token=1, begin_index=1, scores_is_logprobs=True)
    before = list(processor.no_speech_prob)
    same = torch.equal(processor(ids_of([5], [5]), scores + 3), scores + 3)
    first = processor.no_speech_prob.tolist()
    processor(ids_of([5, 1], [5, 2]), -scores)
    logs(ids_of([5], [5]), scores)
    later = made(no_speech_token=0, begin_index=2)
    later.set_begin_index(1)
    later.start_of_trans_offset = 1
    later(ids_of([5], [5]), scores)
    return [
        before, same, first, processor.no_speech_prob.tolist() == first, logs.no_speech_prob.tolist(),
        later.no_speech_prob.tolist(),
    ]  # fmt: skip


def _no_speech_of_model(made: Any) -> list[float]:
    """Return the probability at the first place, where the start of the transcription is the third."""
    logits = torch.tensor([[[0.1, 0.9], [0.3, 0.7], [0.6, 0.4]]]).log()

    class Model:
        def prepare_inputs_for_generation(self, inputs: Any, **options: Any) -> dict[str, Any]:
            return {"prepared": True}

        def forward(self, input_features: Any, prepared: Any = None) -> Any:
            raise NotImplementedError

        def __call__(self, input_features: Any, prepared: Any) -> Any:
            return SimpleNamespace(logits=logits + float(input_features.sum()) * float(prepared))

    processor = made(no_speech_token=0, begin_index=3)
    processor.set_model(Model())
    processor.set_inputs({"inputs": torch.zeros(1, 2), "input_ids": ids_of([5])})
    processor(ids_of([5, 6, 7]), torch.zeros(1, 2))
    first: list[float] = processor.no_speech_prob.tolist()
    processor.set_begin_index(4)
    processor(ids_of([5, 6, 7, 8]), torch.zeros(1, 2))
    return [*first, *processor.no_speech_prob.tolist()]


def _guided(made: Any) -> list[Any]:
    """Return scores under guidance, its largest ones alone, and that of a whole batch."""
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, 1.0, 4.0], [2.0, 1.0, 2.0], [1.0, 2.0, 1.0]])
    ids = ids_of([5], [6])
    return [
        made(guidance_scale=3.0)(ids, scores).tolist(),
        made(guidance_scale=3.0, guidance_top_k=1)(ids, scores).tolist(),
        _kept(made(guidance_scale=3.0, guidance_top_k=2)(ids, scores)),
    ]


def _channels(made: Any) -> list[list[int]]:
    """Return the ids that are left in three channels of two rows; 2 ends, above it is padding."""
    scores = torch.zeros(6, 5)
    scores[0, 1], scores[1, 4], scores[3, 2], scores[4, 0] = 1.0, 9.0, 3.0, 1.0
    return _kept(made(num_channels=3, eos_token_id=2)(ids_of(*[[5]] * 6), scores))


def _delays(made: Any) -> list[list[list[int]]]:
    """Return the ids that are left step by step; the end of the first channel is that of the others with a delay."""
    processor = made(delay_pattern=[0, 1, 2], eos_token_id=3, max_generation_len=9)
    found = []
    for length in range(2, 7):
        ends = (length == 3, False)
        scores = torch.zeros(6, 4)
        scores[:, 0] = 1.0
        for row, end in enumerate(ends):
            scores[3 * row, 3] = 2.0 if end else 0.0
        kept = _kept(processor(torch.zeros(2, length, 3, dtype=torch.long), scores))
        found.append([[len(one) for one in kept[:3]], [len(one) for one in kept[3:]]])
    return found


def _in_list(made: Any) -> list[Any]:
    """Return what a list makes of scores: its processors in their order, with the arguments that one takes."""
    seen = []

    class Adds:
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return scores + 1

    class Times:
        def __call__(self, input_ids: Any, scores: Any, factor: float) -> Any:
            seen.append(input_ids.tolist())
            return scores * factor

    ids, scores = ids_of([3]), torch.tensor([[2.0]])
    return [
        made([Adds(), Times(), Adds()])(ids, scores, factor=3.0).tolist(),
        made([Times(), Adds(), Adds()])(ids, scores, factor=3.0).tolist(),
        made([])(ids, scores).tolist(),
        seen,
    ]


def _missing(made: Any) -> None:
    times = type("Times", (), {"__call__": lambda self, input_ids, scores, factor: scores * factor})
    made([times()])(ids_of([3]), torch.zeros(1, 2))


REFUSED: Sequence[tuple[str, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = (
    ("TemperatureLogitsWarper", [{"temperature": 0.0}, {"temperature": -1.0}], [{"temperature": 1e-3}]),
    ("RepetitionPenaltyLogitsProcessor", [{"penalty": 0.0}, {"penalty": -0.5}], [{"penalty": 0.5}]),
    ("TopPLogitsWarper", [{"top_p": 1.5}, {"top_p": -0.1}, {"top_p": 0.5, "min_tokens_to_keep": 0}],
     [{"top_p": 1.0}, {"top_p": 0.0}, {"top_p": 1}]),
    ("TopKLogitsWarper", [{"top_k": 0}, {"top_k": -1}, {"top_k": 1.5}], [{"top_k": 1}]),
    ("MinPLogitsWarper", [{"min_p": 1.1}, {"min_p": -0.1}, {"min_p": 0.5, "min_tokens_to_keep": 0}],
     [{"min_p": 0.0}, {"min_p": 1.0}]),
    ("TypicalLogitsWarper", [{"mass": 0.0}, {"mass": 1.0}, {"mass": 0.5, "min_tokens_to_keep": 0}], [{"mass": 0.5}]),
    ("EpsilonLogitsWarper", [{"epsilon": 0.0}, {"epsilon": 1.0}, {"epsilon": 0.5, "min_tokens_to_keep": 0}],
     [{"epsilon": 0.5}]),
    ("EtaLogitsWarper", [{"epsilon": 0.0}, {"epsilon": 1.0}, {"epsilon": 0.5, "min_tokens_to_keep": 0}],
     [{"epsilon": 0.5}]),
    ("NoRepeatNGramLogitsProcessor", [{"ngram_size": 0}, {"ngram_size": -1}], [{"ngram_size": 1}]),
    ("MinLengthLogitsProcessor", [{"min_length": -1, "eos_token_id": 1}], [{"min_length": 0, "eos_token_id": 1}]),
    ("MinNewTokensLengthLogitsProcessor",
     [{"prompt_length_to_skip": -1, "min_new_tokens": 1, "eos_token_id": 1},
      {"prompt_length_to_skip": 1, "min_new_tokens": -1, "eos_token_id": 1}],
     [{"prompt_length_to_skip": 0, "min_new_tokens": 0, "eos_token_id": 1}]),
    ("ForcedEOSTokenLogitsProcessor", [{"max_length": 3, "eos_token_id": -1}, {"max_length": 3, "eos_token_id": [1,
    -1]}],
     [{"max_length": 3, "eos_token_id": 0}]),
    ("SequenceBiasLogitsProcessor",
     [{"sequence_bias": {}}, {"sequence_bias": []}, {"sequence_bias": {1: 2.0}}, {"sequence_bias": {(): 2.0}},
      {"sequence_bias": {(1,): 2}}, {"sequence_bias": {(-1,): 2.0}}, {"sequence_bias": [[[1], 2]]},
      {"sequence_bias": [[[-1], 2.0]]}],
     [{"sequence_bias": {(1,): 2.0}}, {"sequence_bias": [[[1, 2], -2.0]]}]),
    ("NoBadWordsLogitsProcessor", [{"bad_words_ids": []}, {"bad_words_ids": [1]}, {"bad_words_ids": [[-1]]}],
     [{"bad_words_ids": [[1]]}, {"bad_words_ids": [[1], [2]], "eos_token_id": 1}]),
    ("ClassifierFreeGuidanceLogitsProcessor", [{"guidance_scale": 1.0}, {"guidance_scale": 0.5}],
     [{"guidance_scale": 1.5}]),
)  # fmt: skip
"""A class, options that it refuses, and ones at their edge that it takes."""


def _refusals(found: Any) -> list[str]:
    """Return which options are taken that a processor refuses, or refused that it takes."""
    wrong = []
    for name, refused, taken in REFUSED:
        made = find_name("transformers", [f"{PLACE}:{name}"])
        for options, due in [*((one, True) for one in refused), *((one, False) for one in taken)]:
            try:
                made(**options)
                said = False
            except ValueError:
                said = True
            if said != due:
                wrong.append(f"{name}({dict(options)}) is {'refused' if said else 'taken'}")
    return wrong


PLAIN: Mapping[str, Mapping[str, Any]] = {
    "MinLengthLogitsProcessor": {"min_length": 9, "eos_token_id": [1, 2]},
    "MinNewTokensLengthLogitsProcessor": {"prompt_length_to_skip": 2, "min_new_tokens": 5, "eos_token_id": 1},
    "TemperatureLogitsWarper": {"temperature": 0.5},
    "RepetitionPenaltyLogitsProcessor": {"penalty": 1.5},
    "TopPLogitsWarper": {"top_p": 0.5},
    "TopKLogitsWarper": {"top_k": 2},
    "MinPLogitsWarper": {"min_p": 0.5},
    "TypicalLogitsWarper": {"mass": 0.5},
    "EpsilonLogitsWarper": {"epsilon": 0.25},
    "NoRepeatNGramLogitsProcessor": {"ngram_size": 2},
    "SequenceBiasLogitsProcessor": {"sequence_bias": {(1,): 2.0, (3, 2): -1.0}},
    "NoBadWordsLogitsProcessor": {"bad_words_ids": [[1], [3, 2]]},
    "ForcedBOSTokenLogitsProcessor": {"bos_token_id": 2},
    "ForcedEOSTokenLogitsProcessor": {"max_length": 4, "eos_token_id": 2},
    "SuppressTokensLogitsProcessor": {"suppress_tokens": [1]},
    "SuppressTokensAtBeginLogitsProcessor": {"begin_suppress_tokens": [1], "begin_index": 3},
    "LogitNormalization": {},
    "BarkEosPrioritizerLogitsProcessor": {"eos_token_id": 0, "min_eos_p": 0.1},
}
"""Processors with options under which they change scores."""


def _twice(found: Any) -> list[str]:
    """Return which processors change the scores or ids they are given, or give others in a second call."""
    wrong = []
    for name, options in PLAIN.items():
        made = find_name("transformers", [f"{PLACE}:{name}"])
        processor = made(**options)
        ids, scores = (
            ids_of([3, 1, 3], [2, 2, 3]),
            torch.tensor([[2.0, 1.0, -1.0, 0.5], [0.0, -2.0, 3.0, 1.0]]),
        )
        if name == "ForcedBOSTokenLogitsProcessor":
            ids = ids[:, :1]
        own, before = ids.clone(), scores.clone()
        first = processor(ids, scores)
        if not torch.equal(scores, before) or not torch.equal(ids, own):
            wrong.append(f"{name} changes what it is given")
        if torch.equal(first, before):
            wrong.append(f"{name} changes no score")
        second = processor(ids[:1], scores[:1])
        if not torch.allclose(second, first[:1]):
            wrong.append(f"{name}: a row alone has other scores than in a batch")
        again = made(**options)(own, before)
        if not torch.equal(first, again):
            wrong.append(f"{name}: another object gives other scores")
    return wrong


def _penalties(made: Any) -> list[Any]:
    """Return scores after a penalty of ids: beyond the scores, and after as many of each row that are left out."""
    scores = torch.tensor([[2.0, -2.0, 4.0], [2.0, -2.0, 4.0]])
    skips = torch.tensor([0, 2])
    return [
        made(2.0, prompt_ignore_length=skips)(ids_of([0, 1, 1], [0, 1, 2]), scores).tolist(),
        made(2.0)(ids_of([0, 3, 7], [2, 9, 9]), scores).tolist(),
    ]


def _beyond(made: Any) -> list[list[int]]:
    return _kept(made(2)(ids_of([0, 9, 0], [1, 2, 1], [7, 1, 7]), torch.zeros(3, 4)))


def _whole_penalties(made: Any) -> list[Any]:
    """Return scores of [B, S, V] after a penalty, which is that of the last place."""
    scores = torch.tensor([[[2.0, -2.0, 4.0], [2.0, -2.0, 4.0]]])
    found: Tensor = made(2.0)(ids_of([0, 1]), scores)
    return found.tolist()


def _encoder_penalties(made: Any) -> list[Any]:
    """Return scores of three beams of two prompts each, whose ids are wanted."""
    prompts = ids_of([0], [1])
    found: Tensor = made(2.0, prompts)(ids_of(*[[2]] * 4), torch.tensor([[2.0, -2.0, 4.0]] * 4))
    return found.tolist()


def _encoder_words(made: Any) -> list[list[int]]:
    prompts = ids_of([0, 1, 2], [3, 1, 0])
    return _kept(made(2, prompts)(ids_of([9, 1], [9, 0], [9, 1], [9, 3]), torch.zeros(4, 4)))


def _allowed(made: Any) -> list[Any]:
    """Return what a function is asked, and the ids that are left, two prompts of two beams."""
    asked = []

    def allowed(prompt: int, ids: Any) -> list[int]:
        asked.append([prompt, *ids.tolist()])
        return [prompt, 3]

    kept = _kept(made(allowed, 2)(ids_of([5, 6], [5, 7], [8, 6], [8, 7]), torch.zeros(4, 4)))
    return [asked, kept]


def _row(
    name: str,
    what: str,
    call: Callable[[Any], Any],
    right: Any,
    since: str = "0",
    fixed: str = "",
    wrong: str = "",
) -> Row:
    """Return a row of a processor; releases before `fixed` are known to be wrong."""
    known = KnownFailure(wrong, FINDING, before("transformers", fixed)) if fixed else None
    return Row("inputs", f"{PLACE}:{name}", what, call, right, since=since, known=known)


# Sources: the documentation of each class.
SCORE_ROWS: Sequence[Row] = (
    _row("AlternatingCodebooksLogitsProcessor", "codebooks in turn", _codebooks, [[3, 4], [5, 6], [3, 4], [5, 6]]),
    _row(
        "BarkEosPrioritizerLogitsProcessor", "ends that are likely", _priority,
        [[[1], [0, 1, 2], [0, 1, 2]], [[1, 2], [1, 2], [0, 1, 2]], [[0, 1, 2]] * 3, True],
    ),
    _row(
        "WhisperTimeStampLogitsProcessor", "times that may follow", _timestamps,
        {
            "the first id": [7, 8],
            "the first id, any time": [7, 8, 9, 10, 11],
            "after a text and a time": [4, 5, 9, 10, 11],
            "after two times": [0, 1, 2, 3, 4, 5],
            "after a first time": [0, 1, 2, 3, 4, 5],
            "after a time and a text": [0, 1, 2, 3, 4, 5, 9, 10, 11],
            "times are likely together": [9, 10, 11],
            "a text is more likely": [0, 1, 2, 3, 4, 5, 9, 10, 11],
        },
    ),
    _row(
        "WhisperNoSpeechDetection", "probabilities of no speech", _no_speech,
        [[0.0], True, [0.5, 0.25], True, [0.4, 0.5], [0.1, 0.25]],
    ),
    _row("WhisperNoSpeechDetection", "probabilities of no speech before a prompt", _no_speech_of_model, [0.1, 0.3],
     "5.8"),
    _row(
        "DiaClassifierFreeGuidanceLogitsProcessor", "guidance and its largest scores", _guided,
        [[[-2.0, 9.0, 2.0], [-3.0, -2.0, 13.0]], [[OUT, 3.0, OUT], [OUT, OUT, 4.0]], [[1, 2], [1, 2]]],
        since="4.56",
    ),
    _row(
        "DiaEOSChannelFilterLogitsProcessor", "ends of the first channel", _channels,
        [[0, 1], [0, 1], [0, 1], [2], [0, 1], [0, 1]], since="4.56",
    ),
    _row(
        "DiaEOSDelayPatternLogitsProcessor", "ends after delays", _delays,
        [[[4, 4, 4], [4, 4, 4]], [[1, 4, 4], [4, 4, 4]], [[4, 1, 4], [4, 4, 4]], [[4, 4, 1], [4, 4, 4]],
         [[4, 4, 4], [1, 4, 4]]], since="4.56",
    ),
    _row("LogitsProcessorList", "an order and arguments", _in_list, [[[10.0]], [[8.0]], [[2.0]], [[[3]], [[3]]]]),
    _row("LogitsProcessorList", "an argument that is missing", _missing, Refused("required parameters")),
    _row("LogitsProcessorList", "options that processors refuse", _refusals, [], since="4.57"),
    _row("LogitsProcessorList", "scores that are changed in place", _twice, [], since="4.57"),
    _row(
        "RepetitionPenaltyLogitsProcessor", "ids of each row that are left out", _penalties,
        [[[1.0, -4.0, 4.0], [2.0, -2.0, 2.0]], [[1.0, -2.0, 4.0], [2.0, -2.0, 2.0]]], since="5.23",
    ),
    _row(
        "RepetitionPenaltyLogitsProcessor", "scores of several places", _whole_penalties,
        [[[2.0, -2.0, 4.0], [1.0, -4.0, 4.0]]], since="4.57",
    ),
    _row("NoRepeatNGramLogitsProcessor", "ids beyond the scores", _beyond, [[0, 1, 2, 3], [0, 1, 3], [0, 2, 3]],
     "5.19"),
    _row(
        "EncoderRepetitionPenaltyLogitsProcessor", "prompts of several beams", _encoder_penalties,
        [[4.0, -2.0, 4.0], [4.0, -2.0, 4.0], [2.0, -1.0, 4.0], [2.0, -1.0, 4.0]], fixed="5.19",
        wrong="the beams of a prompt are those of others",
    ),
    _row(
        "EncoderNoRepeatNGramLogitsProcessor", "prompts of several beams", _encoder_words,
        [[0, 1, 3], [0, 2, 3], [1, 2, 3], [0, 2, 3]],
    ),
    _row(
        "PrefixConstrainedLogitsProcessor", "what is asked for each beam", _allowed,
        [[[0, 5, 6], [0, 5, 7], [1, 8, 6], [1, 8, 7]], [[0, 3], [0, 3], [1, 3], [1, 3]]],
    ),
)  # fmt: skip
