"""Forms of chat templates at which a rollout of several turns continues: as Jinja, and written by plain code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
Message = dict[str, str]
"""`role` and `content`."""


@dataclass(frozen=True, kw_only=True)
class TokenForm:
    """How a family of models writes turns."""

    special: tuple[str, ...]
    """Tokens of its own, each one id."""
    template: str
    write: Callable[[Sequence[Message], bool], str]
    """(messages, whether the model answers next) -> text of the template."""
    stops: Mapping[str, str]
    """The last token of an answer, by the role that follows; the model writes it."""
    stop_is_next: bool = False
    """Whether that token begins the next turn: it is then no part of the answer."""


def _tool_edges(messages: Sequence[Message], place: int) -> tuple[bool, bool]:
    """Return whether a tool's message is the first and the last of those in succession."""
    before = place > 0 and messages[place - 1]["role"] == "tool"
    after = place + 1 < len(messages) and messages[place + 1]["role"] == "tool"
    return not before, not after


def _joined(
    write: Callable[[Sequence[Message], int], str], end: str
) -> Callable[[Sequence[Message], bool], str]:
    return lambda messages, answers: (
        "".join(write(messages, place) for place in range(len(messages))) + (end if answers else "")
    )


def _plain(messages: Sequence[Message], place: int) -> str:
    message = messages[place]
    return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>"


def _qwen(messages: Sequence[Message], place: int) -> str:
    message = messages[place]
    if message["role"] != "tool":
        return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
    first, last = _tool_edges(messages, place)
    text = f"\n<tool_response>\n{message['content']}\n</tool_response>"
    return ("<|im_start|>user" if first else "") + text + ("<|im_end|>\n" if last else "")


def _minimax(messages: Sequence[Message], place: int) -> str:
    message = messages[place]
    if message["role"] != "tool":
        name = "ai" if message["role"] == "assistant" else message["role"]
        return f"]~b]{name}\n{message['content']}[e~[\n"
    first, last = _tool_edges(messages, place)
    text = f"\n<response>{message['content']}</response>"
    return ("]~b]tool" if first else "") + text + ("[e~[\n" if last else "")


def _glm(messages: Sequence[Message], place: int) -> str:
    message = messages[place]
    begin = "[gMASK]<sop>" if place == 0 else ""
    if message["role"] != "tool":
        return f"{begin}<|{message['role']}|>\n{message['content']}"
    first, _ = _tool_edges(messages, place)
    text = f"\n<tool_response>\n{message['content']}\n</tool_response>"
    return begin + ("<|observation|>" if first else "") + text


OUTPUTS_BEGIN, OUTPUTS_END = (
    "<\uff5ctool\u2581outputs\u2581begin\uff5c>",
    "<\uff5ctool\u2581outputs\u2581end\uff5c>",
)
OUTPUT_BEGIN, OUTPUT_END = (
    "<\uff5ctool\u2581output\u2581begin\uff5c>",
    "<\uff5ctool\u2581output\u2581end\uff5c>",
)
DEEPSEEK_USER, DEEPSEEK_ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
DEEPSEEK_BEGIN = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"


def _deepseek(messages: Sequence[Message], answers: bool) -> str:
    text, after_tool = DEEPSEEK_BEGIN, False
    for place, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            begin = OUTPUTS_BEGIN if _tool_edges(messages, place)[0] else ""
            text += begin + OUTPUT_BEGIN + content + OUTPUT_END
        elif role == "assistant":
            text += (OUTPUTS_END if after_tool else DEEPSEEK_ASSISTANT) + content + DEEPSEEK_END
        else:
            text += (DEEPSEEK_USER if role == "user" else "") + content
        after_tool = role == "tool"
    if after_tool:
        return text + OUTPUTS_END
    return text + (DEEPSEEK_ASSISTANT if answers else "")


