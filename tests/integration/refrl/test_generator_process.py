"""A generator in a process of its own samples what the engine beside the policy samples, and is never half updated."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from refrl.config import ConfigError, DeltaCompressionConfig, PolicyConfig, validate_config
from refrl.generation import process
from refrl.generation.base import Generator, SamplingParams
from refrl.generation.process import GeneratorLostError, ProcessGenerator, SocketLink
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.timing import Timer
from refrl.training.build_generation import build_generator
from refrl.weight_sync.base import Part, WeightSyncError
from refrl.weight_sync.tensors import fingerprint
from refrl.weight_sync.transferred import TransferredWeights

pytestmark = pytest.mark.usefixtures("forked_processes")

CPU = torch.device("cpu")
COMMAND = process.COMMAND
SAMPLING = SamplingParams(max_new_tokens=6, temperature=0.7, top_p=0.9, stop_token_ids=(0,))
PROMPTS = [[65, 66, 67], [68], [65, 66, 67]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied tiny model, on disk."""
    directory = tmp_path_factory.mktemp("model") / "tied"
    make_model(
        TinyModelSpec(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, tie_word_embeddings=True),
        directory,
    )
    return directory


def config(model: Path, **generation: Any) -> PolicyConfig:
    """Return a policy whose generator has weights of its own."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 32,
        "generation": {"colocated": {"enabled": False}, **generation},
    }
    return validate_config(PolicyConfig, values, source="test")


@pytest.fixture
def inline(model: Path) -> Generator:
    """The engine in this process, which is also the source of weights."""
    return build_generator(config(model), make_byte_tokenizer(), device=CPU)


def start(model: Path) -> ProcessGenerator:
    """Return the engine in a process of its own."""
    generator = build_generator(
        config(model, placement="process", timeout_seconds=60), make_byte_tokenizer(), device=CPU
    )
    assert isinstance(generator, ProcessGenerator)
    return generator


@pytest.fixture(scope="module")
def apart(model: Path) -> Iterator[ProcessGenerator]:
    """One that serves several tests: the process itself, which signals have to reach before the next message does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "COMMAND", COMMAND)
        generator = start(model)
    with closing(generator):
        yield generator


def kill(generator: ProcessGenerator) -> None:
    """Kill the process, and wait until its end of the connection is closed."""
    os.kill(generator.link.pid, signal.SIGKILL)
    assert isinstance(generator.link, SocketLink)
    assert select.select([generator.link._connection], [], [], 60)[0]


def sample(generator: Generator, stream: torch.Generator) -> list[tuple[Any, ...]]:
    """Return all that a generator says of its completions, but for the version."""
    rows = generator.generate(PROMPTS, SAMPLING, stream)
    return [(row.prompt_ids, row.ids, row.logprobs, row.finish_reason, row.kept_ids) for row in rows]


def move(generator: Generator) -> dict[str, Tensor]:
    """Change every parameter, as an update would, and return them."""
    with torch.no_grad():
        for _, tensor in generator.named_weights():
            if tensor.is_floating_point():
                tensor.add_(0.1)
    generator.weight_version += 1
    return dict(generator.named_weights())


class AsSource:
    """An engine as a source of weights."""

    def __init__(self, generator: Generator) -> None:
        """Take its weights."""
        self._generator = generator
        self.named_weights = generator.named_weights

    @property
    def version(self) -> int:
        """The engine's."""
        return self._generator.weight_version


@pytest.mark.parametrize("is_delta", [False, True], ids=["whole", "delta"])
def test_both_sample_the_same_after_every_sync(
    inline: Generator, apart: ProcessGenerator, is_delta: bool
) -> None:
    """Ids, log-probabilities to the bit, kept supports; the stream goes on where the other left it."""
    streams = [torch.Generator().manual_seed(3) for _ in range(2)]
    delta = DeltaCompressionConfig(enabled=is_delta, sparse_bucket_size_bytes=999)
    sync = TransferredWeights(AsSource(inline), apart, bucket_bytes=999, delta=delta, timer=Timer())
    for _ in range(3):
        assert sample(apart, streams[1]) == sample(inline, streams[0])
        live = move(inline)
        assert sync.sync()["weight_sync/tensors_verified"] == len(live)
        assert {name: fingerprint(tensor) for name, tensor in apart.named_weights()} == {
            name: fingerprint(tensor) for name, tensor in live.items()
        }
    assert apart.stop_ids() == inline.stop_ids()
    assert {row.weight_version for row in apart.generate(PROMPTS, SAMPLING, streams[1])} == {3}


