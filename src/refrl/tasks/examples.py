"""What a prompt with a verifiable answer is, and what the two splits hold."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Example:
    """One prompt and its answer."""

    prompt_id: int
    """Equal ids are equal prompts; below 2**63. The number of the example in its task's space, or `stable_id` of the
    prompt if the space is larger or the prompt comes from a file."""
    prompt: str
    answer: str
    """The answer that the verifier compares a completion with."""
    task: str
    """Name of the task, or of the file without its suffix."""
    solution: str | None = None
    """A completion that is right, where it is not the answer itself (code: the answer is a list of tests)."""

    media: str | None = None
    """The image or sound in the prompt (`refrl.media`)."""

    @property
    def target(self) -> str:
        """The completion that fine-tuning learns."""
        return self.answer if self.solution is None else self.solution


@dataclass(frozen=True)
class Splits:
    """Prompts to train on and prompts held out; they share none."""

    train: Sequence[Example]
    validation: Sequence[Example]
    notes: tuple[str, ...] = ()
    """What was left out and why, for the console: repeated prompts, prompts of both splits."""


@runtime_checkable
class KnowsSizes(Protocol):
    """Examples that need not be read to know how long their prompts are."""

    def prompt_sizes(self) -> Sequence[int]:
        """Return the bytes of each prompt."""
        ...


def longest_prompts(examples: Sequence[Example], num: int = 64) -> list[Example]:
    """Return the examples with the longest prompts in bytes; where the sizes are known, no other is read."""
    sizes = examples.prompt_sizes() if isinstance(examples, KnowsSizes) else _sizes(examples)
    return [examples[index] for index in sorted(range(len(examples)), key=lambda index: -sizes[index])[:num]]


def _sizes(examples: Sequence[Example]) -> list[int]:
    return [len(example.prompt.encode(errors="surrogatepass")) for example in examples]


def stable_id(prompt: str) -> int:
    """Return a number below 2**63 that depends on the prompt's text alone."""
    digest = hashlib.blake2b(prompt.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
