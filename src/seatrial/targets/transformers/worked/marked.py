"""Worked examples of masks of the assistant of processors that write several tokens for a picture, video or sound."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row

KINDS = ("image", "video", "audio")
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}>{% generation %}"
    "{% for p in m['content'] %}{{ p['text'] if p['type'] == 'text' else '<' + p['type'] + '>' }}{% endfor %};"
    "{% endgeneration %}{% else %}<"
    "{% for p in m['content'] %}{{ p['text'] if p['type'] == 'text' else '<' + p['type'] + '>' }}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
Part = str | tuple[str, int]
Turns = Sequence[tuple[str, Sequence[Part]]]
"""Roles and parts: a text, or a kind of medium and the number of its tokens."""
CHATS: Mapping[str, Turns] = {
    "no medium": (("user", ["ab"]), ("assistant", ["cde"])),
    "an image": (("user", [("image", 4), "ab"]), ("assistant", ["cde"])),
    "an image behind the text": (("user", ["ab", ("image", 4)]), ("assistant", ["cde"])),
    "an image of one token": (("user", [("image", 1), "ab"]), ("assistant", ["cde"])),
    "an image without tokens": (("user", [("image", 0), "ab"]), ("assistant", ["cde"])),
    "several images": (("user", [("image", 3), "a", ("image", 5), "b", ("image", 2)]), ("assistant", ["cde"])),
    "two answers": (
        ("user", [("image", 3), "ab"]), ("assistant", ["cd"]), ("user", ["ef", ("image", 12)]), ("assistant", ["gh"]),
    ),
    "an image after the answer": (("user", ["ab"]), ("assistant", ["cde"]), ("user", [("image", 9)])),
    "an image in the answer": (("user", ["ab"]), ("assistant", ["c", ("image", 3), "de"]), ("user", ["f"])),
    "an image before the answer's text": (("user", [("image", 2)]), ("assistant", [("image", 3), "de"])),
    "a video": (("user", [("video", 3), "ab"]), ("assistant", ["cde"])),
    "a sound": (("user", ["ab", ("audio", 7)]), ("assistant", ["cde"])),
    "every kind": (
        ("user", [("audio", 2), "a", ("image", 3), "b", ("video", 2)]), ("assistant", ["cde"]),
        ("user", [("image", 6), ("audio", 1)]), ("assistant", ["f"]),
    ),
}  # fmt: skip
"""Conversations. A video's tokens have its number before them."""


def processor_class() -> Any:
    """Return the class of a processor of a tokenizer alone, to which others add their media."""
    made: Any = find_name("transformers", ["transformers:ProcessorMixin"])
    options: Any = find_name("transformers", ["transformers.processing_utils:ProcessingKwargs"])

    class Processor(made):  # type: ignore[misc]
        """A processor."""

        attributes = ["tokenizer"]  # noqa: RUF012  of Transformers
        tokenizer_class = "AutoTokenizer"
        valid_processor_kwargs = options

        def __init__(self, tokenizer: Any = None, chat_template: Any = None) -> None:
            super().__init__(tokenizer, chat_template=chat_template)

    return Processor


def media_processor() -> Any:
    """Return a processor whose media are their numbers of tokens, with a tokenizer of letters."""

    class Processor(processor_class()):  # type: ignore[misc]
        """A processor."""

        image_token, video_token, audio_token = (f"<{kind}>" for kind in KINDS)
        image_processor = video_processor = SimpleNamespace()
        feature_extractor = SimpleNamespace(sampling_rate=16_000)

        def prepare_inputs_layout(self, **given: Any) -> Any:
            text = given["text"]
            texts = [text] if isinstance(text, str) else list(text)
            return given.get("images"), texts, given.get("videos"), given.get("audio")

        def validate_inputs(self, **given: Any) -> None:
            """Take all."""

        def _process_images(self, images: Any, **given: Any) -> Any:
            return {}, ["<image>" * one for row in images for one in row]

        def _process_videos(self, videos: Any, **given: Any) -> Any:
            return {}, [f"{one}:" + "<video>" * one for row in videos for one in row]

        def _process_audio(self, audio: Any, **given: Any) -> Any:
            return {}, ["<audio>" * len(one) for one in audio]

        def _multimodal_inputs_from_conversations(self, conversations: Any, *given: Any, **more: Any) -> Any:
            def of(kind: str) -> list[list[int]]:
                return [
                    [part[kind] for turn in chat for part in turn["content"] if part["type"] == kind]
                    for chat in conversations
                ]

            return of("image"), of("video"), [one for row in of("audio") for one in row], {}

    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<{kind}>" for kind in KINDS]})
    return Processor(tokenizer, chat_template=TEMPLATE)


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind, number = part
    # Releases before 5.23 read sounds before the processor does.
    return {"type": kind, kind: np.zeros(number) if kind == "audio" else number}


def messages_of(chat: Turns) -> list[dict[str, Any]]:
    """Return the messages of a conversation."""
    return [{"role": role, "content": [*map(_part, parts)]} for role, parts in chat]


def due_tokens(chat: Turns, prompted: bool) -> list[tuple[str, int]]:
    """Return the tokens of a conversation, and whether each is the assistant's."""
    found: list[tuple[str, int]] = []
    for role, parts in chat:
        own = int(role == "assistant")
        found.append((">" if own else "<", 0))
        for part in parts:
            if isinstance(part, str):
                found += [(letter, own) for letter in part]
                continue
            kind, number = part
            if kind == "video":
                found += [(letter, own) for letter in f"{number}:"]
            found += [(f"<{kind}>", own)] * number
        if own:
            found.append((";", 1))
    return [*found, (">", 0)] if prompted else found


