"""Worked examples of chat templates: the prompt of a message that is to be continued."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.cut_masks import CUT_MASK_ROWS
from seatrial.targets.transformers.worked.decoded import DECODED_ROWS
from seatrial.targets.transformers.worked.encodings import ENCODING_ROWS
from seatrial.targets.transformers.worked.labelled import LABEL_ROWS
from seatrial.targets.transformers.worked.marked import MARKED_ROWS
from seatrial.targets.transformers.worked.own_templates import OWN_TEMPLATE_ROWS
from seatrial.targets.transformers.worked.processors import PROCESSOR_ROWS
from seatrial.targets.transformers.worked.responses import RESPONSE_ROWS
from seatrial.targets.transformers.worked.saved_tokenizers import SAVED_ROWS
from seatrial.targets.transformers.worked.schemas import SCHEMA_ROWS
from seatrial.targets.transformers.worked.sentencepieces import PIECE_ROWS
from seatrial.targets.transformers.worked.templates import TEMPLATE_ROWS
from seatrial.targets.transformers.worked.tokenizers import TOKENIZER_ROWS

TURN = "{%% for m in messages %%}<|im_start|>{{ m['role'] }}\n%s<|im_end|>\n{%% endfor %%}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
OF_PARTS = (
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}{% endfor %}{% endif %}"
)
TEMPLATES: Mapping[str, tuple[str, str]] = {
    "as it is": (TURN % "{{ m['content'] }}" + PROMPT, ""),
    "trimmed": (TURN % "{{ m['content'] | trim }}" + PROMPT, ""),
    "words before": (TURN % "Now: {{ m['content'] }}" + PROMPT, "Now: "),
    "words after": (TURN % "{{ m['content'] }} The answer is short. " + PROMPT, ""),
    "a text at the end": (TURN % "{{ m['content'] }}" + "user: The answer is <think> a\nb " + PROMPT, ""),
    "parts": (TURN % OF_PARTS + PROMPT, ""),
}
"""Templates, and what they write before the text of a message."""
TEXTS = (
    "The answer is", "i", "m", "a\nb", "<think>", "user", "<|im_end|>", "assistant\n", "a ", "a  \n", " a", "\n", " ",
    "What?", "What? What?", "",
)  # fmt: skip
"""Texts to be continued: with blanks, short, empty, and such as the template or an earlier message has too."""
FIRST = "What? The answer is i"


def _chats(template: str, text: str) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """Yield conversations that end with a text, and the text that is due for the last message."""
    first = {"role": "user", "content": FIRST}
    for role in ("assistant", "user"):
        yield [first, {"role": role, "content": text}], text
    yield [{"role": "assistant", "content": text}], text
    yield [first, {"role": "assistant", "content": text}, first, {"role": "assistant", "content": text}], text
    if template == "parts":
        image, part, other = {"type": "image"}, {"type": "text", "text": text}, {"type": "text", "text": "bc"}
        for parts, due in (
            ([part], text),
            ([other, part], f"bc{text}"),
            ([part, other], f"{text}bc"),
            ([part, dict(part)], text * 2),
            ([image, part], f"<image>{text}"),
            ([part, image], text),
        ):
            yield [first, {"role": "assistant", "content": parts}], due


def _said(template: str, content: str) -> str:
    """Return a whole message's text as the template writes it."""
    before = TEMPLATES[template][1]
    after = " The answer is short. " if template == "words after" else ""
    return before + (content.strip() if template == "trimmed" else content) + after


def _continued(texts: Sequence[str], templates: Sequence[str], tokenizer_class: Any) -> list[str]:
    """Return where the prompt of a message to be continued is not the conversation up to the end of its text."""
    wrong = []
    for name in templates:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = TEMPLATES[name][0]
        pairs = []
        for text in texts:
            for chat, last in _chats(name, text):
                due = "".join(
                    f"<|im_start|>{one['role']}\n{_said(name, one['content'])}<|im_end|>\n"
                    for one in chat[:-1]
                )
                due += f"<|im_start|>{chat[-1]['role']}\n{TEMPLATES[name][1]}"
                due += last.strip() if name == "trimmed" else last
                pairs.append((chat, due))
        chats = [chat for chat, _ in pairs]
        kept = copy.deepcopy(chats)
        together = tokenizer.apply_chat_template(chats, tokenize=False, continue_final_message=True)
        for (chat, due), one in zip(pairs, together, strict=True):
            text = tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True)
            ids = tokenizer.apply_chat_template(
                chat, tokenize=True, continue_final_message=True, return_dict=True
            )["input_ids"]
            forms = {"a text": text, "one of several": one, "ids": tokenizer.decode(ids)}
            wrong += [
                f"{form} of {chat[-1]['content']!r}, {name}: ...{said[-40:]!r}, ...{due[-40:]!r} is due"
                for form, said in forms.items()
                if said != due
            ]
        wrong += [] if chats == kept else [f"{name}: the messages of the caller are changed"]
    return wrong[:8]


