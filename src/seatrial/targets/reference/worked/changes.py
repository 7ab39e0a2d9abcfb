"""Worked examples of changes: inputs of resumed runs, files in the way, sizes in bytes, caches, ranks that drift."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from refrl.checkpointing import attempts
from refrl.checkpointing.checkpointer import RunFacts, metric_tag
from refrl.checkpointing.layout import whole_checkpoints
from refrl.config import CheckpointingConfig, ConfigError
from refrl.config.registry import import_object
from refrl.distributed import World
from refrl.generation.receiving import StagedEngine
from refrl.generation.vllm.engine import VllmGenerator
from refrl.policy.module_policy import ModulePolicy
from refrl.tasks.examples import Example, longest_prompts, stable_id
from refrl.tasks.files.rows import Columns
from refrl.tasks.files.splits import FileExamples, scan_rows
from refrl.training.build import build_sampling
from refrl.weight_sync.base import WeightSyncError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.limits.models import model_of
from seatrial.targets.reference.worked.checkpoints import checkpointer, in_folder
from seatrial.targets.reference.worked.made import example, for_all, refused
from seatrial.targets.reference.worked.made_ranks import by_rank

LETTERS = 'ab é漢😀\u2028"\\\n'
"""Of one to four bytes; some break lines."""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_resumes()
    yield from of_resumed_weights("hf")
    yield from _of_files()
    yield from _of_engines()
    yield from of_agreement("rows")


ROW = Example(7, "p" * 999, "a" * 999, "made", solution="s" * 999, media="m" * 999)
CHANGES: Mapping[str, Sequence[Example]] = {
    "another id": [replace(ROW, prompt_id=8)],
    "another prompt": [replace(ROW, prompt="p" * 998 + "P")],
    "another answer": [replace(ROW, answer="a" * 998 + "A")],
    "another solution": [replace(ROW, solution="s" * 998 + "S")],
    "no solution": [replace(ROW, solution=None)],
    "another image": [replace(ROW, media="m" * 998 + "M")],
    "no image": [replace(ROW, media=None)],
    "a row more": [ROW, ROW],
    "no row": [],
}


def _of_resumes() -> Iterator[WorkedExample]:
    def restored(folder: Path, before: Sequence[Example], now: Sequence[Example]) -> None:
        saver = checkpointer(folder, data=before)
        saver.save(2, None)
        (found,) = whole_checkpoints(folder)
        checkpointer(folder, data=now).restore(found)

    yield example("a resume with the same rows", None, in_folder(restored), [ROW], [replace(ROW)])
    for what, rows in CHANGES.items():
        words = "was saved with other training prompts (data.*)"
        yield refused(words, f"a resume with {what}", in_folder(restored), [ROW], rows)
    other = replace(ROW, prompt="q")
    words = "was saved with other training prompts (data.*)"
    yield refused(
        words, "a resume with rows in another order", in_folder(restored), [ROW, other], [other, ROW]
    )
    digests = [RunFacts(run_id="", seed=0, examples=rows, config={}).data for rows in CHANGES.values()]
    yield example("digests of changed rows", len(CHANGES), lambda: len(set(digests)))

    before = {
        "policy": {"tokenizer": {"path": "a", "chat_template": None}},
        "data": {"verifier": "x", "n": 1},
    }
    now = {
        "policy": {"tokenizer": {"path": "b", "chat_template": "t"}},
        "data": {"verifier": "y", "n": 1},
        "z": 0,
    }
    yield example(
        "a resume with another tokenizer, template and verifier",
        [
            "data.verifier was 'x', is 'y'",
            "policy.tokenizer.chat_template was None, is 't'",
            "policy.tokenizer.path was 'a', is 'b'",
            "z was None, is 0",
        ],
        lambda: list(attempts._changes(before, now)),
    )
    for name, tag in (("val:accuracy", "validation/accuracy"), ("train:a/b:c", "train/a/b:c"), (None, None)):
        config = CheckpointingConfig(checkpoint_dir="x", save_period=1, metric_name=name)
        yield example(f"the tag of {name}", tag, metric_tag, config)


def of_resumed_weights(backend: str) -> Iterator[WorkedExample]:
    """Yield resumes of a backend (`hf`, `megatron`) with frozen weights and references of all kinds."""
    frozen = {"w": torch.tensor([1.0, 2.0]), "v": torch.tensor([3.0])}
    drifted = {**frozen, "w": torch.tensor([1.0, math.nextafter(2.0, 3.0) + 2.0**-22])}
    renamed = {"w": frozen["w"], "u": frozen["v"]}
    halved = {name: tensor.bfloat16() for name, tensor in frozen.items()}
    kinds: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor] | None]] = {
        "the same": (frozen, frozen),
        "another reference": (frozen, drifted),
        "no reference": (frozen, None),
        "other frozen weights": (drifted, frozen),
        "another name": (frozen, renamed),
        "another type": (halved, frozen),
        "frozen weights for a reference": ({}, frozen),
    }
    for what, given in kinds.items():
        name, right = (
            f"a resume of {backend} with weights: {what}",
            [5, 5] if what == "the same" else "ConfigError",
        )
        yield example(name, right, _resumed, backend, (frozen, frozen), given)


def _resumed(backend: str, before: tuple[Any, Any], now: tuple[Any, Any]) -> Any:
    """Return the counters of a policy that takes the facts of another, or the name of the error."""
    if backend == "megatron":
        from refrl.policy.megatron import policy as module

        kind: Any = module.MegatronPolicy
        nothing_to_take = patch.object(module, "take")
    else:
        kind, nothing_to_take = ModulePolicy, contextlib.nullcontext()  # type: ignore[assignment]
    counters: list[Any] = []

    def policy(weights: tuple[Any, Any], num_updates: int) -> Any:
        own, reference = weights
        counter = SimpleNamespace(num_updates_done=num_updates)
        counters.append(counter)
        optimizer: Any = (
            counter
            if kind is ModulePolicy
            else SimpleNamespace(
                adamw=counter, state=dict, set_steps=lambda num: setattr(counter, "num_updates_done", num)
            )
        )
        trained = SimpleNamespace(parameters={})
        return SimpleNamespace(
            _frozen=None,
            _frozen_weights=lambda: iter(own.items()),
            _weights=SimpleNamespace(adapters=1, base_weights=lambda: iter(own.items()), trained=trained),
            _state={},
            reference_weights=lambda: None if reference is None else iter(reference.items()),
            _optimizer=optimizer,
            _auxiliary=SimpleNamespace(resume=lambda num: None),
        )

    first, then = policy(before, 5), policy(now, 0)
    facts = kind.state_facts(first)
    then.state_facts = lambda: kind.state_facts(then)
    try:
        with nothing_to_take:
            kind.load_state_facts(then, facts)
    except ConfigError:
        return "ConfigError"
    return [counter.num_updates_done for counter in counters]


def _of_files() -> Iterator[WorkedExample]:
    yield example("a module that the current folder has too", ["installed", "folder"], _shadowed)
    for suffix in (".jsonl", ".parquet", ".arrow", "folder"):
        holds = partial(in_folder(_file_holds), suffix)
        yield from for_all({f"prompts of {suffix} by their bytes": (holds, 4)})


def _shadowed() -> list[str]:
    """Return what is imported of two modules: both places have the first, the current folder alone the second."""
    names = ["made_shadowed_module", "made_module_of_the_folder"]
    with tempfile.TemporaryDirectory() as installed, tempfile.TemporaryDirectory() as here:
        Path(installed, f"{names[0]}.py").write_text("where = 'installed'\n")
        for name in names:
            Path(here, f"{name}.py").write_text("where = 'folder'\n")
        paths = list(sys.path)
        sys.path.append(installed)
        try:
            with contextlib.chdir(here):
                return [import_object(f"{name}:where", "k") for name in names]
        finally:
            sys.path[:] = paths
            for name in names:
                sys.modules.pop(name, None)


def _file_holds(folder: Path, suffix: str, stream: random.Random) -> bool:
    """Return whether rows that are read are those written: repeated prompts once, sizes in bytes, any row again."""
    prompts = ["".join(stream.choices(LETTERS, k=stream.randint(1, 12))) for _ in range(12)]
    rows = [
        {"p": stream.choice(prompts), "a": str(number), "more": {"s": f"é{number}"}} for number in range(20)
    ]
    path = folder / f"rows{suffix}"
    if suffix == "folder":
        path.mkdir()
        for number, part in enumerate((rows[:7], [], rows[7:8], rows[8:])):
            _write(path / f"train-{number:05d}.jsonl", part, stream)
    else:
        _write(path, rows, stream)
    scan = scan_rows(path, Columns("p", "a", "more.s"), "data.train_path")
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(str(row["p"]), row)
    own = list(first.values())
    chosen = stream.sample(range(len(own)), len(own))
    found = FileExamples(scan, chosen)
    sizes = [len(row["p"].encode()) for row in own]
    by_size = sorted(range(len(own)), key=lambda place: -sizes[chosen[place]])
    read = [(one.prompt_id, one.prompt, one.answer, one.solution) for one in found]
    right = [
        (stable_id(row["p"]), row["p"], row["a"], row["more"]["s"])
        for row in (own[place] for place in chosen)
    ]
    return (
        list(scan.sizes) == sizes
        and read == right
        and [one.prompt for one in longest_prompts(found, 5)]
        == [own[chosen[place]]["p"] for place in by_size[:5]]
        and (f"{len(rows) - len(own)} rows repeat" in "".join(scan.notes)) == (len(own) < len(rows))
    )


def _write(path: Path, rows: Sequence[Mapping[str, Any]], stream: random.Random) -> None:
    if path.suffix == ".jsonl":
        ends = [stream.choice(("\n", "\r\n", "\n\n", "\n \n")) for _ in rows]
        lines = [
            json.dumps(row, ensure_ascii=stream.random() < 0.5) + end
            for row, end in zip(rows, ends, strict=True)
        ]
        mark = "\ufeff" if stream.random() < 0.5 else ""
        path.write_bytes((mark + "".join(lines)).rstrip("\n").encode())
        return
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(list(rows))
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=stream.randint(1, 6))
        return
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=stream.randint(1, 6))


class _Library(StagedEngine):
    """An engine whose library notes in which order it takes weights and drops its caches, and may refuse to."""

    library = "made"

    def __init__(self) -> None:
        super().__init__(model_of("llama", tie_word_embeddings=False), load_batch_bytes=64)
        self.seen: list[str] = []
        self.refuses = False

    def _take(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self.seen.append("take")

    def _served(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._model.named_parameters()

    def _clear_caches(self) -> None:
        self.seen.append("clear")
        if self.refuses:
            raise WeightSyncError("requests are running")


def _of_engines() -> Iterator[WorkedExample]:
    yield example(
        "caches of an engine after syncs",
        (["take", "clear"], ["take", "clear"], ["WeightSyncError"] * 2),
        _synced,
    )
    for steps, right in (
        ([["x"], ["x", "y"], ["y"]], [["x", "x"], ["y", "y"]]),
        ([["x", "y"], [], ["x"]], [["x", "x"], ["y"]]),
    ):
        yield example(f"rows of vLLM that end after {steps}", right, _aborted, steps, 99)
    late = [["x"], ["x", "y"], ["y"]]
    yield example("rows of vLLM aborted before each has a token", [["x", "x"], ["y"]], _aborted, late, 0)
    for own, end, configured, ids in (
        ({3, 1}, 7, None, (1, 3, 7)),
        ({3}, 3, None, (3,)),
        (set(), 7, None, (7,)),
        ({3}, 7, (5, 4), (5, 4)),
        ({3}, 7, (), ()),
    ):
        yield example(f"end ids of {own}, {end} and {configured}", ids, _end_ids, own, end, configured)


def _synced() -> Any:
    engine, other = _Library(), model_of("llama", seed=1, tie_word_embeddings=False)
    weights = [*other.named_parameters(), *other.named_buffers()]
    engine.load_weights(iter(weights), version=1)
    loaded, engine.seen = engine.seen, []
    from refrl.weight_sync.base import Part
    from refrl.weight_sync.tensors import fingerprints

    def sync(version: int) -> None:
        engine.begin(version, None)
        engine.receive([Part(name, tensor.detach().reshape(-1)) for name, tensor in weights])
        engine.commit(fingerprints(dict(weights)))

    sync(2)
    committed, engine.refuses = list(engine.seen), True
    errors = []
    calls: Sequence[Callable[[], None]] = (lambda: sync(3), engine._check_serving)
    for call in calls:
        try:
            call()
        except WeightSyncError as error:
            errors.append(type(error).__name__)
    return loaded, committed, errors


def _aborted(steps: Sequence[Sequence[str]], aborts_before: int) -> Any:
    """Return the tokens of two requests of vLLM's, which is aborted before a step."""
    aborting, left = threading.Event(), list(steps)
    names: list[str] = []
    dropped: list[str] = []

    def step() -> list[Any]:
        if len(steps) - len(left) >= aborts_before:
            aborting.set()
        return [
            SimpleNamespace(
                request_id=names[0 if word == "x" else 1],
                outputs=[SimpleNamespace(token_ids=[word], logprobs=[{}])],
            )
            for word in left.pop(0)
        ]

    library = SimpleNamespace(
        add_request=lambda name, prompt, params: names.append(name),
        has_unfinished_requests=lambda: bool(left) and not dropped,
        step=step,
        abort_request=dropped.extend,
    )
    engine: Any = SimpleNamespace(
        _vllm=SimpleNamespace(llm_engine=library), _num_requests=5, _aborting=aborting
    )
    with patch("refrl.generation.vllm.engine.vllm_params", lambda params, stops, seed: seed):
        found = VllmGenerator._sample(engine, [(1,), (2, 3)], None, frozenset(), [4, 5])  # type: ignore[arg-type]
    return [[token for token, _ in tokens] for tokens in found]


