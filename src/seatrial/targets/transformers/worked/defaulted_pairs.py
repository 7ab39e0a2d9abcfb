"""Worked examples of pipelines that generate, for pairs of places where options of generation are set.

What a call sets goes before what the pipeline was made with, that before what the model's own generation configuration
says, and this before the pipeline's defaults. What is due is `generate` with the options that are left, on the tensors
that the pipeline gives it.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs
from seatrial.targets.transformers.worked.pipes import (
    ASKED,
    decoder,
    drawn,
    letters,
    of_config,
    tokens,
    words,
)
from seatrial.targets.transformers.worked.pipes_media import (
    PIXELS,
    RATE,
    VISION,
    letters_of_sounds,
    picture,
    seeing,
    speech,
)
from seatrial.targets.transformers.worked.plain_decoding import refused

SEED = 11


class Piped(NamedTuple):
    """A pipeline with its parts and a call."""

    model: Any
    parts: Mapping[str, Any]
    call: Callable[..., Any]
    """Takes the pipeline and the options of generation."""


def _of_text() -> Piped:
    return Piped(decoder(), {"tokenizer": letters()}, lambda pipe, **more: pipe("hello", **more))


def _seen() -> Piped:
    model, processor = seeing()
    return Piped(
        model, {"processor": processor},
        lambda pipe, **more: pipe(images=picture(), text="<image>what", generate_kwargs=more),
    )  # fmt: skip


def _written() -> Piped:
    model = drawn(
        "BartForConditionalGeneration", d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=len(tokens()), pad_token_id=0,
        bos_token_id=2, eos_token_id=3, decoder_start_token_id=2, forced_eos_token_id=None, max_position_embeddings=64,
    )  # fmt: skip
    tokenizer = words()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return Piped(model, {"tokenizer": tokenizer}, lambda pipe, **more: pipe("hello world", **more))


def _writing(vocabulary: int) -> Any:
    return of_name("GPT2Config")(
        n_embd=16, n_layer=1, n_head=2, vocab_size=vocabulary, n_positions=64, add_cross_attention=True,
        is_decoder=True, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def _joined(kind: str, encoder: Any, vocabulary: int) -> Any:
    config = of_name(f"{kind}Config").from_encoder_decoder_configs(
        encoder, _writing(vocabulary), decoder_start_token_id=1, pad_token_id=0
    )
    return of_config(f"{kind}Model", config)


def _captioned() -> Piped:
    model = _joined("VisionEncoderDecoder", of_name("ViTConfig")(**VISION), 260)
    parts = {"tokenizer": letters(), "image_processor": of_name("ViTImageProcessor")(**PIXELS)}
    return Piped(model, parts, lambda pipe, **more: pipe(picture(), generate_kwargs=more))


def _transcribed() -> Piped:
    encoder, extractor = speech("CTC")
    model = _joined("SpeechEncoderDecoder", encoder.config, 13)
    parts = {"tokenizer": letters_of_sounds(), "feature_extractor": extractor}
    sound = torch.sin(torch.arange(RATE * 2) / 7.0).numpy()
    return Piped(model, parts, lambda pipe, **more: pipe(sound, generate_kwargs=more))


KINDS: Mapping[str, Callable[[], Piped]] = {
    "text_generation:TextGenerationPipeline": _of_text,
    "image_text_to_text:ImageTextToTextPipeline": _seen,
    "any_to_any:AnyToAnyPipeline": _seen,
    "text2text_generation:Text2TextGenerationPipeline": _written,
    "text2text_generation:SummarizationPipeline": _written,
    "text2text_generation:TranslationPipeline": _written,
    "image_to_text:ImageToTextPipeline": _captioned,
    "automatic_speech_recognition:AutomaticSpeechRecognitionPipeline": _transcribed,
}
"""What makes a pipeline's parts, by its place."""
TABLE: Table = {
    "own": {
        "nothing of its own": {}, "greedy": {"do_sample": False, "max_new_tokens": 7},
        "surer": {"do_sample": True, "temperature": 0.3, "max_new_tokens": 8, "top_k": 7},
        "penalized": {"repetition_penalty": 1.9, "max_new_tokens": 9, "do_sample": True, "temperature": 1.4},
        "beams": {"num_beams": 2, "max_new_tokens": 6, "length_penalty": 0.5},
    },
    "where": {"the call": "call", "an object of the call": "object", "the start": "start",
              "an object of the start": "start object", "the pipeline": "attribute"},
    "set": {
        "nothing set": {}, "a length": {"max_new_tokens": 5},
        "a penalty": {"repetition_penalty": 3.0, "max_new_tokens": 4},
        "three beams": {"num_beams": 3, "max_new_tokens": 6}, "drawn": {"do_sample": True, "temperature": 2.5,
                                                                      "max_new_tokens": 10, "top_k": 5},
    },
}  # fmt: skip
WHOLE: Mapping[str, Any] = {"do_sample": True, "temperature": 0.9, "num_beams": 2}
"""What an object says besides, so that no default of a pipeline is left."""


