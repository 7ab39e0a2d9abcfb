"""Small models for `pairs_files`, of kinds that loading treats differently, and how two models are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seatrial.targets.common.known import before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import made_model
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.weights import BERT, GPT2, SIZES, T5

VISION: Mapping[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8,
    "patch_size": 4, "projection_dim": 16,
}  # fmt: skip
EXPERTS: Mapping[str, Any] = {**SIZES, "num_experts_per_tok": 2, "head_dim": 4}
BART: Mapping[str, Any] = {
    "vocab_size": 23, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "dropout": 0.0,
}  # fmt: skip
IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
PICTURES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
IMAGE = 20


class Kind(NamedTuple):
    """A model: its class, what makes its configuration, and what it is called with."""

    name: str
    """Of its class; empty where `pairs_models` makes the class."""
    config: Callable[[], Any]
    auto: str = "AutoModelForCausalLM"
    inputs: Callable[[], dict[str, Tensor]] = lambda: {"input_ids": IDS}
    parts: tuple[str, ...] = ()
    """Names of the configurations of its parts."""
    makes: bool = True
    """Whether it generates."""

    @property
    def cls(self) -> Any:
        """Its class."""
        return of_name(self.name) if self.name else _listed()

    def model(self, **options: Any) -> Any:
        """Return the model with the same weights every time, in evaluation mode."""
        config = self.config()
        for name, value in options.items():
            setattr(config, name, value)
        model = made_model(self.cls, config, 0)
        with torch.no_grad():
            for at, (name, value) in enumerate(sorted(model.named_buffers(), key=lambda pair: pair[0])):
                if name in model.state_dict() and value.is_floating_point():
                    value.add_(0.25 + at)
        return model.eval()


def _of(config: str, sizes: Mapping[str, Any], **more: Any) -> Callable[[], Any]:
    return lambda: of_name(config)(**{**sizes, **more})


def _llava() -> Any:
    return of_name("LlavaConfig")(
        vision_config=of_name("CLIPVisionConfig")(**VISION), text_config=of_name("LlamaConfig")(**SIZES),
        image_token_index=IMAGE, vision_feature_layer=-1,
    )  # fmt: skip


def _clip() -> Any:
    text = {**SIZES, "projection_dim": 16}
    text.pop("num_key_value_heads")
    return of_name("CLIPConfig")(text_config=text, vision_config=dict(VISION), projection_dim=16)


def _llama_in_list() -> Any:
    # Tied heads in lists are a finding of later releases: see `held`.
    return of_name("LlamaConfig")(**SIZES, tie_word_embeddings=before("transformers", "5")(None))


def _with_decoder() -> Any:
    made = of_name("EncoderDecoderConfig")
    return made.from_encoder_decoder_configs(
        of_name("BertConfig")(**BERT), of_name("BertConfig")(**BERT), decoder_start_token_id=2, pad_token_id=0
    )


_CLASSES: dict[str, Any] = {}


def _listed() -> Any:
    """Return a class that holds two language models in a list, and a head."""
    base: Any = find_name("transformers", ["transformers:PreTrainedModel"])
    inner = of_name("LlamaForCausalLM")

    class Listed(base):  # type: ignore[misc]
        """Two language models and a head."""

        config_class = inner.config_class
        _no_split_modules = ()

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.parts = nn.ModuleList([inner(config), inner(config)])
            self.score = nn.Linear(16, 3)
            self.register_buffer("kept", torch.arange(3.0))
            self.register_buffer("not_kept", torch.arange(4), persistent=False)
            self.post_init()

        def _init_weights(self, module: Any) -> None:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight)
            if module is self:
                module.not_kept.copy_(torch.arange(4))

        def forward(self, input_ids: Tensor) -> Any:
            """Return both models' logits."""
            found = self.parts[0](input_ids, output_hidden_states=True)
            found.logits = torch.cat(
                [found.logits, self.parts[1](input_ids).logits, self.score(found.hidden_states[-1])], -1
            )
            return found

    return _CLASSES.setdefault("Listed", Listed)


def _sequences() -> dict[str, Tensor]:
    return {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)}


def _seen() -> dict[str, Tensor]:
    return {"input_ids": torch.cat([torch.full((2, 4), IMAGE), IDS], 1), "pixel_values": PICTURES}


