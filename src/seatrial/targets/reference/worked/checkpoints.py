"""Worked examples of checkpoints: what is written, kept and found again."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refrl.checkpointing.checkpointer import Checkpointer, RunFacts
from refrl.checkpointing.layout import (
    file_digest,
    final_directory,
    info_bytes,
    latest_checkpoint,
    read_checkpoint,
    remove_superfluous,
    remove_unfinished,
    whole_checkpoints,
)
from refrl.checkpointing.tensors import BackgroundWriter, read_tensors, write_tensors
from refrl.config import CheckpointingConfig
from refrl.directories import new_directory
from refrl.distributed import ALONE
from refrl.tasks import Example
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.flushed import of_flushes
from seatrial.targets.reference.worked.made import example, refused

EXAMPLES = [Example(1, "p", "a", "made"), Example(2, "q", "b", "made")]


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_contents()
    yield from _of_directories()
    yield from _of_ranking()
    yield from of_flushes(_written, in_folder)


def in_folder(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a folder of its own as its first argument; what it prints is dropped."""

    def call(*words: Any, **options: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
            return function(Path(folder), *words, **options)

    return call


class MadePolicy:
    """A policy of one tensor and one counter."""

    def __init__(self, value: float = 0.0) -> None:
        self.weight, self.facts = torch.full((3,), value), {"version": int(value)}

    def state_tensors(self) -> Mapping[str, Tensor]:
        return {"weight": self.weight}

    def state_facts(self) -> Mapping[str, Any]:
        return self.facts

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)


