"""Worked examples of verl's files: copies, what is fetched, checkpoints of steps and what is resumed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.worked.tools import folder, raised

FILES = "verl.utils.fs:"
CHECKPOINTS = "verl.utils.checkpoint."


def _copied(verify: Callable[..., Any]) -> list[bool]:
    """Return whether a copy is whole: the same, another size, a file more and less, a folder for a file, none."""
    root = folder()
    for name in ("a", "same", "larger", "more", "less"):
        (root / name / "in").mkdir(parents=True)
        (root / name / "in" / "x").write_text("12" if name != "larger" else "123", encoding="utf-8")
        (root / name / "y").write_text("1", encoding="utf-8")
    (root / "more" / "in" / "z").write_text("", encoding="utf-8")
    (root / "less" / "y").unlink()
    names = ("same", "larger", "more", "less", "none")
    found = [verify(str(root / "a"), str(root / name)) for name in names]
    files = [(root / "a" / "y", root / "a" / "in" / "x"), (root / "a" / "y", root / "more" / "y")]
    return [
        *found,
        *(verify(str(one), str(other)) for one, other in files),
        verify(str(root / "a"), str(files[0][0])),
    ]


def _local(copy: Callable[..., Any]) -> list[Any]:
    """Return paths of what is fetched once, again if a file of it is missing, and another time if that is requested."""
    root, calls = folder(), []

    def fetched(src: str, dst: str, **_: Any) -> None:
        calls.append(src)
        Path(dst).mkdir(parents=True)
        (Path(dst) / "x").write_text("1", encoding="utf-8")

    import verl.utils.fs as files

    with mock.patch.object(files, "copy", fetched):
        one = copy("hdfs://made/model", cache_dir=str(root))
        again = copy("hdfs://made/model", cache_dir=str(root))
        times = [len(calls)]
        (Path(one) / "x").unlink()
        copy("hdfs://made/model", cache_dir=str(root))
        times += [len(calls), (Path(one) / "x").exists()]
        copy("hdfs://made/model", cache_dir=str(root), always_recopy=True)
        times.append(len(calls))
        other = copy("hdfs://other/model", cache_dir=str(root))
    return [
        one == again,
        Path(one).name,
        one.startswith(str(root)),
        other != one,
        times,
        copy("/none/model"),
        raised(copy, "/none/model/"),
    ]


class _State:
    """An engine or a data loader whose states are kept."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def save_checkpoint(self, **options: Any) -> None:
        """Keep the options."""
        self.calls.append({**options, "local_path": Path(options["local_path"]).name})
        Path(options["local_path"]).mkdir(parents=True, exist_ok=True)

    def load_checkpoint(self, path: str, **_: Any) -> None:
        """Keep the name of the folder."""
        self.calls.append(Path(path).name)

    def state_dict(self) -> dict[str, Any]:
        """Return a state."""
        return {"place": 5}

    def load_state_dict(self, state: Any) -> None:
        """Keep the state."""
        self.calls.append(state)