FIRST = "(loop.first or messages[loop.index0 - 1].role != 'tool')"
LAST = "(loop.last or messages[loop.index0 + 1].role != 'tool')"
FORMS: Mapping[str, TokenForm] = {
    "default": TokenForm(
        special=("<|im_start|>", "<|im_end|>"),
        template="{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        write=_joined(_plain, "<|im_start|>assistant\n"),
        stops={"tool": "<|im_end|>", "user": "<|im_end|>"},
    ),
    "qwen": TokenForm(
        special=("<|im_start|>", "<|im_end|>"),
        template="{% for m in messages %}{% if m.role == 'tool' %}"
        f"{{% if {FIRST} %}}{{{{ '<|im_start|>user' }}}}{{% endif %}}"
        "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
        f"{{% if {LAST} %}}{{{{ '<|im_end|>\\n' }}}}{{% endif %}}"
        "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        write=_joined(_qwen, "<|im_start|>assistant\n"),
        stops={"tool": "<|im_end|>", "user": "<|im_end|>"},
    ),
    "minimax": TokenForm(
        special=("]~b]", "[e~["),
        template="{% for m in messages %}{% if m.role == 'tool' %}"
        f"{{% if {FIRST} %}}{{{{ ']~b]tool' }}}}{{% endif %}}"
        "{{ '\\n<response>' + m.content + '</response>' }}"
        f"{{% if {LAST} %}}{{{{ '[e~[\\n' }}}}{{% endif %}}"
        "{% else %}{{ ']~b]' + ('ai' if m.role == 'assistant' else m.role) + '\\n' + m.content + '[e~[\\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai\\n' }}{% endif %}",
        write=_joined(_minimax, "]~b]ai\n"),
        stops={"tool": "[e~[", "user": "[e~["},
    ),
    "glm": TokenForm(
        special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        template="{{ '[gMASK]<sop>' }}{% for m in messages %}{% if m.role == 'tool' %}"
        f"{{% if {FIRST} %}}{{{{ '<|observation|>' }}}}{{% endif %}}"
        "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
        "{% else %}{{ '<|' + m.role + '|>\\n' + m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
        write=_joined(_glm, "<|assistant|>\n"),
        stops={"tool": "<|observation|>", "user": "<|user|>"},
        stop_is_next=True,
    ),
    "deepseek": TokenForm(
        special=(
            *(DEEPSEEK_BEGIN, DEEPSEEK_END, DEEPSEEK_USER, DEEPSEEK_ASSISTANT),
            *(OUTPUTS_BEGIN, OUTPUTS_END, OUTPUT_BEGIN, OUTPUT_END),
        ),
        template=f"{{{{ '{DEEPSEEK_BEGIN}' }}}}{{% set ns = namespace(tool=false) %}}{{% for m in messages %}}"
        "{% if m.role == 'tool' %}"
        f"{{% if {FIRST} %}}{{{{ '{OUTPUTS_BEGIN}' }}}}{{% endif %}}"
        f"{{{{ '{OUTPUT_BEGIN}' + m.content + '{OUTPUT_END}' }}}}"
        "{% elif m.role == 'assistant' %}"
        f"{{{{ ('{OUTPUTS_END}' if ns.tool else '{DEEPSEEK_ASSISTANT}') + m.content + '{DEEPSEEK_END}' }}}}"
        f"{{% else %}}{{{{ ('{DEEPSEEK_USER}' if m.role == 'user' else '') + m.content }}}}{{% endif %}}"
        "{% set ns.tool = m.role == 'tool' %}{% endfor %}"
        f"{{% if ns.tool %}}{{{{ '{OUTPUTS_END}' }}}}"
        f"{{% elif add_generation_prompt %}}{{{{ '{DEEPSEEK_ASSISTANT}' }}}}{{% endif %}}",
        write=_deepseek,
        stops={"tool": DEEPSEEK_END, "user": DEEPSEEK_END},
    ),
}
"""By the name of the family; what a template says of tools' schemas and of dates is left out."""
