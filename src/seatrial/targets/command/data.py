"""The data that a run of another stack gets: prompts with one right answer, in the forms that stacks read.

data/plain/train.jsonl       prompt and completion (SFT), chosen and rejected (DPO), answer (GRPO)
data/messages/train.jsonl    the same as conversations
data/dataset_info.json       the names sft, dpo and grpo for LLaMA-Factory
data/seatrial_rewards.py     the reward functions; the folder is on PYTHONPATH
held_out.jsonl               next to the folder: prompts that no run trains on
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seatrial.targets.common import rewards
from seatrial.targets.common.questions import Question, questions

HELD_OUT = "held_out.jsonl"


def write_data(directory: Path, kind: str, seed: int) -> Path:
    """Write the data of a run, and return its folder.

    Args:
        directory: of the run.
        kind: `sft`, `dpo` or `grpo`.
        seed: of the split into prompts to train on and held-out ones.
    """
    folder = directory / "data"
    trained, held_out = questions(seed)
    for form in (_plain, _messages):
        place = folder / form.__name__.strip("_")
        place.mkdir(parents=True, exist_ok=True)
        _write(place / "train.jsonl", (form(kind, one) for one in trained))
    columns = {"prompt": "prompt", "response": "completion"}
    info: dict[str, Any] = {"sft": {"file_name": "plain/train.jsonl", "columns": columns}}
    info["grpo"] = info["sft"]
    pair = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    info["dpo"] = {"file_name": "plain/train.jsonl", "ranking": True, "columns": pair}
    (folder / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    shutil.copyfile(str(rewards.__file__), folder / "seatrial_rewards.py")
    _write(directory / HELD_OUT, ({"prompt": one.prompt, "answer": one.answer} for one in held_out))
    return folder


def _plain(kind: str, one: Question) -> Mapping[str, Any]:
    if kind == "sft":
        return {"prompt": one.prompt, "completion": one.answer}
    if kind == "dpo":
        return {"prompt": one.prompt, "chosen": one.answer, "rejected": one.answer[::-1] + "z"}
    return {"prompt": one.prompt, "answer": one.answer}


def _messages(kind: str, one: Question) -> Mapping[str, Any]:
    asked = {"role": "user", "content": one.prompt}
    answered = {"role": "assistant", "content": one.answer}
    if kind == "sft":
        return {"messages": [asked, answered]}
    if kind == "dpo":
        return {"messages": [asked, answered], "rejected_response": one.answer[::-1] + "z"}
    return {"messages": [asked], "answer": one.answer}


def _write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