def _allowed(case: Mapping[str, Any]) -> bool:
    # Without a length of either a pipeline writes hundreds of ids.
    return bool(case["own"] or case["set"]) and (bool(case["set"]) or case["where"] == "call")


@cache
def _parts(place: str) -> Piped:
    return KINDS[place]()


def _due_options(case: Mapping[str, Any], made: Any) -> dict[str, Any]:
    """Return the options that are left, the last one of each."""
    defaults = {}
    if (config := getattr(made, "_default_generation_config", None)) is not None:
        defaults = {
            name: one for name, one in config.to_diff_dict().items() if name != "transformers_version"
        }
    more = WHOLE if "object" in case["where"] else {}
    return {**defaults, **case["own"], **more, **case["set"]}


def _faults(place: str, case: Mapping[str, Any], made: Any) -> list[str]:
    """Return where a pipeline does not give `generate` the options that are left."""
    piped = _parts(place)
    model, seen = copy.copy(piped.model), list[Any]()
    plain = copy.copy(piped.model)
    model.generation_config, plain.generation_config = (
        copy.deepcopy(piped.model.generation_config) for _ in range(2)
    )
    model.generation_config.update(**case["own"])

    def generate(*given: Any, **options: Any) -> Any:
        torch.manual_seed(SEED)
        found = type(model).generate(model, *given, **options)
        seen.append(({name: one for name, one in options.items() if isinstance(one, Tensor)}, given, found))
        return found

    model.generate = generate
    made_config: Any = of_name("GenerationConfig")
    where, own = case["where"], dict(case["set"])
    start: dict[str, Any] = {}
    call: dict[str, Any] = {}
    if where == "start":
        start = own
    elif where == "start object":
        start = {"generation_config": made_config(**{**WHOLE, **own})}
    elif where == "object":
        call = {"generation_config": made_config(**{**WHOLE, **own})}
    elif where == "call":
        call = own
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            pipe = made(model=model, **piped.parts, **ASKED, **start)
            if where == "attribute":
                if not hasattr(pipe, "generation_config"):
                    raise NotServed("pipelines of this release have no configuration of their own")
                pipe.generation_config.update(**own)
            piped.call(pipe, **call)
            ((tensors, given, found),) = seen
            torch.manual_seed(SEED)
            due = type(plain).generate(plain, *given, **tensors, **_due_options(case, made))
    except (ValueError, NotImplementedError) as error:
        raise refused(error) from error
    rows, right = (getattr(one, "sequences", one).tolist() for one in (found, due))
    return [] if rows == right else [f"{rows}, {right} is due"]


def _cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield pairs of places and options, and every option in every place where the model has none of its own."""
    found = {name: case for name, case in cases_of_pairs(TABLE, _allowed) if case["own"]}
    for (where, place), (what, options) in itertools.product(TABLE["where"].items(), TABLE["set"].items()):
        if options:
            found[f"{where}, {what}"] = {"own": {}, "where": place, "set": options}
    yield from found.items()


def _rows() -> Iterator[Row]:
    for place in KINDS:
        for name, case in _cases():
            # The defaults of earlier pipelines go before what the model's own configuration says.
            since = "5.24" if case["where"] == "start object" else "5.16" if case["own"] else "4.57"
            yield Row(
                "combinations", f"transformers.pipelines.{place}", f"defaults: {name}", partial(_faults, place, case),
                [], since=since,
            )  # fmt: skip


# Source: the documentation of the pipelines that generate.
DEFAULTED_ROWS: Sequence[Row] = tuple(_rows())
