"""Worked examples of options of Transformers' `generate`: of decoders, ends, penalties, guidance several answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.calls import (
    PAD,
    PROMPTS,
    VOCABULARY,
    batch,
    causal,
    encoding,
    next_logits,
)
from seatrial.targets.transformers.worked.scores import ids_of

OUT = -torch.inf
NUM_NEW, NUM_DECODED = 6, 4
Rule = Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]
"""Takes the logits of the next id, the ids so far and the prompt, and returns scores."""


def ids_by(model: Any, prompt: Sequence[int], start: Sequence[int] | None, rule: Rule, number: int = NUM_NEW,
         ends: Sequence[int] = ()) -> list[int]:  # fmt: skip
    """Return the new ids with the largest scores of a rule."""
    first = list(prompt if start is None else start)
    row = list(first)
    for _ in range(number):
        logits = next_logits(model, row, None) if start is None else next_logits(model, prompt, row)
        row.append(int(rule(logits.clone(), row, prompt).argmax()))
        if row[-1] in ends:
            break
    return row[len(first) :]


def _without(*ids: int) -> Callable[[Tensor], Tensor]:
    def cut(logits: Tensor) -> Tensor:
        logits[list(ids)] = OUT
        return logits

    return cut


def _forced(token: int) -> Tensor:
    scores = torch.full((VOCABULARY,), OUT)
    scores[token] = 0
    return scores


def _rewarded(logits: Tensor, ids: Iterable[int], penalty: float) -> Tensor:
    for token in {*ids}:
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    return logits


def _followers(row: Sequence[int], known: Sequence[int], size: int) -> list[int]:
    """Return ids that would complete a sequence of this size that is known."""
    tail = list(row[len(row) + 1 - size :])
    return [
        known[at + size - 1] for at in range(len(known) - size + 1) if list(known[at : at + size - 1]) == tail
    ]


ENCODED: Mapping[str, tuple[Mapping[str, Any], Rule]] = {
    "nothing": ({}, lambda logits, row, prompt: logits),
    "a forced start": (
        {"forced_bos_token_id": 7}, lambda logits, row, prompt: _forced(7) if len(row) == 1 else logits,
    ),
    "a forced start and ids that may not begin": (
        {"forced_bos_token_id": 7, "begin_suppress_tokens": list(range(25))},
        lambda logits, row, prompt: (
            _forced(7) if len(row) == 1 else _without(*range(25))(logits) if len(row) == 2 else logits
        ),
    ),
    "ids that may not begin": (
        {"begin_suppress_tokens": list(range(25))},
        lambda logits, row, prompt: _without(*range(25))(logits) if len(row) == 1 else logits,
    ),
    "a forced end": (
        {"forced_eos_token_id": 8}, lambda logits, row, prompt: _forced(8) if len(row) == NUM_DECODED else logits,
    ),
    "a penalty": ({"repetition_penalty": 3.0}, lambda logits, row, prompt: _rewarded(logits, row, 3.0)),
    "a penalty of the prompt": (
        {"encoder_repetition_penalty": 4.0}, lambda logits, row, prompt: _rewarded(logits, prompt, 1 / 4.0),
    ),
    "no pairs twice": (
        {"no_repeat_ngram_size": 1}, lambda logits, row, prompt: _without(*_followers(row, row, 1))(logits),
    ),
    "no ids of the prompt": (
        {"encoder_no_repeat_ngram_size": 1, "sequence_bias": [[[5], 30.0], [[7], 31.0], [[20], 32.0]]},
        lambda logits, row, prompt: _without(*_followers(row, prompt, 1))(
            logits + torch.tensor([{5: 30.0, 7: 31.0, 20: 32.0}.get(one, 0.0) for one in range(VOCABULARY)])
        ),
    ),
    "no bad words": (
        {"bad_words_ids": [[one] for one in range(25)]},
        lambda logits, row, prompt: _without(*range(25))(logits),
    ),
    "a bias": (
        {"sequence_bias": [[[4], 9.0], [[4, 6], 30.0]]},
        lambda logits, row, prompt: logits + torch.tensor(
            [9.0 if one == 4 else 30.0 if one == 6 and row[-1] == 4 else 0.0 for one in range(VOCABULARY)]
        ),
    ),
}  # fmt: skip
"""Options, and the scores that they make of logits, of a decoder that begins with its start."""


def _of_decoder(mixin: Any) -> list[str]:
    """Return which options of an encoder and a decoder do not give the ids by their definition."""
    model, wrong, plain = encoding(), list[str](), list[float]()
    for name, (options, rule) in ENCODED.items():
        # One prompt at a time: the padding of others would belong to the ids of the prompt.
        for prompt in PROMPTS[:1]:
            found = model.generate(
                input_ids=ids_of(prompt), do_sample=False, max_new_tokens=NUM_DECODED, eos_token_id=None,
                return_dict_in_generate=True, output_scores=True, **options,
            )  # fmt: skip
            row, due = found.sequences[0].tolist(), list[float]()
            for place in range(1, NUM_DECODED + 1):
                own = row[:place]
                due += rule(next_logits(model, prompt, own), own, prompt).clamp(min=-99).tolist()
            scores = [one for step in found.scores for one in step[0].clamp(min=-99).tolist()]
            wrong += unlike(scores, due, f"{name}, {prompt}", 1e-3)[:1]
        plain = plain or due
        wrong += [f"{name} changes nothing"] if options and due == plain else []
    return wrong


def padded_to(ids: Sequence[Sequence[int]], pad: int) -> list[list[int]]:
    longest = max(map(len, ids))
    return [list(row) + [pad] * (longest - len(row)) for row in ids]


def _several_least(mixin: Any) -> list[str]:
    """Return where rows end before the fewest new ids, or the shortest length, at any of their ends."""
    model, (ids, mask) = causal(), batch()
    plain = [ids_by(model, row, None, lambda logits, row, prompt: logits) for row in PROMPTS]
    ends = sorted({plain[0][0], plain[1][1], plain[2][2]})
    wrong = []
    for name, least in (("min_new_tokens", 3), ("min_length", 7)):
        new = 3

        def rule(logits: Tensor, row: Sequence[int], prompt: Sequence[int], new: int = new) -> Tensor:
            return _without(*ends)(logits) if len(row) - len(prompt) < new else logits

        found = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=NUM_NEW, eos_token_id=ends,
            pad_token_id=PAD, **{name: least},
        )[:, 4:].tolist()  # fmt: skip
        due = padded_to([ids_by(model, row, None, rule, ends=ends) for row in PROMPTS], PAD)
        wrong += [] if found == due else [f"{name}: {found}, {due} are due"]
    return wrong


def _penalized(mixin: Any) -> list[str]:
    """Return where a penalty of rows that are padded is not that of each alone: the id of padding is not seen."""
    model, (ids, mask) = causal(), batch()

    options = {"repetition_penalty": 2.0, "do_sample": False, "max_new_tokens": 1, "eos_token_id": None}
    found = model.generate(
        input_ids=ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **options
    ).scores[0]
    wrong = []
    for row, scores in zip(PROMPTS, found, strict=True):
        due = _rewarded(next_logits(model, row, None), row, 2.0)
        wrong += unlike(scores.tolist(), due.tolist(), f"{row}", 1e-3)[:1]
    return wrong


def _allowed(mixin: Any) -> list[str]:
    """Return where ids are not those that a function allows: of each prompt, of several answers, and of beams."""
    model, (ids, mask) = causal(), batch()
    wrong = []
    for options in (
        {"do_sample": False}, {"do_sample": True, "num_return_sequences": 2}, {"num_beams": 2},
        {"num_beams": 3, "num_return_sequences": 2},
    ):  # fmt: skip
        asked = set[Any]()

        def allowed(prompt: int, row: Tensor, asked: Any = asked) -> list[int]:
            asked.add((prompt, tuple(row[:4].tolist())))
            return [10 + prompt, 20 + prompt + len(row) % 2]

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=3, eos_token_id=None,
                 prefix_allowed_tokens_fn=allowed,
                **options,
            )[:, 4:].tolist()  # fmt: skip
        copies = options.get("num_return_sequences", 1)
        for row, new in enumerate(found):
            prompt = row // copies
            for place, one in enumerate(new):
                if one not in (10 + prompt, 20 + prompt + place % 2):
                    wrong.append(f"{options}, row {row}: {new}")
        if asked != {(prompt, tuple(row)) for prompt, row in enumerate(ids.tolist())}:
            wrong.append(f"{options}: {sorted(asked)}")
    return wrong


def _negatives(mixin: Any) -> list[str]:
    """Return where guidance by prompts that are padded is not that of each row alone."""
    model, (ids, mask) = causal(), batch()
    others, scale = [[9, 4, 8], [6, 11], [12]], 2.0
    padded = ids_of(*([PAD] * (3 - len(row)) + row for row in others))
    wrong = []
    for cached in (True, False):
        found = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=4, eos_token_id=None, use_cache=cached,
            guidance_scale=scale, negative_prompt_ids=padded, negative_prompt_attention_mask=(padded != PAD).long(),
        )[:, 4:].tolist()  # fmt: skip

        def rule(logits: Tensor, row: Sequence[int], prompt: Sequence[int]) -> Tensor:
            other = others[PROMPTS.index(tuple(prompt))]
            away = next_logits(model, [*other, *row[len(prompt) :]], None).log_softmax(-1)
            return scale * (logits.log_softmax(-1) - away) + away

        due = [ids_by(model, row, None, rule, 4) for row in PROMPTS]
        wrong += [] if found == due else [f"use_cache={cached}: {found}, {due} are due"]
    return wrong


def _again(mixin: Any) -> list[str]:
    """Return which calls give other ids after others: a longer static cache, beams, a penalty, an assistant."""
    model, (ids, mask) = causal(), batch()
    given: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": mask,
        "do_sample": False,
        "eos_token_id": None,
    }
    plain = model.generate(**given, max_new_tokens=4).tolist()
    config = model.generation_config.to_dict()
    wrong = []
    for options in (
        {"cache_implementation": "static", "max_new_tokens": 9}, {"cache_implementation": "static",
         "max_new_tokens": 4},
        {"num_beams": 2, "max_new_tokens": 4}, {"repetition_penalty": 2.0, "max_new_tokens": 4},
        {"max_new_tokens": 4, "use_cache": False}, {"max_new_tokens": 2}, {"max_length": 6},
    ):  # fmt: skip
        found = model.generate(**{**given, **options})
        if len(options) == 1 or "cache" in str(options):
            short = min(found.shape[1], 8)
            wrong += (
                [] if [r[:short] for r in found.tolist()] == [r[:short] for r in plain] else [f"{options}"]
            )
        if model.generate(**given, max_new_tokens=4).tolist() != plain:
            wrong.append(f"after {options}")
        if model.generation_config.to_dict() != config:
            wrong.append(f"{options} changes the model's own options")
    return wrong


def _copies(mixin: Any) -> list[str]:
    """Return where several answers of prompts of any form are not those of ids of repeated prompts."""
    model, (ids, mask) = causal(), batch()
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    options = {"do_sample": True, "max_new_tokens": 3, "eos_token_id": None, "top_k": 5}
    embeds = model.get_input_embeddings()(ids).detach()
    forms: Mapping[str, Mapping[str, Any]] = {
        "ids": {"input_ids": ids, "attention_mask": mask},
        "ids and places": {"input_ids": ids, "attention_mask": mask, "position_ids": places},
        "embeddings": {"inputs_embeds": embeds, "attention_mask": mask},
    }
    wrong = []

    def drawn(**given: Any) -> list[list[int]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            found: list[list[int]] = model.generate(**given, **options)[:, -3:].tolist()
            return found

    due = drawn(input_ids=ids.repeat_interleave(2, 0), attention_mask=mask.repeat_interleave(2, 0))
    for name, given in forms.items():
        found = drawn(**given, num_return_sequences=2)
        wrong += [] if found == due else [f"{name}: {found}, {due} are due"]
    return wrong


def _returned_caches(mixin: Any) -> list[Any]:
    """Return the kinds of caches that are returned and how many ids they hold, the last of which is not read."""
    found = []
    for model, given in (
        (causal(), {"input_ids": ids_of(PROMPTS[0])}),
        (causal(), {"input_ids": ids_of(PROMPTS[0]), "cache_implementation": "static"}),
        (causal(), {"input_ids": ids_of(PROMPTS[0]), "num_beams": 2}),
        (encoding(), {"input_ids": ids_of(PROMPTS[0])}),
        (causal(), {"input_ids": ids_of(PROMPTS[0]), "use_cache": False}),
    ):
        result = model.generate(
            **given, max_new_tokens=3, eos_token_id=None, return_dict_in_generate=True, do_sample=False
        )
        cache = next(
            (
                one
                for one in (getattr(result, name, None) for name in ("cache", "past_key_values"))
                if one is not None
            ),
            None,
        )
        found.append([type(cache).__name__, 0 if cache is None else int(cache.get_seq_length())])
    return found


def row_of(
    what: str,
    call: Callable[[Any], Any],
    right: Any,
    since: str = "4.57",
    known: Any = None,
    subject: str = "edges",
) -> Row:
    return Row(
        subject, "transformers.generation.utils:GenerationMixin", what, call, right, since=since, known=known
    )


FINDING = "Transformers: small functions of later releases"
# Sources: the documentation of GenerationMixin.generate and of GenerationConfig.
MODE_ROWS: Sequence[Row] = (
    row_of("options of an encoder and a decoder", _of_decoder, []),
    row_of("the least lengths with several ends", _several_least, []),
    row_of("a penalty of rows that are padded", _penalized, [], known=KnownFailure("padding is penalized", FINDING,
     before("transformers", "5.23"))),
    row_of(
        "ids that a function allows", _allowed, [],
        known=KnownFailure("answers of a prompt are other prompts", FINDING, before("transformers", "5.24")),
    ),
    row_of("guidance by prompts that are padded", _negatives, []),
    row_of("calls one after the other", _again, []),
    row_of("several answers of prompts in every form", _copies, [], "5.8"),
    row_of("caches that are returned", _returned_caches,
         [["DynamicCache", 6], ["StaticCache", 6], ["DynamicCache", 6], ["EncoderDecoderCache", 3], ["NoneType", 0]],
          "5.8"),
)  # fmt: skip
