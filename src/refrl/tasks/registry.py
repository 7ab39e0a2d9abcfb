"""Every task by its name."""

from __future__ import annotations

from refrl.config.registry import Registry

TASKS: dict[str, str] = {
    "reverse": "refrl.tasks.text:ReverseTask",
    "add": "refrl.tasks.text:AddTask",
    "count_letters": "refrl.tasks.text:CountLettersTask",
    "lookup": "refrl.tasks.lookup:LookupTask",
    "colour": "refrl.tasks.media:ColourTask",
    "pitch": "refrl.tasks.media:PitchTask",
    "code_print": "refrl.tasks.code:CodePrintTask",
}
"""The built-in tasks by the name that `data.task` takes."""

TASK_REGISTRY = Registry("task", "refrl.tasks", TASKS)
"""What `data.task` may name: built in, of an installed package, or by import path."""
