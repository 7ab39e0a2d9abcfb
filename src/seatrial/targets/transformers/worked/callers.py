"""Worked examples of what a caller gives Transformers' `generate`: processors, criteria, streamers, options."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.calls import PAD, PROMPTS, VOCABULARY, batch, causal, next_logits
from seatrial.targets.transformers.worked.modes import NUM_NEW, ids_by, padded_to, row_of
from seatrial.targets.transformers.worked.scores import ids_of
from seatrial.targets.transformers.worked.stops import Words


def _processors(mixin: Any) -> list[Any]:
    """Return what processors of the caller get: before those of sampling, in the place of one of the same class."""
    model, seen = causal(), list[Any]()
    base, temperature, bias = (
        of_name(name)
        for name in ("LogitsProcessor", "TemperatureLogitsWarper", "SequenceBiasLogitsProcessor")
    )

    class Watches(base):  # type: ignore[misc, valid-type]
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            seen.append([list(input_ids.shape), round(float(scores[0, 4] - first[4]), 3)])
            return scores

    first = next_logits(model, PROMPTS[0], None)
    listed = of_name("LogitsProcessorList")
    given = {"input_ids": ids_of(PROMPTS[0]), "max_new_tokens": 1, "eos_token_id": None}
    given |= {"return_dict_in_generate": True, "output_scores": True, "do_sample": True, "top_k": 0}
    both = model.generate(
        **given, temperature=0.5, sequence_bias=[[[4], 2.0]], logits_processor=listed([Watches()])
    ).scores[0]
    own = model.generate(
        **given,
        temperature=0.5,
        sequence_bias=[[[4], 2.0]],
        logits_processor=listed([bias([[[4], 3.0]]), Watches()]),
    ).scores[0]
    twice = model.generate(**given, logits_processor=listed([temperature(2.0)]), temperature=0.5).scores[0]
    return [
        seen,
        *(
            round(float(one), 3)
            for one in (
                both[0, 4] - 2 * first[4], own[0, 4] - 2 * first[4], both[0, 5] - 2 * first[5], twice[0, 5] - first[5],
            )
        ),
    ]  # fmt: skip


def _criteria(mixin: Any) -> list[Any]:
    """Return the lengths of rows by criteria of the caller, and what these get."""
    model, (ids, mask) = causal(), batch()
    base, limit, listed = (
        of_name(name) for name in ("StoppingCriteria", "MaxLengthCriteria", "StoppingCriteriaList")
    )
    seen = list[Any]()

    class Second(base):  # type: ignore[misc, valid-type]
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            seen.append(None if scores is None else len(scores))
            return torch.tensor([row == 1 or input_ids.shape[1] >= 7 for row in range(len(input_ids))])

    given: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": mask,
        "max_new_tokens": 5,
        "do_sample": False,
    }
    plain = model.generate(**given, eos_token_id=None)[:, 4:].tolist()
    more = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "eos_token_id": [VOCABULARY + 1],
        "pad_token_id": PAD,
    }
    rows = model.generate(**given, **more, stopping_criteria=listed([Second()])).sequences[:, 4:].tolist()
    due = [plain[0][:3], [plain[1][0], PAD, PAD], plain[2][:3]]
    counts = list(seen)
    seen.clear()
    short = model.generate(**given, eos_token_id=None, stopping_criteria=listed([limit(6)]))
    none = model.generate(**given, eos_token_id=None, stopping_criteria=listed([Second()]))
    return [rows == due, counts, list(short.shape), list(none.shape), seen]


def _strings(mixin: Any) -> list[str]:
    """Return where rows do not stop at the first string of theirs."""
    model, (ids, mask) = causal(), batch()
    # Ids 0 to 5 are letters; the others are two letters each.
    words = Words(*(f"{chr(103 + place // 5)}{chr(103 + place % 5)}" for place in range(VOCABULARY - 6)))
    plain = [ids_by(model, row, None, lambda logits, row, prompt: logits) for row in PROMPTS]
    stops = [words.words[plain[0][1]], words.words[plain[1][2]]]
    texts = [[words.words[one] for one in row] for row in plain]
    ends = [next(at for at in range(1, NUM_NEW + 1) if at == NUM_NEW or any(
        "".join(row[:at]).find(one) >= 0 for one in stops)) for row in texts]  # fmt: skip
    found = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=NUM_NEW, stop_strings=stops,
         tokenizer=words,
        eos_token_id=[VOCABULARY + 1], pad_token_id=PAD,
    )[:, 4:].tolist()  # fmt: skip
    due = padded_to([row[:end] for row, end in zip(plain, ends, strict=True)], PAD)
    return [] if found == due else [f"{found}, {due} are due"]


def _streamed(mixin: Any) -> list[Any]:
    """Return what a streamer gets: the prompt, ids one after the other, and the end once."""
    model, found = causal(), list[Any]()

    class Streams:
        def put(self, value: Tensor) -> None:
            found.append(value.tolist())

        def end(self) -> None:
            found.append("end")

    given = {"input_ids": ids_of(PROMPTS[0]), "do_sample": False, "max_new_tokens": 3, "eos_token_id": None}
    row = model.generate(**given, streamer=Streams())[0].tolist()
    return [found[0], found[1:] == [[one] for one in row[4:]] + ["end"]]


def _of_caller(mixin: Any) -> list[Any]:
    """Return what a method of decoding of the caller gets, and that its result is that of the call."""
    seen: dict[str, Any] = {}

    def decode(model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any,
               mark: int = 0, **model_kwargs: Any) -> str:  # fmt: skip
        seen.update(
            mark=mark, ids=input_ids.tolist(), length=generation_config.max_length, known=sorted(model_kwargs)
        )
        seen.update(processors=[type(one).__name__ for one in logits_processor], model=model is causal())
        seen.update(criteria=[type(one).__name__ for one in stopping_criteria])
        return "result"

    found = causal().generate(
        ids_of(PROMPTS[0]),
        custom_generate=decode,
        mark=3,
        max_new_tokens=2,
        repetition_penalty=2.0,
        eos_token_id=5,
    )
    known = seen.pop("known")
    return [found, seen, [name in known for name in ("attention_mask", "use_cache", "mark")]]


def _order(mixin: Any) -> list[Any]:
    """Return options by where they are given: by the model, a configuration and arguments."""
    model = copy.copy(causal())
    made = of_name("GenerationConfig")
    model.generation_config = made(
        do_sample=True, top_k=7, temperature=0.5, max_length=15, eos_token_id=4, min_p=0.1
    )
    given = made(top_k=8, temperature=1.0, repetition_penalty=1.5)
    names = (
        "do_sample",
        "top_k",
        "temperature",
        "max_length",
        "eos_token_id",
        "min_p",
        "top_p",
        "repetition_penalty",
    )
    before_calls = [model.generation_config.to_dict(), given.to_dict()]
    found = []
    for config, more in (
        (None, {}),
        (given, {}),
        (given, {"top_k": 9, "do_sample": False}),
        (None, {"eos_token_id": 6}),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            merged, left = model._prepare_generation_config(config, **more, input_ids=3)
        found.append([[getattr(merged, name) for name in names], left])
    return [*found, before_calls == [model.generation_config.to_dict(), given.to_dict()]]


# Sources: the documentation of GenerationMixin.generate and of GenerationConfig.
CALLER_ROWS: Sequence[Row] = (
    row_of(
        "processors of the caller", _processors,
        [[[[1, 4], 2.0], [[1, 4], 3.0]], 4.0, 6.0, 0.0, 0.0],
    ),
    row_of("criteria of the caller", _criteria, [True, [1, 2, 3], [3, 6], [3, 7], [None] * 3]),
    row_of("strings that stop", _strings, []),
    row_of("a streamer", _streamed, [[[5, 9, 11, 4]], True]),
    row_of(
        "a method of the caller", _of_caller,
        [
            "result",
            {"mark": 3, "ids": [[5, 9, 11, 4]], "length": 6, "model": True,
             "processors": ["RepetitionPenaltyLogitsProcessor"], "criteria": ["MaxLengthCriteria", "EosTokenCriteria"]},
            [True, True, False],
        ],
    ),
    row_of(
        "options by where they are given", _order,
        [
            [[True, 7, 0.5, 15, 4, 0.1, 1.0, 1.0], {"input_ids": 3}],
            [[True, 8, 1.0, 15, 4, 0.1, 1.0, 1.5], {"input_ids": 3}],
            [[False, 9, 1.0, 15, 4, 0.1, 1.0, 1.5], {"input_ids": 3}],
            [[True, 7, 0.5, 15, 6, 0.1, 1.0, 1.0], {"input_ids": 3}],
            True,
        ],
        "5", subject="options",
    ),
)  # fmt: skip
