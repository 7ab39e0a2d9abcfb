"""Templates of made conversations, and a tokenizer that begins texts with a token."""

from __future__ import annotations

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
PROBE = {
    "type": "function",
    "function": {"name": "probe", "description": "", "parameters": {"type": "object"}},
}


def begin_texts(tokenizer: Any) -> None:
    """Make a tokenizer begin each text with a token, as those of many models do."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.bos_token = BEGIN
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, int(tokenizer.bos_token_id))]
    )
