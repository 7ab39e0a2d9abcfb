"""Worked examples of the Ray cluster of a run: whether it needs one, how it joins or starts it, and how it leaves."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.config import GRPORunConfig
from refrl.lifeline import RAY_CLUSTER, RENDEZVOUS, TORCHRUN
from refrl.runtime import ray_cluster as clusters
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_packages import package

SLOW = "the node timed out during startup."
QUIET = {
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
    "namespace": "refrl",
}
"""What is the same however a run joins."""


def of_clusters() -> Iterator[WorkedExample]:
    """Yield the examples."""
    own = [("init", {"address": "local", "num_cpus": 3, **QUIET}, [True])]
    rest: list[Any] = ["block", "shutdown"]
    yield example("a cluster of the run's own", [*own, *rest, [False], True], _joined)
    again = [*own, "shutdown", ("init", own[0][1], [True, True]), *rest, [False, False], True]
    yield example("a cluster whose first start is slow", again, _joined, errors=[RuntimeError(SLOW)])
    for given, variable in (("h:1", None), ("h:1", "v:2"), (None, "v:2")):
        there = [("init", {"address": variable or given, **QUIET}, []), *rest, [], True]
        name = f"a cluster at {given}, with {variable} in the environment"
        yield example(name, there, _joined, given, variable)
    yield example("a cluster that is joined already", ["block", [], True], _joined, is_there=True)
    for address in (None, "h:1"):
        name = f"a run that needs no cluster, with one at {address}"
        yield example(name, ["block", [], True], _joined, address, engine_on="process")
    left = [*own, "block", "shutdown", "ValueError: of the run", [False], True]
    yield example("a run that fails", left, _joined, fails=True)
    for words, address, errors in (
        (f"null (a cluster of the run's own): {SLOW} It was tried 3 times.", None, [RuntimeError(SLOW)] * 3),
        ("cluster.ray_address=null (a cluster of the run's own): no", None, [ValueError("no")]),
        ("cluster.ray_address=h:1: no", "h:1", [ConnectionError("no")]),
        ("cluster.ray_address=h:1: no", "h:1", [RuntimeError("no")]),
    ):
        name = f"a cluster at {address} that answers {errors}"
        yield refused(words, name, _joined, address, errors=errors, refuses=True)
    yield refused("pip install 'seatrial[ray]'", "a cluster without Ray", _joined, ray=None, refuses=True)
    other = package("ray", __file__="/there/ray.py")
    words = "the module 'ray' is /there/ray.py, which is not Ray"
    yield refused(words, "another module of Ray's name", _joined, ray=other, refuses=True)
    for in_main in (True, False):
        right = ["own", "Ray's", *["own"] * in_main]
        yield example(f"the handler of SIGTERM, in the main thread: {in_main}", right, _handlers, in_main)
    yield example("runs that need a cluster, other than they should", [], _needs)
    yield example("CPUs of own clusters, other than they should be", [], _cpus)
    for length, place in ((30, "own"), (31, "/tmp")):
        yield example(f"sockets in a path of {length} bytes", place, _place, length)


def _config(**options: Any) -> Any:
    """Return what is read of a configuration; it places its engine on Ray if nothing else is said."""
    given = {
        "ranks": 1, "ranks_on": "process", "engine_on": "ray", "store": "local", "replicas": 1, "address": None,
        "kind": GRPORunConfig, **options,
    }  # fmt: skip
    parts: dict[str, Any] = {
        "cluster": SimpleNamespace(
            num_processes=given["ranks"], placement=given["ranks_on"], ray_address=given["address"]
        ),
        "policy": SimpleNamespace(generation=SimpleNamespace(placement=given["engine_on"])),
    }
    if given["kind"] is GRPORunConfig:
        parts["grpo"] = SimpleNamespace(async_grpo=SimpleNamespace(num_replicas=given["replicas"]))
        parts["data_plane"] = SimpleNamespace(implementation=given["store"])
    return given["kind"].model_construct(**parts)


NOT_GIVEN = package("ray")


def _joined(
    address: str | None = None,
    variable: str | None = None,
    *,
    errors: Sequence[Exception] = (),
    is_there: bool = False,
    fails: bool = False,
    ray: ModuleType | None = NOT_GIVEN,
    refuses: bool = False,
    engine_on: str = "ray",
) -> list[Any]:
    """Return what Ray is asked for, with which of its folders exist then and at the end, and if SIGTERM is kept.

    Args:
        address: of the configuration.
        variable: address that a rank's environment names.
        errors: of the first starts.
        is_there: whether the process is in a cluster already.
        fails: whether the block raises.
        ray: another module of Ray's name; None: it is not installed.
        refuses: whether what a configuration is refused for is raised, and not what the block raises.
        engine_on: where the configuration places the engine.
    """
    noted: list[Any] = []
    folders: list[Path] = []
    left = iter(errors)

    def init(**options: Any) -> None:
        if "_temp_dir" in options:
            folders.append(Path(options.pop("_temp_dir")))
            assert folders[-1].name.startswith("ray-")
        noted.append(("init", options, [folder.is_dir() for folder in folders]))
        for error in left:
            raise error

    made = package(
        "ray", init=init, is_initialized=lambda: is_there, shutdown=lambda: noted.append("shutdown")
    )
    environment = {key: value for key, value in os.environ.items() if key != RAY_CLUSTER}
    if variable is not None:
        environment[RAY_CLUSTER] = variable
    config = _config(address=address, replicas=2, engine_on=engine_on)
    before = signal.getsignal(signal.SIGTERM)
    with (
        patch.dict(os.environ, environment, clear=True),
        patch.dict("sys.modules", {"ray": made if ray is NOT_GIVEN else ray}),
    ):
        try:
            with clusters.ray_cluster(config):
                noted.append("block")
                if fails:
                    raise ValueError("of the run")
        except ValueError as error:
            if refuses:
                raise
            noted.append(f"ValueError: {error}")
    return [*noted, [folder.exists() for folder in folders], signal.getsignal(signal.SIGTERM) is before]


def _handlers(in_main: bool) -> list[str]:
    """Return the handlers of SIGTERM that are set around a start of Ray, which sets its own."""
    found = ["own"]
    main = threading.current_thread() if in_main else None
    signals = SimpleNamespace(
        SIGTERM=signal.SIGTERM,
        getsignal=lambda number: found[-1],
        signal=lambda number, handler: found.append(handler),
    )
    with (
        patch.object(clusters, "signal", signals),
        patch.object(threading, "main_thread", lambda: main),
        clusters._own_handler_of_sigterm(),
    ):
        found.append("Ray's")
    return found


def _kinds() -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the options of runs, and their configurations; fine-tuning has no store."""
    from refrl.config import SFTRunConfig

    for ranks_on, engine_on, store, kind in product(
        ("process", "ray"),
        ("inline", "process", "ray"),
        ("local", "ray", "transfer_queue"),
        (GRPORunConfig, SFTRunConfig),
    ):
        options = {"ranks_on": ranks_on, "engine_on": engine_on, "store": store, "kind": kind}
        yield options, _config(ranks=3, replicas=2, **options)


