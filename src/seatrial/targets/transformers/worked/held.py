"""Worked examples of models that hold language models with tied embeddings: a user's class, and composite classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnownFailure, before, since
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.family_options import draw_by_names
from seatrial.targets.transformers.small_models import fresh_model, model_class
from seatrial.targets.transformers.worked.every_class import configuration, release_on_record
from seatrial.targets.transformers.worked.weights import same, saved

LARGEST = 6_000_000
HELD: Sequence[tuple[str, str]] = (
    ("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("gemma2", "Gemma2ForCausalLM"),
    ("opt", "OPTForCausalLM"),
    ("t5", "T5ForConditionalGeneration"), ("bart", "BartForConditionalGeneration"),
    ("qwen2", "Qwen2ForCausalLM"), ("roberta", "RobertaForMaskedLM"), ("whisper", "WhisperForConditionalGeneration"),
)  # fmt: skip
"""Kinds and classes whose heads are tied."""
FORMS = ("an attribute", "a list", "a model within")


def _holder(inner: Any, form: str) -> Any:
    """Return a class of a user's own that holds language models, and a head for rewards."""
    import transformers

    made: Any = transformers.PreTrainedModel

    class Holder(made):  # type: ignore[misc]
        """Language models and a head for rewards."""

        config_class = inner.config_class
        base_model_prefix = "policy" if form == "an attribute" else ""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            if form == "a list":
                self.policies = nn.ModuleList([inner(config), inner(config)])
            else:
                self.policy = (_holder(inner, "an attribute") if form == "a model within" else inner)(config)
            self.reward = nn.Linear(8, 1)
            if before("transformers", "5")(None):  # later releases ask the models within
                self._tied_weights_keys = [
                    f"{name}.{key}"
                    for name, one in held_by(self, inner)
                    for key in one._tied_weights_keys or ()
                ]
            self.post_init()

        def _init_weights(self, module: Any) -> None:
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.data.normal_(std=0.2)

    return Holder


def held_by(model: Any, inner: Any) -> list[tuple[str, Any]]:
    """Return the language models in a model, by name."""
    return [(name, one) for name, one in model.named_modules() if isinstance(one, inner)]


def _is_tied(model: Any) -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def _logits(model: Any) -> Tensor:
    ids = torch.arange(3, 15).reshape(2, 6)
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        return torch.zeros(1)
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found: Tensor = model(input_ids=ids, **more).logits
    return found


def _held(kind: str, name: str, form: str, model_base: Any) -> list[str]:
    """Return what is untied or another one of language models that a model holds: fresh, saved and loaded."""
    release_on_record()
    inner = model_class(name)
    try:
        config = configuration(kind)
        config.tie_word_embeddings = True
        alone = fresh_model(inner, config, LARGEST)
    except Exception as error:
        raise NotServed(error_line(error)) from error
    if not _is_tied(alone):
        raise NotServed("its head is not tied")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _holder(inner, form)(config).eval()
    wrong = [f"fresh: the head of {at} is its own" for at, one in held_by(model, inner) if not _is_tied(one)]
    for _, one in held_by(model, inner):
        one.tie_weights()
    draw_by_names(model)
    read, said = type(model).from_pretrained(saved(model), output_loading_info=True)
    pairs = zip(held_by(read.eval(), inner), held_by(model, inner), strict=True)
    for (at, one), (_, due) in pairs:
        wrong += [] if _is_tied(one) else [f"loaded: the head of {at} is its own"]
        wrong += [f"loaded: {at}.{other}" for other in same(one, due)[:1]]
        if not bool((_logits(one) - _logits(due)).abs().max() <= 1e-5):
            wrong.append(f"loaded: other logits of {at}")
    wrong += [f"{key} is missing" for key in sorted(said["missing_keys"])[:1]]
    return wrong[:4]


COMPOSED: Sequence[tuple[str, str, str]] = (
    ("EncoderDecoder", "BertConfig", "BertConfig"),
    ("EncoderDecoder", "BertConfig", "GPT2Config"),
    ("VisionEncoderDecoder", "ViTConfig", "GPT2Config"),
    ("VisionEncoderDecoder", "ViTConfig", "BertConfig"),
    ("SpeechEncoderDecoder", "Wav2Vec2Config", "GPT2Config"),
)
"""Classes of two parts, and the configurations of both."""


def _composed(name: str, first: str, second: str, model_base: Any) -> list[str]:
    """Return whether the head of a decoder within is tied: fresh, and saved and loaded."""
    release_on_record()
    kinds = {"BertConfig": "bert", "GPT2Config": "gpt2", "ViTConfig": "vit", "Wav2Vec2Config": "wav2vec2"}
    decoder = configuration(kinds[second])
    decoder.tie_word_embeddings, decoder.is_decoder, decoder.add_cross_attention = True, True, True
    maker: Any = find_name("transformers", [f"transformers:{name}Config"])
    join = "from_encoder_decoder_configs"
    config = getattr(maker, join)(configuration(kinds[first]), decoder)
    config.tie_word_embeddings = False
    model = fresh_model(model_class(f"{name}Model"), config, LARGEST).eval()
    wrong = [] if _is_tied(model.decoder) else ["fresh: the head of the decoder is its own"]
    model.decoder.tie_weights()
    draw_by_names(model)
    read = type(model).from_pretrained(saved(model)).eval()
    wrong += [] if _is_tied(read.decoder) else ["loaded: the head of the decoder is its own"]
    return [*wrong, *(f"loaded: {one}" for one in same(read, model)[:2])]


IN_A_LIST = KnownFailure(
    "heads of models in a list are not tied again when they are loaded",
    finding="Transformers: tied heads of models in a list",
    releases=since("transformers", "5.24"),
)
PLACE = "transformers:PreTrainedModel"
# Sources: the documentation of tie_weights (of all models within) and of tie_word_embeddings.
HELD_ROWS: Sequence[Row] = (
    *(
        Row(
            "states",
            PLACE,
            f"{name} in {form} of another model",
            partial(_held, kind, name, form),
            [],
            since="4.57",
            known=IN_A_LIST if form == "a list" else None,
        )
        for kind, name in HELD
        for form in FORMS
    ),
    *(
        Row(
            "states",
            PLACE,
            f"{name} of {first} and {second}",
            partial(_composed, name, first, second),
            [],
            since="4.57",
        )
        for name, first, second in COMPOSED
    ),
)
