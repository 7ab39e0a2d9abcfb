"""The tasks: reverse a string, add two numbers, count a letter.

Each is a finite space whose examples are numbered, so that two numbers never give one prompt and splits that
share no number share no prompt.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

MAX_LETTERS = 1000
"""Longer words have spaces whose size alone takes long to compute."""


@dataclass(frozen=True)
class ReverseTask:
    """`reverse abc=` -> `cba`, over all strings of `min_length` to `max_length` letters.

    Strings are drawn evenly, so most have the greatest length.
    """

    min_length: int = 1
    max_length: int = 4
    alphabet_size: int = 26

    verifier = "character_match"
    name = "reverse"

    def __post_init__(self) -> None:
        """Refuse lengths and alphabets that hold no string (ValueError)."""
        if not 0 <= self.min_length <= self.max_length:
            raise ValueError(
                f"min_length={self.min_length} must lie between 0 and max_length={self.max_length}"
            )
        if self.max_length > MAX_LETTERS:
            raise ValueError(f"max_length={self.max_length} must be at most {MAX_LETTERS}")
        if not 2 <= self.alphabet_size <= 26:
            raise ValueError(f"alphabet_size={self.alphabet_size} must lie between 2 and 26")

    @property
    def num_examples(self) -> int:
        """Strings of every length."""
        return sum(self.alphabet_size**length for length in range(self.min_length, self.max_length + 1))

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and the answer of one number."""
        length = self.min_length
        while number >= self.alphabet_size**length:
            number -= self.alphabet_size**length
            length += 1
        word = _word(number, length, self.alphabet_size)
        return f"reverse {word}=", word[::-1]


@dataclass(frozen=True)
class AddTask:
    """`12+7=` -> `19`, over all pairs of numbers of at most `digits` digits."""

    digits: int = 2

    verifier = "exact_match"
    name = "add"

    def __post_init__(self) -> None:
        """Refuse a number of digits below 1 (ValueError)."""
        if not 1 <= self.digits <= MAX_LETTERS:
            raise ValueError(f"digits={self.digits} must lie between 1 and {MAX_LETTERS}")

    @property
    def num_examples(self) -> int:
        """Ordered pairs."""
        return 10 ** (2 * self.digits)

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and the answer of one number."""
        left, right = divmod(number, 10**self.digits)
        return f"{left}+{right}=", str(left + right)


@dataclass(frozen=True)
class CountLettersTask:
    """`count b in abcb=` -> `2`, over every letter of the alphabet and every string of one length."""

    length: int = 6
    alphabet_size: int = 3

    verifier = "exact_match"
    name = "count_letters"

    def __post_init__(self) -> None:
        """Refuse lengths and alphabets that hold no string (ValueError)."""
        if not 1 <= self.length <= MAX_LETTERS:
            raise ValueError(f"length={self.length} must lie between 1 and {MAX_LETTERS}")
        if not 2 <= self.alphabet_size <= 26:
            raise ValueError(f"alphabet_size={self.alphabet_size} must lie between 2 and 26")

    @property
    def num_examples(self) -> int:
        """Pairs of a letter and a string."""
        return self.alphabet_size ** (self.length + 1)

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and the answer of one number."""
        letter_number, word_number = divmod(number, self.alphabet_size**self.length)
        letter = string.ascii_lowercase[letter_number]
        word = _word(word_number, self.length, self.alphabet_size)
        return f"count {letter} in {word}=", str(word.count(letter))


def _word(number: int, length: int, alphabet_size: int) -> str:
    """Return the string of one number: its digits to the base of the alphabet, as letters."""
    letters = []
    for _ in range(length):
        number, digit = divmod(number, alphabet_size)
        letters.append(string.ascii_lowercase[digit])
    return "".join(letters)