def _needs() -> list[str]:
    """Return the runs that need a cluster, or none, against what they place there."""
    wrong = []
    kinds = list(_kinds())
    others = {key: value for key, value in os.environ.items() if key not in (RENDEZVOUS, TORCHRUN)}
    for name in (None, RENDEZVOUS, TORCHRUN):
        with patch.dict(os.environ, {**others, **({name: "x"} if name else {})}, clear=True):
            for options, config in kinds:
                found = clusters.needs_ray(config)
                due = options["engine_on"] == "ray"
                due |= options["ranks_on"] == "ray" and name is None
                due |= options["store"] != "local" and options["kind"] is GRPORunConfig
                if found is not due:
                    wrong.append(f"{options} {name}: {found}")
    return wrong


def _cpus() -> list[str]:
    """Return the runs of three ranks, of two replicas where they sample, whose CPUs are counted wrongly."""
    wrong = []
    for options, config in _kinds():
        is_grpo = options["kind"] is GRPORunConfig
        each = (3 if is_grpo else 2) + (1 if options["ranks_on"] == "ray" else 0)
        due = 3 * each + (2 if is_grpo and options["store"] == "transfer_queue" else 0)
        if clusters.cpus_of(config) != due:
            wrong.append(f"{options}: {clusters.cpus_of(config)}")
    return wrong


def _place(length: int) -> str:
    """Return where Ray's sockets are put if the system's folder has so long a path in bytes."""
    own = "/" + "é" * ((length - 1) // 2) + "x" * ((length - 1) % 2)
    with patch.object(tempfile, "gettempdir", lambda: own):
        found = clusters.place_for_sockets()
    return "own" if found == own else found
