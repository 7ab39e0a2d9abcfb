"""Worked examples of how groups, links and ranks end."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl.config import ClusterConfig
from refrl.generation import process
from refrl.generation.broadcast_link import BroadcastEnd, BroadcastLink
from refrl.generation.messages import Message
from refrl.generation.process import SocketLink
from refrl.generation.receiving import StagedEngine
from refrl.lifeline import LIFELINE, TORCHRUN
from refrl.rewards import math
from refrl.runtime import launcher, rank_process
from refrl.runtime.rank_process import RankProcess
from refrl.weight_sync import broadcast
from refrl.weight_sync.broadcast import PeerLostError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_packages import Replaced


def of_ends() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_groups()
    yield from _of_ranks()


def _of_groups() -> Iterator[WorkedExample]:
    for device, right in (("cuda", ["abort"]), ("cpu", [])):
        yield example(f"a group on {device} that is given up", right, _given_up, device)
    sent = [([1, 2, 3], 0, "waited"), ([7], 0, "waited")]
    yield example("broadcasts, of no byte too", (sent, [7], []), _broadcasts)
    yield refused("did not take part in a broadcast", "a broadcast that fails", _fails)
    for has_pair in (True, False):
        right_link = ["ended", *["pair"] * has_pair, "ended"]
        yield example(f"a link with a group, {has_pair}, that is closed twice", right_link, _link, has_pair)
    said = [{"port": 77, "timeout_seconds": 9.0, "device": "cuda:1"}, "joined", 8]
    right_end = [*said, "receive", {"of": 1}, [[1.0], [2.0, 3.0]]]
    yield example("the end of a broadcast in an engine's process", right_end, _other_end)
    words = "made shares no weights; set policy.generation.colocated.enabled=false"
    yield refused(words, "weights of a library that are shared", _shared)


def _given_up(device: str) -> list[str]:
    noted: list[str] = []
    pair: Any = object.__new__(broadcast.BroadcastPair)
    pair.device = torch.device(device)
    pair._group = SimpleNamespace(abort=lambda: noted.append("abort"))
    pair.close()
    return noted


def _broadcasts() -> Any:
    """Return what is broadcast, from which rank, and whether it is waited for; what is received, and of no bytes."""
    noted: list[Any] = []

    def send(tensors: Any, options: Any) -> Any:
        (bytes_N,) = tensors
        if len(noted) == 1:
            bytes_N.fill_(7)
        return SimpleNamespace(wait=lambda: noted.append((bytes_N.tolist(), options.rootRank, "waited")))

    pair: Any = object.__new__(broadcast.BroadcastPair)
    pair.device, pair._received_N = torch.device("cpu"), torch.empty(0, dtype=torch.uint8)
    pair._group = SimpleNamespace(broadcast=send)
    pair.send(torch.tensor([1, 2, 3], dtype=torch.uint8))
    pair.send(torch.empty(0, dtype=torch.uint8))
    found = pair.receive(1).tolist()
    return noted, found, pair.receive(0).tolist()


def _fails() -> None:
    def send(*words: Any) -> None:
        raise RuntimeError("made")

    pair: Any = object.__new__(broadcast.BroadcastPair)
    pair._group = SimpleNamespace(broadcast=send)
    try:
        pair.send(torch.ones(1, dtype=torch.uint8))
    except PeerLostError:
        raise
    except Exception as other:
        raise AssertionError("another error than that the other side is gone") from other


def _link(has_pair: bool) -> list[str]:
    noted: list[str] = []
    link: Any = object.__new__(BroadcastLink)
    link._pair = SimpleNamespace(close=lambda: noted.append("pair")) if has_pair else None
    with patch.object(SocketLink, "close", lambda self: noted.append("ended")):
        link.close()
        link.close()
    return noted


def _other_end() -> list[Any]:
    """Return how an engine's process joins, how many bytes it takes, and the message that is made of them."""
    noted: list[Any] = []
    given = [torch.tensor([1.0]), torch.tensor([2.0, 3.0], dtype=torch.bfloat16)]
    bytes_N = torch.zeros(broadcast.packed_size(given), dtype=torch.uint8)
    broadcast.pack(given, bytes_N)

    def made(**options: Any) -> Any:
        noted.append({**options, "device": str(options["device"])})

        def receive(count: int) -> Any:
            noted.append(count)
            return bytes_N

        return SimpleNamespace(join=lambda: noted.append("joined"), receive=receive)

    with patch("refrl.generation.broadcast_link.BroadcastPair", made):
        end = BroadcastEnd({"port": 77, "timeout_seconds": 9.0, "device": "cuda:1"})
    listed = [["float32", [1]], ["bfloat16", [2]]]
    whole = end.whole(Message("broadcast", {"fields": {"of": 1}, "listed": listed, "bytes": 8}))
    return [*noted, whole.kind, dict(whole.fields), [tensor.tolist() for tensor in whole.tensors]]