def test_weights_that_are_broadcast_are_the_same(inline: Generator, model: Path) -> None:
    """Whole and changes alone, in many buckets; what a bucket does wrong is told before the sync ends, as is a loss."""
    wanted = config(model, placement="process", timeout_seconds=60, weight_transport="broadcast")
    with closing(build_generator(wanted, make_byte_tokenizer(), device=CPU)) as generator:
        assert isinstance(generator, ProcessGenerator)
        for is_delta in (False, True):
            delta = DeltaCompressionConfig(enabled=is_delta, sparse_bucket_size_bytes=999)
            sync = TransferredWeights(
                AsSource(inline), generator, bucket_bytes=999, delta=delta, timer=Timer()
            )
            for _ in range(2):
                live = move(inline)
                assert sync.sync()["weight_sync/tensors_verified"] == len(live)
                assert {name: fingerprint(tensor) for name, tensor in generator.named_weights()} == {
                    name: fingerprint(tensor) for name, tensor in live.items()
                }
            streams = [torch.Generator().manual_seed(3) for _ in range(2)]
            assert sample(generator, streams[0]) == sample(inline, streams[1])
        generator.begin(9, None)
        generator.receive([Part("nobody", torch.zeros(3))])
        with pytest.raises(WeightSyncError, match="nobody arrived"):
            generator.commit({})
        generator.begin(9, None)
        kill(generator)
        with pytest.raises(GeneratorLostError, match=r"ended by signal 9, asked to receive"):
            for _ in range(3):
                generator.receive([Part("nobody", torch.zeros(10**6))])


def test_a_generation_that_is_given_up_goes_on_when_it_is_resumed(apart: ProcessGenerator) -> None:
    """What the router asks of any engine, while weights change."""
    long = SamplingParams(max_new_tokens=16, stop_token_ids=())
    apart.abort()
    assert {row.finish_reason for row in apart.generate(PROMPTS, long, torch.Generator())} == {"abort"}
    apart.resume()
    assert {len(row.ids) for row in apart.generate(PROMPTS, long, torch.Generator())} == {16}


def test_prompts_are_refused_as_by_the_engine_itself(apart: ProcessGenerator) -> None:
    """The error has the same class and words."""
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        apart.generate([[]], SAMPLING, torch.Generator())


def test_nothing_is_sampled_in_mid_sync_and_a_process_that_is_killed_then_is_named(model: Path) -> None:
    """The refusal is the process's own; the loss is told with its id, the signal and what it was asked."""
    with closing(start(model)) as generator:
        generator.begin(1, None)
        with pytest.raises(WeightSyncError, match="not whole"):
            generator.generate(PROMPTS, SAMPLING, torch.Generator())
        with pytest.raises(WeightSyncError, match="0 of "):
            generator.commit({})
        with pytest.raises(WeightSyncError, match="not whole"):
            generator.generate(PROMPTS, SAMPLING, torch.Generator())
        generator.begin(1, None)
        kill(generator)
        with pytest.raises(GeneratorLostError, match=f"{generator.pid} ended by signal 9, asked to commit"):
            generator.commit({})


def test_a_model_that_cannot_be_loaded_is_told_in_the_processs_words(tmp_path: Path) -> None:
    """And the process ends."""
    with pytest.raises(ConfigError, match="nowhere"):
        build_generator(config(tmp_path / "nowhere", placement="process"), make_byte_tokenizer(), device=CPU)


@pytest.mark.parametrize(
    "generation",
    [{"placement": "process"}, {"delta_compression": {"enabled": True}}],
    ids=["process", "delta"],
)
def test_shared_weights_do_not_travel(model: Path, generation: dict[str, Any]) -> None:
    """The configuration says what to set."""
    with pytest.raises(ConfigError, match=r"colocated\.enabled=false"):
        config(model, colocated={"enabled": True}, **generation)


def test_a_process_that_hangs_is_ended(apart: ProcessGenerator) -> None:
    """After the time that the configuration gives it. The last test: it ends the process that the others share."""
    os.kill(apart.pid, signal.SIGSTOP)
    apart.link.timeout_seconds = 0.2
    with pytest.raises(GeneratorLostError, match="not answer in time and was stopped, asked to weights"):
        list(apart.named_weights())
