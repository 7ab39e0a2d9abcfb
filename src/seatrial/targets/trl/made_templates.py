"""Templates of made conversations, and a tokenizer that begins texts with a token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

BEGIN = "<|im_start|>"
BRACKETED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ '[' + message['content'] + ']' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and shouts %}{{ '!' }}{% endif %}"
)
"""A template that a setup gives by an option, or whose variable `shouts` it sets."""
OPENED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ('!' if message['content'] | length % 2 else '') + message['content'] + '<|im_end|>' }}"
    "{% else %}{{ '[' + message['content'] + ']' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '!' }}{% endif %}"
)
"""A template that opens answers of odd length alone with a mark, so that a prompt ends before it or after it."""
OWN = (
    "{% if tools %}{{ '(' + tools[0]['function']['name'] + ')' }}{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ ('~' if shouts else '') + message['content'] + '<|im_end|>' }}"
    "{% else %}{{ '[' + ('^' if shouts else '') + message['content'] + ']' }}{% endif %}{% endfor %}"
)
"""A template that writes the tools and the options that a row has of its own."""
CALLED = (
    "{% if tools %}{{ '(' + tools[0]['function']['name'] + ')' }}{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{% generation %}{% for call in message['tool_calls'] or [] %}"
    "{{ '{' + call['function']['name'] + (call['function']['arguments'] | tojson) + '}' }}{% endfor %}"
    "{{ (message['content'] or '') + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ '[' + message['content'] + ']' }}{% endif %}{% endfor %}"
)
"""A template that writes tools and calls, and marks what the assistant generates."""
EARLIER = (("user", "so"), ("assistant", "yes"))
"""Turns before the last one of the user."""
FOUND = "ok"
"""What a tool answers."""
PROBE = {
    "type": "function",
    "function": {"name": "probe", "description": "", "parameters": {"type": "object"}},
}


def call_of(number: int) -> dict[str, Any]:
    """Return the arguments of the call in a row's prompt: a list."""
    return {"n": [*range(1 + number % 3)]}


def turns_of_a_call(number: int) -> list[dict[str, Any]]:
    """Return the messages of a call and its result, which follow a question."""
    function = {"name": "probe", "arguments": call_of(number)}
    return [
        {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "name": "probe", "content": FOUND},
    ]


def text_of_a_call(number: int) -> str:
    """Return the assistant's turn with the call as `CALLED` writes it."""
    return "{probe" + json.dumps(call_of(number)) + "}<|im_end|>"


def answered(prompt: str, form: str, number: int) -> Sequence[tuple[str, bool]]:
    """Return the parts of a prompt, and whether each is an earlier answer; nothing where the form has none."""
    own = {"several turns": f"{EARLIER[1][1]}<|im_end|>", "called": text_of_a_call(number)}
    if form not in own:
        return ()
    return list(zip(prompt.partition(own[form]), (False, True, False), strict=True))


def begin_texts(tokenizer: Any) -> None:
    """Make a tokenizer begin each text with a token, as those of many models do."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.bos_token = BEGIN
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, int(tokenizer.bos_token_id))]
    )