def _field_continued(tokenizer_class: Any) -> list[str]:
    """Return prompts of messages whose reasoning, or whose content after it, is to be continued."""
    tokenizer = tiny_tokenizer()
    written = "<think>{{ m['reasoning_content'] }}</think>{{ m['content'] }}"
    tokenizer.chat_template = TURN % written
    chat = [{"role": "assistant", "reasoning_content": "a ", "content": "a b"}]
    return [
        tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=field)
        for field in ("reasoning_content", "content", True)
    ]


def _incompatible(tokenizer_class: Any) -> list[str]:
    """Return which calls are not refused: an end and a start at once, masks of ids, and no text to continue."""
    tokenizer = tiny_tokenizer()
    user = {"role": "user", "content": "ab"}
    parts = {"role": "assistant", "content": [{"type": "image"}]}
    tokenizer.chat_template = TEMPLATES["parts"][0]
    dropped = tiny_tokenizer()
    dropped.chat_template = TURN % "{{ m['content'].split('</think>')[-1][:3] }}"
    calls: Mapping[str, tuple[Any, list[dict[str, Any]], Mapping[str, Any]]] = {
        "both": (tokenizer, [user], {"add_generation_prompt": True}),
        "masks": (
            tokenizer,
            [user],
            {"return_assistant_tokens_mask": True, "return_dict": True, "tokenize": True},
        ),
        "no text": (tokenizer, [user, parts], {}),
        "a text that the template cuts": (dropped, [{"role": "assistant", "content": "abcdef"}], {}),
    }
    taken = []
    for name, (of, chat, more) in calls.items():
        try:
            of.apply_chat_template(chat, **{"tokenize": False, "continue_final_message": True, **more})
        except ValueError:
            continue
        taken.append(name)
    return taken


PLACE = "transformers:PreTrainedTokenizerBase"
BLANK = ("", " ", "\n")
UNTRIMMED = tuple(name for name in TEMPLATES if name != "trimmed")
# Source: the documentation of apply_chat_template (continue_final_message), and the page on chat templates.
CHAT_ROWS: Sequence[Row] = (
    Row("chats", PLACE, "messages to be continued", partial(_continued, TEXTS, UNTRIMMED), [], since="4.57"),
    Row(
        "chats",
        PLACE,
        "messages to be continued under templates that trim",
        partial(_continued, [text for text in TEXTS if text not in BLANK], ["trimmed"]),
        [],
        since="4.57",
    ),
    Row(
        "chats",
        PLACE,
        "blank messages to be continued under templates that trim",
        partial(_continued, BLANK, ["trimmed"]),
        [],
        since="4.57",
        known=KnownFailure(
            "the line break before the message is cut off too",
            finding="Transformers: blank messages to be continued under templates that trim",
        ),
    ),
    Row(
        "chats",
        PLACE,
        "fields to be continued",
        _field_continued,
        [
            "<|im_start|>assistant\n<think>a ",
            *["<|im_start|>assistant\n<think>a </think>a b"] * 2,
        ],
        since="5.24",
    ),
    Row("chats", PLACE, "messages that cannot be continued", _incompatible, [], since="4.57"),
    *TEMPLATE_ROWS,
    *DECODED_ROWS,
    *ENCODING_ROWS,
    *TOKENIZER_ROWS,
    *SAVED_ROWS,
    *RESPONSE_ROWS,
    *SCHEMA_ROWS,
    *PROCESSOR_ROWS,
    *LABEL_ROWS,
    *OWN_TEMPLATE_ROWS,
    *MARKED_ROWS,
    *CUT_MASK_ROWS,
    *PIECE_ROWS,
)
