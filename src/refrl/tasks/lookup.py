"""A task whose answers cannot be computed from the prompt: they are looked up with the tool of the same name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from refrl.tasks.text import ReverseTask


def price_of(word: str) -> int:
    """Return the price of a word, 10 to 99: a digest of it, which cannot be guessed."""
    return 10 + hashlib.sha256(word.encode()).digest()[0] * 90 // 256


@dataclass(frozen=True)
class LookupTask:
    """`price kiwi:` -> `57`, over all words of `min_length` to `max_length` letters.

    With `data.environment=lookup`, a turn that holds `?kiwi` is answered with `=57;`.
    """

    min_length: int = 1
    max_length: int = 2
    alphabet_size: int = 26

    verifier = "integer_match"
    name = "lookup"

    def __post_init__(self) -> None:
        """Refuse lengths and alphabets that hold no word (ValueError)."""
        self._words()

    @property
    def num_examples(self) -> int:
        """Words of every length."""
        return self._words().num_examples

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and the answer of one number."""
        _, word = self._words().example(number)
        return f"price {word}:", str(price_of(word))

    def _words(self) -> ReverseTask:
        return ReverseTask(self.min_length, self.max_length, self.alphabet_size)
