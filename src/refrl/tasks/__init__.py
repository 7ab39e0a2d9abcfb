"""Prompts whose answers can be verified: made tasks and files of the user's, cut into disjoint seeded splits."""

from refrl.tasks.base import TASKS, PromptSource, Task, default_verifier, make_splits, make_task
from refrl.tasks.examples import Example, Splits, longest_prompts

__all__ = [
    "TASKS",
    "Example",
    "PromptSource",
    "Splits",
    "Task",
    "default_verifier",
    "longest_prompts",
    "make_splits",
    "make_task",
]
