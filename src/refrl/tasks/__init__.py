"""Tasks whose answers can be verified: a numbered space of examples, cut into disjoint seeded splits."""

from refrl.tasks.base import Example, PromptSource, Splits, Task, make_splits, make_task
from refrl.tasks.text import TASKS

__all__ = ["TASKS", "Example", "PromptSource", "Splits", "Task", "make_splits", "make_task"]
