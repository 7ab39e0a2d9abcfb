"""Worked examples of candidates in Transformers' `generate`: from the prompt, an assistant or a part of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.calls import PAD, PROMPTS, VOCABULARY, causal, encoding, next_logits
from seatrial.targets.transformers.worked.scores import ids_of

PLACE = "transformers.generation.candidate_generator"
UTILITIES = "transformers.generation.utils"
OUT = -torch.inf


def _looked_up(made: Any) -> dict[str, list[int]]:
    """Return the candidates of prompts: of the longest match, the first one, up to a limit, an end or a ban."""
    table: Mapping[str, tuple[Sequence[int], Mapping[str, Any]]] = {
        "the longest": ([9, 2, 3, 1, 2, 4, 1, 2], {}),
        "the first": ([2, 5, 2, 6, 2], {"max_matching_ngram_size": 1}),
        "a short one": ([3, 1, 4, 2, 1], {}),
        "none": ([3, 1, 4, 2, 5], {}),
        "as many": ([1, 2, 3, 4, 5, 6, 1], {"num_output_tokens": 2}),
        "an end": ([1, 2, 3, 4, 1], {"eos_token_id": torch.tensor([3, 7])}),
        "an end at once": ([1, 2, 3, 4, 1], {"eos_token_id": torch.tensor([2])}),
        "a limit": ([1, 2, 3, 4, 1], {"max_length": 3}),
        "one id is left": ([1, 2, 3, 4, 1], {"max_length": 6}),
        "a ban": ([1, 2, 3, 4, 1], {"logits_processor": _bans(3), "vocab_size": 9}),
        "a ban of the first": ([1, 2, 5, 1, 6, 1], {"logits_processor": _bans(2), "vocab_size": 9}),
        "an id alone": ([1], {}),
    }
    found = {}
    for name, (ids, options) in table.items():
        given = {"num_output_tokens": 3, "max_matching_ngram_size": 3, "max_length": 20, **options}
        given = {"eos_token_id": torch.tensor([99]), **given}
        candidates, logits = made(**given).get_candidates(ids_of(ids))
        if logits is not None or candidates[0, : len(ids)].tolist() != list(ids):
            raise AssertionError(f"{name}: other ids than those given")
        found[name] = candidates[0, len(ids) :].tolist()
    return found


def _bans(token: int) -> Any:
    listed = find_name("transformers", ["transformers:LogitsProcessorList"])
    made = find_name("transformers", ["transformers:SuppressTokensLogitsProcessor"])
    return listed([made([token])])


def _drawn(function: Any) -> list[Any]:
    """Return ids of candidates that are surely kept, and others that surely are not."""
    found = []
    for drafts, sure in (
        ([(2, 1.0), (3, 1.0)], [2, 3, 4]), ([(2, 1.0), (3, 1.0)], [2, 5, 4]), ([(2, 1.0), (3, 1.0)], [6, 3, 4]),
    ):  # fmt: skip
        ids = ids_of([1, *(one for one, _ in drafts)])
        own, other = torch.full((1, 3, 8), OUT), torch.full((1, 2, 8), OUT)
        for place, token in enumerate(sure):
            own[0, place, token] = 0.0
        for place, (token, _) in enumerate(drafts):
            other[0, place, token] = 0.0
        kept, number = function(ids, other, 2, own)[:2]
        found.append([kept.tolist(), int(number)])
    return found


def _often(function: Any) -> list[bool]:
    """Return whether ids are drawn as often as by the model, where candidates are drawn by another distribution."""
    model, draft = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    counts, number = torch.zeros(3), 3000
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for token in torch.multinomial(draft, number, replacement=True).tolist():
            own = model.log().expand(1, 2, 3).clone()
            kept, _ = function(ids_of([0, token]), draft.log().expand(1, 1, 3).clone(), 1, own)[:2]
            counts[int(kept[0, 0])] += 1
    errors = (counts - number * model).abs() / (number * model * (1 - model)).sqrt()
    return [bool(one < 5) for one in errors]


def _masks(function: Any) -> list[Any]:
    """Return masks of a new length: longer, shorter, of a decoder, and with those of pictures."""
    mask = ids_of([0, 1, 1])
    cross = torch.arange(6).view(1, 3, 2, 1)
    images = torch.arange(6).view(1, 3, 2)
    return [
        function({"attention_mask": mask}, 5, False)["attention_mask"].tolist(),
        function({"attention_mask": mask}, 2, False)["attention_mask"].tolist(),
        function({"attention_mask": mask}, 3, False)["attention_mask"].tolist(),
        function({"attention_mask": mask, "decoder_attention_mask": mask}, 4, True)[
            "decoder_attention_mask"
        ].tolist(),
        function({"attention_mask": mask, "cross_attention_mask": cross}, 4, False)["cross_attention_mask"]
        .flatten()
        .tolist(),
        function({"attention_mask": mask, "cross_attention_mask": cross}, 2, False)["cross_attention_mask"]
        .flatten()
        .tolist(),
        function({"attention_mask": mask, "image_attention_mask": images}, 4, False)["image_attention_mask"]
        .flatten()
        .tolist(),
        function({"other": 1}, 4, False),
    ]


def _places(function: Any) -> list[Any]:
    places, three = ids_of([0, 0, 1]), torch.arange(6).view(3, 1, 2)
    return [
        function({"position_ids": places}, 5, False)["position_ids"].tolist(),
        function({"position_ids": places}, 2, False)["position_ids"].tolist(),
        function({"decoder_position_ids": places, "position_ids": places}, 4, True)[
            "decoder_position_ids"
        ].tolist(),
        function({"position_ids": three}, 3, False)["position_ids"].tolist(),
        function({"position_ids": None}, 3, False),
    ]


def _kinds(function: Any) -> list[Any]:
    kinds = ids_of([0, 1, 2])
    return [function({"token_type_ids": kinds}, length)["token_type_ids"].tolist() for length in (5, 3, 1)]


def _split(function: Any) -> list[Any]:
    """Return states of a prompt of three ids, of one id that is accepted, and of later calls."""
    first = (torch.arange(3).view(1, 3, 1).float(),)
    found = function((), first, 3, 4)
    later = (torch.arange(10, 13).view(1, 3, 1).float(),)
    found = function(found, later, 4, 2)
    maps = function((), (torch.ones(1, 1, 3, 4),), 3, 4, is_decoder_attention=True)
    maps = function(maps, (torch.ones(1, 1, 3, 6),), 4, 2, is_decoder_attention=True)
    return [[one[0].flatten().tolist() for one in found], [list(one[0].shape) for one in maps]]


@cache
def another() -> Any:
    """Return a model of which some candidates are right."""
    model = copy.deepcopy(causal())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head.add_(0.3 * head.std() * torch.randn(head.shape, generator=generator))
    return model


def _settings(**options: Any) -> Any:
    """Return another model with options of its own."""
    model = copy.copy(another())
    model.generation_config = copy.deepcopy(model.generation_config)
    for name, value in options.items():
        setattr(model.generation_config, name, value)
    return model


LONG = (5, 9, 11, 4, 9, 11)
WAYS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "an assistant": lambda: {"assistant_model": another()},
    "the model itself": lambda: {"assistant_model": copy.deepcopy(causal())},
    "an assistant, fewer candidates": lambda: {"assistant_model": _settings(num_assistant_tokens=2)},
    "an assistant, a growing number": lambda: {
        "assistant_model": _settings(num_assistant_tokens=1, num_assistant_tokens_schedule="heuristic"),
    },
    "an assistant, sure ones": lambda: {"assistant_model": _settings(assistant_confidence_threshold=0.9)},
    "the prompt": lambda: {"prompt_lookup_num_tokens": 3},
    "the prompt, longer matches": lambda: {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 3},
    "a part of the model": lambda: {"assistant_early_exit": 1},
}  # fmt: skip
ASSISTED: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "a limit of the whole": {"max_length": 13, "max_new_tokens": None},
    "one new id": {"max_new_tokens": 1},
    "two new ids": {"max_new_tokens": 2},
    "bans": {"suppress_tokens": list(range(20, 27))},
    "a penalty": {"repetition_penalty": 1.6},
    "no pairs twice": {"no_repeat_ngram_size": 2},
    "a bias": {"sequence_bias": [[[4], 6.0], [[4, 8], 9.0]]},
}  # fmt: skip


def _same_ids(least: bool, ways: Sequence[str], mixin: Any) -> list[str]:
    """Return which ways of candidates give other ids, scores or logits than none, with which options."""
    model, wrong = causal(), []
    ends = greedy_ids(model, LONG, 12)
    table: Mapping[str, Mapping[str, Any]] = {**ASSISTED, "an end": {"eos_token_id": [ends[4]]}}
    if least:
        table = {
            "the fewest new ids": {"eos_token_id": [ends[2]], "min_new_tokens": 6},
            "the least length": {"eos_token_id": [ends[2]], "min_length": 11},
        }
    for name, options in table.items():
        given = {
            "input_ids": ids_of(LONG),
            "do_sample": False,
            "max_new_tokens": 9,
            "eos_token_id": VOCABULARY,
            **options,
        }
        given |= {
            "return_dict_in_generate": True,
            "output_scores": True,
            "output_logits": True,
            "pad_token_id": PAD,
        }
        due = model.generate(**given)
        for way in ways:
            found = model.generate(**given, **WAYS[way]())
            if found.sequences.tolist() != due.sequences.tolist():
                wrong.append(f"{way}, {name}: {found.sequences.tolist()}, {due.sequences.tolist()} are due")
                continue
            for field in ("scores", "logits"):
                got, right = getattr(found, field), getattr(due, field)
                if len(got) != len(right):
                    wrong.append(f"{way}, {name}: {len(got)} {field}, {len(right)} are due")
                    continue
                for one, other in zip(got, right, strict=True):
                    wrong += unlike(
                        one[0].clamp(min=-99).tolist(),
                        other[0].clamp(min=-99).tolist(),
                        f"{way}, {name}, {field}",
                        1e-3,
                    )[:1]
    return wrong[:5]


def greedy_ids(model: Any, prompt: Sequence[int], number: int) -> list[int]:
    row = list(prompt)
    for _ in range(number):
        row.append(int(next_logits(model, row, None).argmax()))
    return row[len(prompt) :]


def _same_states(make: Callable[[], Mapping[str, Any]], mixin: Any) -> list[str]:
    """Return where states and attentions of candidates are others than without them."""
    model, wrong = causal(), []
    model.set_attn_implementation("eager")
    given = {"input_ids": ids_of(LONG), "do_sample": False, "max_new_tokens": 6, "eos_token_id": VOCABULARY}
    given |= {"return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True}
    due, found = model.generate(**given), model.generate(**given, **make())
    for field in ("hidden_states", "attentions"):
        got, right = getattr(found, field), getattr(due, field)
        if [[list(one.shape) for one in step] for step in got] != [
            [list(one.shape) for one in step] for step in right
        ]:
            wrong.append(f"{field} of other shapes")
            continue
        for place, (step, other) in enumerate(zip(got, right, strict=True)):
            error = max(float((one - two).abs().max()) for one, two in zip(step, other, strict=True))
            wrong += [f"{field}, step {place}: {error} off"] if error > 1e-3 else []
    return wrong


def _decoded(mixin: Any) -> list[str]:
    """Return which ways of candidates give other ids of an encoder and a decoder than none."""
    model, wrong = encoding(), []
    assistant = copy.deepcopy(model)
    with torch.no_grad():
        assistant.model.decoder.layers[0].fc1.weight.mul_(0.5)
    for prompt in PROMPTS:
        given = {
            "input_ids": ids_of(prompt),
            "do_sample": False,
            "max_new_tokens": 6,
            "eos_token_id": VOCABULARY,
        }
        due = model.generate(**given, repetition_penalty=1.5).tolist()
        for options in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 2}):
            found = model.generate(**given, repetition_penalty=1.5, **options).tolist()
            wrong += [] if found == due else [f"{prompt}, {sorted(options)}: {found}, {due} are due"]
    return wrong


def _streamed(mixin: Any) -> list[bool]:
    """Return whether a streamer of candidates gets each id once, and the end once."""
    found, model = list[int](), causal()
    ends = []
    stream = SimpleNamespace(
        put=lambda value: found.extend(value.flatten().tolist()), end=lambda: ends.append(1)
    )
    row = model.generate(
        ids_of(LONG),
        do_sample=False,
        max_new_tokens=6,
        eos_token_id=VOCABULARY,
        assistant_model=another(),
        streamer=stream,
    )
    return [found == row[0].tolist(), ends == [1]]


def _numbers(made: Any) -> list[Any]:
    """Return how many candidates are drawn: by the limits, and after good and bad ones by each schedule."""
    config: Any = find_name("transformers", ["transformers:GenerationConfig"])
    found = list[Any]()
    for schedule in ("constant", "heuristic", "heuristic_transient"):
        own = _settings(
            num_assistant_tokens=5, num_assistant_tokens_schedule=schedule, assistant_confidence_threshold=0.0
        )
        limits = config(max_length=12, min_length=8, eos_token_id=3)
        generator = made(ids_of(LONG), own, limits, {"attention_mask": torch.ones(1, 6)})
        numbers: list[Any] = [
            list(generator._calculate_new_tokens(torch.zeros(1, length))) for length in (3, 6, 9, 11)
        ]
        for matches, length in ((5, 6), (2, 8), (0, 8), (0, 7)):
            generator.update_candidate_strategy(None, torch.zeros(1, length, 9), matches)
            numbers.append(int(generator.num_assistant_tokens))
        found.append(numbers)
    return found


def _several(mixin: Any) -> None:
    causal().generate(ids_of(LONG, LONG), do_sample=False, max_new_tokens=4, assistant_model=another())


def _several_answers(mixin: Any) -> None:
    causal().generate(
        ids_of(LONG), do_sample=True, max_new_tokens=4, assistant_model=another(), num_return_sequences=2
    )


def row_of(
    place: str, what: str, call: Callable[[Any], Any], right: Any, since: str = "4.57", known: Any = None
) -> Row:
    """Return a row of a function of candidates."""
    return Row("samplers", place, what, call, right, since=since, known=known)


MIXIN = f"{UTILITIES}:GenerationMixin"
STATES_OF_FIRST = KnownFailure(
    "states of candidates that are accepted at once are those of the prompt's first ids",
    finding="Transformers: states of candidates that are accepted with the prompt",
)
# Sources: the documentation of each class and of generate; Leviathan et al. 2023 for candidates that are drawn.
DRAFT_ROWS: Sequence[Row] = (
    row_of(
        f"{PLACE}:PromptLookupCandidateGenerator", "candidates from the prompt", _looked_up,
        {
            "the longest": [4, 1, 2], "the first": [5, 2, 6], "a short one": [4, 2, 1], "none": [], "as many": [2, 3],
            "an end": [2], "an end at once": [], "a limit": [2, 3], "one id is left": [], "a ban": [2],
            "a ban of the first": [6, 1], "an id alone": [],
        },
    ),
    row_of(
        f"{PLACE}:PromptLookupCandidateGenerator", "no candidates at all",
        lambda made: made(num_output_tokens=0), Refused("num_output_tokens"),
    ),
    row_of(f"{UTILITIES}:_speculative_sampling", "candidates that are sure", _drawn,
           [[[[2, 3, 4]], 2], [[[2, 5]], 1], [[[6]], 0]], "5.21"),
    row_of(f"{UTILITIES}:_speculative_sampling", "frequencies of ids", _often, [True] * 3, "5.21"),
    row_of(
        f"{PLACE}:_prepare_attention_mask", "masks of candidates", _masks,
        [[[0, 1, 1, 1, 1]], [[0, 1]], [[0, 1, 1]], [[0, 1, 1, 1]], [0, 1, 2, 3, 4, 5, 4, 5], [0, 1, 2, 3],
         [0, 1, 2, 3, 4, 5, 4, 5], {"other": 1}],
    ),
    row_of(
        f"{PLACE}:_prepare_position_ids", "places of candidates", _places,
        [[[0, 0, 1, 2, 3]], [[0, 0]], [[0, 0, 1, 2]], [[[0, 1, 2]], [[2, 3, 4]], [[4, 5, 6]]], {"position_ids": None}],
    ),
    row_of(f"{PLACE}:_prepare_token_type_ids", "types of candidates", _kinds, [[[0, 1, 2, 2, 2]], [[0, 1, 2]], [[0]]],
     "5.8"),
    row_of(f"{UTILITIES}:_split_model_outputs", "states of candidates", _split,
           [[[0.0, 1.0, 2.0], [10.0], [11.0]], [[1, 1, 3, 3], [1, 1, 1, 4], [1, 1, 1, 5]]]),
    row_of(MIXIN, "ids, scores and logits with candidates", partial(_same_ids, False, [*WAYS][:-1]), []),
    row_of(MIXIN, "ids, scores and logits with candidates of a part", partial(_same_ids, False, [*WAYS][-1:]), [],
     "5.8"),
    row_of(MIXIN, "the least lengths with candidates", partial(_same_ids, True, [*WAYS]), [], "5.8"),
    row_of(MIXIN, "states with candidates of an assistant", lambda mixin: _same_states(WAYS["an assistant"], mixin), [],
           known=STATES_OF_FIRST),
    row_of(
        MIXIN, "states with candidates of the prompt that come later",
        lambda mixin: _same_states(lambda: {"prompt_lookup_num_tokens": 1, "max_matching_ngram_size": 3}, mixin), [],
    ),
    row_of(MIXIN, "candidates of an encoder and a decoder", _decoded, []),
    row_of(MIXIN, "a streamer of candidates", _streamed, [True, True]),
    row_of(
        f"{PLACE}:AssistedCandidateGenerator", "numbers of candidates", _numbers,
        [[[5, 5], [2, 5], [0, 2], [0, 0], 5, 5, 5, 5], [[5, 5], [2, 5], [0, 2], [0, 0], 7, 6, 5, 4],
         [[5, 5], [2, 5], [0, 2], [0, 0], 7, 6, 5, 4]],
    ),
    row_of(MIXIN, "candidates of a batch", _several, Refused("batch_size = 1")),
    row_of(MIXIN, "candidates of several answers", _several_answers, Refused("num_return_sequences")),
)  # fmt: skip