def _shared() -> None:
    engine: Any = SimpleNamespace(library="made")
    StagedEngine.share_weights(engine, iter(()))


def _of_ranks() -> Iterator[WorkedExample]:
    for ends, right in ((True, [5.0, "closed"]), (False, [5.0, "killed", None, "closed"])):
        yield example(f"a rank that ends by itself: {ends}", right, _finished, ends)
    yield example("descriptors of a rank that cannot be started", 0, _not_started)
    yield example("the pipe that a rank inherits", (["lifeline reads", "further"], False), _inherited)
    for placement, variable in (("ray", True), ("ray", False), ("process", True)):
        options = {"placement": placement, "num_processes": 2}
        name = f"ranks on {placement}, within torchrun: {variable}"
        if placement == "ray" and variable:
            yield refused(
                "cluster.placement=ray, and torchrun has started", name, _launches, options, variable
            )
        else:
            yield example(name, not variable, _launches, options, variable)
    # A planted fault has its own `COMMAND`.
    for command, first in ((None, launcher.COMMAND), (["own"], ["own"])):
        right = [[*first, "grpo", "x"], 2]
        yield example(f"the command of ranks on Ray: {command}", right, _on_ray, command)
    for starter in (launcher, process, math):
        name = f"whether what {starter.__name__} starts may import from the current folder"
        yield example(name, False, _imports_from_folder, starter)


def _imports_from_folder(starter: ModuleType) -> bool:
    """Return whether a command runs a module of refrl's without `-P`; a planted fault's own command does not."""
    words: Sequence[str] = starter.COMMAND
    if "-m" not in words:
        return False
    place = words.index("-m")
    return words[place + 1].partition(".")[0] == "refrl" and "-P" not in words[:place]


def _finished(ends: bool) -> list[Any]:
    noted: list[Any] = []

    def wait(seconds: float | None = None) -> None:
        noted.append(seconds)
        if seconds is not None and not ends:
            raise subprocess.TimeoutExpired("made", seconds)

    reading, writing = os.pipe()
    rank: Any = object.__new__(RankProcess)
    rank._process = SimpleNamespace(wait=wait, kill=lambda: noted.append("killed"))
    rank._writing = writing
    rank.finish()
    noted.append("closed" if os.read(reading, 1) == b"" else "open")
    os.close(reading)
    return noted


def _not_started() -> int:
    """Return how many descriptors of its pipe a rank leaves open whose program does not exist."""
    made: list[int] = []

    def pipe() -> tuple[int, int]:
        made.extend(os.pipe())
        return made[0], made[1]

    with patch.object(rank_process, "os", Replaced(os, pipe=pipe)), suppress(OSError):
        RankProcess(0, ["/there/is/none"], {}, stdout=None)
    num_open = 0
    for descriptor in made:
        with suppress(OSError):
            os.fstat(descriptor)
            num_open += 1
    return num_open


def _inherited() -> Any:
    """Return the descriptors that a rank inherits, and whether it inherits others."""
    noted: list[str] = []
    further = os.open(os.devnull, os.O_WRONLY)

    def started(command: Sequence[str], **options: Any) -> Any:
        for one in options["pass_fds"]:
            is_read = fcntl.fcntl(one, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            kind = "lifeline" if options["env"][LIFELINE] == str(one) else "other end"
            noted.append("further" if one == further else f"{kind} {'reads' if is_read else 'writes'}")
        others.append(not options.get("close_fds", True))
        return SimpleNamespace(wait=lambda *seconds: 0)

    others: list[bool] = []
    try:
        with patch.object(rank_process, "subprocess", Replaced(subprocess, Popen=started)):
            RankProcess(0, ["made"], {}, stdout=None, inherited=[further]).finish()
    finally:
        os.close(further)
    return noted, *others


def _launches(options: Mapping[str, Any], within_torchrun: bool) -> bool:
    environment = {name: value for name, value in os.environ.items() if name != TORCHRUN}
    given = {TORCHRUN: "x"} if within_torchrun else {}
    with patch.dict(os.environ, {**environment, **given}, clear=True):
        return launcher.is_launcher(ClusterConfig(**options))


def _on_ray(command: Sequence[str] | None) -> Any:
    """Return the whole command of ranks that are placed on Ray, and their number."""
    noted: list[Any] = []

    class Stop(Exception):  # noqa: N818  ends the launch
        pass

    def ranks(words: Sequence[str], cluster: ClusterConfig) -> None:
        noted.extend([list(words), cluster.num_processes])
        raise Stop

    made: Any = SimpleNamespace(ray_ranks=ranks)
    with patch.dict("sys.modules", {"refrl.runtime.ray_ranks": made}), suppress(Stop):
        launcher.launch(["grpo", "x"], ClusterConfig(placement="ray", num_processes=2), command=command)
    return noted
