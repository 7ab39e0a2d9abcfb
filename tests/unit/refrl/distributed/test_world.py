"""Ranks share rows without losing one; what they compute together is what one process computes alone."""

import copy
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.algorithms.metrics import MEAN_KEYS
from refrl.config import ClusterConfig, ConfigError, PolicyConfig, validate_config
from refrl.distributed import SHARING, DivergenceError, World, _buckets, _meeting, join, local_device
from refrl.generation.base import Completion, MediaSampler, SamplingParams
from refrl.generation.torch_engine import TorchGenerator
from refrl.lifeline import LISTENING, RENDEZVOUS
from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rollout.sync import RolloutWorker, shared
from refrl.tasks import Example
from refrl.training.build import build_policy

ItemT = TypeVar("ItemT")


LOADING = threading.Lock()
"""transformers replaces functions of its own while it loads: two threads at once would leave them replaced."""


def load_alone(directory: Path) -> PreTrainedModel:
    """Load a model while no other thread does."""
    with LOADING:
        return load_model(directory)


@dataclass(frozen=True)
class Meeting:
    """Where the threads of a test exchange what processes would."""

    size: int
    barrier: threading.Barrier = field(init=False)
    brought: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "barrier", threading.Barrier(self.size, timeout=60))
        object.__setattr__(self, "brought", [None] * self.size)

    def exchange(self, rank: int, value: ItemT) -> list[ItemT]:
        """Return what every rank brought."""
        self.brought[rank] = value
        self.barrier.wait()
        found = list(self.brought)
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class ThreadWorld(World):
    """A world of threads."""

    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def gather(self, items: Sequence[ItemT]) -> list[ItemT]:
        return [item for share in self.meeting.exchange(self.rank, list(items)) for item in share]

    def sum_rows(self, values: Tensor) -> Tensor:
        values.copy_(torch.stack(self.meeting.exchange(self.rank, values.clone())).sum(0))
        return values

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        for weight in weights:
            assert weight.grad is not None
            self.sum_rows(weight.grad)


class ForgetsToSum(ThreadWorld):
    """Each rank steps with the gradient of its own rows."""

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        pass


