"""Laws of processors' chats: texts, tokens, rows of a batch, masks of answers, ways to name pictures."""

from __future__ import annotations

import base64
import copy
import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.processing import inputs
from seatrial.targets.transformers.worked.processing.compare import plain, unlike, unlike_rows
from seatrial.targets.transformers.worked.processing.inputs import MARKS, shared
from seatrial.targets.transformers.worked.records import joint, processors

classes = inputs.classes
Chat = Sequence[tuple[str, Sequence[str]]]
CHATS: Mapping[str, tuple[Chat, Chat]] = {
    "text": ((("user", ["ab"]), ("assistant", ["cd"])), (("user", ["e"]), ("assistant", ["fgh"]), ("user", ["i"]),
                                                        ("assistant", ["jk"]))),
    "image": ((("user", ["image 0", "ab"]), ("assistant", ["cd"])),
              (("user", ["e", "image 1", "f"]), ("assistant", ["ghi"]), ("user", ["image 2"]), ("assistant", ["j"]))),
    "audio": ((("user", ["audio 0", "ab"]), ("assistant", ["cd"])),
              (("user", ["e", "audio 1", "f"]), ("assistant", ["ghi"]))),
    "video": ((("user", ["video 0", "ab"]), ("assistant", ["cd"])),
              (("user", ["e", "video 1", "f"]), ("assistant", ["ghi"]))),
    "image and audio": ((("user", ["image 0", "ab", "audio 0"]), ("assistant", ["cd"])),
                        (("user", ["audio 1", "image 1", "f"]), ("assistant", ["ghi"]))),
}  # fmt: skip
"""Two conversations of each kind; media by kind and number."""
TEMPLATE = (
    "{% if tools %}[{% for t in tools %}{{ t.function.name }}{% endfor %}]{% endif %}{{ first }}"
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}PARTS;{% endgeneration %}"
    "{% else %}PARTS;{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def _template(processor: Any) -> str:
    cases = "".join(f"{{% elif c.type == '{kind}' %}}{processors._mark(processor, kind)}" for kind in MARKS)
    parts = (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
        f"{{% if c.type == 'text' %}}{{{{ c.text }}}}{cases}{{% endif %}}{{% endfor %}}{{% endif %}}"
    )
    return TEMPLATE.replace("PARTS", parts)


