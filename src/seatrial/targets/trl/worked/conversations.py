"""Worked examples of conversations with tools and options of their template, and of tokens as bytes of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl.worked.rows import EXPERIMENTAL, Row

DATA = "trl.data_utils"
TEMPLATE = (
    "{% if tools %}T{% endif %}{{ mark }}"
    "{% for message in messages %}{{ '(' + message['role'] + ':' + message['content'] + ')' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '(assistant:' }}{% endif %}"
)
"""Begins with T where it is given tools, and with the option `mark`."""
TOOL = {"type": "function", "function": {"name": "t", "arguments": {}}}
ASKED = [{"role": "user", "content": "u"}]
SAID, OTHER = ([{"role": "assistant", "content": text}] for text in "ab")
FORMS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "a conversation": ({"messages": [*ASKED, *SAID]}, {"text": "TM(user:u)(assistant:a)"}),
    "a prompt": ({"prompt": ASKED}, {"prompt": "TM(user:u)(assistant:"}),
    "a prompt that an answer ends": ({"prompt": [*ASKED, *SAID]}, {"prompt": "TM(user:u)(assistant:a"}),
    "an answer": (
        {"prompt": ASKED, "completion": SAID},
        {"prompt": "TM(user:u)(assistant:", "completion": "a)"},
    ),
    "an answer with a label": (
        {"prompt": ASKED, "completion": SAID, "label": False},
        {"prompt": "TM(user:u)(assistant:", "completion": "a)", "label": False},
    ),
    "a pair": (
        {"prompt": ASKED, "chosen": SAID, "rejected": OTHER},
        {"prompt": "TM(user:u)(assistant:", "chosen": "a)", "rejected": "b)"},
    ),
    "a pair of conversations": (
        {"chosen": [*ASKED, *SAID], "rejected": [*ASKED, *OTHER]},
        {"chosen": "TM(user:u)(assistant:a)", "rejected": "TM(user:u)(assistant:b)"},
    ),
}
"""Rows by their form, and their texts where the template is given tools and `mark` M."""


def _templated(row: Mapping[str, Any], apply: Callable[..., Any]) -> list[Any]:
    """Return a row's texts with the option of the template as a column, and as an argument."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return [
        apply({**row, "chat_template_kwargs": {"mark": "M"}}, tokenizer, tools=[TOOL]),
        apply(dict(row), tokenizer, tools=[TOOL], mark="M"),
    ]


def _backend(*merges: tuple[str, str]) -> Any:
    """Return a tokenizer of bytes with merges."""
    from tokenizers import models

    backend = tiny_tokenizer().backend_tokenizer
    vocabulary = backend.get_vocab()
    for one, other in merges:
        vocabulary.setdefault(one + other, len(vocabulary))
    backend.model = models.BPE(vocab=vocabulary, merges=list(merges))
    return backend


ACCENT = ("Ã", "©")
"""The two bytes of an e with an acute accent."""


def _offsets(texts: Sequence[str], *merges: tuple[str, str]) -> Callable[..., Any]:
    return lambda encode: [one[1] for one in encode(_backend(*merges), list(texts))]


def _byte_row(name: str, call: Callable[..., Any], right: Any) -> Row:
    return Row("texts", f"{EXPERIMENTAL}:encode_with_byte_offsets", name, call, right)


def _ending(before: str, within: str, after: str) -> Callable[..., Any]:
    """Return whether the end of a turn trains: what is written before, within and after the part that trains."""
    template = (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}"
        f"{before}{{% generation %}}{within}{{% endgeneration %}}{after}"
        "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    )

    def trains(check: Callable[..., Any]) -> Any:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = template
        return check(tokenizer)

    return trains


CONTENT, OPENING, CLOSING = "{{ message['content'] }}", "<|im_start|>", "<|im_end|>"
ENDINGS: Mapping[str, tuple[tuple[str, str, str], bool]] = {
    "its end and a blank": (("", f"{CONTENT}{CLOSING} ", ""), True),
    "its end and a new line": (("", CONTENT + CLOSING + "{{ '\\n' }}", ""), True),
    "its opening token, without its end": (("", OPENING + CONTENT, CLOSING), False),
    "its opening token and its end": (("", OPENING + CONTENT + CLOSING, ""), True),
    "text after its end": (("", CONTENT + CLOSING + "x", ""), False),
}
"""Parts of an assistant's turn that train, and whether its end does."""

CONVERSATION_ROWS: Sequence[Row] = (
    *(
        Row(
            "chats",
            "trl.chat_template_utils:is_chat_template_stop_token_trained",
            f"a turn that trains on {what}",
            _ending(*parts),
            right,
        )
        for what, (parts, right) in ENDINGS.items()
    ),
    *(
        Row(
            "chats",
            f"{DATA}:apply_chat_template",
            f"tools and an option of the template, {form}",
            partial(_templated, row),
            [right, right],
            since="1.0",
        )
        for form, (row, right) in FORMS.items()
    ),
    _byte_row(
        "tokens of several bytes",
        _offsets(["ébc"], ACCENT, ("b", "c")),
        [[(0, 2), (2, 4)]],
    ),
    _byte_row(
        "letters of two bytes in a row, a tilde and a blank",
        _offsets(["éé~", " ~é"]),
        [[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(0, 1), (1, 2), (2, 3), (3, 4)]],
    ),
    _byte_row(
        "letters of three and four bytes, in parts",
        _offsets(["€𝄞"]),
        [[(start, start + 1) for start in range(7)]],
    ),
)
