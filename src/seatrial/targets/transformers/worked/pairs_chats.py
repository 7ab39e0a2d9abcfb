"""Worked examples of `apply_chat_template` with every pair of options, against texts and masks that a loop writes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.pairs_kinds import copied

OPTIONS: Mapping[str, Sequence[str]] = {
    "chats": ("a chat", "chats", "one in a list", "chats in a tuple"),
    "template": ("", "given", "by name", "tool use by itself", "one of several"),
    "end": ("", "prompted", "continued"),
    "tools": ("", "tools", "a function"),
    "documents": ("", "documents"),
    "variable": ("", "a variable", "a variable over that of the tokenizer"),
    "output": ("text", "ids", "fields", "masks of the assistant"),
    "padding": ("", "padded", "to a length"),
    "side": ("", "pads left"),
    "truncation": ("", "cut", "cut on the left"),
    "tensors": ("", "pt", "np"),
    "further": ("", "options of the tokenizer"),
    "copy": ("", "saved and read", "copied"),
}
"""Values of each option, in words."""
BODY = (
    "{%% for d in documents or [] %%}[{{ d['title'] }}]{%% endfor %%}"
    "{%% for t in tools or [] %%}({{ t['function']['name'] }}){%% endfor %%}{{ note or '' }}"
    "{%% for m in messages %%}<{{ m['role'] }}>"
    "{%% if m['role'] == 'assistant' %%}{%% generation %%}{{ m['content'] }}%(mark)s{%% endgeneration %%}"
    "{%% else %%}{{ m['content'] }}%(mark)s{%% endif %%}{%% endfor %%}"
    "{%% if add_generation_prompt %%}<assistant>{%% endif %%}"
)
"""A template; `mark` ends each message."""
MARKS = {"": ";", "given": "!", "by name": "~", "tool use by itself": ";", "one of several": ";"}
CHATS = (
    (("user", "ab"), ("assistant", "cde"), ("user", "f g"), ("assistant", "hi")),
    (("system", "x"), ("user", "cde"), ("assistant", "é cde")),
    (("user", "a" * 12), ("assistant", "b")),
)
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
}
WIDTH = {"to a length": 96, "cut": 20}


def search(text: str) -> str:
    """Search.

    Args:
        text: what to look for.
    """
    return text


def _fitted(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return a choice whose options fit one another: those that do not are left out."""
    found = dict(chosen)
    if found["output"] == "text":
        found |= dict.fromkeys(("padding", "truncation", "tensors", "further"), "")
    if found["output"] == "ids":
        found["further"] = ""
    if found["end"] == "continued" and found["output"] == "masks of the assistant":
        found["end"] = ""
    many = found["chats"] in ("chats", "chats in a tuple")
    if found["tensors"] and many and not found["padding"]:
        found["padding"] = "padded"
    if found["padding"] == "to a length" and found["truncation"]:
        found["padding"] = "padded"
    if found["template"] == "tool use by itself" and not found["tools"]:
        found["template"] = "one of several"
    elif found["template"] == "one of several" and found["tools"]:
        found["template"] = "tool use by itself"
    return found


def cases() -> Iterator[dict[str, str]]:
    """Yield choices that together have nearly every pair of values of two options, of each output."""
    seen = set()
    sizes = {name: len(values) for name, values in OPTIONS.items() if name != "output"}
    for row in pairwise(sizes, lambda row: True):
        for output in OPTIONS["output"]:
            own = {name: OPTIONS[name][index] for name, index in row.items()}
            chosen = _fitted({name: own.get(name, output) for name in OPTIONS})
            if (key := (*chosen.values(),)) not in seen:
                seen.add(key)
                yield chosen


