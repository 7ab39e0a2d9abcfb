"""Worked examples of features of inner layers, of pictures whose patches are merged, and of published options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.pairs_models import PICTURES, VISION
from seatrial.targets.transformers.worked.weights import SIZES

TILED: Mapping[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_global_layers": 1, "attention_heads": 4,
    "image_size": 28, "patch_size": 14, "max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
}  # fmt: skip
WORDS = ("<unk>", "<pad>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "hello")
PATCH = 14


def _kept(layers: Any) -> list[Tensor]:
    """Return the list to which layers add their outputs."""
    kept: list[Tensor] = []
    for layer in layers:
        layer.register_forward_hook(
            lambda part, given, found: kept.append(found[0] if isinstance(found, tuple) else found)
        )
    return kept


def _tiles(model_class: Any) -> list[str]:
    """Return which inner layers' outputs are not next to the last one of Mllama's vision part."""
    made: Any = find_name(
        "transformers", ["transformers.models.mllama.configuration_mllama:MllamaVisionConfig"]
    )
    wrong = []
    for numbers in ([1, 2], [0, 3], [2]):
        config = made(**TILED, intermediate_layers_indices=numbers, vision_output_dim=16 * (1 + len(numbers)))
        model = made_model(model_class, config, 0).eval()
        kept = _kept(model.transformer.layers)
        pixels = torch.linspace(-1, 1, 2 * 3 * 28 * 28).reshape(1, 1, 2, 3, 28, 28)
        with torch.no_grad():
            found = model(
                pixels, aspect_ratio_ids=torch.tensor([[2]]), aspect_ratio_mask=torch.ones(1, 1, 2).long()
            ).last_hidden_state
        N = found.shape[3]
        inner = found[..., 16:].reshape(1, 2, N, 16, len(numbers))
        for place, number in enumerate(numbers):
            due = kept[number].reshape(1, 2, -1, 16)[:, :, :N]
            if not torch.allclose(inner[..., place], due, atol=1e-5):
                wrong.append(f"layers {numbers}: layer {number}")
    return wrong


def _features(model_class: Any) -> list[str]:
    """Return which chosen layers of LLaVA's vision part its projector is not given."""
    wrong = []
    for chosen in (-1, -2, 1, [1, -1], [0, 2]):
        config = of_name("LlavaConfig")(
            vision_config=of_name("CLIPVisionConfig")(**VISION),
            text_config=of_name("LlamaConfig")(**SIZES),
            image_token_index=20,
            vision_feature_layer=chosen,
        )
        model = made_model(model_class, config, 0).eval().model
        tower = getattr(model.vision_tower, "vision_model", model.vision_tower)
        kept = _kept(tower.encoder.layers)
        first: list[Tensor] = []
        given: list[Tensor] = []
        tower.encoder.layers[0].register_forward_pre_hook(
            lambda part, args, words, first=first: first.append((*args, *words.values())[0]), with_kwargs=True
        )
        model.multi_modal_projector.register_forward_pre_hook(
            lambda part, args, given=given: given.append(args[0])
        )
        with torch.no_grad():
            model.get_image_features(pixel_values=PICTURES)
        states = [first[0], *kept]
        due = torch.cat([states[one] for one in (chosen if isinstance(chosen, list) else [chosen])], -1)
        if not torch.allclose(given[0], due[:, 1:], atol=1e-5):
            wrong.append(f"layers {chosen}")
    return wrong


def _merged(processor_class: Any) -> list[str]:
    """Return pictures whose size or number of tokens is not a multiple of the patches that become a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary: Any = models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=WORDS[0])
    plain = Tokenizer(vocabulary)
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = of_name("PreTrainedTokenizerFast")(
        tokenizer_object=plain, unk_token=WORDS[0], pad_token=WORDS[1], extra_special_tokens={}
    )
    tokenizer.add_tokens(list(WORDS[2:5]), special_tokens=True)
    pictures: Any = find_name(
        "transformers",
        [
            "transformers.models.pixtral.image_processing_pil_pixtral:PixtralImageProcessorPil",
            "transformers.models.pixtral.image_processing_pixtral:PixtralImageProcessor",
        ],
    )
    wrong = []
    for merge, (height, width) in product((1, 2, 3), ((90, 120), (60, 84), (45, 100))):
        processor = processor_class(
            image_processor=pictures(
                patch_size={"height": PATCH, "width": PATCH}, size={"longest_edge": 1540}
            ),
            tokenizer=tokenizer,
            patch_size=PATCH,
            spatial_merge_size=merge,
        )
        picture = np.full((height, width, 3), 100, dtype=np.uint8)
        found = processor(text=["[IMG] hello"], images=[picture], return_tensors="np")
        size = [int(one) for one in found["image_sizes"][0]]
        unit = PATCH * merge
        rows, columns = -(-height // unit), -(-width // unit)
        tokens = int((np.array(found["input_ids"]) == WORDS.index("[IMG]")).sum())
        if size != [rows * unit, columns * unit] or tokens != rows * columns:
            wrong.append(f"{height} x {width}, merged {merge}: {size}, {tokens} tokens")
    return wrong


def _windows(config_class: Any) -> list[int]:
    """Return the windows of MiMo-V2-Flash, by itself and as its published configurations say it."""
    found = []
    for given in ({}, {"sliding_window": 128, "sliding_window_size": 128}, {"sliding_window_size": 8}):
        config = config_class.from_dict(dict(given))
        found.append(config.sliding_window)
    if not hasattr(config_class(), "attention_value_scale"):
        raise NotServed("a configuration of another form")
    return found


# Sources: the model cards and papers of Llama 3.2 Vision and LLaVA, `patch_size` times `spatial_merge_size` of
# mistral_common, and SGLang's `sliding_window_size`, which does not count the token itself.
INNER_ROWS: Sequence[Row] = (
    Row("models", "transformers:MllamaVisionModel", "outputs of inner layers", _tiles, [], since="4.57"),
    Row(
        "models", "transformers:LlavaForConditionalGeneration", "features of chosen layers", _features, [],
        since="4.57",
    ),
    Row("models", "transformers:PixtralProcessor", "patches that are merged", _merged, [], since="4.50.3"),
    Row("models", "transformers:MiMoV2FlashConfig", "published windows", _windows, [129, 129, 9], since="5.20"),
)  # fmt: skip
