"""What is wrong with fields of a row that no law of the ledger reads: they follow from options and other fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.trials.sensors.defined import verifier_of

TRAINED, HELD_OUT = "train_data", "validation_data"
"""How the names of files begin that hold a row for each completion."""


def wrong_fields(kind: str, row: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a row's task, verifier, text of the prompt, and whether a filter left it out.

    Args:
        kind: how the name of its file begins.
        row: as it is written.
        options: by dotted name.
    """
    if kind not in (TRAINED, HELD_OUT):
        return
    task = options.get("data.task")
    if task is not None and row.get("task") != task:
        yield f"has the task {row.get('task')}, the run has {task}"
    if kind == HELD_OUT or "reward" not in row:
        return
    several = any(name.startswith("data.verifiers.") for name in options)
    verifier = None if several else verifier_of(options) or row.get("verifier")
    if row.get("verifier") != verifier:
        yield f"has the verifier {row.get('verifier')}, the run has {verifier}"
    if bool(row.get("filtered")) == any(row.get("loss_mask") or ()):
        yield f"has filtered={row.get('filtered')}, and {sum(map(bool, row.get('loss_mask') or ()))} tokens in the loss"
    prompt, text = str(row.get("prompt")), row.get("prompt_text")
    is_plain = options.get("policy.tokenizer.chat_template") is None and not options.get("data.system_prompt")
    if text is not None and (text != prompt if is_plain else prompt not in text):
        yield f"has the text {text!r} for the prompt {prompt!r}"