def _end_ids(own: set[int], end: int, configured: Any) -> Any:
    config: Any = SimpleNamespace(
        max_new_tokens=4, temperature=0.5, top_p=0.25, top_k=3, stop_token_ids=configured
    )
    generator: Any = SimpleNamespace(stop_ids=lambda: frozenset(own))
    encoder: Any = SimpleNamespace(end_token_id=lambda: end)
    return build_sampling(config, generator, encoder).stop_token_ids


def of_agreement(backend: str) -> Iterator[WorkedExample]:
    """Yield ranks (`rows`; `megatron`: of its data-parallel groups) that agree on weights and norms, or do not."""
    close = math.nextafter(1.0, 2.0)
    for what, values, agrees in (
        ("the same", [(1.0, 3.0)] * 3, True),
        ("no numbers", [(math.nan, 3.0)] * 2, True),
        ("norms that differ in the last digit", [(1.0, 3.0), (close, 3.0)], False),
        ("norms that differ in the fourth digit", [(1.0, 3.0), (1.0, 3.0), (1.0004, 3.0)], False),
        ("weights that differ in the fourth digit", [(1.0, 3.0), (1.0, 3.0004)], False),
        ("weights that differ in the last digit", [(1.0, 3.0), (1.0, 3.0 + 2.0**-22)], False),
    ):
        right = [None if agrees else "DivergenceError"] * len(values)
        yield example(f"{backend} of {len(values)} ranks: {what}", right, _agreed, backend, values)


def _agreed(backend: str, values: Sequence[tuple[float, float]]) -> Any:
    def call(group: Any, rank: int) -> Any:
        norm, value = values[rank]
        world, weight = World(rank, group.size(), group), torch.tensor([value])
        if backend == "rows":
            return world.check_agreement(norm, [weight])
        from refrl.policy.megatron.parallel import Parallel

        parallel: Any = SimpleNamespace(alone=False, rows=world)
        links: Any = {"w": SimpleNamespace(expert=None)}
        return Parallel.check_agreement(parallel, norm, {"w": weight}, links)

    found = by_rank(len(values), call)
    return [None if one is None else str(one).partition(":")[0] for one in found]