def _written(chosen: Mapping[str, str], chat: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    """Return the letters of a conversation, and whether each is the assistant's."""
    mark = MARKS[chosen["template"]] if chosen["template"] != "tool use by itself" else "#"
    text = "[t][u]" if chosen["documents"] else ""
    text += {"tools": "(look)", "a function": "(search)"}.get(chosen["tools"], "")
    text += "N" if chosen["variable"] else ""
    found = [(letter, 0) for letter in text]
    for number, (role, content) in enumerate(chat):
        last = number + 1 == len(chat)
        end = "" if last and chosen["end"] == "continued" else mark
        found += [(letter, 0) for letter in f"<{role}>"]
        found += [(letter, int(role == "assistant")) for letter in content + end]
    return [*found, *((letter, 0) for letter in ("<assistant>" if chosen["end"] == "prompted" else ""))]


def _tokenizer(chosen: Mapping[str, str]) -> Any:
    tokenizer = tiny_tokenizer(padding_side="left" if chosen["side"] else "right")
    several = {
        "default": BODY % {"mark": ";"},
        "other": BODY % {"mark": "~"},
        "tool_use": BODY % {"mark": "#"},
    }
    one = chosen["template"] in ("", "given")
    tokenizer.chat_template = several["default"] if one else several
    found = copied(tokenizer, chosen["copy"])
    found.truncation_side = "left" if "left" in chosen["truncation"] else "right"
    return found


def _options(chosen: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a call."""
    forms: Mapping[str, Mapping[str, Any]] = {
        "given": {"chat_template": BODY % {"mark": "!"}}, "by name": {"chat_template": "other"},
        "prompted": {"add_generation_prompt": True}, "continued": {"continue_final_message": True},
        "tools": {"tools": [TOOL]}, "a function": {"tools": [search]},
        "documents": {"documents": [{"title": "t", "text": "x"}, {"title": "u", "text": "y"}]},
        "a variable": {"note": "N"}, "a variable over that of the tokenizer": {"note": "N", "bos_token": "!"},
        "text": {"tokenize": False}, "ids": {"tokenize": True, "return_dict": False},
        "fields": {"tokenize": True, "return_dict": True},
        "masks of the assistant": {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True},
        "padded": {"padding": True}, "to a length": {"padding": "max_length", "max_length": WIDTH["to a length"]},
        "cut": {"truncation": True, "max_length": WIDTH["cut"]},
        "cut on the left": {"truncation": True, "max_length": WIDTH["cut"]},
        "options of the tokenizer": {"tokenizer_kwargs": {"return_special_tokens_mask": True}},
    }  # fmt: skip
    found: dict[str, Any] = {"return_tensors": chosen["tensors"]} if chosen["tensors"] else {}
    for value in chosen.values():
        found |= forms.get(value, {})
    return found


def _due(
    chosen: Mapping[str, str], rows: Sequence[Sequence[tuple[str, int]]]
) -> list[list[tuple[int, int, int]]]:
    """Return rows of ids, whether each is seen, and whether it is the assistant's."""
    fresh = tiny_tokenizer()
    found = []
    for letters in rows:
        said = fresh(
            "".join(one for one, _ in letters), return_offsets_mapping=True, add_special_tokens=False
        )
        row = [
            (token, 1, letters[start][1])
            for token, (start, _) in zip(said["input_ids"], said["offset_mapping"], strict=True)
        ]
        if chosen["truncation"]:
            row = row[-WIDTH["cut"] :] if "left" in chosen["truncation"] else row[: WIDTH["cut"]]
        found.append(row)
    if chosen["padding"]:
        width = max(map(len, found))
        width = WIDTH["to a length"] if chosen["padding"] == "to a length" else width
        gaps = [[(fresh.pad_token_id, 0, 0)] * (width - len(row)) for row in found]
        found = [gap + row if chosen["side"] else row + gap for gap, row in zip(gaps, found, strict=True)]
    return found


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _applied(chosen: Mapping[str, str], base: Any) -> list[str]:
    """Return what a call gives that is not due: texts, ids, fields, masks, types; or what it changes."""
    tokenizer, options = _tokenizer(chosen), _options(chosen)
    alone = chosen["chats"] == "a chat"
    chats = CHATS[: len(CHATS) if chosen["chats"] in ("chats", "chats in a tuple") else 1]
    messages = [[{"role": role, "content": content} for role, content in chat] for chat in chats]
    given: Any = messages[0] if alone else tuple(messages) if "tuple" in chosen["chats"] else messages
    before = copy.deepcopy((given, {name: value for name, value in options.items() if name != "tools"}))
    found = tokenizer.apply_chat_template(given, **options)
    wrong = []
    if before != (given, {name: value for name, value in options.items() if name != "tools"}):
        wrong.append("the messages or options of the caller are changed")
    rows = [_written(chosen, chat) for chat in chats]
    if chosen["output"] == "text":
        texts: Any = ["".join(letter for letter, _ in row) for row in rows]
        texts = texts[0] if alone else texts
        return wrong if found == texts else [*wrong, f"{found!r}, {texts!r} is due"]
    due = _due(chosen, rows)
    # One row stays one, but in tensors.
    flat = alone and not chosen["tensors"]
    fields = {"input_ids": found} if chosen["output"] == "ids" else found
    names = ["input_ids", *(["attention_mask"] if chosen["output"] != "ids" else [])]
    names += ["assistant_masks"] if chosen["output"].startswith("masks") else []
    for name in names:
        at = ("input_ids", "attention_mask", "assistant_masks").index(name)
        right: Any = [[one[at] for one in row] for row in due]
        value = _listed(fields[name])
        if value != (right[0] if flat else right):
            wrong.append(f"{name}: {value}, {right} is due")
    package = {"": "builtins", "np": "numpy", "pt": "torch"}[chosen["tensors"]]
    if type(fields["input_ids"]).__module__.split(".")[0] != package:
        wrong.append(f"it gives {type(fields['input_ids'])}")
    if bool(chosen["further"]) != ("special_tokens_mask" in fields):
        wrong.append(f"it gives {sorted(fields)}")
    return wrong[:3]


def _table() -> Iterator[Row]:
    for chosen in cases():
        index = {name: OPTIONS[name].index(value) for name, value in chosen.items()}
        # Earlier releases stop marking at an answer whose first token is cut off; see `cut_masks`.
        cut = chosen["output"].startswith("masks") and "left" in chosen["truncation"]
        first = "5.23.1" if cut else "4.57"
        name = f"applied: {chosen['chats']}, {names_of({**index, 'chats': 0}, OPTIONS)}"
        yield Row(
            "chats", "transformers:PreTrainedTokenizerBase", name, partial(_applied, chosen), [], since=first
        )


# Sources: the documentation of apply_chat_template.
PAIRED_CHAT_ROWS: Sequence[Row] = tuple(_table())