def _handled(handler_class: Any) -> dict[str, Any]:
    """Return what is saved of two steps, and what is loaded in each mode."""
    modes = import_without(f"{CHECKPOINTS}checkpoint_handler", UNUSED).OrchestrationMode
    root = folder()

    def handler(**options: Any) -> tuple[Any, _State, _State]:
        engine, data = _State(), _State()
        given = {"default_local_dir": str(root), "mode": modes.RAY, **options}
        return handler_class(engine, data, **given), engine, data

    saving, engine, _ = handler(max_ckpt_to_keep=2, lora_train_meta={"r": 8})
    with contextlib.redirect_stdout(io.StringIO()):
        saving.save_checkpoint(step=3)
        saving.save_checkpoint(step=12)
        loaded = {}
        for name, options in (
            ("auto", {}),
            ("disable", {"resume_mode": "disable"}),
            ("path", {"resume_mode": "resume_path", "resume_from_path": str(root / "global_step_3")}),
            ("auto with a path", {"resume_from_path": str(root / "global_step_3")}),
            ("none yet", {"default_local_dir": str(root / "none")}),
        ):
            one, its_engine, data = handler(**options)
            loaded[name] = [one.load_checkpoint(), its_engine.calls, data.calls]
        (root / "global_step_3" / "data_0.pt").unlink()
        one, _, data = handler(resume_from_path=str(root / "global_step_3"))
        loaded["no data"] = [one.load_checkpoint(), data.calls]
        wrong: Sequence[Mapping[str, Any]] = (
            {"resume_mode": "resume_path", "resume_from_path": str(root / "none")},
            {"resume_mode": "resume_path", "resume_from_path": str(root)},
            {"resume_from_path": str(root)},
            {"resume_mode": "other"},
        )
        refused = [raised(handler(**options)[0].load_checkpoint) for options in wrong]
    return {
        "saved": engine.calls,
        "files": sorted(path.name for path in (root / "global_step_12").iterdir()),
        "tracker": (root / "latest_checkpointed_iteration.txt").read_text(),
        "left over": [path.name for path in root.iterdir() if path.suffix == ".tmp"],
        "meta": json.loads((root / "global_step_12" / "lora_train_meta.json").read_text()),
        "loaded": loaded,
        "refused": refused,
    }


_DATA = {"place": 5}


HANDLED: Mapping[str, Any] = {
    "saved": [
        {"local_path": f"global_step_{step}", "global_step": step, "max_ckpt_to_keep": 2} for step in (3, 12)
    ],
    "files": ["data_0.pt", "lora_train_meta.json"],
    "tracker": "12",
    "left over": [],
    "meta": {"r": 8},
    "loaded": {
        "auto": [12, ["global_step_12"], [_DATA]],
        "disable": [0, [], []],
        "path": [3, ["global_step_3"], [_DATA]],
        "auto with a path": [3, ["global_step_3"], [_DATA]],
        "none yet": [0, [], []],
        "no data": [3, []],
    },
    "refused": ["AssertionError", "AssertionError", "AssertionError", "ValueError"],
}


def _expiring(due: Callable[..., Any]) -> list[bool]:
    """Return whether a checkpoint is due, by seconds that are left of a lease."""
    found = [due(100)]
    for name in (
        "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
        "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    ):
        for left in (100, 150, 200):
            with mock.patch.dict(os.environ, {name: str(int(time.time()) + left)}):
                found.append(bool(due(60, save_ckpt_duration=60, redundant_time=10)))
        with mock.patch.dict(os.environ, {name: str(int(time.time()) + 150)}):
            found.append(bool(due(60, save_ckpt_duration=60, redundant_time=90)))
    over = {"MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP": str(int(time.time()) - 50)}
    with mock.patch.dict(os.environ, over):
        found.append(bool(due(60)))
    return found


ROWS: Sequence[Row] = (
    Row(
        "files",
        f"{FILES}verify_copy",
        "copies",
        _copied,
        [True, False, False, False, False, False, True, False],
    ),
    Row(
        "files",
        f"{FILES}copy_to_local",
        "what is fetched",
        _local,
        [True, "model", True, True, [1, 2, True, 3], "/none/model", "AssertionError"],
    ),
    Row(
        "checkpoints",
        f"{CHECKPOINTS}checkpoint_handler:CheckpointHandler",
        "two steps",
        _handled,
        HANDLED,
        since="0.4",
    ),
    Row(
        "checkpoints",
        f"{CHECKPOINTS}checkpoint_manager:should_save_ckpt_esi",
        "seconds that are left",
        _expiring,
        [False, *(True, False, False, True) * 2, False],
    ),
    Row(
        "checkpoints",
        f"{CHECKPOINTS}checkpoint_handler:extract_step",
        "names of folders",
        lambda step: [step("a/global_step_12"), step("a/global_step_3/b"), step("a/step_3")],
        [12, 3, None],
    ),
)
