"""Worked examples of what is passed on: calls of wrappers, tasks in the background, stores and folders that end."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from refrl import lifeline
from refrl.checkpointing.tensors import BackgroundWriter
from refrl.config import DataConfig
from refrl.data_plane import KVBatchMeta, factory
from refrl.data_plane.columns import pad
from refrl.data_plane.errors import DataLostError, StoreUnavailableError
from refrl.data_plane.observability import ObservedClient, Operation
from refrl.data_plane.store import BlockGoneError
from refrl.directories import naming, new_directory
from refrl.media import PLACEHOLDER
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rollout.progress import Origin, RolloutProgress
from refrl.tasks.base import PromptSource, make_splits, make_task
from refrl.tasks.examples import Example, stable_id
from refrl.training.session import Observer, Observers
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import example, for_all, made_tensor, refused, rollouts
from seatrial.targets.reference.worked.options import refuses


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_calls()
    yield from _of_ends()
    yield from _of_places()
    yield from for_all(PROPERTIES)


class _Noted:
    """Notes each call of any method, and returns or raises what it was given."""

    def __init__(self, result: Any = None) -> None:
        self.calls: list[Any] = []
        self.result = result

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **options: Any) -> Any:
            self.calls.append((name, words, options))
            if isinstance(self.result, Exception):
                raise self.result
            return self.result

        return call


META = KVBatchMeta(partition_id="p", sample_ids=["a", "b"])
VALUES = {"x": torch.zeros(2, 3), "y": [torch.zeros(4), torch.zeros(1)]}
"""44 bytes."""
OPERATIONS: Mapping[str, tuple[Sequence[Any], Any, tuple[int, int] | None]] = {
    "register_partition": (("p", ["x"], 2, ["train"]), None, (0, 0)),
    "put_samples": ((["a", "b"], "p", VALUES, [{"k": 1}, {}]), META, (2, 44)),
    "get_samples": ((["a", "b"], "p", ["x", "y"]), VALUES, (2, 44)),
    "claim_meta": (("p", "train", 2), META, (2, 0)),
    "renew": ((META,), None, (2, 0)),
    "acknowledge": ((META,), None, (2, 0)),
    "release": ((META,), None, (2, 0)),
    "get_data": ((META, ["x", "y"]), VALUES, (2, 44)),
    "check_consumption_status": (("p", ["train"]), True, (0, 0)),
    "clear_samples": ((["a", "b"], "p"), None, (2, 0)),
    "acknowledged": (("p", "train"), ["a"], None),
    "status": (("p",), "s", None),
    "partitions": ((), ["p"], None),
    "close": ((), None, None),
}
"""By method of a client: words, result, and (keys, bytes) that are reported."""


def _of_calls() -> Iterator[WorkedExample]:
    for name, (words, result, sizes) in OPERATIONS.items():
        reported = (
            [] if sizes is None else [(name, "p", *sizes, "ok"), (name, "p", "error"), (name, "p", "timeout")]
        )
        yield example(
            f"{name} of a watched client", (True, True, True, reported), _watched, name, words, result
        )
    events = [name for name, value in vars(Observer).items() if callable(value)]
    num_words = {"started": 1, "synced": 1, "ended": 1, "scored": 4, "validated": 4}
    for name in events:
        yield example(f"{name} of several observers", True, _notified, name, num_words.get(name, 2))
    for needs in ((), (False,), (False, True), (True, False)):
        members: Any = [SimpleNamespace(needs_gradients=one) for one in needs]
        yield example(
            f"observers that need gradients: {needs}",
            any(needs),
            lambda of=members: Observers(of).needs_gradients,
        )
    yield example("an observer needs no gradients", False, lambda: Observer.needs_gradients)


def _watched(name: str, words: Sequence[Any], result: Any) -> Any:
    """Return whether call, result and error of a watched client are those of its own, and what was reported."""
    seen: list[Operation] = []
    good, bad, late = _Noted(result), _Noted(KeyError("k")), _Noted(TimeoutError("t"))
    answers = []
    for inner in (good, bad, late):
        try:
            answers.append(getattr(ObservedClient(inner, seen.append), name)(*words))
        except (KeyError, TimeoutError) as error:
            answers.append(error)
    same = all(inner.calls == [(name, tuple(words), {})] for inner in (good, bad, late))
    reported: list[Any] = [
        (one.op, one.partition_id, one.n_keys, one.n_bytes, one.status) for one in seen[:1]
    ]
    reported += [(one.op, one.partition_id, one.status) for one in seen[1:]]
    return same, answers[0] is result, answers[1:] == [bad.result, late.result], reported


def _notified(name: str, num_words: int) -> bool:
    order: list[Any] = []

    def member(number: int) -> Any:
        return SimpleNamespace(needs_gradients=False, **{name: lambda *words: order.append((number, words))})

    words = tuple(object() for _ in range(num_words))
    getattr(Observers([member(1), member(2), member(3)]), name)(*words)
    return order == [(number, words) for number in (1, 2, 3)]


def _of_ends() -> Iterator[WorkedExample]:
    for background in (False, True):
        name = "in the background" if background else "at once"
        yield example(f"tasks {name}", ["1", "then 1", "2", "then 2", "closed"], _tasks, background)
        yield example(f"a task that fails {name}", (["OSError"], ["3", "then 3"]), _failed_task, background)
    for num_moves, right in ((0, [[1.0, 2.0]]), (2, [[1.0, 2.0]]), (3, ["DataLostError"])):
        yield example(f"a block that is moved {num_moves} times while it is read", right, _moved, num_moves)
    yield example("staged tensors are copies", ([1.0, 2.0], [5.0, 2.0], True), _staged)
    for what, right in (
        ("ends well", ["close"]),
        ("raises", ["ValueError: x"]),
        ("cannot be begun", ["ConfigError: data_plane.implementation=local: gone"]),
        (
            "needs a package",
            ["ConfigError: data_plane.implementation=local: no ray: pip install 'seatrial[local]'"],
        ),
    ):
        yield example(f"a store whose block {what}", right, _opened, what)
    yield example("a folder that is filled", (["f"], True, True), in_folder(_filled))
    yield example("a folder that fails", ("ValueError", []), in_folder(_broken_folder))
    yield example("an error without a name", ("No space", "there"), _named, OSError(28, "No space"))
    yield example("an error without a number", (None, None), _named, OSError("full"))
    yield example("an error with a name", ("No file", "own"), _named, OSError(2, "No file", "own"))


def _tasks(background: bool) -> list[str]:
    seen: list[str] = []
    writer = BackgroundWriter(background=background)
    for number in ("1", "2"):
        writer.start(partial(seen.append, number), partial(seen.append, f"then {number}"))
    writer.close()
    return [*seen, "closed"]


def _failed_task(background: bool) -> Any:
    seen: list[str] = []
    errors: list[str] = []

    def fails() -> None:
        raise OSError("full")

    writer = BackgroundWriter(background=background)
    try:
        writer.start(fails, partial(seen.append, "then"))
        writer.wait()
    except OSError as error:
        errors.append(type(error).__name__)
    writer.start(partial(seen.append, "3"), partial(seen.append, "then 3"))
    writer.close()
    return errors, seen


def _moved(num_moves: int) -> list[Any]:
    client, left = factory.local_client(lease_s=60.0), [num_moves]
    client.register_partition("p", ["x"], 2, ["train"])
    client.put_samples(["a", "b"], "p", {"x": torch.tensor([1.0, 2.0])})
    read = client._store.read

    def moving(wanted: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise BlockGoneError("moved")
        return read(wanted)

    with patch.object(client._store, "read", moving):
        try:
            return [client.get_samples(["a", "b"], "p", ["x"])["x"].tolist()]  # type: ignore[union-attr]
        except DataLostError:
            return ["DataLostError"]


def _staged() -> Any:
    writer, own = BackgroundWriter(background=False), torch.tensor([1.0, 2.0])
    first = writer.stage({"w": own})["w"]
    own[0] = 5.0
    before = first.tolist()
    second = writer.stage({"w": own})["w"]
    return before, second.tolist(), second.data_ptr() == first.data_ptr()


def _opened(what: str) -> list[str]:
    client = _Noted()
    raised = {"cannot be begun": StoreUnavailableError("gone"), "needs a package": ImportError("no ray")}.get(
        what
    )

    def build(config: Any) -> Any:
        if raised is not None:
            raise raised
        return client

    config: Any = SimpleNamespace(implementation="local")
    try:
        with patch.object(factory, "build_data_plane_client", build), factory.opened_data_plane(config):
            if what == "raises":
                raise ValueError("x")
    except Exception as error:  # noqa: BLE001  the result
        return [f"{type(error).__name__}: {error}"]
    return [name for name, _, _ in client.calls]


def _filled(folder: Path) -> Any:
    output = folder / "a" / "b"
    with new_directory(output) as inside:
        hidden = not output.exists()
        (inside / "f").touch()
    return (
        [one.name for one in output.iterdir()],
        hidden,
        output.stat().st_mode == output.parent.stat().st_mode,
    )


def _broken_folder(folder: Path) -> Any:
    try:
        with new_directory(folder / "b") as inside:
            (inside / "f").touch()
            raise ValueError
    except ValueError as error:
        return type(error).__name__, list(folder.iterdir())


def _named(error: OSError) -> Any:
    try:
        with naming(Path("there")):
            raise error
    except OSError as found:
        return found.strerror, found.filename


def _of_places() -> Iterator[WorkedExample]:
    ray, process, run = lifeline.RAY_NODE, lifeline.RENDEZVOUS, lifeline.TORCHRUN
    for names, right in (
        ((), (False, "inline", False)),
        ((process,), (True, "process", False)),
        ((run,), (True, "torchrun", False)),
        ((process, run), (True, "process", False)),
        ((process, ray), (True, "ray", True)),
    ):
        yield example(f"a process that was given {names}", right, _placed, names)
    layouts = "policy.dtensor_cfg.enabled", "policy.dtensor_cfg.tensor_parallel_size"
    for rows, processes, sharing, words in (
        (4, 4, 1, ""),
        (4, 3, 1, "policy.train_global_batch_size=4 is not a multiple of cluster.num_processes=3: "),
        (4, 8, 2, ""),
        (6, 8, 2, "policy.train_global_batch_size=6 is not a multiple of cluster.num_processes=8 / 2: "),
        (4, 3, 2, "cluster.num_processes=3 is not a multiple of 2, "),
        (2, 4, 2, ""),
    ):
        options = {
            "policy.train_global_batch_size": rows,
            "cluster.num_processes": processes,
            "policy.generation.colocated.enabled": True,
            layouts[0]: True,
            layouts[1]: sharing,
        }
        yield example(
            f"{rows} rows for {processes} processes, {sharing} of which share them",
            True,
            lambda options=options, words=words: words in (said := refuses(options)) and bool(words) == bool(
                "multiple of" in said
            ),
        )  # fmt: skip
    yield refused("a row has 3 tokens, more than the 2", "rows wider by one", pad, [torch.ones(3)], 0, 2)


def _placed(names: Sequence[str]) -> Any:
    kept = {name: value for name, value in os.environ.items()
            if name not in (lifeline.RAY_NODE, lifeline.RENDEZVOUS, lifeline.TORCHRUN)}  # fmt: skip
    with patch.dict(os.environ, {**kept, **dict.fromkeys(names, "x")}, clear=True):
        return lifeline.is_started(), lifeline.placed_by(), lifeline.node() == "x"


def _padded(stream: random.Random) -> bool:
    rows = [made_tensor(stream, [stream.randrange(5), 2]) for _ in range(stream.randint(1, 4))]
    longest = max(map(len, rows))
    for width in (None, longest, longest + 2):
        found = pad(rows, 7.0, width)
        fill = [[7.0, 7.0]]
        right = [[*row.tolist(), *fill * ((longest if width is None else width) - len(row))] for row in rows]
        if not isinstance(found, torch.Tensor) or found.tolist() != right:
            return False
    objects = np.array([1, "a"], dtype=object)
    flat, dense = torch.ones(3), torch.ones(2, 3)
    return pad(objects, 0) is objects and pad(flat, 0, 9) is flat and pad(dense, 0) is dense


def _prompts_with_media(stream: random.Random) -> bool:
    """Texts with and without places of images, in any order: each place is one token, and the text as ever."""
    tokenizer = make_byte_tokenizer()
    texts = ["".join(stream.choices(["a", "é", PLACEHOLDER], k=stream.randint(1, 5))) for _ in range(3)]
    own = [tuple(tokenizer(text.replace(PLACEHOLDER, "\0"))["input_ids"]) for text in texts]
    (zero,) = tokenizer("\0", add_special_tokens=False)["input_ids"]
    right = [tuple(999 if token == zero else token for token in ids) for ids in own]
    plain = [tuple(tokenizer(text)["input_ids"]) for text in texts]
    return (
        PromptEncoder(tokenizer, media_token_id=999).prompts(texts) == right
        and PromptEncoder(tokenizer).prompts(texts) == plain
    )


def _origins(stream: random.Random) -> bool:
    made = [Example(number, f"p{number}", "a", "t", stream.choice((None, "s")), stream.choice((None, "m")))
            for number in range(stream.randrange(4))]  # fmt: skip
    origin = Origin(made, {"n": 2.0}, stream.choice((None, rollouts())), {"generation": 1.0})
    again = Origin.of(json.loads(json.dumps(origin.state())))
    source = PromptSource([Example(number, "", "", "") for number in range(5)], seed=1, shuffle=True)
    progress = RolloutProgress(source)
    source.draw(first := stream.randint(1, 7))
    at_start = progress.state_dict()
    progress.note({"k": first})
    right = [one.prompt_id for one in source.draw(6)]
    state = json.loads(json.dumps(progress.state_dict()))
    then = RolloutProgress(
        other := PromptSource([Example(n, "", "", "") for n in range(5)], seed=1, shuffle=True)
    )
    then.load_state_dict(state)
    return (
        again == replace(origin, seconds={})
        and (at_start["prompts"]["num_drawn"], at_start["collector"]) == (0, None)
        and [one.prompt_id for one in other.draw(6)] == right
        and then.state_dict() == state
        and then.collector == {"k": first}
    )


def _ids_of_tasks(stream: random.Random) -> bool:
    """Prompts of both splits differ, have answers of the task, and an id by number or, in a large space, by text."""
    for name, options, large in (
        ("add", {"digits": 1}, False),
        ("add", {"digits": 30}, True),
        ("reverse", {"alphabet_size": 26, "min_length": 1, "max_length": 30}, True),
        ("reverse", {"alphabet_size": 3, "min_length": 1, "max_length": 4}, False),
    ):
        task = make_task(name, options)
        drawn = {"task": name, "task_args": options, "num_train": 9, "num_validation": 4}
        config = DataConfig.model_validate({**drawn, "seed": stream.randrange(99)})
        splits = make_splits(config)
        rows = [*splits.train, *splits.validation]
        right = [stable_id(one.prompt) if large else one.prompt_id for one in rows]
        answers = all(task.example(one.prompt_id) == (one.prompt, one.answer) for one in rows if not large)
        if not (
            [one.prompt_id for one in rows] == right
            and len(set(right)) == len({one.prompt for one in rows}) == 13
            and all(0 <= one.prompt_id < 2**63 and one.task == name for one in rows)
            and answers
            and make_splits(config) == splits
        ):
            return False
    return True


PROPERTIES: Mapping[str, tuple[Callable[[random.Random], bool], int]] = {
    "rows are widened as lists are": (_padded, 6),
    "each place of an image is one token": (_prompts_with_media, 4),
    "origins and progress come back": (_origins, 4),
    "ids of prompts are numbers or digests": (_ids_of_tasks, 2),
}
"""By name: whether a property holds for the random inputs of a stream, and how many streams are tried."""