class Counted:
    """A part whose state is a number."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def state_dict(self) -> Mapping[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]


def checkpointer(
    folder: Path,
    policy: MadePolicy | None = None,
    parts: Mapping[str, Counted] | None = None,
    *,
    seed: int = 3,
    data: Sequence[Example] = EXAMPLES,
    **options: Any,
) -> Checkpointer:
    """Return a checkpointer that writes to a folder at once, of a made policy and made parts."""
    config = CheckpointingConfig(
        checkpoint_dir=str(folder), **{"save_period": 1, "async_save": False, **options}
    )
    facts = RunFacts(run_id="one", seed=seed, examples=data, config={"grpo": {"seed": seed}})
    chosen = {"prompts": Counted()} if parts is None else parts
    return Checkpointer(config, policy or MadePolicy(), chosen, facts=facts, world=ALONE)


def _written(folder: Path, in_background: bool) -> None:
    saver = checkpointer(folder, async_save=in_background)
    saver.save(2, None)
    saver.close()


def _contents(folder: Path) -> Any:
    saver = checkpointer(folder, MadePolicy(7.0), {"prompts": Counted(4), "rollouts": Counted(9)})
    saver.save(2, 0.5, finished=True)
    saver.close()
    (found,) = whole_checkpoints(folder)
    info = found.info
    facts = (info.step, info.finished, info.run_id, info.metric, info.seed, info.world_size)
    states = (info.policy, info.parts, info.config, len(info.streams), list(info.files) == list(info.digests))
    policy, parts = MadePolicy(), {"prompts": Counted(), "rollouts": Counted()}
    checkpointer(folder, policy, parts).restore(found)
    return facts, states, (policy.weight, policy.facts, [part.number for part in parts.values()])


def _restored(folder: Path, **options: Any) -> None:
    saver = checkpointer(folder)
    saver.save(2, None)
    checkpointer(folder, **options).restore(whole_checkpoints(folder)[0])


def _read_into(folder: Path, into: Mapping[str, Tensor]) -> Any:
    write_tensors({"a": torch.arange(3.0), "b": torch.ones(2, 2)}, folder / "policy")
    read_tensors(folder / "policy", into)
    return dict(into)


def _note(seen: list[Any], tensor: Tensor) -> None:
    seen.append(tensor.tolist())


def _staged() -> Any:
    """Return what three writes of a tensor that changes in between have seen, and in which order."""
    seen: list[Any] = []
    writer, tensor = BackgroundWriter(background=True), torch.zeros(2)
    for number in range(3):
        tensor.fill_(number)
        staged = writer.stage({"a": tensor})
        tensor.fill_(-1)
        writer.start(partial(_note, seen, staged["a"]), then=partial(seen.append, number))
    writer.close()
    return seen


def _failed(*, background: bool) -> Any:
    writer, seen = BackgroundWriter(background=background), []

    def fail() -> None:
        raise OSError("full")

    try:
        writer.start(fail, then=lambda: seen.append("then"))
        writer.finish()
    except OSError as error:
        writer.close()
        return str(error), seen
    return "", seen


def _of_contents() -> Iterator[WorkedExample]:
    config = {"grpo": {"seed": 3}}
    parts = {"prompts": {"number": 4}, "rollouts": {"number": 9}}
    yield example(
        "what a checkpoint contains",
        (
            (2, True, "one", 0.5, 3, 1),
            ({"version": 7}, parts, config, 1, True),
            ([7.0, 7.0, 7.0], {"version": 7}, [4, 9]),
        ),
        in_folder(_contents),
    )
    yield refused("was saved with other seed (3, now 4)", "another seed", in_folder(_restored), seed=4)
    yield refused(
        "other training prompts",
        "another answer",
        in_folder(_restored),
        data=[EXAMPLES[0], Example(2, "q", "c", "made")],
    )
    yield refused("other training prompts", "another order", in_folder(_restored), data=EXAMPLES[::-1])
    yield refused(
        "was saved with other parts (['prompts'], now ['rollouts'])",
        "other parts",
        in_folder(_restored),
        parts={"rollouts": Counted()},
    )
    yield example("the same run", None, in_folder(_restored))
    empty = {"a": torch.zeros(3), "b": torch.zeros(2, 2)}
    yield example(
        "tensors come back",
        {"a": [0.0, 1.0, 2.0], "b": [[1.0, 1.0], [1.0, 1.0]]},
        in_folder(_read_into),
        empty,
    )
    yield refused(
        "missing 1 tensors of this run ['c'] and has 0 unknown ones []",
        "a tensor too many",
        in_folder(_read_into),
        {**empty, "c": torch.zeros(1)},
    )
    yield refused(
        "missing 0 tensors of this run [] and has 1 unknown ones ['b']",
        "a tensor too few",
        in_folder(_read_into),
        {"a": torch.zeros(3)},
    )
    yield refused(
        "a as (3,)", "a tensor of another shape", in_folder(_read_into), {**empty, "a": torch.zeros(4)}
    )
    yield refused(
        "b as (2, 2)",
        "a tensor of another type",
        in_folder(_read_into),
        {**empty, "b": torch.zeros(2, 2).double()},
    )
    yield example(
        "tensors of their own write, and what follows", [[0.0, 0.0], 0, [1.0, 1.0], 1, [2.0, 2.0], 2], _staged
    )
    for background in (True, False):
        yield example(
            f"nothing follows a failed write, background={background}",
            ("full", []),
            _failed,
            background=background,
        )


def saved_with(folder: Path, metrics: Sequence[float | None]) -> Path:
    """Write a checkpoint with each of these metrics, copies of one, and return where they are."""
    root = folder / "kept"
    for step, metric in enumerate(metrics, 1):
        directory = root / f"step_{step}"
        if step == 1:
            saver = checkpointer(root)
            saver.save(1, None)
            saver.close()
        else:
            shutil.copytree(root / "step_1", directory)
        _changed_info(step=step, metric=metric, streams=[])(directory)
    return root


def _damaged(folder: Path, change: Callable[[Path], None]) -> Any:
    """Return which of three checkpoints are whole and which one is resumed from, after a change of the last one."""
    root = saved_with(folder, [None, None, None])
    change(root / "step_3")
    latest = latest_checkpoint(root)
    return [one.info.step for one in whole_checkpoints(root)], latest and latest.info.step


def _flip(pattern: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = next(directory.rglob(pattern))
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])

    return change


def _changed_info(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "training_info.json"
        found: Any = read_checkpoint(directory)
        path.write_bytes(info_bytes(found.info.model_copy(update=changes)))

    return change


def _second_file(directory: Path) -> None:
    """Add a file that the index lists, and change it after."""
    found: Any = read_checkpoint(directory)
    (directory / "z").write_text("b", encoding="utf-8")
    digests = {**found.info.digests, "z": "0" * 64}
    _changed_info(files={**found.info.files, "z": 1}, digests=digests)(directory)


def _damage_of_two(directory: Path) -> None:
    for one in (directory, directory.with_name("step_2")):
        _flip("*.safetensors")(one)


def _digests(folder: Path) -> list[int]:
    """Return the sizes of files whose digest is not the SHA-256 of all bytes."""
    wrong = []
    for size in (0, 1, 2**12 + 1, 2**16, 2**16 + 1, 2**18 + 1, 2**20 + 1, 2**22 + 1):
        content = bytes(size - 1) + b"x" if size else b""
        (folder / "x").write_bytes(content)
        wrong += [size] * (file_digest(folder / "x") != hashlib.sha256(content).hexdigest())
    return wrong


def _of_directories() -> Iterator[WorkedExample]:
    damaged = in_folder(_damaged)
    whole, two = ([1, 2, 3], 2), ([1, 2], 2)
    yield example("digests of files of any size", [], in_folder(_digests))
    yield example("no damage", ([1, 2, 3], 3), damaged, lambda directory: None)
    yield example("a byte of the tensors", whole, damaged, _flip("*.safetensors"))
    yield example("a byte of the second file", whole, damaged, _second_file)
    yield example("a byte of the index", two, damaged, _flip("training_info.json"))
    yield example("no index", two, damaged, lambda directory: (directory / "training_info.json").unlink())
    yield example("a file too few", two, damaged, lambda directory: shutil.rmtree(directory / "policy"))
    yield example(
        "a shorter file",
        two,
        damaged,
        lambda directory: next(directory.rglob("*.safetensors")).write_bytes(b""),
    )
    for version in (0, 2):
        yield example(f"form {version}", two, damaged, _changed_info(schema_version=version))
    yield example("an earlier form without digests", ([1, 2, 3], 3), damaged, _changed_info(digests={}))
    yield example("two of three damaged", ([1, 2, 3], 1), damaged, _damage_of_two)
    yield example("steps by number", [2, 9, 10], in_folder(_ten))
    yield example("unfinished ones are removed", (["final", "step_1"], [1]), in_folder(_unfinished))
    yield example("a written directory", (["a"], True, []), in_folder(_new_directory))
    yield example("permissions of an ordinary file", [True, True], in_folder(_permissions))
    yield example("nothing of a failed one", ([], []), in_folder(_failed_directory))
    yield example(
        "no export", None, lambda: final_directory(CheckpointingConfig(checkpoint_dir="x", enabled=False))
    )
    yield refused("exists; name a new", "an export of another run", in_folder(_final), [])
    yield example("an export of this run", "final", in_folder(_final), [None])


def _ten(folder: Path) -> Any:
    root = saved_with(folder, [None] * 10)
    for step in (1, *range(3, 9)):
        shutil.rmtree(root / f"step_{step}")
    (root / "step_x").mkdir()
    return [one.info.step for one in whole_checkpoints(root)]


def _unfinished(folder: Path) -> Any:
    root = saved_with(folder, [None])
    for name in (".step_2.abc", ".step_1.removed", "final"):
        (root / name).mkdir()
    remove_unfinished(root)
    return sorted(path.name for path in root.iterdir()), [one.info.step for one in whole_checkpoints(root)]


def _new_directory(folder: Path) -> Any:
    with new_directory(folder / "made") as temporary:
        (temporary / "a").touch(mode=0o600)
        is_hidden = not (folder / "made").exists()
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    return [path.name for path in (folder / "made").iterdir()], is_hidden, hidden


def _permissions(folder: Path) -> Any:
    with new_directory(folder / "made") as temporary:
        (temporary / "head").mkdir()
        for path in (temporary / "a", temporary / "head" / "b"):
            path.touch(mode=0o600)
    plain = folder / "plain"
    plain.touch()
    return [(folder / "made" / name).stat().st_mode == plain.stat().st_mode for name in ("a", "head/b")]


def _failed_directory(folder: Path) -> Any:
    try:
        with new_directory(folder / "made") as temporary:
            (temporary / "a").touch()
            raise KeyError
    except KeyError:
        return [path.name for path in folder.iterdir()], list((folder / "made").glob("*"))


def _final(folder: Path, metrics: Sequence[float | None]) -> Any:
    root = saved_with(folder, metrics)
    (root / "final").mkdir(parents=True)
    found = final_directory(CheckpointingConfig(checkpoint_dir=str(root)))
    return found and found.name


def _kept(folder: Path, metrics: Sequence[float | None], **options: Any) -> Any:
    root = saved_with(folder, metrics)
    chosen = {"metric_name": "val:accuracy", **options}
    remove_superfluous(root, CheckpointingConfig(checkpoint_dir=str(root), save_period=1, **chosen))
    return [one.info.step for one in whole_checkpoints(root)]


def _of_ranking() -> Iterator[WorkedExample]:
    kept, nan = in_folder(_kept), float("nan")
    metrics = [0.5, 0.9, nan, 0.9, None, 0.1]
    for top, right in ((1, [4, 6]), (2, [2, 4, 6]), (3, [1, 2, 4, 6]), (6, [1, 2, 3, 4, 5, 6])):
        yield example(f"the best {top} and the latest", right, kept, metrics, keep_top_k=top)
    yield example("the lowest two", [1, 6], kept, metrics, keep_top_k=2, higher_is_better=False)
    yield example("the latest two", [5, 6], kept, metrics, keep_top_k=2, metric_name=None)
    yield example("all", [1, 2, 3, 4, 5, 6], kept, metrics, keep_top_k=None, metric_name=None)
    yield example(
        "negative metrics, and one that is missing", [2, 3, 4], kept, [None, -0.5, -0.25, -2.0], keep_top_k=2
    )
    yield example("the best is the latest", [2], kept, [0.5, 0.75], keep_top_k=1)
