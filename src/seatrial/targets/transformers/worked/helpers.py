"""Worked examples of the parts of Transformers' `generate`: masks, places, lengths, beams, ends, continuous batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.calls import PAD, causal, encoding, next_logits
from seatrial.targets.transformers.worked.drafts import LONG, WAYS, greedy_ids
from seatrial.targets.transformers.worked.scores import ids_of
from seatrial.targets.transformers.worked.stops import Words

PLACE = "transformers.generation.utils:GenerationMixin"


def _config(**options: Any) -> Any:
    made: Any = find_name("transformers", ["transformers:GenerationConfig"])
    return made(**options)


def _places(mixin: Any) -> list[Any]:
    """Return places of ids: by a mask, after a cache, and of ids besides embeddings."""
    call, ids = mixin._prepare_position_ids_for_generation, ids_of([5, 6])
    mask = ids_of([0, 0, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1])
    held = SimpleNamespace(get_seq_length=lambda: 3)
    return [
        call(None, ids, {"attention_mask": mask}).tolist(),
        call(None, ids, {}).tolist(),
        call(None, ids, {"cache": held, "past_key_values": held}).tolist(),
        call(None, torch.zeros(1, 7, 2), {"input_ids": ids}).tolist(),
        call(None, torch.zeros(1, 3, 2), {"input_ids": ids[:, :0]}).tolist(),
    ]


def _masks(mixin: Any) -> list[Any]:
    """Return masks of ids: with padding, without, where it is the end too, and of embeddings."""
    found = []
    for pad, ends, inputs, more in (
        (1, [3], ids_of([1, 5, 6], [7, 8, 9]), {}), (1, [3], ids_of([5, 6, 3], [7, 8, 9]), {}),
        (1, [1], ids_of([1, 5, 6], [7, 8, 9]), {}), (1, [3, 1], ids_of([1, 5, 6], [7, 8, 9]), {}),
        (None, [3], ids_of([1, 5, 6]), {}), (1, None, ids_of([1, 5, 1]), {}), (1, [3], torch.ones(2, 3, 4), {}),
        (1, [3], torch.ones(1, 3, 4), {"input_ids": ids_of([1, 5])}),
    ):  # fmt: skip
        config = SimpleNamespace(
            _pad_token_tensor=None if pad is None else torch.tensor(pad),
            _eos_token_tensor=None if ends is None else torch.tensor(ends),
        )
        found.append(mixin._prepare_attention_mask_for_generation(None, inputs, config, more).tolist())
    return found


def _updated(mixin: Any) -> list[Any]:
    """Return arguments of the next step: after one id, after two, and of a decoder."""
    call = mixin._update_model_kwargs_for_generation

    class Outputs(dict[str, Any]):
        pass

    def given() -> dict[str, Any]:
        return {
            "attention_mask": ids_of([0, 1]), "position_ids": ids_of([0, 0]), "token_type_ids": ids_of([4, 5]),
            "decoder_attention_mask": ids_of([1, 1]), "kept": 3,
        }  # fmt: skip

    found = []
    for options in ({}, {"num_new_tokens": 2}, {"is_encoder_decoder": True}):
        after = call(None, Outputs(), given(), **options)
        found.append({name: one.tolist() if isinstance(one, Tensor) else one for name, one in after.items()})
    return found


def _expanded(mixin: Any) -> list[Any]:
    """Return arguments of three copies: those of tensors alone, places of three sizes, states of an encoder."""
    call = mixin._expand_inputs_for_generation
    output: Any = find_name("transformers", ["transformers.modeling_outputs:BaseModelOutput"])
    ids, more = call(None, 2, False, ids_of([1], [2]), mask=ids_of([3], [4]), words=["a"], none=None)
    _, three = call(None, 2, False, ids_of([1], [2]), position_ids=torch.arange(6).view(3, 2, 1))
    states = output(last_hidden_state=torch.tensor([[1.0], [2.0]]))
    _, encoded = call(None, 3, True, None, encoder_outputs=states)
    same = call(None, 1, False, ids_of([1]), mask=ids_of([3]))
    return [
        ids.tolist(), more["mask"].tolist(), more["words"], more["none"], three["position_ids"][:, :, 0].tolist(),
        encoded["encoder_outputs"]["last_hidden_state"].flatten().tolist(), [same[0].tolist(),
         same[1]["mask"].tolist()],
    ]  # fmt: skip


LIMITS: Sequence[tuple[Mapping[str, int], tuple[bool, bool], bool]] = (
    ({"max_new_tokens": 3}, (True, True), False),
    ({"max_new_tokens": 3, "max_length": 9}, (False, True), False),
    ({"max_length": 9}, (False, True), False),
    ({"max_length": 20}, (True, True), False),
    ({"max_length": 20, "min_new_tokens": 2, "min_length": 9}, (True, False), False),
    ({"max_length": 20, "min_length": 9}, (True, False), False),
    ({"max_length": 9, "min_length": 8}, (False, False), True),
    ({"max_length": 20, "min_length": 3}, (True, False), True),
    ({"max_new_tokens": 3, "min_new_tokens": 1}, (True, True), True),
)
"""Options of lengths, whether the largest and the least are defaults, and whether embeddings are given."""


def lengths_by(limits: Sequence[Any], mixin: Any) -> list[list[Any]]:
    """Return the largest and least lengths by where limits are given, with four ids, or six embeddings."""
    found = []
    for options, defaults, embedded in limits:
        own = _config(**{"min_length": 0, **options})
        model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=False, max_position_embeddings=22))
        inputs, length = (torch.zeros(1, 6, 2), 0) if embedded else (ids_of([5, 6, 7, 8]), 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            name = "inputs_embeds" if embedded else "input_ids"
            after = mixin._prepare_generated_length(model, own, *defaults, name, length, inputs)
        found.append([after.max_length, after.min_length])
    return found


def _too_long(mixin: Any) -> None:
    causal().generate(ids_of(LONG), max_length=6, do_sample=False)


def _typing(mixin: Any) -> None:
    causal().generate(ids_of(LONG), max_new_tokens=2, temprature=0.5)


def _two_caches(mixin: Any) -> None:
    made: Any = find_name("transformers", ["transformers:DynamicCache"])
    causal().generate(ids_of(LONG), max_new_tokens=2, past_key_values=made(), cache_implementation="static")


def _two_inputs(mixin: Any) -> None:
    causal().generate(ids_of(LONG), input_ids=ids_of(LONG), max_new_tokens=2)


def _beam_streams(mixin: Any) -> None:
    causal().generate(ids_of(LONG), num_beams=2, max_new_tokens=2, streamer=SimpleNamespace(put=len, end=len))


def _no_tokenizer(mixin: Any) -> None:
    causal().generate(ids_of(LONG), max_new_tokens=2, stop_strings=["a"])


def _starts(mixin: Any) -> None:
    encoding().generate(ids_of(LONG), max_new_tokens=2, decoder_start_token_id=[5, 6])


def _begun(mixin: Any) -> list[Any]:
    """Return the first ids of a decoder and their mask: none, without the start, with it, and of each row."""
    model = SimpleNamespace(
        config=SimpleNamespace(model_type="bart", is_encoder_decoder=True), device=torch.device("cpu")
    )
    found = []
    for start, options in (
        (torch.tensor(2), {}), (torch.tensor([2, 3]), {}), (torch.tensor(2), {"decoder_input_ids": ids_of([5], [2])}),
        (torch.tensor(2), {"decoder_input_ids": ids_of([5], [6]), "decoder_attention_mask": ids_of([1], [0])}),
        (torch.tensor(2), {"decoder_input_ids": ids_of([2], [2]), "decoder_attention_mask": ids_of([1], [0])}),
        (torch.tensor(2), {"input_ids": ids_of([8], [9])}),
    ):  # fmt: skip
        ids, left = mixin._prepare_decoder_input_ids_for_generation(
            model, 2, "pixel_values", dict(options), start
        )
        mask = left.get("decoder_attention_mask")
        found.append([ids.tolist(), None if mask is None else mask.tolist(), sorted(left)])
    return found


def _first(mixin: Any) -> list[Any]:
    """Return the ids that calls without ids begin with."""
    states = SimpleNamespace(last_hidden_state=torch.zeros(2, 3, 4))
    found = []
    for encodes, given in (
        (False, {}), (False, {"attention_mask": torch.ones(3, 2)}), (False, {"inputs_embeds": torch.ones(2, 3, 4)}),
        (True, {"encoder_outputs": states}),
    ):  # fmt: skip
        model = SimpleNamespace(
            config=SimpleNamespace(is_encoder_decoder=encodes), device=torch.device("cpu")
        )
        ids = mixin._maybe_initialize_input_ids_for_generation(model, None, torch.tensor(9), given)
        found.append([list(ids.shape), sorted({*ids.flatten().tolist()})])
    return found


def _transitions(mixin: Any) -> list[Any]:
    """Return scores of ids, raw and as log-probabilities, and of beams of which one is shorter."""
    config = SimpleNamespace(vocab_size=3)
    config.get_text_config = lambda: config
    model = SimpleNamespace(config=config)
    scores = (
        torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        torch.tensor([[7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]),
    )
    call = mixin.compute_transition_scores
    rows = ids_of([0, 2, 0], [1, 0, 2])
    beams = ids_of([0, 1, -1], [1, -1, -1])
    logs = call(model, rows, scores, normalize_logits=True)
    return [
        call(model, rows, scores).tolist(), call(model, rows, scores, beams).tolist(),
        [[round(float(one), 4) for one in row] for row in logs],
    ]  # fmt: skip


def _processors(mixin: Any) -> list[Any]:
    """Return the processors of all options in their order, and those of sampling from beams."""
    model = causal()
    options = {
        "sequence_bias": [[[4], 2.0]], "encoder_repetition_penalty": 1.5, "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2, "bad_words_ids": [[5]], "min_length": 9,
        "min_new_tokens": 3, "forced_bos_token_id": 4, "forced_eos_token_id": 5, "remove_invalid_values": True,
        "exponential_decay_length_penalty": (2, 1.1), "suppress_tokens": [6], "begin_suppress_tokens": [7],
        "do_sample": True, "temperature": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5,
        "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "renormalize_logits": True, "max_length": 20, "num_beams": 3,
        "num_return_sequences": 1,
    }  # fmt: skip
    config = _config(**options)
    config._eos_token_tensor = torch.tensor([3, 4])
    found = model._get_logits_processor(
        config, input_ids_seq_length=4, encoder_input_ids=ids_of([5, 6]), prefix_allowed_tokens_fn=lambda prompt,
         ids: [1],
        device="cpu", model_kwargs={},
    )  # fmt: skip
    plain = _config(
        do_sample=False, temperature=0.5, top_k=5, max_length=9, num_beams=1, num_return_sequences=1
    )
    plain._eos_token_tensor = None
    names = [type(one).__name__.removesuffix("LogitsProcessor").removesuffix("LogitsWarper") for one in found]
    keeps = sorted({one.min_tokens_to_keep for one in found if hasattr(one, "min_tokens_to_keep")})
    few = model._get_logits_processor(
        plain, input_ids_seq_length=4, encoder_input_ids=None, device="cpu", model_kwargs={}
    )
    return [names, keeps, len(few)]


def _ends(mixin: Any) -> list[str]:
    """Return the criteria of all options in their order."""
    config = _config(
        max_length=9, max_time=3.0, stop_strings="a", is_assistant=True, assistant_confidence_threshold=0.5
    )
    config._eos_token_tensor = torch.tensor([3])
    found = causal()._get_stopping_criteria(config, [], tokenizer=Words("aa"))
    return [type(one).__name__ for one in found]


def _specials(mixin: Any) -> list[Any]:
    """Return special ids as tensors: an end alone, several, padding that is missing, a start of a decoder."""
    found = []
    for model, options in (
        (causal(), {"eos_token_id": 3}), (causal(), {"eos_token_id": [4, 5], "pad_token_id": 0}),
        (causal(), {"bos_token_id": 6}), (encoding(), {"bos_token_id": 6, "eos_token_id": 3}),
        (encoding(), {"bos_token_id": 6, "decoder_start_token_id": 7}),
    ):  # fmt: skip
        config = _config(**options)
        model._prepare_special_tokens(config, True, device="cpu")
        names = ("bos", "eos", "pad", "decoder_start")
        tensors = [getattr(config, f"_{name}_token_tensor") for name in names]
        found.append([None if one is None else one.tolist() for one in tensors])
    return found


def _together(mixin: Any) -> list[str]:
    """Return which requests of a continuous batch do not get the ids, and probabilities, of each alone."""
    made: Any = find_name(
        "transformers", ["transformers.generation.configuration_utils:ContinuousBatchingConfig"]
    )
    model, wrong = causal(), list[str]()
    shared = [5, 9, 11, 4, 9, 11, 7, 8, 6]
    prompts = [list(LONG), [7, 8], [20], shared, [*shared[:-1], 12], [13, 14, 15]]
    end, other = greedy_ids(model, prompts[1], 4)[2], greedy_ids(model, prompts[0], 4)[1]
    for ends in (end, [other, end]):
        wrong += _of_requests(model, made, prompts, ends)
    return wrong


def _of_requests(model: Any, made: Any, prompts: Sequence[list[int]], ends: int | list[int]) -> list[str]:
    wrong, stops = [], ends if isinstance(ends, list) else [ends]
    with torch.random.fork_rng(devices=[]):
        outputs = model.generate_batch(
            prompts, generation_config=_config(max_new_tokens=4, eos_token_id=ends, do_sample=False, pad_token_id=PAD),
            continuous_batching_config=made(
                page_size=4, num_blocks=24, max_batch_tokens=16, max_memory_percent=0.01, return_logprobs=True
            ),
            warmup=False,
        )  # fmt: skip
    for place, prompt in enumerate(prompts):
        one = outputs[f"req_{place}"]
        due = greedy_ids(model, prompt, 4)
        due = due[: next((at for at, token in enumerate(due, 1) if token in stops), len(due))]
        if one.prompt_ids != prompt or one.generated_tokens != due:
            wrong.append(f"{prompt}, ends {ends}: {one.generated_tokens}, {due} are due")
            continue
        logs = [
            float(next_logits(model, [*prompt, *due[:at]], None).log_softmax(-1)[token])
            for at, token in enumerate(due)
        ]
        wrong += unlike(one.logprobs, logs, f"{prompt}, probabilities", 1e-3)[:1]
    return wrong


def _sure(mixin: Any) -> list[str]:
    """Return which ways of candidates do not draw the ids of the largest scores where no others are left."""
    model, wrong = causal(), []
    given = {"do_sample": True, "top_k": 1, "temperature": 0.7, "max_new_tokens": 5, "eos_token_id": [31]}
    due = [*LONG, *greedy_ids(model, LONG, 5)]
    for way in ("an assistant", "a part of the model", "the prompt"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = model.generate(ids_of(LONG), **given, **WAYS[way]())[0].tolist()
        wrong += [] if found == due else [f"{way}: {found}, {due} are due"]
    return wrong


def _row(what: str, call: Callable[[Any], Any], right: Any, since: str = "4.57") -> Row:
    return Row("edges", PLACE, what, call, right, since=since)


# Sources: the documentation of GenerationMixin.generate and of GenerationConfig.
HELPER_ROWS: Sequence[Row] = (
    _row("places of ids", _places,
         [[[0, 0, 0, 1], [0, 1, 2, 3], [0, 0, 1, 2]], [[0, 1]], [[0, 1, 2, 3, 4]], [[0, 1]], [[0, 1, 2]]], "5.8"),
    _row("masks of ids", _masks,
         [[[0, 1, 1], [1, 1, 1]], [[1] * 3] * 2, [[1] * 3] * 2, [[1] * 3] * 2, [[1] * 3], [[0, 1, 0]], [[1] * 3] * 2,
          [[0, 1]]]),
    _row(
        "arguments of the next step", _updated,
        [
            {"attention_mask": [[0, 1, 1]], "position_ids": [[0, 0, 1]], "token_type_ids": [[4, 5, 5]],
             "decoder_attention_mask": [[1, 1]], "kept": 3},
            {"attention_mask": [[0, 1, 1, 1]], "position_ids": [[0, 0, 1, 2]], "token_type_ids": [[4, 5, 4, 5]],
             "decoder_attention_mask": [[1, 1]], "kept": 3},
            {"attention_mask": [[0, 1]], "position_ids": [[0, 0]], "token_type_ids": [[4, 5, 5]],
             "decoder_attention_mask": [[1, 1, 1]], "kept": 3},
        ], "5.8",
    ),
    _row("arguments of several copies", _expanded,
         [[[1], [1], [2], [2]], [[3], [3], [4], [4]], ["a"], None, [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]],
          [1.0, 1.0, 1.0, 2.0, 2.0, 2.0], [[[1]], [[3]]]], "5.23"),
    _row("lengths by limits", partial(lengths_by, LIMITS),
         [[7, 0], [7, 0], [9, 0], [22, 0], [22, 6], [22, 9], [3, 2], [20, 0], [3, 1]], "5.8"),
    _row("a prompt as long as the limit", _too_long, Refused("max_length")),
    _row("an argument that is not known", _typing, Refused("temprature")),
    _row("two caches", _two_caches, Refused("cache_implementation")),
    _row("ids twice", _two_inputs, Refused("passed alongside")),
    _row("a streamer of beams", _beam_streams, Refused("beam")),
    _row("strings that stop without a tokenizer", _no_tokenizer, Refused("tokenizer")),
    _row("starts of another batch", _starts, Refused("decoder_start_token_id")),
    _row("the first ids of a decoder", _begun,
         [
             [[[2], [2]], None, []], [[[2], [3]], None, []], [[[5], [2]], None, []],
             [[[2, 5], [2, 6]], [[1, 1], [1, 0]], ["decoder_attention_mask"]],
             [[[2], [2]], [[1], [0]], ["decoder_attention_mask"]], [[[2, 8], [2, 9]], None, []],
         ]),
    _row("ids that calls begin with", _first, [[[1, 1], [9]], [[3, 1], [9]], [[2, 0], []], [[2, 3], [-100]]]),
    _row("scores of ids", _transitions,
         [[[3.0, 7.0], [4.0, 12.0]], [[3.0, 10.0], [4.0, 0.0]], [[-0.4076, -2.4076], [-2.4076, -0.4076]]]),
    _row("processors in their order", _processors,
         [["SequenceBias", "EncoderRepetitionPenalty", "RepetitionPenalty", "NoRepeatNGram", "EncoderNoRepeatNGram",
           "NoBadWords", "MinLength", "MinNewTokensLength", "PrefixConstrained", "ForcedBOSToken", "ForcedEOSToken",
           "InfNanRemove", "ExponentialDecayLengthPenalty", "SuppressTokens", "SuppressTokensAtBegin", "Temperature",
           "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta", "LogitNormalization"], [3], 0]),
    _row("criteria in their order", _ends,
         ["MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria", "EosTokenCriteria", "ConfidenceCriteria"]),
    _row("special ids", _specials,
         [[None, [3], 3, None], [None, [4, 5], 0, None], [6, None, None, None], [6, [3], 3, 6], [6, None, None, 7]]),
    _row("requests of a continuous batch", _together, [], "5.23"),
    _row("ids that are drawn for sure with candidates", _sure, [], "5.8"),
)  # fmt: skip
