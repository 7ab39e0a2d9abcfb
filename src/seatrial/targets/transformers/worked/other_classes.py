"""Files of one class of a kind that its other classes read, and classes of users: no weight is missing or random.

The files are those of the class that generates, with the names of published checkpoints. A class with another head
reads them, and a class of a user, which is built on a class of the library and has a name and a head of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, since
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.small_models import fresh_model, model_class
from seatrial.targets.transformers.worked.every_class import (
    LARGEST,
    classes,
    configuration,
    record,
    release_on_record,
)
from seatrial.targets.transformers.worked.weights import saved

PLACE = "transformers:PreTrainedModel"


def of_user(model_type: Any) -> Any:
    """Return a class of a user that is built on a class of the library, with a head for rewards and another name."""

    class Rewarding(model_type):  # type: ignore[misc]
        def __init__(self, config: Any, *args: Any, **options: Any) -> None:
            super().__init__(config, *args, **options)
            self.reward_of_user = nn.Linear(4, 1, bias=False)

    return Rewarding


def _weights(model: Any, tied: bool = True) -> dict[str, Tensor]:
    """Return weights by name, without the name of the base; those that are tied by each name, or once."""
    prefix = f"{model.base_model_prefix}."
    named = dict(model.named_parameters(remove_duplicate=not tied))
    inner = {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
    outer = {name: value for name, value in named.items() if not name.startswith(prefix)}
    return {**outer, **inner}  # a norm of its own that has the name of the base's is not the base's


def _drawn(model_type: Any, config: Any) -> Any:
    """Return a model whose weights are all unlike those with which a new one begins."""
    model = fresh_model(model_type, copy.deepcopy(config), LARGEST)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        for value in model.parameters():
            value.copy_(torch.rand_like(value) + 0.5)
    return model


def unread(model: Any, path: Path, reader: Any) -> list[str]:
    """Return the names of weights that a class does not read from a model's files, of those that both have."""
    right = _weights(model, tied=False)
    read = reader.from_pretrained(path, attn_implementation="eager")
    return [
        name
        for name, value in _weights(read).items()
        if name in right
        and right[name].shape == value.shape
        and not torch.equal(right[name].float(), value.float())
    ]


WHOLE = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining")
"""Ends of names of classes whose files are published, first the usual ones."""


def published(kind: str) -> str:
    """Return the class of a kind whose files are published: of those that generate, or the first."""
    names = classes().get(kind, [])
    whole = [name for end in WHOLE for name in names if name.endswith(end)]
    return [*whole, *names][0]


@lru_cache(maxsize=1)
def _written(kind: str) -> tuple[Any, Path]:
    """Return the model of the class of a kind whose files are published, and a folder with its files.

    Raises:
        NotServed: no small model of it is made, or the release is between those on record.
    """
    release_on_record()
    if not classes().get(kind):
        raise NotServed(f"the release maps no class of {kind}")
    writer = model_class(published(kind))
    try:
        model = _drawn(writer, configuration(kind))
    except Exception as error:  # it needs a package, or other sizes
        raise NotServed(f"no small {writer.__name__}: {error}") from error
    return model, saved(model)


def _near(kind: str, writer: Any) -> list[Any]:
    """Return the classes of a kind, of which a small one is made, that name their base as the writer of files does."""
    found = []
    for name in classes()[kind]:
        reader = model_class(name)
        same = reader.config_class is writer.config_class
        if not same or reader.base_model_prefix != writer.base_model_prefix:
            continue
        try:
            fresh_model(reader, configuration(kind), LARGEST)
        except Exception:  # noqa: BLE001  a head that needs other options
            continue
        found.append(reader)
    return found


def _others(kind: str, function: Any) -> list[str]:
    """Return which classes of a kind do not read weights of the published files."""
    model, path = _written(kind)
    wrong = []
    for reader in _near(kind, type(model)):
        missing = unread(model, path, reader)
        if missing:
            wrong.append(f"{reader.__name__}: {len(missing)} weights, such as {missing[0]}")
    return wrong


