"""Worked examples of prompts and answers as ids, of templates, media and random streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from refrl.masking import masked, masked_text, masked_word
from refrl.media import model_inputs, pack, stack, unpack
from refrl.models.byte_tokenizer import SPECIAL_TOKEN_IDS, byte_tokenizer
from refrl.models.chat import ChatEncoder
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import (
    decode_completions,
    encode_answers,
    encode_prompts,
    make_byte_tokenizer,
)
from refrl.streams import global_streams, restore_global_streams
from refrl.tasks.examples import Example, longest_prompts
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused

BOS, EOS = SPECIAL_TOKEN_IDS["<|bos|>"], SPECIAL_TOKEN_IDS["<|eos|>"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|eos|>{% endif %}!{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_ids()
    yield from _of_prompts()
    yield from _of_media()
    yield from _of_secrets()
    yield example("global streams continue where they were", True, _streams_continue)
    made = [Example(n, text, "", "made") for n, text in enumerate(("aaa", "é", "b", "cccc"))]
    yield example(
        "the longest prompts in bytes", [3, 0, 1], lambda: [one.prompt_id for one in longest_prompts(made, 3)]
    )
    solved = Example(1, "p", "a", "made", solution="s")
    yield example("targets", ("a", "s"), lambda: (made[0].target or "a", solved.target))


def ids(text: str) -> list[int]:
    """Return the bytes of a text, which are its ids."""
    return list(text.encode())


def _of_ids() -> Iterator[WorkedExample]:
    tokenizer = make_byte_tokenizer()
    yield example("ids of special tokens", (256, 257, 258), lambda: tuple(SPECIAL_TOKEN_IDS.values()))
    yield example(
        "prompts begin with their token",
        [(BOS, *ids("aé ")), (BOS, *ids("<|eos|>"))],
        encode_prompts,
        tokenizer,
        ["aé ", "<|eos|>"],
    )
    yield example(
        "answers have no token of their own",
        [tuple(ids(" a\n")), ()],
        encode_answers,
        tokenizer,
        [" a\n", ""],
    )
    yield example(
        "texts of completions",
        ["a b", "", " x"],
        decode_completions,
        tokenizer,
        [[*ids("a b"), EOS], [EOS], [BOS, *ids(" x")]],
    )
    every = bytes(range(1, 128)).decode()
    yield example(
        "every byte is its own id",
        ids(every),
        lambda: byte_tokenizer().encode(every, add_special_tokens=False).ids,
    )
    yield example(
        "further tokens", [259], lambda: byte_tokenizer(["<x>"]).encode("<x>", add_special_tokens=False).ids
    )


def _of_prompts() -> Iterator[WorkedExample]:
    tokenizer = make_byte_tokenizer()
    plain = PromptEncoder(tokenizer)
    chat = PromptEncoder(tokenizer, chat_template=TEMPLATE, system_prompt="be")
    media = PromptEncoder(tokenizer, media_token_id=7)
    yield example("a plain prompt", [(BOS, *ids("2+2="))], plain.prompts, ["2+2="])
    yield example("a plain answer", [(*ids("4"), EOS)], plain.answers, ["2+2="], ["4"])
    yield example("a plain prompt in words", "2+2=", plain.rendered, "2+2=")
    yield example("a prompt of a chat", [tuple(ids("s:be!u:hi!a:"))], chat.prompts, ["hi"])
    yield example("an answer of a chat", [(*ids("yo"), EOS)], chat.answers, ["hi"], ["yo"])
    yield example("a prompt of a chat in words", "s:be!u:hi!a:", chat.rendered, "hi")
    yield example(
        "a special token in a prompt of a chat is text",
        [tuple(ids("s:be!u:<|eos|>!a:"))],
        chat.prompts,
        ["<|eos|>"],
    )
    yield example("places of media", [(BOS, 7, 7, *ids("b="))], media.prompts, ["<|media|><|media|>b="])
    yield example("the end of a completion", (EOS, EOS), lambda: (plain.end_token_id(), chat.end_token_id()))
    encoder = ChatEncoder(tokenizer, TEMPLATE)
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "r"},
        {"role": "user", "content": "s"},
        {"role": "assistant", "content": "t"},
    ]
    whole = [*ids("u:q!a:r"), EOS, *ids("!u:s!a:t"), EOS, *ids("!")]
    trained = [0] * 6 + [1, 1] + [0] * 7 + [1, 1, 0]
    yield example("a conversation that trains", (whole, trained), encoder.training_row, talk)
    yield example(
        "a conversation that continues",
        [*whole, *ids("a:")],
        encoder.encode,
        talk,
        add_generation_prompt=True,
    )
    yield refused(
        "unknown role",
        "a role of its own",
        encoder.encode,
        [{"role": "x", "content": ""}],
        add_generation_prompt=True,
    )
    open_ended = ChatEncoder(tokenizer, TEMPLATE.replace("<|eos|>", ""))
    yield refused("end token", "a template without an end", open_ended.training_row, talk)


def _of_media() -> Iterator[WorkedExample]:
    image, sound = np.arange(12, dtype=np.float32).reshape(3, 2, 2), np.full((2, 3), -0.5, dtype=np.float32)
    yield example("an image comes back", image.tolist(), lambda: unpack(pack(image)))
    yield example(
        "shapes come back", ("3x2x2", "2x3"), lambda: (pack(image).split(":")[0], pack(sound).split(":")[0])
    )
    yield refused("", "text that is no image", unpack, "2x2:AAAA")
    yield example("no media", None, stack, [None, None])
    yield example(
        "media of rows", [sound.tolist(), (sound * 2).tolist()], lambda: stack([pack(sound), pack(sound * 2)])
    )
    yield refused("1 of 2 rows", "media of some rows", stack, [pack(sound), None])
    yield refused("shapes", "media of two shapes", stack, [pack(sound), pack(image)])
    yield example("a model without media", {}, model_inputs, None, torch.float32)
    yield example("inputs of images", {"pixel_values": "bfloat16"}, _dtypes, torch.zeros(1, 3, 2, 2))
    yield example(
        "inputs of sounds",
        {"input_features": "bfloat16", "feature_attention_mask": "int64"},
        _dtypes,
        torch.zeros(1, 2, 3),
    )
    yield example(
        "a mask of whole sounds",
        [[1, 1, 1]] * 2,
        lambda: model_inputs(torch.zeros(2, 5, 3), torch.float32)["feature_attention_mask"],
    )


def _dtypes(media: torch.Tensor) -> dict[str, str]:
    made = model_inputs(media, torch.bfloat16)
    return {name: str(value.dtype).removeprefix("torch.") for name, value in made.items()}


def _of_secrets() -> Iterator[WorkedExample]:
    for text, right in (
        ("https://user:pass@host/x", "https://[masked]@host/x"),
        ("see https://host:80/x@y", "see https://host:80/x@y"),
        ("api_key=abc, max_new_tokens=3", "api_key=[masked], max_new_tokens=3"),
        ("password: abc", "password: [masked]"),
    ):
        yield example(f"a text {text!r}", right, masked_text, text)
    yield example("a word of a command", "logger.password=[masked]", masked_word, "logger.password=a b")
    yield example("another word of a command", "pad_token=a b", masked_word, "pad_token=a b")
    nested = {
        "secret_key": ["a", 1],
        "pad_token": "b",
        "hf_token": None,
        "deep": {"token": "x", "seed": 3},
        "on": True,
    }
    hidden = {"secret_key": ["[masked]", "[masked]"], "pad_token": "b", "hf_token": None}
    yield example(
        "nested values", {**hidden, "deep": {"token": "[masked]", "seed": 3}, "on": True}, masked, nested
    )


def _streams_continue() -> bool:
    import random

    def drawn() -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))]

    before = global_streams()
    try:
        drawn()
        state: Any = json.loads(json.dumps(global_streams()))
        first = [drawn() for _ in range(3)]
        restore_global_streams(state)
        return first == [drawn() for _ in range(3)]
    finally:
        restore_global_streams(before)
