"""Worked examples of the chat templates that Transformers itself brings along: each way to name a part of a message."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.processors import PROCESSOR, text_processors
from seatrial.targets.transformers.worked.records.processors import _made

MODELS = "transformers.models"
TEXT = {"type": "text", "text": "x"}
Chat = list[dict[str, Any]]


def named_parts(kind: str, alone: bool) -> dict[str, dict[str, Any]]:
    """Return a part of a kind, such as a sound, named in each way; `alone` without its type too."""
    found: dict[str, dict[str, Any]] = {
        f"type and {key}": {"type": kind, key: "a"} for key in ("path", "url", "base64", kind, f"{kind}_url")
    }
    found["type alone"] = {"type": kind}
    if alone:
        found |= {f"{key} alone": {key: "a"} for key in (kind, f"{kind}_url")}
        found[f"type {kind}_url"] = {"type": f"{kind}_url", f"{kind}_url": "a"}
    return found


def _chats(parts: Mapping[str, Any]) -> dict[str, Chat]:
    return {name: [{"role": "user", "content": [part, TEXT]}] for name, part in parts.items()}


def _several(kind: str) -> Chat:
    """Return messages of several parts."""
    first, second = {"type": kind, "path": "a"}, {"type": kind, "url": "b"}
    return [
        {"role": "user", "content": [TEXT, first, second, TEXT]},
        {"role": "assistant", "content": [{"type": "text", "text": "y"}]},
        {"role": "user", "content": [{"type": kind, "path": "a"}]},
    ]


STRINGS: Chat = [
    {"role": "system", "content": "s"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"},
]  # fmt: skip
LISTS: Chat = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in STRINGS]


def _render(chat: Chat, made: Any, **options: Any) -> Any:
    """Return the text of a conversation, by the class of a processor or by a template."""
    if isinstance(made, str):
        return tiny_tokenizer().apply_chat_template(
            copy.deepcopy(chat), chat_template=made, tokenize=False, **options
        )
    return _made(made, {}).apply_chat_template(copy.deepcopy(chat), tokenize=False, **options)


QWEN = "transformers:Qwen2AudioProcessor"
LLAMA = f"{MODELS}.llama4.processing_llama4:chat_template"
SMOL = f"{MODELS}.smolvlm.processing_smolvlm:DEFAULT_CHAT_TEMPLATE"
NAMES: Mapping[str, Sequence[str]] = {
    "image": ("path", "url", "base64", "image"),
    "video": ("path", "url", "video"),
}


def _taken(kind: str, batch: bool, made: Any) -> Any:
    """Return the media that a processor takes from parts of a kind in two messages, which are named in each way."""
    parts = [{"type": kind, name: f"{at}"} for at, name in enumerate(NAMES[kind])]

    class Taking(text_processors()):  # type: ignore[misc]
        """A processor that keeps the media it is called with."""

        def __call__(self, text: Any = None, images: Any = None, videos: Any = None, **more: Any) -> Any:
            self.taken = {"image": images, "video": videos}
            return super().__call__(text)

    chat = [
        {"role": "user", "content": [TEXT, *parts[1:]]}, {"role": "assistant", "content": [TEXT]},
        {"role": "user", "content": parts[:1]},
    ]  # fmt: skip
    processor = Taking(tiny_tokenizer(), chat_template="{{ messages[0].role }}")
    processor.apply_chat_template(
        [chat, chat[:1], chat[1:2]] if batch else chat, tokenize=True, return_dict=True
    )
    return processor.taken[kind]


SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
SOUNDS = [f"Audio {at}: <|audio_bos|><|AUDIO|><|audio_eos|>\n" for at in (1, 2, 3)]
PROMPT = {"add_generation_prompt": True}


def _rows(place: str, kind: str, one: str, several: str, alone: bool = False) -> list[Row]:
    """Return rows of a template: of a part of a kind named in each way, and of several parts."""
    found = [
        Row("texts", place, f"{kind} by {name}", partial(_render, chat, **PROMPT), one, since="4.57")
        for name, chat in _chats(named_parts(kind, alone)).items()
    ]
    return [
        *found,
        Row(
            "texts",
            place,
            f"several parts of {kind}",
            partial(_render, _several(kind)),
            several,
            since="4.57",
        ),
    ]


def _strings(place: str, right: str, since: str = "4.57") -> list[Row]:
    """Return rows of texts as strings and as lists of parts."""
    return [
        Row("texts", place, "texts as strings", partial(_render, STRINGS), right, since=since),
        Row("texts", place, "texts as lists of parts", partial(_render, LISTS), right, since="4.57"),
    ]


def _head(role: str) -> str:
    return f"<|header_start|>{role}<|header_end|>\n\n"


OWN_TEMPLATE_ROWS: Sequence[Row] = (
    *(
        Row("texts", PROCESSOR, f"{kind}s of messages{' in a batch' if batch else ''}", partial(_taken, kind, batch),
            [[*rest, "0"], [*rest], []] if batch else [[*rest, "0"]], since="4.57")
        for kind, rest in (("image", ["1", "2", "3"]), ("video", ["1", "2"]))
        for batch in (False, True)
    ),
    *_rows(
        QWEN, "audio",
        f"{SYSTEM}<|im_start|>user\n{SOUNDS[0]}x<|im_end|>\n<|im_start|>assistant\n",
        f"{SYSTEM}<|im_start|>user\nx{SOUNDS[0]}{SOUNDS[1]}x<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n"
        f"<|im_start|>user\n{SOUNDS[2]}<|im_end|>\n", alone=True,
    ),
    *_strings(QWEN, "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nx<|im_end|>\n"
                    "<|im_start|>assistant\ny<|im_end|>\n"),
    *_rows(
        LLAMA, "image", f"{_head('user')}<|image|>x<|eot|>{_head('assistant')}",
        f"{_head('user')}x<|image|><|image|>x<|eot|>{_head('assistant')}y<|eot|>{_head('user')}<|image|><|eot|>",
    ),
    *_strings(LLAMA, f"{_head('system')}s<|eot|>{_head('user')}x<|eot|>{_head('assistant')}y<|eot|>"),
    *_rows(
        SMOL, "image", "<|im_start|>User:<image>x<end_of_utterance>\nAssistant:",
        "<|im_start|>User: x<image><image>x<end_of_utterance>\nAssistant: y<end_of_utterance>\n"
        "User:<image><end_of_utterance>\n",
    ),
    *_rows(
        SMOL, "video", "<|im_start|>User: <video>x<end_of_utterance>\nAssistant:",
        "<|im_start|>User: x<video><video>x<end_of_utterance>\nAssistant: y<end_of_utterance>\n"
        "User: <video><end_of_utterance>\n",
    ),
    *_strings(SMOL, "<|im_start|>System: s<end_of_utterance>\nUser: x<end_of_utterance>\n"
                    "Assistant: y<end_of_utterance>\n", since="5.24"),
)  # fmt: skip
