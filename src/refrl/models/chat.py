"""Conversations become ids in one way, for serving and for training.

A prompt that the model answers is always a prefix of the finished conversation. Contents are encoded apart from what
the template puts around them, so that no merge crosses the border between a prompt and what was sampled after it, and
text that spells a special token stays text: no message can end itself or imitate another role.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from refrl.config import ConfigError

Message = Mapping[str, str]
"""`role` and `content`."""

ROLES = ("system", "user", "assistant", "tool")

BYTE_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] + '\\n' + message['content'] + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}"
)
"""For the byte-level tokenizer: role, line end, content, end token; no token beyond those that it has."""


class ChatEncoder:
    """Encodes conversations with a tokenizer's chat template."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a tokenizer and its template.

        Args:
            tokenizer: needs an end token.
            template: Jinja text, such as `BYTE_CHAT_TEMPLATE`; None takes the tokenizer's own.
            template_arguments: passed to the template, such as `enable_thinking`.

        Raises:
            ConfigError: there is no template, or no end token.
        """
        if template is None and getattr(tokenizer, "chat_template", None) is None:
            raise ConfigError(
                "the tokenizer has no chat_template; give one (refrl.models.chat.BYTE_CHAT_TEMPLATE suits make-model's)"
            )
        if tokenizer.eos_token_id is None:
            raise ConfigError("the tokenizer names no eos_token: answers could not end")
        self.tokenizer = tokenizer
        self._template = template
        self._arguments = dict(template_arguments or {})

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        """Return the ids of a conversation; `add_generation_prompt` opens the assistant's next turn.

        Raises:
            ValueError: a role is unknown, or the template rewrites earlier turns or contents.
        """
        pieces = self._pieces(messages, add_generation_prompt)
        return [token for text, is_content, _ in pieces for token in self._encode_piece(text, is_content)]

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the text whose ids `encode` returns, what the template writes included.

        Raises:
            ValueError: as `encode`.
        """
        return "".join(text for text, _, _ in self._pieces(messages, add_generation_prompt))

    def training_row(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Return ids and mask of a finished conversation.

        The mask is 1 exactly on what the assistant wrote and on the end token of each of its turns; system, user and
        tool messages, and what the template puts around contents, are 0. It comes from positions, never from
        comparing ids, so that the pad token may be the end token.

        Raises:
            ValueError: as `encode`; or the template does not close an assistant turn with the end token.
        """
        ids: list[int] = []
        mask: list[int] = []
        expects_end = False
        for text, is_content, is_answer in self._pieces(messages, add_generation_prompt=False):
            piece = self._encode_piece(text, is_content)
            trained = [int(is_answer)] * len(piece)
            if expects_end and not is_content:
                if not piece or piece[0] != self.tokenizer.eos_token_id:
                    raise ValueError(
                        f"the chat template closes an assistant turn with {text[:20]!r}, not with the end token "
                        f"{self.tokenizer.eos_token!r}: set eos_token to the token that ends a turn"
                    )
                trained[0] = 1
                expects_end = False
            expects_end = expects_end or is_answer
            ids += piece
            mask += trained
        return ids, mask

    def _pieces(
        self, messages: Sequence[Message], add_generation_prompt: bool
    ) -> Iterator[tuple[str, bool, bool]]:
        """Yield (text, is content, is the assistant's) in order; empty contents are yielded too."""
        for message in messages:
            if message["role"] not in ROLES:
                raise ValueError(f"unknown role {message['role']!r}; roles are {', '.join(ROLES)}")
        frames = self._frames(messages, add_generation_prompt)
        rendered = self._render(messages, add_generation_prompt)
        contents = _contents_as_rendered(messages, frames, rendered)
        before = ""
        for position, (message, frame, content) in enumerate(zip(messages, frames, contents, strict=False)):
            before += frame
            is_answer = message["role"] == "assistant"
            if is_answer and self._render(messages[:position], True) != before:
                raise ValueError(
                    f"the prompt before message {position} is no prefix of the finished conversation: the chat "
                    "template rewrites earlier turns (see template_arguments), so training would differ from sampling"
                )
            yield frame, False, False
            yield content, True, is_answer
            before += content
        yield frames[-1], False, False

    def _frames(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[str]:
        """Return what the template puts before, between and after the contents."""
        # Private-use characters: no template looks for them, none strips them.
        marks = [f"\ue000{number}\ue001" for number in range(len(messages))]
        marked = [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)]
        rest, frames = self._render(marked, add_generation_prompt), []
        for position, mark in enumerate(marks):
            frame, found, rest = rest.partition(mark)
            if not found or mark in rest:
                raise ValueError(
                    f"the chat template leaves out or repeats the content of message {position} "
                    f"(role {messages[position]['role']})"
                )
            frames.append(frame)
        return [*frames, rest]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        if not messages:
            raise ValueError("a conversation needs a message before the assistant's")
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **self._arguments,
        )
        return str(text)

    def _encode_piece(self, text: str, is_content: bool) -> list[int]:
        """Encode one piece: special tokens count in the template's own text, and nowhere else."""
        if not text:
            return []
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=is_content)[
            "input_ids"
        ]
        return ids


def _contents_as_rendered(messages: Sequence[Message], frames: Sequence[str], rendered: str) -> list[str]:
    """Return each content as the template wrote it: whole, or without the white space around it."""
    contents, cursor = [], 0
    for position, (message, frame) in enumerate(zip(messages, frames, strict=False)):
        cursor += len(frame)
        whole = message["content"]
        written = next(
            (
                text
                for text in (whole, whole.strip())
                if rendered.startswith(text + frames[position + 1], cursor)
            ),
            None,
        )
        if written is None or (message["role"] == "assistant" and written != whole):
            raise ValueError(
                f"the chat template rewrites the content of message {position} (role {message['role']}): what it "
                "trains on would not be what was said"
            )
        contents.append(written)
        cursor += len(written)
    return contents