def _users(kind: str, function: Any) -> list[str]:
    """Return on which classes of a kind a class of a user does not read the published files, or is not read by."""
    model, path = _written(kind)
    wrong = []
    for known in _near(kind, type(model)):
        missing = unread(model, path, of_user(known))
        if missing:
            wrong.append(f"on {known.__name__}: {len(missing)} weights, such as {missing[0]}")
    whole = type(model)
    read = of_user(whole).from_pretrained(path, attn_implementation="eager")
    missing = unread(read, saved(read), whole)
    if missing:
        wrong.append(f"files of one on {whole.__name__}: {len(missing)} weights, such as {missing[0]}")
    return wrong


PADDING, NORM, OWN = (
    "Transformers: the embedding of padding that is read",
    "Transformers: the last norm of DeepSeek V4",
    "Transformers: old names of weights in classes of users",
)
"""Findings."""
OF_READERS: Mapping[str, tuple[str, str]] = {
    "chinese_clip": ("the embedding of padding is set to zero after it was read", PADDING),
    "deepseek_v4": ("the base does not read its last norm from files of the whole", NORM),
    "funnel": ("the embedding of padding is set to zero after it was read", PADDING),
    "youtu": ("the embedding of padding is set to zero after it was read", PADDING),
}
"""What classes of 5.24 do not read, by kind, with its finding."""
OF_USERS = frozenset(
    (  # noqa: SIM905
        "afmoe altclip aria aria_text audio-spectrogram-transformer audioflamingo3 axk1 axk2 aya_vision "
        "bailing_hybrid beit cohere2_moe cohere_asr cosmos3_edge cosmos3_omni deepseek_v2 deepseek_v3 "
        "deepseek_v32 deepseek_v4 deit dinov2 dinov2_with_registers dory dots1 ernie4_5_moe exaone exaone_moe "
        "flex_olmo flint fuyu gemma3 glm4_moe glm4_moe_lite glm4v_moe glm_moe_dsa glmasr got_ocr2 gpt_neox "
        "granitemoe granitemoehybrid granitemoeshared gte hrm_text hunyuan_v1_moe hy_v3 hy_v4 hy_v4_vl_text "
        "hyperclovax_vision_v2 ijepa internvl jamba jev jina_embeddings_v3 kimi_k25 kimi_linear kolibri1 laguna "
        "lara_mini lfm3_vl_vision llava llava_next llava_next_video llava_onevision mellum mimo_v2_flash minimax "
        "minimax_m2 minimax_m3_vl mistral3 mistral_large4 mistral_large4_text mixtral mllama molmo2_text "
        "musicflamingo nemotron_h nomic_bert olmo_hybrid olmoe paddleocr_vl paligemma phimoe pi0 pixio qianfan_ocr "
        "qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3_5_moe_text qwen3_moe qwen3_next "
        "qwen3_omni_moe_thinker qwen4_exp_text rf_detr sam3_tracker sarvam_mla sarvam_moe segformer solar_open "
        "step3p7 timesfm2_5 tipsv2 tipsv2_text_model tipsv2_vision_model ultrabert ultravbert video_llava vipllava "
        "vit vit_msn vivit voxtral voxtral_realtime yolos"
    ).split()
)
"""Kinds whose names of weights 5.24 does not translate in classes of users."""
NOT_JUDGED = frozenset({"longt5", "parakeet_ctc", "shieldgemma2"})
"""4.57 takes a head of a user for a tied one of LongT5; a head of another size; a whole within a whole."""


def _known(kind: str, of_users: bool) -> KnownFailure | None:
    later = since("transformers", "5.24")
    if of_users and kind in OF_USERS:
        return KnownFailure("old names are not translated in classes of users", finding=OWN, releases=later)
    if kind in OF_READERS:
        reason, finding = OF_READERS[kind]
        return KnownFailure(reason, finding=finding, releases=later)
    return None


# Source: the documentation of from_pretrained: a model's weights are those of its checkpoint.
OTHER_CLASS_ROWS: Sequence[Row] = tuple(
    Row(
        "files",
        PLACE,
        f"published files of {kind} in {what}",
        partial(call, kind),
        [],
        known=_known(kind, of_users),
    )
    for kind in sorted({kind for one in record().values() for kind in one} - NOT_JUDGED)
    for what, call, of_users in (("its other classes", _others, False), ("classes of users", _users, True))
)


class OfOtherClasses(Worked):
    """Files that other classes of a kind read; see `contracts.worked`."""

    package = "transformers"
    worked_rows = OTHER_CLASS_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-readers": OfOtherClasses}
