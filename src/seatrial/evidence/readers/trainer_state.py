"""Hugging Face's trainer_state.json: `{"log_history": [{"step": N, "loss": ...}, ...], "global_step": N, ...}`.

Tags are named as the file names them (`loss`, `eval_loss`). A training folder holds one such file per checkpoint,
each with the whole history up to it: the one that reached the highest step is read.
Source: transformers/trainer_callback.py, TrainerState.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.opening import read_text, suffix_of
from seatrial.evidence.readers.points import decode_step
from seatrial.evidence.readers.rows import RowLog, assemble_rows
from seatrial.evidence.runlog import Damage, RunLog

NAME = "Hugging Face trainer state"
PRIORITY = 60


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is a trainer state."""
    if not head.lstrip().startswith(b"{") or suffix_of(file) == ".jsonl":
        return False
    if file.name == "trainer_state.json" or b'"log_history"' in head:
        return True
    return suffix_of(file) == ".json" and b'"global_step"' in head and _history(file) is not None


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read the trainer state that reached the highest step.

    Raises:
        BlockedError: no file is a trainer state that can be read.
        OSError: a file cannot be read.
    """
    states: list[tuple[int, Path, Mapping[str, Any]]] = []
    damage: list[Damage] = []
    for path in paths:
        state = _history(path)
        if state is None:
            damage.append(
                Damage(path=str(path), what="not a JSON object with log_history: the file is damaged")
            )
        else:
            states.append((decode_step(state.get("global_step")) or 0, path, state))
    if not states:
        raise BlockedError(f"{paths[0]}: {damage[0].what}; take the state of another checkpoint")
    _, chosen, state = max(states, key=lambda item: (item[0], len(item[2]["log_history"]), str(item[1])))
    log = RowLog(str(chosen), damage=damage)
    log.note_total(state.get("max_steps"))
    for number, row in enumerate(state["log_history"], start=1):
        step = decode_step(row.get("step")) if isinstance(row, Mapping) else None
        if step is None:
            log.lose(number, f"entry {number} of log_history is no row with a step")
        else:
            log.add(step, {tag: value for tag, value in row.items() if tag != "step"}, line=number)
    notes = [] if len(states) == 1 else [f"{chosen} was read, the furthest of {len(states)} trainer states"]
    return replace(assemble_rows([log], tags, notes=notes), runs=_runs(states, chosen))


def _runs(states: Sequence[tuple[int, Path, Mapping[str, Any]]], chosen: Path) -> list[list[str]]:
    """Return the files of each run: a checkpoint whose history is not the beginning of the furthest is of another."""
    histories = {path: state["log_history"] for _, path, state in states}
    others: list[Path] = []
    for path, rows in histories.items():
        if path != chosen and not _agree(rows, histories[chosen]):
            others.append(path)
    mine = [str(path) for path in histories if path not in others]
    return [*([str(path)] for path in others), mine] if others else []


def _agree(rows: Sequence[Any], further: Sequence[Any]) -> bool:
    """Say whether two histories hold the same rows at the same places; text, so that NaN equals NaN.

    The last row may be the summary of a training that ended there.
    """
    return all(repr(one) == repr(other) for one, other in zip(rows[:-1], further, strict=False))


def _history(path: Path) -> Mapping[str, Any] | None:
    state = jsonl.parse(read_text(path))
    return state if isinstance(state, dict) and isinstance(state.get("log_history"), list) else None
