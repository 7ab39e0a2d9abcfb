"""Each shipped equivalence class holds in this process, and finds a fault that is planted in its member.

The runs of a class in processes of their own are in tests/e2e/test_equivalence_classes.py; the ranks of
grpo-processes in tests/unit/refrl/distributed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.packing import PackedBatch
from refrl.config import GRPORunConfig, load_config
from refrl.generation.torch_engine import TorchGenerator
from refrl.policy import activations, hf, scoring
from refrl.policy.base import LossFunction
from refrl.training import build
from refrl.training.grpo import run_grpo
from refrl.weight_sync.colocated import CopiedWeights
from seatrial.comparisons.equivalence import Configuration, EquivalenceClass, compare_member, load_class
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.packaged import FOLDERS
from seatrial.verdict import Outcome, Verdict, combine

from .conftest import CONFIGS

Overrides = Callable[[str], list[str]]
Plant = Callable[[pytest.MonkeyPatch], None]


def no_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence of a pack sees those before it; the probe that would refuse this is silenced."""
    right = PackedBatch.attention_mask_P1SS

    def leaky(self: PackedBatch, dtype: torch.dtype = torch.float32) -> Tensor:
        whole = PackedBatch(**{**vars(self), "segment_ids_PS": torch.ones_like(self.segment_ids_PS)})
        return right(whole, dtype)

    monkeypatch.setattr(PackedBatch, "attention_mask_P1SS", leaky)
    monkeypatch.setattr(scoring, "_probe", lambda *arguments: None)


def own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch divides its loss by the tokens that it holds itself."""
    right = build.policy_loss

    def local(logprobs_BT: Tensor, batch: Batch, *arguments: object, **options: object) -> object:
        options["global_valid_tokens"] = batch.num_valid_tokens
        return right(logprobs_BT, batch, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "policy_loss", local)


def entries_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunked head reads zeros for a few entries of the vocabulary."""
    right = scoring.compute_logprobs_chunked

    def short(hidden_BSD: Tensor, head_VD: Tensor, *arguments: object, **options: object) -> object:
        lost = torch.arange(200, 204)
        return right(hidden_BSD, head_VD.index_fill(0, lost, 0.0), *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(scoring, "compute_logprobs_chunked", short)
    monkeypatch.setattr(scoring, "_probe", lambda *arguments: None)


def other_numbers_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again differs, as under dropout whose random state is not restored."""
    right = activations.checkpoint

    def noisy(forward: Callable[..., Tensor], *arguments: object, **options: object) -> object:
        calls = []

        def drifting(layer: object, states_BSD: Tensor, *inner: object, **words: object) -> Tensor:
            calls.append(1)
            return forward(layer, states_BSD * (1 + 1e-3 * (len(calls) - 1)), *inner, **words)

        return right(drifting, *arguments, **options)

    monkeypatch.setattr(activations, "checkpoint", noisy)


def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights never arrive."""
    monkeypatch.setattr(CopiedWeights, "sync", lambda self: {})


def half_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms stay behind, a thousandth of the weights."""
    right = TorchGenerator.load_weights

    def partial(self: TorchGenerator, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        own = dict(self.named_weights())
        stay = {name: own[name].clone() for name in own if "norm" in name}
        right(self, ((name, stay.get(name, weight)) for name, weight in weights), version)

    monkeypatch.setattr(TorchGenerator, "load_weights", partial)


def first_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 trains its share of the rows, and the gradients of rank 1 never arrive."""
    right = hf.HFPolicy.accumulate

    def passes_of_first_rows(self: Any, batch: Batch, cut: Any, micro_batches: object = None) -> Any:
        return self._even(cut.micro_batches(batch.rows(slice(0, 8))), batch)

    def lonely(
        self: hf.HFPolicy, update: Batch, loss: LossFunction, micro_batches: object = None, **options: bool
    ) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(hf.HFPolicy, "_passes", passes_of_first_rows)
            return right(self, update, loss, None, **options)

    monkeypatch.setattr(hf.HFPolicy, "accumulate", lonely)


PLANTS: list[tuple[str, str, Plant]] = [
    ("grpo-batch-forms", "packed", no_borders),
    ("grpo-batch-forms", "token-budget", own_counts),
    ("grpo-batch-forms", "chunked", entries_lost),
    ("grpo-checkpointed", "checkpointed", other_numbers_in_backward),
    ("grpo-colocated", "own-copy", no_sync),
    ("grpo-colocated", "own-copy", half_a_sync),
    ("grpo-microbatches", "4x4", own_counts),
    ("grpo-processes", "two-processes", first_rows_only),
]


def log_of(overrides: list[str], configuration: Configuration) -> RunLog:
    """Run a member of a class here."""
    words = [word for word in configuration.overrides if not word.startswith("cluster.")]
    config = load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml", [*overrides, *words])
    run_grpo(config)
    return read_logs(Path(config.logger.log_dir) / "tensorboard")


def judged(group: EquivalenceClass, name: str, reference: RunLog, log: RunLog) -> list[Verdict]:
    """Return the verdicts on a member."""
    return list(compare_member(group, name, reference, log))


@pytest.mark.parametrize(
    ("file", "member", "plant"), PLANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_planted_difference_is_found_and_a_sound_member_agrees(
    overrides: Overrides, file: str, member: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bounds of the class itself."""
    group = load_class(FOLDERS["equivalence class"] / f"{file}.yaml")
    (configuration,) = [one for one in group.members if one.name == member]
    reference = log_of(overrides("reference"), group.reference)
    sound = judged(group, member, reference, log_of(overrides("sound"), configuration))
    assert combine(sound) is Outcome.PASS, sound
    plant(monkeypatch)
    broken = judged(group, member, reference, log_of(overrides("broken"), configuration))
    assert combine(broken) is Outcome.FAIL
