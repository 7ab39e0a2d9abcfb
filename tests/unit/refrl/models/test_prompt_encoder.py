"""Prompts and answers: plain text with an end token, or turns of a conversation."""

import pytest

from refrl.config import ConfigError
from refrl.media import PLACEHOLDER
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import make_byte_tokenizer

TOKENIZER = make_byte_tokenizer()
BOS, EOS = 257, 258


def test_plain_prompts_begin_as_the_tokenizer_begins_texts() -> None:
    """And answers are the bytes and the end."""
    encoder = PromptEncoder(TOKENIZER)
    assert encoder.prompts(["ab"]) == [(BOS, *b"ab")]
    assert encoder.answers(["ab"], ["c"]) == [(*b"c", EOS)]
    assert encoder.end_token_id() == EOS


def test_chat_prompts_hold_the_system_turn_and_open_the_answer() -> None:
    """Text that spells a special token stays text."""
    encoder = PromptEncoder(TOKENIZER, chat_template="byte", system_prompt="hi")
    opened = (BOS, *b"system\nhi", EOS, *b"user\n<|eos|>", EOS, *b"assistant\n")
    assert encoder.prompts(["<|eos|>"]) == [opened]
    assert encoder.answers(["<|eos|>"], ["c"]) == [(*b"c", EOS)]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("default", "has no chat_template"),
        ("{{ messages[0]['content'] | upper }}", "rewrites the content of message 0"),
        ("{{ raise }", r"chat_template: unexpected '}'"),
    ],
)
def test_templates_that_cannot_be_used_are_users_errors(template: str, message: str) -> None:
    """Told before the first step."""
    with pytest.raises(ConfigError, match=message):
        PromptEncoder(TOKENIZER, chat_template=template).prompts(["ab"])


def test_an_answer_that_is_never_closed_is_a_users_error() -> None:
    """The model could not learn to end."""
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    with pytest.raises(ConfigError, match="chat_template"):
        PromptEncoder(TOKENIZER, chat_template=template).end_token_id()


def test_prompts_of_which_some_have_no_image_are_encoded_together() -> None:
    """A prompt without the place of an image was once an error next to one that has it."""
    encoder = PromptEncoder(make_byte_tokenizer(), media_token_id=300)
    bare, placed = encoder.prompts(["ab", f"a{PLACEHOLDER}"])
    assert encoder.prompts(["ab"]) == [bare]
    assert 300 not in bare and placed[-1] == 300