def rows_of_tokens(found: Any, tokenizer: Any) -> list[list[tuple[str, int]]]:
    """Return the tokens of rows, each with its value of the mask."""
    fields = [found[name] for name in ("input_ids", "assistant_masks")]
    ids, masks = [one.tolist() if hasattr(one, "tolist") else one for one in fields]
    return [
        list(zip(tokenizer.convert_ids_to_tokens(list(row)), mask, strict=True))
        for row, mask in zip(ids, masks, strict=True)
    ]


FORMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "a prompt at the end": {"add_generation_prompt": True},
    "padding on the right": {"padding": True, "padding_side": "right"},
    "padding on the left": {"padding": True, "padding_side": "left"},
    "arrays": {"padding": True, "padding_side": "left", "return_tensors": "np"},
    "tensors": {"padding": True, "padding_side": "right", "return_tensors": "pt"},
    "a width": {"padding": "max_length", "max_length": 50, "padding_side": "left"},
}
CUT: Mapping[str, Sequence[int]] = {"right": (7, 8, 9, 11), "left": (2, 3, 5, 8)}
"""Where a row is cut: numbers of tokens that are kept, none of a picture lost, by the side."""
CUT_CHATS: Mapping[str, Turns] = {
    "right": (("user", [("image", 5)]), ("assistant", ["cde"]), ("user", ["f"]), ("assistant", ["gh"])),
    "left": (("user", ["ab"]), ("assistant", ["cdefg"]), ("user", ["h"]), ("assistant", ["ij"])),
}


def padded(rows: Sequence[list[tuple[str, int]]], form: Mapping[str, Any]) -> list[list[tuple[str, int]]]:
    """Return rows with the padding of a call."""
    if not form.get("padding"):
        return list(rows)
    width = max(form.get("max_length", 0), *map(len, rows))
    gaps = [[("<pad>", 0)] * (width - len(row)) for row in rows]
    left = form["padding_side"] == "left"
    return [gap + row if left else row + gap for gap, row in zip(gaps, rows, strict=True)]


def asked(processor: Any, chats: Any, form: Mapping[str, Any]) -> list[list[tuple[str, int]]]:
    """Return the tokens and the mask that a processor gives."""
    options = dict(form)
    own = {name: options.pop(name) for name in ("add_generation_prompt", "return_tensors") if name in options}
    processor.tokenizer.truncation_side = options.pop("truncation_side", "right")
    # Releases of 4 take the options of the call itself.
    nested = "processor_kwargs" in inspect.signature(processor.apply_chat_template).parameters
    found = processor.apply_chat_template(
        copy.deepcopy(chats), tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
        **({"processor_kwargs": options} if nested else options), **own,
    )  # fmt: skip
    if "offset_mapping" in found or "text_replacement_offsets" in found:
        raise AssertionError(f"fields that were not asked for: {sorted(found)}")
    return rows_of_tokens(found, processor.tokenizer)


def _marked(made: Any) -> list[str]:
    """Return which conversations, alone and in batches, have other tokens, or a mask that is not of the answers."""
    processor, wrong = media_processor(), []
    batches: dict[str, list[Turns]] = {name: [chat] for name, chat in CHATS.items()}
    batches |= {f"{one}; {other}": [CHATS[one], CHATS[other]] for one, other in itertools.pairwise(CHATS)} | {
        "all": [*CHATS.values()],
        "all in reverse": [*CHATS.values()][::-1],
    }
    for (name, chats), (what, form) in itertools.product(batches.items(), FORMS.items()):
        rows = [due_tokens(chat, bool(form.get("add_generation_prompt"))) for chat in chats]
        found, due = asked(processor, [messages_of(chat) for chat in chats], form), padded(rows, form)
        wrong += [
            f"{name}, {what}: {shown(one)}, {shown(right)} is due"
            for one, right in zip(found, due, strict=True)
            if one != right
        ]
    return wrong[:5]


def _cut(made: Any) -> list[str]:
    """Return which rows that are cut keep another mask than that of the tokens that are left."""
    processor, wrong = media_processor(), []
    for side, chat in CUT_CHATS.items():
        for size in CUT[side]:
            form = {"truncation": True, "max_length": size, "truncation_side": side}
            whole = due_tokens(chat, False)
            found = asked(processor, [messages_of(chat)], form)
            due = [whole[:size] if side == "right" else whole[-size:]]
            wrong += [] if found == due else [f"{side}, {size}: {shown(found[0])}, {shown(due[0])} is due"]
    return wrong


def shown(row: Sequence[tuple[str, int]]) -> str:
    """Return the tokens of a row, those of the mask in brackets."""
    return "".join(f"[{token}]" if own else token for token, own in row)


PROCESSOR = "transformers:ProcessorMixin"
# Source: the documentation of ProcessorMixin.apply_chat_template (return_assistant_tokens_mask).
MARKED_ROWS: Sequence[Row] = (
    Row(
        "texts",
        PROCESSOR,
        "masks of conversations with pictures, videos and sounds",
        _marked,
        [],
        since="5.18",
    ),
    Row("texts", PROCESSOR, "masks of conversations that are cut", _cut, [], since="5.18"),
)
