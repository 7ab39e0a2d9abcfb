"""Worked examples of several answers for a prompt with several pictures, videos or sounds: what each answer sees."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure, since
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row

MEDIA, WORD = 5, 9
"""Ids of a place for a feature, and of another."""
SIZES: Sequence[Sequence[Sequence[int]]] = (
    ((2,), (2,)), ((2, 2), (2,)), ((2,), (2, 2, 2)), ((2, 2), (2, 2)), ((1, 3), (2,)), ((3, 1, 2), (1, 1)),
    ((2, 2), (), (2,)), ((1, 2),),
)  # fmt: skip
"""Numbers of features of each picture of each prompt."""


def _prompts(sizes: Sequence[Sequence[int]]) -> Tensor:
    """Return prompts with as many places, between words and after padding."""
    rows = [[one for size in row for one in [*[MEDIA] * size, WORD]] for row in sizes]
    longest = max(map(len, rows)) + 1
    return torch.tensor([[WORD] * (longest - len(row)) + row for row in rows])


def _of_model(made: Any) -> Any:
    """Return a model without weights, whose embeddings of ids are the ids."""
    model = made.__new__(made)
    audio = SimpleNamespace(samples_per_token=2)
    tokens = {"image_token_id": MEDIA, "video_token_id": MEDIA, "audio_token_id": MEDIA}
    model.__dict__.update(
        config=SimpleNamespace(**tokens, audio_config=audio),
        **tokens,
        model=SimpleNamespace(audio_tokenizer=SimpleNamespace(config=SimpleNamespace(hop_length=2))),
        get_input_embeddings=lambda: lambda ids: ids.float()[..., None].expand(*ids.shape, 3),
    )
    return model


def _repeated(sizes: Sequence[Sequence[int]], number: int) -> list[int]:
    """Return the numbers of the pictures that answers see, from 1, in the order of their places."""
    left = itertools.count(1)
    groups = [[next(left) for _ in row] for row in sizes]
    return [one for group in groups for one in group * number]


def _cases(equal: bool) -> Iterator[tuple[Sequence[Sequence[int]], int, bool]]:
    for sizes, number, embedded in itertools.product(SIZES, (1, 2, 3), (False, True)):
        if not equal or len({size for row in sizes for size in row}) == 1:
            yield sizes, number, embedded


def _called(made: Any, sizes: Sequence[Sequence[int]], number: int, embedded: bool, more: Any) -> Any:
    """Return the arguments of answers after those of prompts, of ids or of their embeddings."""
    model, ids = _of_model(made), _prompts(sizes)
    if embedded:
        more = {**more, "inputs_embeds": model.get_input_embeddings()(ids)}
        ids = ids[:, :0]
    left, found = model._expand_inputs_for_generation(number, False, ids, **copy.deepcopy(more))
    if not embedded and left.tolist() != [row for row in ids.tolist() for _ in range(number)]:
        raise AssertionError(f"ids of answers: {left.tolist()}")
    return found


def _numbers(features: Any) -> list[int]:
    return [int(one.flatten()[0]) for one in features]


def _seen(forms: Sequence[str], made: Any) -> list[str]:
    """Return where answers do not see the features of their prompt's pictures and videos in their order."""
    output: Any = find_name("transformers", ["transformers.modeling_outputs:BaseModelOutputWithPooling"])
    wrong = []
    for form, modality in itertools.product(forms, ("image", "video")):
        for sizes, number, embedded in _cases(form == "a tensor"):
            flat = [size for row in sizes for size in row]
            features = [torch.full((size, 2), float(at)) for at, size in enumerate(flat, 1)]
            given = output(pooler_output=torch.stack(features) if form == "a tensor" else features)
            if form == "layers":
                given.deepstack_features = [features, features]
            if form == "numbered layers":
                given = output()
                given.deepstack_features = [(3, features), (7, features)]
            got = _called(made, sizes, number, embedded, {"mm_encoder_outputs": {modality: given}})
            got = got["mm_encoder_outputs"][modality]
            seen = [] if form == "numbered layers" else [_numbers(got["pooler_output"])]
            if "layers" in form:
                layers = got.deepstack_features
                seen += [_numbers(one[1] if form == "numbered layers" else one) for one in layers]
            due = _repeated(sizes, number)
            what = f"{modality}, {form}, {'embeddings' if embedded else 'ids'}, {list(sizes)} by {number}"
            wrong += [f"{what}: {one}, {due} are due" for one in seen if one != due][:1]
    return wrong[:5]


def _of_sounds(names: Sequence[str], made: Any) -> list[str]:
    """Return where answers do not get the sounds of their prompt in their order: two samples a place."""
    wrong = []
    for sizes, number, embedded in _cases(False):
        flat = [size for row in sizes for size in row]
        sounds = torch.stack([torch.full((6,), float(at)) for at in range(1, len(flat) + 1)])
        lengths = torch.tensor([2 * size for size in flat])
        if names[1] == "padding_mask":
            lengths = (torch.arange(6) < lengths[:, None]).long()
        got = _called(made, sizes, number, embedded, dict(zip(names, (sounds, lengths), strict=True)))
        due = _repeated(sizes, number)
        found = [_numbers(got[names[0]]), got[names[1]].tolist()]
        right = [due, [lengths[one - 1].tolist() for one in due]]
        if found != right:
            what = f"{'embeddings' if embedded else 'ids'}, {list(sizes)} by {number}"
            wrong.append(f"{what}: {found}, {right} are due")
    return wrong[:5]


FINDING = "Transformers: several answers for a prompt with several pictures"
OWN = KnownFailure("each picture is repeated by itself by a method of the model's own", finding=FINDING)
OWN_METHODS: Sequence[tuple[str, str, str]] = (
    ("glm46v", "Glm46V", "a list"), ("glm4v", "Glm4v", "a list"), ("glm4v_moe", "Glm4vMoe", "a list"),
    ("glm_ocr", "GlmOcr", "a list"), ("glm5_next", "Glm5Next", "a list"),
    ("granite4_vision", "Granite4Vision", "numbered layers"),
)  # fmt: skip


def _row(what: str, place: str, call: Callable[[Any], Any], known: KnownFailure | None = None) -> Row:
    return Row("inputs", place, what, call, [], since="5.19", known=known)


MODELS = "transformers.models"
GENERAL = "transformers.generation.utils:GenerationMixin"
# Source: the documentation of GenerationMixin.generate (num_return_sequences).
REPEATED_ROWS: Sequence[Row] = (
    _row("features of several answers", GENERAL, partial(_seen, ["a list", "a tensor", "layers"])),
    *(
        _row("features of several answers", f"{MODELS}.{kind}.modeling_{kind}:{name}ForConditionalGeneration",
             partial(_seen, [form]), OWN)
        for kind, name, form in OWN_METHODS
    ),
    _row("features of several answers",
         f"{MODELS}.nemotron_h_omni.modeling_nemotron_h_omni:NemotronH_Omni_Reasoning_V3",
         partial(_seen, ["a list", "a tensor"]), replace(OWN, releases=since("transformers", "5.24"))),
    _row("sounds of several answers", f"{MODELS}.dots3_note.modeling_dots3_note:Dots3NoteForConditionalGeneration",
         partial(_of_sounds, ("input_features", "chunk_sample_lengths"))),
    _row("sounds of several answers", f"{MODELS}.apertus1p5.modeling_apertus1p5:Apertus1p5ForConditionalGeneration",
         partial(_of_sounds, ("input_values", "padding_mask"))),
)  # fmt: skip
