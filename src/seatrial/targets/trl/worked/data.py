"""Worked examples of data sets, conversations, templates, tokens and rewards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from seatrial.targets.common.tiny import CHAT_TEMPLATE, tiny_model, tiny_tokenizer
from seatrial.targets.trl.worked.rows import EXPERIMENTAL, UTILS, Row

DATA, TEMPLATES = "trl.data_utils", "trl.chat_template_utils"
GOLD = "trl.experimental.gold.gold_trainer"
CALL = {"type": "function", "function": {"name": "t", "arguments": {}}}
TURNS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "t", "content": ""},
    {"role": "user", "content": "v"},
]
ANSWERS = [[{"role": "assistant", "content": text}] for text in "ab"]
WITH_IMAGE = [{"role": "user", "content": [{"type": "image", "image": 7}, {"type": "text", "text": "a"}]}]
PAIRS = {"prompt": ["p", "q"], "chosen": ["a", "c"], "rejected": ["b", "d"]}
WITH_TOOLS = "{% if tools is not none and tools is defined %}T{% endif %}" + CHAT_TEMPLATE
MARKED = (
    "{% if tools %}T{% endif %}{{ first | default('') }}{{ second | default('') }}"
    "{% for message in messages %}{{ '(' + message['role'] + ':' + message['content'] + ')' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '(assistant:' }}{% endif %}"
)
COUNTED = "{{ messages | length }}" + CHAT_TEMPLATE
CALLED = "{% for message in messages %}{{ message['role'] + (message['content'] or '') + '<|im_end|>' }}{% endfor %}"
END_OUTSIDE = CHAT_TEMPLATE.replace(
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}",
    "{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
)
THOUGHT = (
    "{% for message in messages %}{{ '(' + message['role'] + ':' + message['content'] + ')' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '(assistant:<think>' }}{% endif %}"
)
"""Opens a thought that written answers do not have."""
THIRDS = [r"My answer is \boxed{\frac{1}{3}}", r"My answer is \boxed{\frac{1}{2}}"]


def _block(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _with(template: str) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def _said(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


def _data_set(columns: dict[str, list[Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(columns)


def _streamed(records: Sequence[dict[str, Any]]) -> Any:
    import datasets

    iterable: Any = datasets.IterableDataset
    return iterable.from_generator(lambda: iter(records))


def _cloned(clone: Callable[..., Any]) -> dict[str, Any]:
    """Clone a template whose tokenizer has another end token and a new one, into a model of 260 tokens."""
    target, source = tiny_tokenizer(), _with(COUNTED)
    source.add_tokens(["<new>"], special_tokens=True)
    source.eos_token = "<new>"
    model = tiny_model(target, 0)
    before, size = model.get_input_embeddings().weight.detach().clone(), len(target)
    with tempfile.TemporaryDirectory() as folder:
        source.save_pretrained(folder)
        model, target, added = clone(model, target, folder)
    after = model.get_input_embeddings().weight
    new = target.convert_tokens_to_ids("<new>")
    return {
        "template": target.chat_template == COUNTED,
        "end of tokenizer, of model, of generation": [
            one == new
            for one in (
                target.eos_token_id,
                model.config.eos_token_id,
                model.generation_config.eos_token_id,
            )
        ],
        "rows of embeddings": after.shape[0],
        "rows of head": model.get_output_embeddings().weight.shape[0],
        "tokens": len(target.vocab),
        "first rows stay": bool((after[:size] == before[:size]).all()),
        "added is new": new in added,
    }


def _texts_given_tools(apply: Callable[..., Any]) -> list[str]:
    turns = {"messages": [{"role": "user", "content": "a"}]}
    tools: list[Any] = [None, [], [CALL]]
    return [apply(turns, _with(WITH_TOOLS), tools=one)["text"][0] for one in tools]


def _texts_of_kinds(apply: Callable[..., Any]) -> list[Any]:
    """Return the texts of every kind of row, with a tool and an option of the template from a row and from the call."""
    asked, (said, other) = TURNS[1:2], ANSWERS
    kinds: list[dict[str, Any]] = [
        {"messages": asked + said},
        {"prompt": asked},
        {"prompt": asked + said},
        {"prompt": asked, "completion": said},
        {"prompt": asked, "chosen": said, "rejected": other},
        {"chosen": asked + said, "rejected": asked + other},
        {"prompt": asked, "completion": said, "label": False},
    ]
    tokenizer = _with(MARKED)
    return [
        [
            apply({**one, "chat_template_kwargs": {"first": "F"}}, tokenizer, tools=[CALL], second="S")
            for one in kinds
        ],
        apply(kinds[0], tokenizer),
    ]


def _teacher_inputs(build: Callable[..., Any], *, extended: bool) -> list[Any]:
    tokenizer = tiny_tokenizer(padding_side="right")
    found = build(tokenizer, ["ab", "c"], ["d", "eé"], extended)
    ids, labels, mask, offsets = (one.tolist() for one in found)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    known = {end: "END", pad: "PAD"}
    texts = [
        [known[one] if one in known else tokenizer.convert_ids_to_tokens(one) for one in row] for row in ids
    ]
    return [
        texts,
        [[known.get(one, one) if one in known else one >= 0 for one in row] for row in labels],
        mask,
        offsets,
    ]


def _streamed_names(names: Callable[..., Any]) -> Any:
    return names(_streamed([{"a": 1, "b": 2}]))


DATA_ROWS: Sequence[Row] = (
    Row(
        "texts",
        f"{DATA}:prepare_multimodal_messages",
        "turns of every role, empty ones, one image",
        lambda prepare: prepare(TURNS, images=[7]),
        [
            {"role": "system", "content": _block("s")},
            {"role": "user", "content": [{"type": "image", "image": 7}, *_block("u")]},
            {"role": "assistant", "content": _block(""), "tool_calls": [CALL]},
            {"role": "tool", "name": "t", "content": _block("")},
            {"role": "user", "content": _block("v")},
        ],
        since="1.1",
    ),
    Row(
        "texts",
        f"{DATA}:prepare_multimodal_messages",
        "blocks that have places for images, of two turns",
        lambda prepare: prepare(
            [
                {"role": "user", "content": [*_block("a"), {"type": "image"}]},
                {"role": "user", "content": [{"type": "image"}, *_block("b")]},
            ],
            images=[7, 8],
        ),
        [
            {"role": "user", "content": [*_block("a"), {"type": "image", "image": 7}]},
            {"role": "user", "content": [{"type": "image", "image": 8}, *_block("b")]},
        ],
    ),
    Row(
        "texts",
        f"{UTILS}:strip_images_from_messages",
        "an image, texts, a prompt of plain text",
        lambda strip: [strip(WITH_IMAGE), strip(TURNS), strip("p"), WITH_IMAGE[0]["content"][0]],
        [
            [{"role": "user", "content": [{"type": "image"}, *_block("a")]}],
            TURNS,
            "p",
            {"type": "image", "image": 7},
        ],
    ),
    Row(
        "texts",
        f"{DATA}:is_conversational_from_value",
        "turns of both forms, a text",
        lambda is_one: [
            is_one({"conversations": [{"from": "user", "value": "a"}]}),
            is_one({"conversations": [{"role": "user", "content": "a"}]}),
            is_one({"conversations": "a"}),
        ],
        [True, False, False],
    ),
    Row(
        "files",
        f"{DATA}:get_dataset_column_names",
        "a table",
        lambda names: names(_data_set({"a": [1], "b": [2]})),
        ["a", "b"],
    ),
    Row("files", f"{DATA}:get_dataset_column_names", "a stream", _streamed_names, ["a", "b"]),
    Row(
        "files",
        f"{DATA}:maybe_unpair_preference_dataset",
        "pairs, rows with labels, several parts",
        lambda unpair: [
            list(unpair(_data_set(PAIRS))),
            list(unpair(_data_set({"prompt": ["p"], "completion": ["a"], "label": [False]}))),
        ],
        [
            [
                {"prompt": "p", "completion": "a", "label": True},
                {"prompt": "q", "completion": "c", "label": True},
                {"prompt": "p", "completion": "b", "label": False},
                {"prompt": "q", "completion": "d", "label": False},
            ],
            [{"prompt": "p", "completion": "a", "label": False}],
        ],
    ),
    Row(
        "chats",
        f"{DATA}:maybe_apply_chat_template",
        "turns, and a text that stays",
        lambda apply: [
            apply({"prompt": [{"role": "user", "content": "a"}]}, tiny_tokenizer()),
            apply({"prompt": "a", "label": True}, tiny_tokenizer()),
        ],
        [
            {"prompt": "<|im_start|>user\na<|im_end|><|im_start|>assistant\n"},
            {"prompt": "a", "label": True},
        ],
    ),
    Row(
        "chats",
        f"{DATA}:apply_chat_template",
        "no tools, an empty list of tools, a tool",
        _texts_given_tools,
        ["<", "<", "T"],
        since="1.0",
    ),
    Row(
        "chats",
        f"{DATA}:apply_chat_template",
        "a tool and options of the template, by kind of row",
        _texts_of_kinds,
        [
            [
                {"text": "TFS(user:u)(assistant:a)"},
                {"prompt": "TFS(user:u)(assistant:"},
                {"prompt": "TFS(user:u)(assistant:a"},
                {"prompt": "TFS(user:u)(assistant:", "completion": "a)"},
                {"prompt": "TFS(user:u)(assistant:", "chosen": "a)", "rejected": "b)"},
                {"chosen": "TFS(user:u)(assistant:a)", "rejected": "TFS(user:u)(assistant:b)"},
                {"prompt": "TFS(user:u)(assistant:", "completion": "a)", "label": False},
            ],
            {"text": "(user:u)(assistant:a)"},
        ],
        since="1.0",
    ),
    Row(
        "chats",
        f"{DATA}:apply_chat_template",
        "a thought that is opened for an answer alone",
        lambda apply: [
            apply({"prompt": TURNS[1:2], "completion": ANSWERS[0]}, _with(THOUGHT)),
            apply({"prompt": TURNS[1:2], "chosen": ANSWERS[0], "rejected": ANSWERS[1]}, _with(THOUGHT)),
        ],
        [
            {"prompt": "(user:u)(assistant:", "completion": "a)"},
            {"prompt": "(user:u)(assistant:", "chosen": "a)", "rejected": "b)"},
        ],
        since="0.19",
    ),
    Row(
        "chats",
        f"{TEMPLATES}:has_generation_markers",
        "markers of every spelling, none",
        lambda has: [
            *map(has, ("{% generation %}", "{%- generation -%}", "{%generation%}", "generation", CALLED)),
        ],
        [True, True, True, False, False],
    ),
    Row(
        "chats",
        f"{TEMPLATES}:is_chat_template_prefix_preserving",
        "first turns that stay, and that change",
        lambda keeps: [keeps(_with(CALLED)), keeps(_with("{{ messages | length }}" + CALLED))],
        [True, False],
    ),
    Row(
        "chats",
        f"{TEMPLATES}:is_chat_template_stop_token_trained",
        "an end that is trained, one that is not, no markers, a template that is given",
        lambda trains: [
            trains(_with(CHAT_TEMPLATE)),
            trains(_with(END_OUTSIDE)),
            trains(_with(CALLED)),
            trains(_with(CALLED), CHAT_TEMPLATE),
        ],
        [True, False, False, True],
    ),
    Row(
        "chats",
        f"{TEMPLATES}:clone_chat_template trl.models.utils:clone_chat_template",
        "another end, a new token",
        _cloned,
        {
            "template": True,
            "end of tokenizer, of model, of generation": [True, True, True],
            "rows of embeddings": 320,
            "rows of head": 320,
            "tokens": 320,
            "first rows stay": True,
            "added is new": True,
        },
        since="0.20",
    ),
    Row(
        "rewards",
        "trl.rewards:accuracy_reward",
        "a right answer, a wrong one, a solution that cannot be read",
        lambda reward: reward(_said(*THIRDS, THIRDS[0]), [r"\frac{1}{3}", r"\frac{1}{3}", ""]),
        [1.0, 0.0, None],
        since="0.26",
    ),
    Row(
        "rewards",
        "trl.rewards:reasoning_accuracy_reward",
        "an answer after the thought, a wrong one, one within the thought alone, a custom delimiter",
        lambda reward: [
            *reward(
                _said(
                    rf"<think> x </think> {THIRDS[0]}",
                    rf"<think> {THIRDS[0]} </think> {THIRDS[1]}",
                    rf"<think> {THIRDS[0]} but no answer",
                ),
                [r"\frac{1}{3}"] * 3,
            ),
            *reward(_said(rf"{THIRDS[1]} END {THIRDS[0]}"), [r"\frac{1}{3}"], reasoning_delimiters=["END"]),
        ],
        [1.0, 0.0, 0.0, 1.0],
    ),
    Row(
        "texts",
        f"{EXPERIMENTAL}:encode_with_byte_offsets",
        "letters of one byte and of two",
        lambda encode: [one[1] for one in encode(tiny_tokenizer().backend_tokenizer, ["ab", "aéb"])],
        [[(0, 1), (1, 2)], [(0, 1), (1, 2), (2, 3), (3, 4)]],
    ),
    Row(
        "texts",
        f"{EXPERIMENTAL}:pad_byte_offsets",
        "both sides, no place left, none",
        lambda pad: [
            pad([(0, 1), (1, 3)], 3, "left"),
            pad([(0, 1), (1, 3)], 3, "right"),
            pad([(0, 1), (1, 3)], 2, "left"),
            pad([], 1, "right"),
        ],
        [[[0, 0], [0, 1], [1, 3]], [[0, 1], [1, 3], [0, 0]], [[0, 1], [1, 3]], [[0, 0]]],
    ),
    Row("texts", f"{EXPERIMENTAL}:piece_byte_len", "a word with its blank", lambda length: length("Ġab"), 3),
    Row(
        "texts",
        f"{EXPERIMENTAL}:is_byte_level_tokenizer",
        "a tokenizer of bytes",
        lambda is_one: is_one(tiny_tokenizer().backend_tokenizer),
        True,
    ),
    Row(
        "texts",
        f"{GOLD}:build_teacher_inputs_from_texts",
        "rows of unequal lengths, by bytes",
        lambda build: _teacher_inputs(build, extended=True),
        [
            [["a", "b", "d", "END", "PAD"], ["c", "e", "Ã", "©", "END"]],
            [[False, False, True, "END", False], [False, True, True, True, "END"]],
            [[True, True, True, True, False], [True] * 5],
            [
                [[0, 0], [0, 0], [0, 1], [1, 1], [0, 0]],
                [[0, 0], [0, 1], [1, 2], [2, 3], [3, 3]],
            ],
        ],
    ),
)
