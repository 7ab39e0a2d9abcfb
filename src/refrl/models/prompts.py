"""Prompts and answers as ids: plain text, or turns of a conversation under a chat template."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from refrl.config import ConfigError
from refrl.media import PLACEHOLDER
from refrl.models.chat import BYTE_CHAT_TEMPLATE, ChatEncoder, Message
from refrl.models.tokenization import encode_answers, encode_prompts


class PromptEncoder:
    """Encodes what a run's model is asked and, for fine-tuning, what it is to answer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: str | None = None,
        system_prompt: str | None = None,
        media_token_id: int | None = None,
    ) -> None:
        """Take a tokenizer and the form of prompts (`policy.tokenizer.chat_template`, `data.system_prompt`).

        Args:
            tokenizer: of the model.
            chat_template: as the option.
            system_prompt: as the option.
            media_token_id: replaces `refrl.media.PLACEHOLDER` in a prompt; None leaves it as text.

        Raises:
            ConfigError: the tokenizer has no template and none is given.
        """
        self._tokenizer, self._media_token_id = tokenizer, media_token_id
        self._system: list[Message] = []
        if system_prompt is not None:
            self._system = [{"role": "system", "content": system_prompt}]
        named = {"default": None, "byte": BYTE_CHAT_TEMPLATE}
        self.chat: ChatEncoder | None = None
        """The chat template's encoder; None where prompts are plain text."""
        if chat_template is not None:
            self.chat = ChatEncoder(tokenizer, named.get(chat_template, chat_template))

    def prompts(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the ids of prompts, up to where the answer begins.

        Raises:
            ConfigError: the chat template leaves a turn out or rewrites it.
        """
        if self.chat is None:
            if self._media_token_id is not None and any(PLACEHOLDER in text for text in texts):
                return [self._with_media(text, self._media_token_id) for text in texts]
            return encode_prompts(self._tokenizer, texts)
        with _template_errors():
            return [tuple(self.chat.encode(self._asked(text), add_generation_prompt=True)) for text in texts]

    def rendered(self, text: str) -> str:
        """Return a prompt as the model is given it, in words; what the tokenizer adds of its own is not in it."""
        if self.chat is None:
            return text
        with _template_errors():
            return self.chat.text(self._asked(text), add_generation_prompt=True)

    def answers(self, texts: Sequence[str], answers: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the ids of answers with the token that ends them, to stand after their prompts.

        Raises:
            ConfigError: the chat template rewrites the answer, or puts no end token after it.
        """
        if self.chat is None:
            end = self._tokenizer.eos_token_id
            return [(*ids, end) for ids in encode_answers(self._tokenizer, answers)]
        return [
            self._chat_answer(self.chat, text, answer) for text, answer in zip(texts, answers, strict=True)
        ]

    def end_token_id(self) -> int:
        """Return the id that ends an answer."""
        return self.answers(["?"], ["!"])[0][-1]

    def _with_media(self, text: str, token: int) -> tuple[int, ...]:
        first, *others = text.split(PLACEHOLDER)
        (ids,) = encode_prompts(self._tokenizer, [first])
        return (*ids, *(one for part in encode_answers(self._tokenizer, others) for one in (token, *part)))

    def _asked(self, text: str) -> list[Message]:
        return [*self._system, {"role": "user", "content": text}]

    def _chat_answer(self, chat: ChatEncoder, text: str, answer: str) -> tuple[int, ...]:
        (prompt,) = self.prompts([text])
        with _template_errors():
            ids, mask = chat.training_row([*self._asked(text), {"role": "assistant", "content": answer}])
        end = max(place for place, is_trained in enumerate(mask) if is_trained)
        return tuple(ids[len(prompt) : end + 1])


@contextlib.contextmanager
def _template_errors() -> Iterator[None]:
    """Raise an error of a template as one of its option."""
    from jinja2 import TemplateError

    try:
        yield
    except (ValueError, TemplateError) as error:
        raise ConfigError(f"policy.tokenizer.chat_template: {error}") from error
