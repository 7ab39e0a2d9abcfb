"""Errors that every command turns into one message; nothing else is imported with them."""

from __future__ import annotations


class ConfigError(Exception):
    """The configuration cannot be used; the message names the dotted key and the remedy."""


_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
)


def out_of_memory(error: BaseException) -> str | None:
    """Return one message if an error means that memory ran out: Python's, torch's on the CPU, CUDA's.

    torch's own class is a RuntimeError; on the CPU it raises a plain RuntimeError, identified by its text alone.
    """
    words = " ".join(str(error).split())
    if not isinstance(error, MemoryError) and not any(sign in words.lower() for sign in _NO_MEMORY):
        return None
    reason = words.split(". ")[0][:200] or "the system gave no more"
    return (
        f"out of memory: {reason}; lower policy.train_micro_batch_size, policy.logprob_batch_size or "
        "policy.max_total_sequence_length, or set policy.logprob_chunk_size or policy.activation_checkpointing"
    )


class TrainingError(ArithmeticError):
    """Training cannot continue; the message says at which step and why. The log holds the step."""


class GenerationError(OSError):
    """A part that generates is lost and nothing can take its place; the message names the part and how it ended."""
