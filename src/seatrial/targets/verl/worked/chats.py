"""Worked examples of verl's chats: parts of templates, DeepSeek's encoding, prompts that are kept, turns that train."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import temporary_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.conversations import TEMPLATE
from seatrial.targets.verl.supervised import made_data_set, written
from seatrial.targets.verl.worked.tools import raised

CHATS = "verl.utils.tokenizer.chat_template:"
DEEPSEEK = "verl.utils.tokenizer.deepseek:"
PROMPTS = "verl.utils.dataset.rl_dataset:RLHFDataset"
TURNS = "verl.utils.dataset.multiturn_sft_dataset:MultiTurnSFTDataset"
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>"
SEPARATED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}{{ raise_exception('no user') }}"
    "{% endif %}{% for message in messages %}{% if message['content'] is string %}"
    "{{ '[' + message['role'] + message['content'] + ']' }}{% else %}{{ '[' + message['role'] + ']' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant' }}{% endif %}"
)


def tokenizer_of(template: str) -> Any:
    """Return a tokenizer whose ids are characters, with a template."""
    made = copy.deepcopy(tiny_tokenizer())
    made.chat_template = template
    return made


def _system(initialize: Callable[..., Any]) -> list[str]:
    made = [tokenizer_of(template) for template in (TEMPLATE, SEPARATED)]
    return [one.decode(initialize(one)) for one in made]


def _separator(initialize: Callable[..., Any]) -> list[str]:
    """Return what follows the end of a turn: nothing, a line, and without an end token all but one token."""
    made = [
        tokenizer_of(template) for template in (TEMPLATE, SEPARATED, SEPARATED.replace("<|im_end|>", "#"))
    ]
    return [one.decode(initialize(one)) for one in made]


def _parts(extract: Callable[..., Any]) -> list[list[str]]:
    made = [tokenizer_of(template) for template in (TEMPLATE, SEPARATED)]
    return [[one.decode(ids) for ids in extract(one)] for one in made]


def _without_user(apply: Callable[..., Any]) -> list[Any]:
    """Return messages of a template that needs a user, of which none is shown: texts, ids and masks."""
    one = tokenizer_of(STRICT)
    tool = [{"role": "tool", "content": "ab"}]
    user = [{"role": "user", "content": "x"}]
    ids = apply(one, tool, tokenize=True, add_generation_prompt=False)
    both = apply(one, tool, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True)
    return [
        apply(one, user, tokenize=False),
        apply(one, user, tokenize=False, add_generation_prompt=False),
        apply(one, tool, tokenize=False),
        one.decode(ids),
        one.decode(both["input_ids"][0]),
        both["attention_mask"][0].tolist(),
    ]


_BEGIN, _USER, _ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
_END, _CALLS = "<｜end▁of▁sentence｜>", "｜DSML｜"


def _encoded(encode: Callable[..., Any]) -> dict[str, Any]:
    """Return the texts of conversations: thoughts kept and dropped, results of tools, calls, tasks."""
    asked, answer = (
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "t"},
    )
    call = {"function": {"name": "f", "arguments": '{"x": "s", "y": 2}'}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    odd = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{"}]}
    result = {"role": "tool", "content": [{"type": "text", "text": "r"}, {"type": "image"}]}
    thinking = {"enable_thinking": True}
    return {
        "plain": encode([asked, answer, asked]),
        "no prompt": encode([asked], add_generation_prompt=False, add_bos_token=False),
        "thoughts": encode([asked, answer, asked], **thinking),
        "kept": encode([asked, answer, asked], drop_thinking=False, **thinking),
        "last": encode([asked, answer], add_generation_prompt=False, **thinking),
        "no effort": encode([asked], reasoning_effort="none", **thinking),
        "tools": encode([asked, calling, result, result], add_bos_token=False),
        "odd": encode([odd], add_generation_prompt=False, add_bos_token=False),
        "system": encode([{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, asked]),
        "reminder": encode([{"role": "latest_reminder", "content": "l"}], add_bos_token=False),
        "task": encode([{**asked, "task": "query"}], add_bos_token=False),
        "action": encode([{**asked, "task": "action"}], add_bos_token=False, **thinking),
        "refused": [raised(encode, [{"role": "x"}]), raised(encode, [{**asked, "task": "x"}])],
        "most": encode([asked], reasoning_effort="max", **thinking).startswith(f"{_BEGIN}Reasoning Effort"),
        "with tools": _USER + "q" in encode([asked], tools=[{"function": {"name": "g"}}]),
    }


ENCODED: Mapping[str, Any] = {
    "plain": f"{_BEGIN}{_USER}q{_ASSISTANT}</think>a{_END}{_USER}q{_ASSISTANT}</think>",
    "no prompt": f"{_USER}q",
    "thoughts": f"{_BEGIN}{_USER}q{_ASSISTANT}</think>a{_END}{_USER}q{_ASSISTANT}<think>",
    "kept": f"{_BEGIN}{_USER}q{_ASSISTANT}<think>t</think>a{_END}{_USER}q{_ASSISTANT}<think>",
    "last": f"{_BEGIN}{_USER}q{_ASSISTANT}<think>t</think>a{_END}",
    "no effort": f"{_BEGIN}{_USER}q{_ASSISTANT}</think>",
    "tools": (
        f"{_USER}q{_ASSISTANT}</think>\n\n<{_CALLS}tool_calls>\n"
        f'<{_CALLS}invoke name="f">\n<{_CALLS}parameter name="x" string="true">s</{_CALLS}parameter>\n'
        f'<{_CALLS}parameter name="y" string="false">2</{_CALLS}parameter>\n</{_CALLS}invoke>\n'
        f"</{_CALLS}tool_calls>{_END}{_USER}<tool_result>r</tool_result>\n\n<tool_result>r</tool_result>"
        f"{_ASSISTANT}</think>"
    ),
    "odd": (
        f"{_ASSISTANT}</think>\n\n<{_CALLS}tool_calls>\n"
        f'<{_CALLS}invoke name="f">\n<{_CALLS}parameter name="arguments" string="true">{{</{_CALLS}parameter>\n'
        f"</{_CALLS}invoke>\n</{_CALLS}tool_calls>{_END}"
    ),
    "system": f"{_BEGIN}s{_USER}d{_USER}q{_ASSISTANT}</think>",
    "reminder": f"<｜latest_reminder｜>l{_ASSISTANT}</think>",
    "task": f"{_USER}q<｜query｜>",
    "action": f"{_USER}q{_ASSISTANT}<think><｜action｜>",
    "refused": ["ValueError", "ValueError"],
    "most": True,
    "with tools": True,
}


def _kept(data_class: Any) -> dict[str, Any]:
    """Return rows that are kept by their length with the template, its options and tools, and chosen ones of files."""
    with_options = TEMPLATE.replace(
        "{%- for message in messages %}", "{{ extra or '' }}{%- for message in messages %}", 1
    )
    tokenizer = tokenizer_of(with_options)
    files = [
        written(
            [
                {"prompt": [{"role": "user", "content": text}], "own": text, "data_source": "s"}
                for text in texts
            ]
        )
        for texts in (["a", "bb", "ccc"], ["dddd", "e"])
    ]
    chat = [{"role": "user", "content": "bb"}]
    shown = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    chars = len(tokenizer(shown)["input_ids"])

    def rows(limit: int, filtered: bool = True, **options: Any) -> list[str]:
        more = {"max_samples": options.pop("max_samples")} if "max_samples" in options else {}
        config = {
            "cache_dir": temporary_folder(),
            "max_prompt_length": limit,
            "filter_overlong_prompts": filtered,
            "filter_overlong_prompts_workers": None,
            **options,
        }
        with contextlib.redirect_stdout(io.StringIO()):
            data = made_data_set(data_class, list(files), tokenizer, config, **more)
        return [data[place]["own"] for place in range(len(data))]

    drawn = rows(99, max_samples=3, shuffle=True, seed=5)
    return {
        "at the limit": rows(chars),
        "one less": rows(chars - 1),
        "all": rows(chars, filtered=False),
        "longer template": rows(chars, apply_chat_template_kwargs={"extra": "x"}),
        "first": rows(99, max_samples=2),
        "first, then by length": rows(chars, max_samples=3),
        "more than there are": rows(99, max_samples=9),
        "drawn": [len(set(drawn)), rows(99, max_samples=3, shuffle=True, seed=5) == drawn],
        "other seeds": len({tuple(rows(99, max_samples=3, shuffle=True, seed=seed)) for seed in range(5)})
        > 1,
    }


OF_ROWS: Mapping[str, Any] = {
    "at the limit": ["a", "bb", "e"],
    "one less": ["a", "e"],
    "all": ["a", "bb", "ccc", "dddd", "e"],
    "longer template": ["a", "e"],
    "first": ["a", "bb"],
    "first, then by length": ["a", "bb"],
    "more than there are": ["a", "bb", "ccc", "dddd", "e"],
    "drawn": [3, True],
    "other seeds": True,
}


def _fields(data_class: Any) -> list[Any]:
    """Return what a row adds of its further information, with and without it."""
    extra = {
        "index": 7,
        "tools_kwargs": {"t": {"a": 1}},
        "interaction_kwargs": {"name": "i"},
        "need_tools_kwargs": True,
    }
    turn = [{"role": "user", "content": "a"}]
    found = []
    for row in (
        {"prompt": turn, "data_source": "s", "extra_info": extra},
        {"prompt": turn, "data_source": "s"},
    ):
        config = {"cache_dir": temporary_folder(), "filter_overlong_prompts": False}
        with contextlib.redirect_stdout(io.StringIO()):
            one = made_data_set(data_class, written([row]), tokenizer_of(TEMPLATE), config)[0]
        names = ("index", "tools_kwargs", "interaction_kwargs", "raw_prompt")
        found.append([one[name] for name in names])
    return found


def _media(data_class: Any) -> list[Any]:
    """Return the parts of messages with images, videos and sounds in each form, and what does not fit."""
    from PIL import Image

    data = object.__new__(data_class)
    data.processor, data.image_key, data.video_key, data.audio_key = object(), "images", "videos", "audios"
    grey = Image.new("L", (2, 3))
    given = {
        "prompt": [
            {"role": "user", "content": "a<image>b<image><image>"},
            {"role": "user", "content": "<video><audio>c"},
        ],
        "images": [grey, {"image": "p", "max_pixels": 4}, "path"],
        "videos": [["f1", "f2"]],
        "audios": [{"array": [1], "sampling_rate": 2}],
    }
    messages = data._build_messages(given, key="prompt")
    first = messages[0]["content"]
    shown = [part if not isinstance(part.get("image"), Image.Image) else part["image"].mode for part in first]
    other = data._build_messages(
        {
            "prompt": [{"role": "user", "content": "<video><audio><audio>"}],
            "videos": [{"video": "v", "fps": 2}],
            "audios": ["s", {"audio_url": "u"}],
        },
        key="prompt",
    )
    wrong = [
        raised(data._build_messages, {"prompt": [{"role": "user", "content": text}], **media}, key="prompt")
        for text, media in (
            ("<image>", {"images": ["a", "b"]}),
            ("<image><image>", {"images": ["a"]}),
            ("<video>", {"videos": ["a", "b"]}),
            ("<audio>", {"audios": ["a", "b"]}),
            ("<image>", {"images": [3]}),
        )
    ]
    none = data._build_messages(
        {"prompt": [{"role": "user", "content": "<image>"}], "images": None}, key="prompt"
    )
    return [shown, messages[1]["content"], other[0]["content"], wrong, none[0]["content"]]


MEDIA: Sequence[Any] = [
    [
        {"type": "text", "text": "a"},
        "RGB",
        {"type": "text", "text": "b"},
        {"type": "image", "image": "p", "max_pixels": 4},
        {"type": "image", "image": "path"},
    ],
    [
        {"type": "video", "video": ["f1", "f2"]},
        {"type": "audio", "audio": {"array": [1], "sampling_rate": 2}},
        {"type": "text", "text": "c"},
    ],
    [
        {"type": "video", "video": "v", "fps": 2},
        {"type": "audio", "audio": "s"},
        {"type": "audio", "audio_url": "u"},
    ],
    ["AssertionError", "AssertionError", "AssertionError", "AssertionError", "TypeError"],
    "<image>",
]


def _trained(data_class: Any) -> dict[str, Any]:
    """Return what trains of a conversation, by the options of the data set, and what is refused."""
    marked = (
        "(message['content'] or '') + ('!' if enable_thinking and message['role'] == 'assistant' else '')"
    )
    template = TEMPLATE.replace("(message['content'] or '')", marked)
    tokenizer = tokenizer_of(template)
    turns = [
        {"role": name, "content": text} for name, text in (("user", "q"), ("assistant", "aa"), ("user", "r"))
    ]
    turns.append({"role": "assistant", "content": "b"})

    def made(rows: Sequence[dict[str, Any]], place: int = 0, **options: Any) -> Any:
        more = {"max_samples": options.pop("max_samples")} if "max_samples" in options else {}
        given = {"max_length": 400, "pad_mode": "no_padding", "truncation": "error", **options}
        with contextlib.redirect_stdout(io.StringIO()):
            data = made_data_set(data_class, written(rows), tokenizer, given, **more)
            return data if more else data[place]

    def shown(row: Any) -> list[str]:
        ids, mask = row["input_ids"], row["loss_mask"].bool()
        return [tokenizer.decode(ids), tokenizer.decode(ids[mask])]

    plain = shown(made([{"messages": turns}]))
    own = shown(made([{"talk": turns[:2], "messages": turns}], messages_key="talk"))
    first = [{"messages": turns[:2], "enable_thinking": on} for on in (True, False)]
    thinking = [shown(made(first, place))[0].count("!") for place in (0, 1)]
    default = [
        shown(made([{"messages": turns[:2]}], enable_thinking_default=on))[0].count("!")
        for on in (True, False)
    ]
    length = len(tokenizer(plain[0])["input_ids"])
    padded = made([{"messages": turns}], pad_mode="right", max_length=length + 3)
    many = [{"messages": [{"role": "user", "content": name}, turns[1]]} for name in "abcd"]
    chosen = made(many, max_samples=2)
    return {
        "plain": plain,
        "own": own,
        "thinking": [thinking, default],
        "padded": [len(padded["input_ids"]) - length, int(padded["attention_mask"].sum()) - length],
        "places": padded["position_ids"].tolist() == [*range(length), 0, 0, 0],
        "chosen": [len(chosen), "a" in shown(chosen[0])[0], "b" in shown(chosen[1])[0]],
        "refused": [
            raised(made, [{"messages": turns}], max_length=length - 1),
            raised(made, [{"messages": turns}], pad_mode="left"),
            raised(made, [{"messages": turns}], truncation="middle"),
        ],
        "fits": raised(made, [{"messages": turns}], max_length=length),
    }


TRAINED: Mapping[str, Any] = {
    "plain": [
        f"{SYSTEM}<|im_start|>user\nq<|im_end|><|im_start|>assistant\naa<|im_end|>"
        "<|im_start|>user\nr<|im_end|><|im_start|>assistant\nb<|im_end|>",
        "aa<|im_end|>b<|im_end|>",
    ],
    "own": [f"{SYSTEM}<|im_start|>user\nq<|im_end|><|im_start|>assistant\naa<|im_end|>", "aa<|im_end|>"],
    "thinking": [[1, 0], [1, 0]],
    "padded": [3, 0],
    "places": True,
    "chosen": [2, True, True],
    "refused": ["ValueError", "AssertionError", "AssertionError"],
    "fits": "nothing",
}
ROWS: Sequence[Row] = (
    Row("chats", f"{CHATS}initialize_system_prompt", "what a template begins with", _system, [SYSTEM, ""]),
    Row(
        "chats",
        f"{CHATS}initialize_turn_separator",
        "what follows the end of a turn",
        _separator,
        ["", "\n", "\n"],
    ),
    Row(
        "chats",
        f"{CHATS}extract_system_prompt_and_generation",
        "the beginnings of a chat and of an answer",
        _parts,
        [[SYSTEM, "<|im_start|>assistant\n"], ["", "<|im_start|>assistant\n"]],
    ),
    Row(
        "chats",
        f"{CHATS}apply_chat_template",
        "a template that needs a user",
        _without_user,
        ["[userx][assistant", "[userx]", "[toolab][assistant", "[toolab]", "[toolab][assistant", [1] * 18],
    ),
    Row("chats", f"{DEEPSEEK}encode_messages", "turns, thoughts, calls and tasks", _encoded, ENCODED),
    Row("chats", PROMPTS, "rows by their length, and chosen ones", _kept, OF_ROWS, since="0.7"),
    Row(
        "chats",
        PROMPTS,
        "further information",
        _fields,
        [
            [7, {"t": {"a": 1}}, {"name": "i"}, [{"role": "user", "content": "a"}]],
            [0, {}, {}, [{"role": "user", "content": "a"}]],
        ],
        since="0.8",
    ),
    Row("chats", PROMPTS, "media of each form", _media, MEDIA, since="0.9"),
    Row("chats", TURNS, "what trains, by options", _trained, TRAINED, since="0.7"),
)
