"""Models of every kind that generate, some by a method of their own; see `contracts.own_generation`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from seatrial.relations.contracts.own_generation import Generated
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnownFailure, KnowsFailures, between
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.transformers.family_options import draw_by_names
from seatrial.targets.transformers.small_models import (
    END,
    PAD,
    classes_of_release,
    media,
    model_class,
    small_config,
)

KINDS: Sequence[str] = (
    "aria", "audioflamingo3", "aya_vision", "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small",
    "cosmos3_edge", "cosmos3_omni", "deepseek_vl", "evolla", "exaone4_5", "fsmt", "fuyu", "gemma3", "git",
    "glmasr", "got_ocr2", "granite_docling", "higgs_audio_v2", "hyperclovax_vision_v2", "idefics2", "idefics3",
    "internvl", "led", "lfm2_vl", "lfm3_vl", "lighton_ocr", "llava", "llava_next",
    "llava_next_video", "llava_onevision", "longt5", "m2m_100", "marian", "mbart", "minimax_m3_vl", "mistral3",
    "mllama", "moss_transcribe_diarize", "mt5", "musicflamingo", "mvp", "nllb-moe", "omniasr", "ovis2",
    "paligemma", "pegasus", "pegasus_x", "plbart", "pp_chart2table", "qianfan_ocr", "qwen2_audio",
    "qwen3_asr", "qwen3_vl", "seamless_m4t", "seamless_m4t_v2", "shieldgemma2", "smolvlm",
    "step3p7", "switch_transformers", "t5gemma2", "umt5", "video_llama_3", "video_llava", "vipllava",
    "voxtral",
)  # fmt: skip
"""By the type of the configuration. Others that a release has are uncovered, and are named so: the small models of some
do not generate; with Kosmos-2.5, ProphetNet, Qwen3-VL-MoE and T5Gemma a law fails for a reason that is not known."""
LARGEST = 5_000_000
"""Parameters of a model that counts as small."""


LAYERS_OF_THE_ENCODER = KnownFailure(
    "the cache of the decoder has as many layers as the encoder, and raises where the decoder has more",
    finding="Transformers: small functions of older releases",
    releases=between("transformers", "4.57", "5"),
).of("R26.generate")


class Generator(KnowsFailures):
    """A kind of model with prompts of ids, padded on the left, or on the right where an encoder reads them."""

    kind: ClassVar[str]
    known_failures: ClassVar[Sequence[KnownFailure]] = ()
    thorough = True
    prompts: Sequence[Sequence[int]] = ((5, 16, 7, 28, 9), (15, 33), (21, 8, 40))
    end_id = END

    def __init__(self) -> None:
        """Find the model's class in the installed release."""
        mapping = find_name("transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"])
        name = classes_of_release().get(self.kind)
        if name is None or self.kind not in mapping:
            raise Gone(f"transformers {release('transformers')} has no {self.kind} that generates")
        self._class, self._config_class = model_class(name), mapping[self.kind]

    @cached_property
    def _model(self) -> Any:
        try:
            config = small_config(self._config_class)
            with torch.device("meta"):
                size = sum(value.numel() for value in self._class(config).parameters())
            if size > LARGEST:
                raise NotServed(f"{size} parameters: no small model of it is made")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = self._class(config).float()
        except Exception as error:  # refused when it is made, before anything is computed
            raise NotServed(error_line(error)) from error
        draw_by_names(model)
        for name in (
            "forced_bos_token_id",
            "forced_eos_token_id",
            "suppress_tokens",
            "begin_suppress_tokens",
        ):
            setattr(model.generation_config, name, None)
        model.generation_config.num_beams = 1
        return model.eval()

    @property
    def generates_text(self) -> bool:
        return self.kind != "higgs_audio_v2"

    def generated(
        self,
        options: Mapping[str, Any],
        *,
        places: Sequence[int] = (0,),
        seed: int = 0,
        defaults: Mapping[str, Any] | None = None,
        as_config: bool = False,
    ) -> Generated:
        config: Any = find_name("transformers", ["transformers:GenerationConfig"])
        missing = sorted({*options, *(defaults or {})} - {*vars(config())} - {"use_cache"})
        if self.kind == "higgs_audio_v2" and options.get("use_cache") is False:
            raise NotServed("it generates from the cache alone")
        if missing:
            raise NotServed(f"generation of this release has no {', '.join(missing)}")
        model = self._model
        if defaults:
            model = copy.copy(model)
            model.generation_config = copy.deepcopy(model.generation_config)
            for name, value in defaults.items():
                setattr(model.generation_config, name, value)
        rows = [self.prompts[place] for place in places]
        P = max(map(len, rows))
        encodes = bool(getattr(model.config, "is_encoder_decoder", False))
        gaps = [P - len(row) for row in rows]
        before, after = ([0] * len(gaps), gaps) if encodes else (gaps, [0] * len(gaps))
        padded = list(zip(before, rows, after, strict=True))
        ids = {"pad_token_id": PAD, "eos_token_id": END}
        given: dict[str, Any] = {**ids, **options}
        if as_config:
            given = {"generation_config": config(**given)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                found = model.generate(
                    input_ids=torch.tensor([[PAD] * one + [*row] + [PAD] * end for one, row, end in padded]),
                    attention_mask=torch.tensor(
                        [[0] * one + [1] * len(row) + [0] * end for one, row, end in padded]
                    ),
                    **media(self.kind, len(rows)),
                    **given,
                )
            except ValueError as error:
                raise NotServed(error_line(error)) from error
        if found.dim() == 3:
            return Generated(found.flatten(1).tolist(), found.shape[2])
        first = 1 if encodes else P
        return Generated(found[:, first:].tolist(), 1)


ADAPTERS: dict[str, type[Any]] = {
    f"generate-{kind}": type(
        f"Generate_{kind}",
        (Generator,),
        {
            "__doc__": f"The kind {kind}.",
            "kind": kind,
            "known_failures": (LAYERS_OF_THE_ENCODER,) if kind == "fsmt" else (),
        },
    )
    for kind in KINDS
}
