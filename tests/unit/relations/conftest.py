"""What the tests of refrl's conformance share."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.relations.runs import sharing_runs
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.verdict import Outcome

Disobeyed = Callable[[Mapping[str, Any], Iterable[str], list[int]], list[str]]


@pytest.fixture(name="disobeyed")
def disobeyed_fixture() -> Disobeyed:
    """Return a function that says which relations a cell breaks, or does not exercise at all."""

    def disobeyed(options: Mapping[str, Any], names: Iterable[str], seeds: list[int]) -> list[str]:
        stack = ReferenceComponents(options)
        with sharing_runs():
            verdicts = [run_relation(relation, stack, seeds=seeds) for relation in select(list(names))]
        # A cell may exclude every law of a run that sets another reduction; no other relation may be without a case.
        unexercised = [v for v in verdicts if not v.num_samples and ".run" not in v.name]
        failed = [v for v in verdicts if v.outcome in (Outcome.FAIL, Outcome.BLOCKED)]
        return [f"{dict(options)}: {v.name}: {v.reason}" for v in [*failed, *unexercised]]

    return disobeyed


@pytest.fixture(scope="session")
def fork_server(repository: Path) -> Iterator[str]:
    """Return the address of a server of `tests.forked`."""
    with tempfile.TemporaryDirectory(prefix="f-") as folder:
        address = f"{folder}/s"
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked.server", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=repository,
            start_new_session=True,
        )
        with server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield address


@pytest.fixture
def forked_processes(fork_server: str, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the reference's commands and ranks start with the stack imported."""
    monkeypatch.setenv("SEATRIAL_REFRL_COMMAND", f"tests.forked {fork_server} refrl")
    monkeypatch.setenv("SEATRIAL_RANK_COMMAND", f"tests.forked {fork_server} tests.forked.ranks")
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(repository), *([path] if path else [])]))
