"""Models of texts and pictures with outputs on record; see `contracts.recorded`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from packaging.version import Version

from seatrial.relations.not_served import Absent, NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, since
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.transformers.any_models import LARGEST, NOISES
from seatrial.targets.transformers.any_pictures import Inputs, Media, films_of, media_of, rows_with
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.family_records import (
    OLDEST,
    is_recorded,
    line_of,
    of_gradients,
    projected,
    recorded_of,
    unserved,
)
from seatrial.targets.transformers.option_values import _rotated, variants_of
from seatrial.targets.transformers.small_models import (
    classes_of_release,
    fresh_model,
    model_class,
    small_config,
)

HERE = Path(__file__)
PICTURES = HERE.with_name("recorded_pictures.json")
PARTS = ("vision_config", "text_config")
MORE: Mapping[str, Sequence[Any]] = {
    "vision_feature_select_strategy": ("default", "full"),
    "vision_feature_layer": (-1, -2, [-1, -2]),
    "multimodal_projector_bias": (False,),
    "projector_hidden_act": ("relu",),
    "spatial_merge_size": (1,),
    "downsample_ratio": (1.0,),
    "scale_factor": (1,),
    "fullatt_block_indexes": ([0],),
    "deepstack_visual_indexes": ([1],),
    "window_size": (8,),
    "num_query_tokens": (2,),
}
"""Values of options of pictures."""
SMALL: Mapping[str, Any] = {
    "image_size": 16,
    "vision_feature_layers": [-1, -2],
    "image_grid_pinpoints": [[16, 32], [32, 16]],
    "projector_input_dim": 32,
    "projector_output_dim": 32,
    "vision_output_dim": 32,
    "layer_types": ["linear_attention", "full_attention"],
    "mm_tokens_per_image": 4,
    "image_seq_length": 4,
    "vision_soft_tokens_per_image": 4,
    "image_start_token_id": 54,
    "image_end_token_id": 55,
    "vision_start_token_id": 54,
    "vision_end_token_id": 55,
    "video_start_token_id": 56,
    "video_end_token_id": 57,
}
"""Numbers of places of a small picture, and ids that are not those of its places."""
SECTIONED = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "glm_ocr", "hunyuan_vl", "paddleocr", "cosmos3",
)  # fmt: skip
"""Kinds of text whose rotary embeddings are of frames, rows and columns."""
TRIED = (
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
    AssertionError,
    StopIteration,
)


class Recorded(KnowsFailures):
    """A kind of model with outputs on record; see `contracts.recorded`."""

    thorough = True
    path: ClassVar[Path]
    kind: ClassVar[str]

    def __init__(self) -> None:
        """Find the kind in the installed release."""
        if Version(release("transformers")) < Version(OLDEST):
            raise Gone(f"the record begins with transformers {OLDEST}")

    @property
    def is_of_the_line(self) -> bool:
        return line_of() is not None

    @cached_property
    def recorded(self) -> Mapping[str, Sequence[float]]:
        return recorded_of(self.path, self.kind)


def made(model_type: Any, config: Any) -> Any:
    """Return a model in evaluation mode whose weights depend on their names alone.

    Raises:
        NotServed: it is too large.
    """
    model = fresh_model(model_type, copy.deepcopy(config), LARGEST).eval()
    draw_by_names_alone(model)
    return model


class PicturesRecord(Recorded):
    """A model of text and pictures."""

    path = PICTURES

    def __init__(self) -> None:
        super().__init__()
        name = classes_of_release().get(self.kind)
        mapping = find_name("transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"])
        if name is None or self.kind not in mapping:
            raise Gone(f"transformers {release('transformers')} has no {self.kind} of text and pictures")
        self._class, self._config_class = model_class(name), mapping[self.kind]

    @cached_property
    def _config(self) -> Any:
        config = small_config(self._config_class)
        for part in (config, *(getattr(config, name, None) for name in PARTS)):
            for name, value in NOISES.items():
                if isinstance(getattr(part, name, None), (float, bool)):
                    setattr(part, name, value)
            for name, number in SMALL.items():
                known = vars(part).get(name) if part is not None else None
                if known is not None and (name != "layer_types" or "linear_attention" in known):
                    several = isinstance(known, (list, tuple)) and isinstance(number, int)
                    setattr(part, name, [number, number] if several else number)
        text = config.get_text_config()
        if self.kind == "llama4":
            config.vision_config.intermediate_size = (
                4 * config.vision_config.hidden_size
            )  # pixels are shuffled
        if "mrope_section" in str(text.to_dict()) or text.model_type.startswith(SECTIONED):
            _set_sections(text)
        return config

    @cached_property
    def _options(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """The part and the options of each name."""
        found: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for part in ("", *PARTS):
            config = getattr(self._config, part, None) if part else self._config
            if config is None:
                continue
            known = config.to_dict()
            for name, values in MORE.items():
                for value in values:
                    if name in known and known[name] != value:
                        found[f"{part} {name}={value}".strip()] = (part, {name: value})
            if part != "text_config":
                for one in variants_of(type(config), config, {}):
                    if not one.trains and not {*one.options} & {"tie_word_embeddings", "head_dim"}:
                        found[f"{part} {one.name}".strip()] = (part, one.options)
        return found

    def option_names(self) -> list[str]:
        """Return what can be recorded."""
        return ["", "@loss", "@films", "@films loss", "@text", *self._options]

    def _model(self, option: str) -> Any:
        if not option:
            return self._plain
        part, options = self._options[option]
        config = copy.deepcopy(self._config)
        for name, value in options.items():
            setattr(getattr(config, part) if part else config, name, copy.deepcopy(value))
        return made(self._class, config)

    @cached_property
    def _plain(self) -> Any:
        return made(self._class, self._config)

    def _inputs(self, model: Any, media: Iterator[Media]) -> Inputs:
        """Return the first inputs that a model takes."""
        for one in media:
            inputs = rows_with(model, one)
            try:
                model(**inputs)
            except TRIED:
                continue
            return inputs
        raise NotServed("no pictures that it takes were found")

    def projections(self, name: str) -> Sequence[float]:
        option, _, output = name.partition("@")
        option = option.strip()
        if option and option not in self._options:
            raise Absent(f"no option {option}")
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return self._outputs(self._model(option), output)
        except NotServed:
            raise
        except Exception as error:  # not served, which is no wrong number
            raise unserved(error) from error

    def _outputs(self, model: Any, output: str) -> list[float]:
        with torch.no_grad():
            if output == "text":
                ids = torch.tensor([[5, 40, 22, 17, 31, 6, 9]])
                return projected([model(input_ids=ids).logits[0]])
            inputs = self._inputs(model, films_of(model) if output.startswith("films") else media_of(model))
            if "loss" not in output:
                kept = inputs["attention_mask"].bool()
                logits = model(**inputs).logits
                return projected([one[mask] for one, mask in zip(logits, kept, strict=True)])
        model = copy.deepcopy(model).train()
        loss = model(**inputs).loss
        torch.autograd.backward(loss)
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        return of_gradients(float(loss.detach()), gradients)


KINDS: Sequence[str] = (
    "aria", "aya_vision", "blip-2", "chameleon", "cohere2_vision", "cosmos3_omni", "deepseek_ocr2", "deepseek_vl",
    "deepseek_vl_hybrid", "emu3", "ernie4_5_vl_moe", "exaone4_5", "fast_vlm", "florence2", "fuyu", "gemma3",
    "gemma3n", "gemma4", "glm46v", "glm4v", "glm4v_moe", "glm_ocr", "got_ocr2", "granite_docling", "hunyuan_vl",
    "idefics", "idefics2", "idefics3", "instructblip", "internvl", "janus", "kosmos-2", "kosmos-2.5", "lfm2_vl",
    "lighton_ocr", "llama4", "llava", "llava_next", "llava_next_video", "llava_onevision", "minimax_m3_vl", "mistral3",
    "mllama", "ovis2", "paddleocr_vl", "paligemma", "perception_lm", "pix2struct", "pp_chart2table", "qianfan_ocr",
    "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "shieldgemma2", "smolvlm",
    "step3p7", "t5gemma2", "udop", "unlimited_ocr", "video_llama_3", "video_llava", "vipllava",
)  # fmt: skip
"""Of text and pictures, by the type of the configuration."""


def _set_sections(config: Any) -> None:
    """Give a configuration of text the numbers of frequencies for frames, rows and columns."""
    half = _rotated(config) // 2
    part = max(1, half // 4)
    sections = {"mrope_section": [half - 2 * part, part, part]}
    name = "rope_parameters" if hasattr(config, "rope_parameters") else "rope_scaling"
    setattr(config, name, {"rope_type": "default", **(getattr(config, name) or {}), **sections})


NO_PICTURES = KnownFailure(
    "it reads a field that the outputs of its text do not have",
    finding="Transformers: Llama 4 of text and pictures",
    releases=since("transformers", "5.24"),
).of("R5.recorded/logits::@text")


def _adapter(kind: str) -> type[Recorded]:
    known = (NO_PICTURES,) if kind == "llama4" else ()
    words = {"__doc__": f"Text and pictures of {kind} on record.", "kind": kind, "known_failures": known}
    return type(f"RecordedPictures_{kind}", (PicturesRecord,), words)


EVERY: dict[str, type[Any]] = {f"recorded-pictures-{kind}": _adapter(kind) for kind in KINDS}
"""Those that can be recorded."""
ADAPTERS: dict[str, type[Any]] = {name: one for name, one in EVERY.items() if is_recorded(one.path, one.kind)}
