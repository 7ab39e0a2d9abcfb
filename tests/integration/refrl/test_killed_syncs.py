"""Sampler, link or trainer ends at a random moment of a sync: nothing half updated serves, and who is left is told."""

import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from refrl.config import DeltaCompressionConfig, PolicyConfig, validate_config
from refrl.generation.base import SamplingParams
from refrl.generation.messages import Message, receive, send
from refrl.generation.process import GeneratorLostError, ProcessGenerator
from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.runtime.generator_process import serve
from refrl.timing import Timer
from refrl.weight_sync.base import Part, WeightSyncError
from refrl.weight_sync.tensors import fingerprint
from refrl.weight_sync.transferred import TransferredWeights

LIMIT = 10.0
"""Seconds within which a survivor is told, or ends."""
SAMPLING = SamplingParams(max_new_tokens=3, stop_token_ids=())
DELTA = DeltaCompressionConfig(enabled=True, sparse_bucket_size_bytes=3000)
MOMENTS = [0, *(pytest.param(moment, marks=pytest.mark.nightly) for moment in range(1, 17))]


class ForkedLink:
    """A `refrl.generation.process.Link` whose process is a copy of this one: it starts in milliseconds."""

    is_local = True

    def __init__(self) -> None:
        """Start to serve, as `refrl.runtime.generator_process` does."""
        self.own, other = socket.socketpair()
        self.timeout_seconds = LIMIT
        self.pid = os.fork()
        if not self.pid:
            self.own.close()
            try:
                serve(other)
            finally:
                os._exit(0)
        other.close()

    def ask(self, message: Message) -> Message:
        """Return the answer."""
        try:
            self.own.settimeout(LIMIT)
            send(self.own, message)
            return receive(self.own)
        except (OSError, EOFError) as error:
            raise GeneratorLostError(f"process {self.pid} is lost, asked to {message.kind}") from error

    def abort(self) -> None:
        """Nothing runs that could be given up."""

    resume = abort

    def close(self) -> None:
        """End the process."""
        self.own.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class Source:
    """A model as a source of weights, which is moved by hand."""

    shares_weights = True

    def __init__(self, directory: Path) -> None:
        """Load it."""
        self.model = load_model(directory)
        self.version = 0

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and buffers."""
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def move(self, seed: int) -> None:
        """Change a tenth of every parameter."""
        stream = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in self.model.parameters():
                tensor[torch.rand(tensor.shape, generator=stream) < 0.1] += 0.25
        self.version += 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, on disk."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    make_model(TinyModelSpec(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1), directory)
    return directory


def open_engine(model: Path) -> ProcessGenerator:
    """Return an engine in a process of its own."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 32,
        "generation": {"colocated": {"enabled": False}, "placement": "process", "timeout_seconds": LIMIT},
    }
    config = validate_config(PolicyConfig, values, source="test")
    return ProcessGenerator(config, pad_token_id=0, device=torch.device("cpu"), connect=ForkedLink)


def sync_of(source: Source, engine: ProcessGenerator) -> TransferredWeights:
    """Return a sync of changes, in several messages, after the first whole one."""
    return TransferredWeights(source, engine, bucket_bytes=3000, delta=DELTA, timer=Timer())


def link_of(engine: ProcessGenerator) -> ForkedLink:
    """Return the way to the engine's process."""
    assert isinstance(engine.link, ForkedLink)
    return engine.link


def seconds_of_a_sync(source: Source, sync: TransferredWeights) -> float:
    """Return how long an undisturbed one takes."""
    source.move(1)
    started = time.monotonic()
    sync.sync()
    return time.monotonic() - started


def whole_or_refused(engine: ProcessGenerator, source: Source) -> None:
    """The engine samples with the source's bits, or it refuses, or it is gone."""
    try:
        engine.generate([[65, 66]], SAMPLING, torch.Generator().manual_seed(0))
    except WeightSyncError as refused:
        assert "not whole" in str(refused)
        return
    except GeneratorLostError:
        return
    served = {name: fingerprint(tensor) for name, tensor in engine.named_weights()}
    assert served == {name: fingerprint(tensor) for name, tensor in source.named_weights()}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("ends", ["sampler", "link"])
def test_a_sampler_or_a_link_that_ends(ends: str, moment: int, model: Path) -> None:
    """The trainer is told within ten seconds which process was lost; the next engine gets the policy's bits."""
    source = Source(model)
    with closing(open_engine(model)) as engine:
        sync = sync_of(source, engine)
        delay = random.Random(moment).uniform(0, seconds_of_a_sync(source, sync))
        link = link_of(engine)
        end = {
            "sampler": lambda: os.kill(link.pid, signal.SIGKILL),
            "link": lambda: link.own.shutdown(socket.SHUT_RDWR),
        }[ends]
        timer = threading.Timer(delay, end)
        source.move(2)
        timer.start()
        with suppress(GeneratorLostError):
            sync.sync()
        timer.join()
        with pytest.raises(GeneratorLostError, match=f"process {link.pid} is lost, asked to") as told:
            engine.generate([[65, 66]], SAMPLING, torch.Generator())
        assert not isinstance(told.value.__cause__, TimeoutError), f"not told within {LIMIT:g} s"
    with closing(open_engine(model)) as engine:
        sync_of(source, engine)
        whole_or_refused(engine, source)
        assert engine.weight_version == source.version


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_trainer_that_ends(moment: int, model: Path) -> None:
    """Its engine's process ends within ten seconds: nobody can ask it for a token."""
    told, tells = os.pipe()
    trainer = os.fork()
    if not trainer:
        try:
            source = Source(model)
            engine = open_engine(model)
            sync = sync_of(source, engine)
            seconds = seconds_of_a_sync(source, sync)
            os.write(tells, f"{link_of(engine).pid} {seconds}\n".encode())
            while True:
                source.move(3)
                sync.sync()
        finally:
            os._exit(1)
    os.close(tells)
    with os.fdopen(told) as lines:
        pid, seconds = lines.readline().split()
    engine_ends = os.pidfd_open(int(pid))
    try:
        time.sleep(random.Random(moment).uniform(0, 2 * float(seconds)))
        os.kill(trainer, signal.SIGKILL)
        os.waitpid(trainer, 0)
        ended, _, _ = select.select([engine_ends], [], [], LIMIT)
        assert ended, "the engine outlives its trainer"
    finally:
        os.close(engine_ends)


@pytest.mark.parametrize(
    "moment", [0, 1, *(pytest.param(at, marks=pytest.mark.nightly) for at in range(2, 20))]
)
def test_a_sync_that_fails_half_way(moment: int, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides live on: the engine refuses to sample until the next sync, which brings everything."""
    source = Source(model)
    with closing(open_engine(model)) as engine:
        sync = sync_of(source, engine)
        source.move(1)
        sent, receives = [0], engine.receive

        def fails(parts: Sequence[Part]) -> None:
            if sent[0] == moment:
                raise ConnectionResetError("the network")
            sent[0] += 1
            receives(parts)

        monkeypatch.setattr(engine, "receive", fails)
        failed = False
        try:
            sync.sync()
        except ConnectionResetError:
            failed = True
            with pytest.raises(WeightSyncError, match="not whole"):
                engine.generate([[65, 66]], SAMPLING, torch.Generator())
        assert failed or moment > 1
        monkeypatch.undo()
        source.move(2)
        assert sync.sync()["weight_sync/full"] == float(failed)
        whole_or_refused(engine, source)
        assert engine.weight_version == source.version
