"""Worked examples of small calls: what is taken by default, of nothing, at a bound, and what is closed and reported."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from refrl.config import DataConfig
from refrl.config.run import LoggerConfig
from refrl.data_plane import LengthFilter
from refrl.data_plane import client as clients
from refrl.data_plane.columns import decode, encode
from refrl.data_plane.factory import local_client
from refrl.data_plane.flow import ConsumePlan, consume
from refrl.data_plane.observability import ObservedClient
from refrl.data_plane.records import Claim
from refrl.logging import RunLogger
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rewards import sandbox
from refrl.rollout.columns import from_columns, to_columns
from refrl.rollout.environments import make_environment
from refrl.tasks.base import make_splits
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused, rollouts
from seatrial.targets.reference.worked.options import FILE
from seatrial.targets.reference.worked.small_records import written


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    made = DataConfig(task="add", task_args={"digits": 3})
    yield example("prompts of a task without numbers", (1024, 128), lambda: tuple(map(len, _both(made))))
    for prompt in ("''", "x"):
        text = FILE.replace("data: {", f"data: {{system_prompt: {prompt}, ")
        yield refused("needs a chat template", f"a system prompt {prompt}", written, text)
    yield example("penalties of nothing", ([0.0, 0.0], [1.0, 0.5]), _unpenalised)
    yield example("a log that says nothing is closed", True, _closed)
    for num in (0, 3, None):
        right = None if num is None else [num, 3]
        yield example(f"a claim of rows with {num} and 3 tokens", right, _lengths, num)
    yield refused(
        "data.environment_args: max_turns=1", "an environment of one turn", _environment, max_turns=1
    )
    yield refused("data.environment_args: ", "an environment with an unknown option", _environment, turns=3)
    yield example("nothing is trained on where filters drop all", ([], 2), _trained_on_none)
    yield example(
        "calls that are watched", [("get_samples", 3, 12, "ok"), ("claim_meta", 0, 0, "timeout")], _watched
    )
    asked = PromptEncoder(make_byte_tokenizer(), chat_template="byte")
    yield example(
        "white space around a prompt", [*b"user\n a \n"], lambda: [*asked.prompts([" a \n"])[0]][1:10]
    )
    yield example("a program as it is given", b"'\xed\xb3\xbf \xc3\xa9'\r\n", _source, "'\udcff é'\r\n")


def _both(config: DataConfig) -> tuple[Any, Any]:
    found = make_splits(config)
    return found.train, found.validation


def _unpenalised() -> Any:
    """Return penalties and the verifier's rewards of two rows that were not penalised, after a data plane."""
    given = rollouts().rows([0, 1])
    scores = replace(given.scores, penalties=[0.0, 0.0], unshaped=[1.0, 0.5])
    columns = to_columns(replace(given, scores=scores))
    found = from_columns({name: decode(encode(value, name)) for name, value in columns.items()}).scores
    return found.penalties, found.verified


def _closed() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        with RunLogger(LoggerConfig(log_dir=folder, tensorboard_enabled=True)) as logger:
            events = logger._events
        return events is not None and events._file.closed


def _lengths(num: int | None) -> Any:
    claim = Claim(["a", "b"], [{} if num is None else {"input_lengths": num}, {"input_lengths": 3}])
    return clients._claimed(("p", "t", ["x"], "l"), claim).sequence_lengths


def _environment(**words: int | float | str | bool) -> Any:
    return make_environment(DataConfig(task="lookup", environment="lookup", environment_args=words))


def _trained_on_none() -> Any:
    """Return what is trained on, and how many rows a filter drops, where a step may have none."""
    client, trained = local_client(lease_s=60.0), list[Any]()
    client.register_partition("p", ["x"], 2, ["t"])
    client.put_samples(["a", "b"], "p", {"x": torch.ones(2)}, [{"input_lengths": 5}] * 2)
    plan = ConsumePlan(
        partition_id="p", task_name="t", fields=["x"], batch_size=2, min_kept=0, filters=[LengthFilter(1)]
    )
    found = consume(client, plan, trained.append, current_weight_version=0)
    return trained, len(found.dropped["too long"])


def _watched() -> list[Any]:
    """Return operation, number of keys, bytes and end of a read of three rows, and of a call that takes too long."""

    class LateError(TimeoutError):
        """An error of a package."""

    def claim(*words: Any, **options: Any) -> Any:
        raise LateError

    noted: list[Any] = []
    client = local_client(lease_s=60.0)
    client.register_partition("p", ["x"], 3, ["t"])
    client.put_samples(["a", "b", "c"], "p", {"x": torch.ones(3)})
    client.claim_meta = claim  # type: ignore[method-assign]
    made = ObservedClient(client, lambda one: noted.append((one.op, one.n_keys, one.n_bytes, one.status)))
    made.get_samples(["a", "b", "c"], "p", ["x"])
    with suppress(LateError):
        made.claim_meta("p", "t", ["x"], 1)
    return noted


def _source(program: str) -> Any:
    """Return the bytes of the file that a sandbox runs."""
    found: list[bytes] = []

    def run(inside: Path, files: Any, limits: Any, order: Any) -> Any:
        found.append(Path(order["program"]).read_bytes())
        for name in ("stdout", "stderr"):
            files[name].touch()
        return "exited", 0, 0.0, {"network_namespace": True, "files": True, "processes": True}

    with patch.object(sandbox, "_run", run):
        sandbox.run_python(program, kind="namespaces")
    return found[0]