KINDS: Mapping[str, Kind] = {
    "Llama": Kind("LlamaForCausalLM", _of("LlamaConfig", SIZES)),
    "tied Llama": Kind("LlamaForCausalLM", _of("LlamaConfig", SIZES, tie_word_embeddings=True)),
    "T5": Kind("T5ForConditionalGeneration", _of("T5Config", T5), "AutoModelForSeq2SeqLM", _sequences),
    "Bart": Kind("BartForConditionalGeneration", _of("BartConfig", BART), "AutoModelForSeq2SeqLM", _sequences),
    "Bert": Kind("BertForMaskedLM", _of("BertConfig", BERT), "AutoModelForMaskedLM", makes=False),
    "classes of Bert": Kind(
        "BertForSequenceClassification", _of("BertConfig", BERT, num_labels=5), "AutoModelForSequenceClassification",
        makes=False,
    ),
    "GPT-2": Kind("GPT2LMHeadModel", _of("GPT2Config", GPT2)),
    "Mixtral": Kind("MixtralForCausalLM", _of("MixtralConfig", EXPERTS, num_local_experts=3)),
    "Qwen3 with experts": Kind(
        "Qwen3MoeForCausalLM",
        _of("Qwen3MoeConfig", EXPERTS, num_experts=3, moe_intermediate_size=24, tie_word_embeddings=True),
    ),
    "GPT-OSS": Kind("GptOssForCausalLM", _of("GptOssConfig", EXPERTS, num_local_experts=3)),
    "Llava": Kind(
        "LlavaForConditionalGeneration", _llava, "AutoModelForImageTextToText", _seen, ("text_config", "vision_config")
    ),
    "CLIP": Kind(
        "CLIPModel", _clip, "AutoModel", lambda: {"input_ids": IDS, "pixel_values": PICTURES},
        ("text_config", "vision_config"), makes=False,
    ),
    "ResNet": Kind(
        "ResNetForImageClassification",
        _of("ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, num_labels=3),
        "AutoModelForImageClassification", lambda: {"pixel_values": PICTURES.repeat(1, 1, 4, 4)}, makes=False,
    ),
    "two Berts": Kind(
        "EncoderDecoderModel", _with_decoder, "AutoModelForSeq2SeqLM", _sequences, ("encoder", "decoder")
    ),
    "a list of Llamas": Kind("", _llama_in_list, "", makes=False),
}  # fmt: skip


def ties(model: Any) -> set[frozenset[str]]:
    """Return the groups of names that are one tensor."""
    places: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        places.setdefault(value.data_ptr(), []).append(name)
    return {frozenset(names) for names in places.values() if len(names) > 1}


def wide(model: Any, name: str, kind: torch.dtype) -> torch.dtype:
    """Return the type of a weight in a model of a type: some stay in float32."""
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    kept = [*strict] if kind in (torch.float16, torch.bfloat16) else []
    kept += [*(getattr(model, "_keep_in_fp32_modules", None) or ())] if kind is torch.float16 else []
    return torch.float32 if any(re.search(rf"(^|\.){one}($|\.)", name) for one in kept) else kind


LEFT_OUT = (
    "dtype", "torch_dtype", "_name_or_path", "architectures", "transformers_version", "output_hidden_states",
    "_attn_implementation_autoset", "_attn_implementation", "_experts_implementation",
)  # fmt: skip
"""Options that reading changes."""


def other_options(found: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Return options of a configuration that are not the right ones."""
    wrong = []
    for name in sorted({**found, **right}):
        if name in LEFT_OUT:
            continue
        one, other = found.get(name), right.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            wrong += [f"{name}.{inner}" for inner in other_options(one, other)]
        elif one != other:
            wrong.append(f"{name}: {one}, {other} is due")
    return wrong


def unlike_tensors(found: Mapping[str, Tensor], right: Mapping[str, Tensor], what: str) -> list[str]:
    """Return tensors that are not there, too many, of another type or shape, or of other values."""
    wrong = [f"{what}: {name} is missing" for name in sorted({*right} - {*found})]
    wrong += [f"{what}: {name} is too many" for name in sorted({*found} - {*right})]
    for name in sorted({*right} & {*found}):
        one, due = found[name], right[name]
        if one.dtype is not due.dtype or one.shape != due.shape:
            wrong.append(
                f"{what}: {name} is {one.dtype} {list(one.shape)}, {due.dtype} {list(due.shape)} is due"
            )
        elif not torch.equal(one, due):
            wrong.append(f"{what}: values of {name}")
    return wrong[:3]