def together(size: int, work: Callable[[World], ItemT], kind: type[ThreadWorld] = ThreadWorld) -> list[ItemT]:
    """Return what each rank's work gives; the first error is raised."""
    meeting, results, errors = Meeting(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            results[rank] = work(kind(rank, size, meeting=meeting))  # type: ignore[call-overload]
        except (ArithmeticError, AssertionError, ValueError, threading.BrokenBarrierError) as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors
    return results  # type: ignore[return-value]


@pytest.mark.parametrize(("num_rows", "size"), [(16, 2), (7, 3), (2, 4), (0, 3), (1, 1)])
def test_shares_hold_every_row_once_in_order(num_rows: int, size: int) -> None:
    """And differ by one row at most."""
    shares = [range(num_rows)[World(rank, size).share(num_rows)] for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(num_rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_buckets_hold_every_gradient_once_and_one_dtype_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """One larger than a bucket has a bucket of its own."""
    monkeypatch.setattr("refrl.distributed.BUCKET_BYTES", 24)
    sizes = [
        (2, torch.float32),
        (4, torch.float32),
        (50, torch.float32),
        (2, torch.float64),
        (1, torch.float64),
    ]
    gradients = [torch.zeros(num, dtype=dtype) for num, dtype in sizes]
    buckets = list(_buckets(gradients))
    assert [len(bucket) for bucket in buckets] == [2, 1, 2]
    assert [id(gradient) for bucket in buckets for gradient in bucket] == list(map(id, gradients))


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "model"
    make_model(TinyModelSpec(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, seed=3), directory)
    return directory


@pytest.fixture
def batch() -> Batch:
    """Six rows of very unequal length, one of them masked."""
    lengths = [(3, 1), (9, 14), (1, 7), (5, 2), (2, 5), (4, 4)]
    samples = [
        TrainSample(
            prompt_ids=tuple(range(1, first + 1)),
            completion_ids=tuple((17 * row + 5 * place) % 259 for place in range(length)),
            sampling_logprobs=(-1.0,) * length,
            reward=0.0,
            group_id=0,
        )
        for row, (first, length) in enumerate(lengths)
    ]
    made = make_batch(samples, pad_token_id=256)
    made.advantages_B = torch.tensor([1.0, -0.5, 2.0, 0.25, -1.5, 1.0])
    made.mask_BT[3] = 0
    return made


def weighted_loss(
    logprobs_BT: Tensor,
    entropy_BT: Tensor,
    batch: Batch,
    *,
    global_valid_tokens: Tensor,
    global_valid_seqs: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Minus the advantage-weighted mean log-probability, with metrics of each kind."""
    assert batch.advantages_B is not None
    share = -(batch.advantages_B.unsqueeze(1) * logprobs_BT * batch.mask_BT).sum() / global_valid_tokens
    return share, {
        "loss": share.detach(),
        "logprob_min": (logprobs_BT * batch.mask_BT).min().detach(),
        **dict.fromkeys(MEAN_KEYS, global_valid_tokens),
    }


def train(model_directory: Path, batch: Batch, world: World) -> tuple[Tensor, list[dict[str, float]]]:
    """Score and take three updates of two steps each."""
    values = {
        "model_name": str(model_directory),
        "train_global_batch_size": 6,
        "train_micro_batch_size": 2,
        "max_total_sequence_length": 32,
        "optimizer": {"lr": 1e-3, "eps": 1e-3},
    }
    with LOADING:
        policy = build_policy(
            validate_config(PolicyConfig, values, source="test"),
            make_byte_tokenizer(),
            device=torch.device("cpu"),
            num_updates=10,
            with_reference=False,
            world=world,
        )
    metrics = [policy.train(batch, weighted_loss) for _ in range(3)]
    return policy.logprobs(batch), metrics


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_together_train_as_one_process_alone(model_directory: Path, batch: Batch, size: int) -> None:
    """Loss, extrema, gradient norm, and the scores after three updates; every rank has the same."""
    alone_BT, alone = train(model_directory, batch, World())
    found = together(size, lambda world: train(model_directory, copy.deepcopy(batch), world))
    for scores_BT, metrics in found:
        torch.testing.assert_close(scores_BT, alone_BT, rtol=0, atol=2e-5)
        for one, other in zip(metrics, alone, strict=True):
            assert one == pytest.approx(other, rel=1e-4)
        assert metrics == found[0][1]


def test_a_gradient_that_is_not_summed_is_found_in_the_first_update(
    model_directory: Path, batch: Batch
) -> None:
    """Ranks would train models of their own, with plausible curves."""
    with pytest.raises(DivergenceError, match="after an update rank 1 has gradient norm"):
        together(2, lambda world: train(model_directory, copy.deepcopy(batch), world), ForgetsToSum)


@pytest.mark.parametrize("num_prompts", [5, 1])
def test_ranks_sample_what_one_process_samples(model_directory: Path, num_prompts: int) -> None:
    """Each row has its own random stream, wherever it is sampled."""
    prompts = [tuple(range(1, 3 + row)) for row in range(num_prompts)]
    params = SamplingParams(max_new_tokens=6)

    def sample(world: World) -> list[Completion]:
        engine = TorchGenerator(load_alone(model_directory), 256)
        stream = torch.Generator().manual_seed(11)
        return shared(engine, world).generate(prompts, params, stream)

    alone = TorchGenerator(load_model(model_directory), 256).generate(
        prompts, params, torch.Generator().manual_seed(11)
    )
    for found in together(2, sample):
        assert [row.ids for row in found] == [row.ids for row in alone]


def test_ranks_sample_each_row_with_its_own_image() -> None:
    """And what takes no images takes none when it is shared."""

    class Seeing:
        def generate(self, prompts: Any, params: Any, generator: torch.Generator) -> list[Completion]:
            return self.generate_with_media(prompts, [None] * len(prompts), params, generator)

        def generate_with_media(
            self, prompts: Any, media: Any, params: Any, generator: torch.Generator
        ) -> list[Completion]:
            return [
                Completion(prompt, (ord(one),), (0.0,), "stop")
                for prompt, one in zip(prompts, media, strict=True)
            ]

    def sample(world: World) -> list[Completion]:
        sampler = shared(Seeing(), world)
        assert isinstance(sampler, MediaSampler)
        stream = torch.Generator().manual_seed(0)
        return sampler.generate_with_media([(1,), (2,), (3,)], ["a", "b", "c"], SamplingParams(1), stream)

    for found in together(2, sample):
        assert [(row.prompt_ids, row.ids) for row in found] == [((1,), (97,)), ((2,), (98,)), ((3,), (99,))]
    blind: Any = SimpleNamespace(generate=None)
    assert not isinstance(shared(blind, ThreadWorld(0, 2)), MediaSampler)


def test_each_row_is_judged_once_and_all_ranks_get_all_rewards() -> None:
    """A verifier that says something else the second time would split the ranks."""
    examples = [Example(number, f"p{number}", "x", "toy") for number in range(5)]
    completions = [Completion((1,), (ord("a") + row, 258), (-1.0, -1.0), "stop") for row in range(5)]
    judged: list[str] = []

    def verifier(completion: str, answer: str) -> float:
        judged.append(completion)
        return len(judged) / 10

    def reward(world: World) -> list[float]:
        worker = RolloutWorker(TorchGenerator, make_byte_tokenizer(), {}, world)  # type: ignore[arg-type]
        return list(worker.reward(examples, completions, verifier).scores.rewards)

    first, second = together(2, reward)
    assert first == second
    assert sorted(judged) == list("abcde")


@pytest.mark.parametrize(
    ("environment", "num_processes", "started"),
    [
        ({}, 2, 1),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "RANK": "0"}, 2, 4),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "RANK": "0"}, 1, 4),
    ],
)
def test_other_processes_than_configured_are_refused(
    environment: dict[str, str], num_processes: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four ranks that each train alone would look like one run."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(ConfigError, match=f"{started} processes were started .*num_processes={num_processes}"),
        join(ClusterConfig(num_processes=num_processes)),
    ):
        pass


def test_variables_of_another_launcher_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch systems set them for jobs of one process too."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "3")
    with join(ClusterConfig()) as world:
        assert world == World()


def test_ranks_meet_at_a_port_that_was_taken_before_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 gets the listening socket itself: between the choice of the port and its use nobody else can have it."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    monkeypatch.setenv(RENDEZVOUS, f"tcp://127.0.0.1:{port}")
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port), reuse_port=False)
    monkeypatch.setenv(LISTENING, str(listening.detach()))
    first = _meeting(World(rank=0, size=1))["store"]
    monkeypatch.delenv(LISTENING)
    second = _meeting(World(rank=1, size=1))["store"]
    first.set("word", "heard")
    assert second.get("word") == b"heard"


def test_ranks_beyond_the_devices_are_refused_or_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL refuses two ranks on a device unless its own variable allows them."""
    used: list[int] = []
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": used.append,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    cluster = ClusterConfig(num_processes=4)
    monkeypatch.setenv(RENDEZVOUS, "tcp://127.0.0.1:1")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv(SHARING, raising=False)
    with pytest.raises(ConfigError, match=f"2 CUDA devices.*{SHARING}=1"):
        local_device(cluster)
    assert not used
    monkeypatch.setenv(SHARING, "1")
    assert local_device(cluster) == torch.device("cuda", 1)
    assert used == [1]