def _messages(chat: Chat, media: Callable[[str, int], dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    found = []
    for role, parts in chat:
        content: list[dict[str, Any]] = []
        for part in parts:
            kind, _, number = part.partition(" ")
            if number:
                content.append({"type": kind, **(media or _given)(kind, int(number))})
            else:
                content.append({"type": "text", "text": part})
        found.append({"role": role, "content": content})
    return found


def _given(kind: str, number: int) -> dict[str, Any]:
    return {kind: inputs._media(inputs.NEED[kind], number).copy()}


def _text(processor: Any, chat: Chat) -> str:
    """Return what the template makes of a conversation."""
    found = ""
    for role, parts in chat:
        marked = [processors._mark(processor, one.split()[0]) if " " in one else one for one in parts]
        found += f"{role}:{''.join(marked)};"
    return found


def _apply(processor: Any, chats: Any, more: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return what a processor makes of conversations; `more` are options of its call."""
    nested = "processor_kwargs" in inspect.signature(processor.apply_chat_template).parameters
    own = {} if more is None else {"processor_kwargs": dict(more)} if nested else dict(more)
    options = {"chat_template": _template(processor), **options}
    return processor.apply_chat_template(chats, **own, **options)


def _kinds(made: Any) -> list[str]:
    """Return names of conversations that a class takes."""
    found = []
    for name in CHATS:
        kinds = [kind for kind in MARKS if kind in name]
        if not all(joint._takes(made, {inputs.NEED[kind]: 1}) for kind in kinds):
            continue
        if _served(made, name):
            found.append(name)
    if not found:
        raise NotServed("no conversations")
    return found


@cache
def _served(made: Any, name: str) -> bool:
    try:
        _tokens(shared(made), [_messages(chat) for chat in CHATS[name]])
    except ImportError:
        raise
    except Exception:  # noqa: BLE001  conversations of another form
        return False
    return True


def _needs(processor: Any) -> dict[str, Any]:
    return {"padding": True, **joint.NEEDS.get(type(processor).__name__, {})}


def _tokens(
    processor: Any, chats: Any, more: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    found = _apply(
        processor, chats, {**_needs(processor), **(more or {})}, tokenize=True, return_dict=True, **options
    )
    return dict(found.items())


def _texts(made: Any) -> Iterator[str]:
    """Yield texts of conversations that are not the template's."""
    processor = shared(made)
    if not hasattr(processor, "tokenizer"):
        raise NotServed("no tokenizer")
    for chats in CHATS.values():
        due = [_text(processor, chat) for chat in chats]
        given = [_messages(chat, lambda kind, number: {}) for chat in chats]
        ends = [one[: -len(";")] for one in due]
        cases: Mapping[str, tuple[Any, Any]] = {
            "one": (_apply(processor, given[0]), due[0]),
            "two": (_apply(processor, given), due),
            "prompted": (
                _apply(processor, given, add_generation_prompt=True),
                [f"{one}assistant:" for one in due],
            ),
            "tools": (_apply(processor, given, tools=TOOLS), [f"[f]{one}" for one in due]),
            "a variable": (_apply(processor, given, first="<s>"), [f"<s>{one}" for one in due]),
            "continued": (_apply(processor, given, continue_final_message=True), ends),
        }
        for name, (found, right) in cases.items():
            if found != right:
                yield f"{name}: {found}, {right} is due"
    bare = [{"role": "user", "content": "ab"}]
    if _apply(processor, bare) != "user:ab;":
        yield f"a text: {_apply(processor, bare)}"
    kept = processor.chat_template
    try:
        for template, more, right in (
            ("{{ 'x' }}", {}, "x"), ({"default": "{{ 'd' }}", "other": "{{ 'o' }}"}, {}, "d"),
            ({"default": "{{ 'd' }}", "other": "{{ 'o' }}"}, {"chat_template": "other"}, "o"),
            ("{{ 'x' }}", {"chat_template": "{{ 'y' }}"}, "y"),
        ):  # fmt: skip
            processor.chat_template = template
            if processor.apply_chat_template(bare, **more) != right:
                yield f"template {template}, {more}: {processor.apply_chat_template(bare, **more)}"
    finally:
        processor.chat_template = kept


def _of_call(made: Any) -> Iterator[str]:
    """Yield where tokens are not those of a call with the text and the media, by themselves and in a dictionary."""
    processor = shared(made)
    for name in _kinds(made):
        chats = CHATS[name]
        given = [_messages(chat) for chat in chats]
        text = [_text(processor, chat) for chat in chats]
        parts = [[one.split() for _, own in chat for one in own if " " in one] for chat in chats]
        media: dict[str, Any] = {}
        for kind in MARKS:
            own = [[_given(kind, int(number))[kind] for what, number in row if what == kind] for row in parts]
            if any(own):
                key = inputs.sound_name(made) if kind == "audio" else inputs.NEED[kind]
                media[key] = own if kind == "image" else [one for row in own for one in row]
        extractor = getattr(processor, "feature_extractor", None)
        rate = getattr(extractor, "sampling_rate", None)
        if "audio" in name and rate is not None:
            media["sampling_rate"] = rate
        for options in ({"padding_side": "left", "return_tensors": "pt"},):
            more = {**_needs(processor), **options}
            try:
                due = dict(processor(text=list(text), **copy.deepcopy(media), **more).items())
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
            found = _tokens(processor, given, options)
            yield from (f"{name}, {options}:{one}" for one in unlike(found, due))
            if name != "text":
                continue
            alone = _apply(processor, given, {**_needs(processor), **options}, tokenize=True)
            yield from (f"{name}, ids alone{one}" for one in unlike(alone, found["input_ids"]))
            bos = _tokens(processor, given, options, first="<s>")
            marked = [f"<s>{one}" for one in text]
            try:
                due = dict(
                    processor(text=marked, **copy.deepcopy(media), **more, add_special_tokens=False).items()
                )
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
            yield from (f"{name}, {options}, a first token:{one}" for one in unlike(bos, due))


def _rows(made: Any) -> Iterator[str]:
    """Yield where conversations of a batch are not what they are alone; and one from a list of it."""
    processor = shared(made)
    pads = processor.tokenizer.pad_token_id
    for name in _kinds(made):
        given = [_messages(chat) for chat in CHATS[name]]
        for side, more in (("left", {}), ("right", {"add_generation_prompt": True})):
            options = {"padding_side": side}
            batch = _tokens(processor, given, options, **more)
            singles = [_tokens(processor, [one], options, **more) for one in given]
            yield from (f"{name}, {side}, {one}" for one in unlike_rows(batch, singles, pads, side))
            if not more:
                bare = _tokens(processor, given[0], options)
                if np.ndim(plain(bare["input_ids"])) == 2:
                    yield from (f"{name}, one:{one}" for one in unlike(bare, singles[0]))


def _answers(made: Any) -> Iterator[str]:
    """Yield where the mask of answers is not that of their tokens."""
    processor = shared(made)
    judged = False
    for name in _kinds(made):
        given = [_messages(chat) for chat in CHATS[name]]
        for side in ("left", "right") if name == "text" else ("left",):
            try:
                found = _tokens(processor, given, {"padding_side": side}, return_assistant_tokens_mask=True)
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
            masks, ids = plain(found["assistant_masks"]), plain(found["input_ids"])
            judged = True
            for mask, row, chat in zip(masks, ids, CHATS[name], strict=True):
                said = processor.tokenizer.decode(
                    [int(one) for one, own in zip(row, mask, strict=True) if own]
                )
                due = "".join(f"{''.join(parts)};" for role, parts in chat if role == "assistant")
                if said != due:
                    yield f"{name}, {side}: {said!r}, {due!r} is due"
            if side == "left":
                without = _tokens(processor, given, {"padding_side": side})
                rest = {key: one for key, one in found.items() if key != "assistant_masks"}
                yield from (f"{name}, {side}, the rest:{one}" for one in unlike(rest, without))
    if not judged:
        raise NotServed("no masks")


def _again(made: Any) -> Iterator[str]:
    """Yield where a second conversation differs, and what a call leaves changed of what the caller gave."""
    processor = shared(made)
    nested = "processor_kwargs" in inspect.signature(processor.apply_chat_template).parameters
    for name in _kinds(made):
        given = [_messages(chat) for chat in CHATS[name]]
        kept = copy.deepcopy(given)
        more = {"text_kwargs": {"padding": True}, **joint.NEEDS.get(made.__name__, {})}
        kept_more = copy.deepcopy(more)
        own = {"processor_kwargs": more} if nested else more
        options = {"tokenize": True, "return_dict": True, "chat_template": _template(processor)}
        first = processor.apply_chat_template(given, **options, **own)
        yield from (f"{name}, conversations:{one}" for one in unlike(given, kept))
        own_options = {key: one for key, one in more.items() if key in kept_more}  # a rate of sounds is added
        yield from (f"{name}, options:{one}" for one in unlike(own_options, kept_more))
        second = processor.apply_chat_template(given, **options, **own)
        yield from (f"{name}, again:{one}" for one in unlike(dict(second.items()), dict(first.items())))


def _named(made: Any) -> Iterator[str]:
    """Yield where pictures by their file or their text differ from pictures."""
    processor = shared(made)
    if "image" not in _kinds(made):
        raise NotServed("no pictures")
    folder = Path(new_folder())

    def path(kind: str, number: int) -> Path:
        where = folder / f"{number}.png"
        inputs._media("images", number).save(where)
        return where

    def text(kind: str, number: int) -> dict[str, Any]:
        written = io.BytesIO()
        inputs._media("images", number).save(written, format="PNG")
        return {"base64": base64.b64encode(written.getvalue()).decode()}

    due = _tokens(processor, [_messages(chat) for chat in CHATS["image"]])
    ways: Mapping[str, Callable[[str, int], dict[str, Any]]] = {
        "a path": lambda kind, number: {"path": str(path(kind, number))},
        "a path as address": lambda kind, number: {"url": str(path(kind, number))},
        "a path as picture": lambda kind, number: {"image": str(path(kind, number))},
        "a text": text,
    }
    for way, call in ways.items():
        found = _tokens(processor, [_messages(chat, call) for chat in CHATS["image"]])
        yield from (f"{way}:{one}" for one in unlike(found, due))


RELEASES = (("5.24", "6"),)
LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "chats: texts": _texts,
    "chats: tokens of a call": _of_call,
    "chats: a batch is its rows": _rows,
    "chats: masks of answers": _answers,
    "chats: calls again": _again,
    "chats: pictures by name": _named,
}
_SOUNDS = r"(input_features|input_features_mask|input_values|audio_input_features|audio_attention_mask)\b"
_ROWS = "chats: a batch is its rows"
_MASKS = "chats: masks of answers"
"""A bug: the mask is made of places in the text before a processor adds its own to it, and names other tokens."""
OTHERWISE: Mapping[str, str] = {
    **{
        f"{name}Processor": _SOUNDS
        for name in ("AudioFlamingo3", "Clvp", "Gemma3n", "GlmAsr", "MusicFlamingo", "Phi4Multimodal", "Whisper")
    },
    **{f"{name}Processor": _MASKS for name in ("Csm", "Emu3", "Idefics2", "PI0", "PaliGemma")},
    "ClapProcessor": "is_longer",  # it draws which sounds are longer
    # A bug: a text that is not in a list is read letter by letter.
    "ColPaliProcessor": f"{_MASKS}|, one:", "ColQwen2Processor": f"{_MASKS}|, one:",
    # Bugs: see the findings "padding on the left of Kosmos" and "frames of a padded sound".
    "Kosmos2Processor": f"{_ROWS}.*left|{_MASKS}", "Kosmos2_5Processor": "image_embeds_position_mask",
    "Qwen3OmniMoeProcessor": f"{_ROWS}.*, (audio|image and audio)",
    # A list of texts is the classes of one picture; a row has as many places of pictures as the row with the most.
    "GroundingDinoProcessor": _ROWS, "MllamaProcessor": f"{_ROWS}|{_MASKS}",
    # Patches of all pictures lie end to end in one row, or their numbers count from the first of a batch.
    "MiniCPMOcrProcessor": "pixel_values", "MiniCPMV4_6Processor": "pixel_values",
    "MiniCPMV4_7Processor": "pixel_values", "Molmo2Processor": f"token_pooling|{_MASKS}",
    "IdeficsProcessor": "pictures by name|its rows",
}  # fmt: skip
"""What classes do otherwise, by design or in all releases: patterns of a law and what it says."""
