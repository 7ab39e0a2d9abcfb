"""refrl trained in a layout of several processes, and in one process: the adapter's part for `contracts.parallel`.

`python -m seatrial.targets.reference.layouts.training JOB` runs one rank; layouts with the same number of processes
share one start.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from refrl.algorithms.batching import TrainSample
from refrl.config import ClusterConfig, PolicyConfig
from refrl.distributed import ALONE, World, groups_of_processes, join, leave_groups, local_device
from refrl.models.byte_tokenizer import VOCAB_SIZE
from refrl.models.tokenization import make_byte_tokenizer
from refrl.streams import global_streams
from refrl.training import build
from seatrial.relations.contracts.parallel import LayoutFacts, RankRecord
from seatrial.relations.records import Row
from seatrial.targets.reference.configuration import configuration, policy_configuration, table
from seatrial.targets.reference.conversions import padded, sample_of
from seatrial.targets.reference.layouts.models import (
    ADAPTER_ALPHA,
    ADAPTER_RANK,
    PAD_ID,
    make_model_of,
    with_media,
)
from seatrial.targets.reference.runs.forking import launch_ranks

SHARES = ("tensor_", "context_", "pipeline_", "expert_", "sequence_")
"""How the options begin that say what processes share."""
BACKENDS = ("dtensor_cfg.", "megatron_cfg.")
"""Sections of the policy that name what serves it."""
SIZES = {"plain": BACKENDS, "backend": tuple(section + share for section in BACKENDS for share in SHARES)}
"""What one process does without."""
NUM_STEPS = 2
"""Updates after the first one, whose raw gradient is kept."""


@dataclass(frozen=True)
class Layout:
    """A way to share the work among processes."""

    processes: int
    model: str
    """`dense`, `moe` for one with experts, `moe-unscaled` for one whose routers' weights do not add up to 1, `vlm` and
    `audio` for one with images or sounds (one in each row), `draft` for one with a draft head."""
    policy: Mapping[str, Any]
    """Options of the policy by dotted name."""
    alone: str = "plain"
    """What one process computes with: `plain` for the model's own code, `backend` for that of the layout, where the two
    round at other places."""
    thorough: bool = False
    """Whether only a thorough run trains in it."""

    @property
    def is_megatron(self) -> bool:
        """Whether Megatron-core serves it."""
        return bool(self.policy.get("megatron_cfg.enabled"))


@cache
def layouts() -> dict[str, Layout]:
    """Return every layout of `layouts.yaml`; those of Megatron-core where it is installed."""
    found = {name: Layout(**fields) for name, fields in table("layouts").items()}
    has_megatron = importlib.util.find_spec("megatron") is not None
    return {name: of for name, of in found.items() if has_megatron or not of.is_megatron}


class ReferenceLayouts:
    """See `seatrial.relations.contracts.parallel`."""

    trains_in: Collection[str] | None = None
    """Names of the layouts that it offers, none of them for a thorough run alone; None: all as they are."""

    def layouts(self) -> Mapping[str, LayoutFacts]:
        # On a CPU Megatron-core serves only where there is no CUDA device: it takes those that it finds.
        return {
            name: LayoutFacts(of.processes, of.model, of.thorough and self.trains_in is None)
            for name, of in layouts().items()
            if not (of.is_megatron and torch.cuda.is_available())
            and (self.trains_in is None or name in self.trains_in)
        }

    def train_in_layouts(
        self, names: Sequence[str], rows: Sequence[Row]
    ) -> Mapping[str, Sequence[RankRecord]]:
        return _shared(tuple(names), tuple(rows))

    def train_alone(self, name: str, rows: Sequence[Row]) -> RankRecord:
        return train_alone(name, rows)


@lru_cache(maxsize=2)
def _shared(names: tuple[str, ...], rows: tuple[Row, ...]) -> dict[str, list[RankRecord]]:
    """Layouts do not depend on the cell of the configuration that the other components are tried in."""
    return train_in_layouts(names, rows)


def train_in_layouts(
    names: Sequence[str], rows: Sequence[Row], *, device: str = "cpu"
) -> dict[str, list[RankRecord]]:
    """Return what each rank of each layout has seen."""
    found: dict[str, list[RankRecord]] = {}
    for processes in sorted({layouts()[name].processes for name in names}):
        same = {name: layouts()[name] for name in names if layouts()[name].processes == processes}
        found.update(_launch(same, rows, processes, device))
    return found


def train_alone(name: str, rows: Sequence[Row], *, device: str = "cpu") -> RankRecord:
    """Return what one process sees that trains the model of a layout, by its own code or by the layout's backend.

    Batches are cut alike.
    """
    layout = layouts()[name]
    own = {key: value for key, value in layout.policy.items() if not key.startswith(SIZES[layout.alone])}
    if layout.alone == "backend" and layout.is_megatron:
        # Apart: Megatron-core's shims change the process that they are in.
        (alone,) = _launch({name: replace(layout, processes=1, policy=own)}, rows, 1, device)[name]
        return alone
    alone = _trained_here(layout.model, tuple(sorted(own.items())), tuple(rows), device)
    return replace(
        alone,
        metrics=_logged(layout, alone.metrics),
        later_metrics=[_logged(layout, metrics) for metrics in alone.later_metrics],
    )


@lru_cache(maxsize=32)
def _trained_here(
    model: str, policy: tuple[tuple[str, Any], ...], rows: tuple[Row, ...], device: str
) -> RankRecord:
    """Layouts that differ by their processes alone are compared with the same record."""
    layout = Layout(processes=1, model=model, policy=dict(policy))
    with tempfile.TemporaryDirectory() as folder:
        config = policy_configuration({**_fixed(layout, Path(folder), rows), **layout.policy})
        return _train(config, rows, torch.device(device), ALONE)


def _fixed(layout: Layout, folder: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the options of every layout: several micro-batches, a gradient that is clipped, where adapters start."""
    model = make_model_of(layout.model, folder)
    adapters: dict[str, Any] = {}
    if layout.policy.get("lora_cfg.enabled"):
        adapters = {"adapter_path": str(model / "adapter"), "dim": ADAPTER_RANK, "alpha": ADAPTER_ALPHA}
    return {
        **{f"lora_cfg.{key}": value for key, value in adapters.items()},
        "model_name": str(model),
        "train_global_batch_size": len(rows),
        "train_micro_batch_size": 2,
        "max_grad_norm": 0.05,
        "optimizer.eps": 1e-4,
    }


def _launch(
    chosen: Mapping[str, Layout], rows: Sequence[Row], processes: int, device: str
) -> dict[str, list[RankRecord]]:
    """Return what each of so many ranks has seen, which train in one layout after another."""
    with tempfile.TemporaryDirectory() as created:
        folder = Path(created)
        job = {
            "device": device,
            "rows": [asdict(row) for row in rows],
            "layouts": {name: {**_fixed(of, folder, rows), **of.policy} for name, of in chosen.items()},
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        launch_ranks(main, [str(folder)], _cluster(device, processes))
        return {name: [_read(folder, name, rank) for rank in range(processes)] for name in chosen}


def _cluster(device: str, processes: int) -> ClusterConfig:
    return ClusterConfig.model_validate({"device": device, "num_processes": processes})


def _read(folder: Path, name: str, rank: int) -> RankRecord:
    return RankRecord(**torch.load(folder / f"{name}.{rank}.pt", weights_only=True))


def _row(fields: Mapping[str, Any]) -> Row:
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return Row(**plain)


def _sample(row: Row, config: PolicyConfig) -> TrainSample:
    """Return a row; where sampling is filtered, as if the filter had kept so many ids at each of its tokens."""
    sample, number = with_media(sample_of(row), Path(config.model_name)), config.generation.top_k
    if number is None:
        return sample
    kept = tuple(
        tuple(sorted({token, *((token + 1 + 7 * place) % VOCAB_SIZE for place in range(number - 1))}))
        for token in row.completion_ids
    )
    return replace(sample, kept_ids=kept)


def _train(config: PolicyConfig, rows: Sequence[Row], device: torch.device, world: World) -> RankRecord:
    policy = build.build_policy(
        config,
        make_byte_tokenizer(),
        device=device,
        num_updates=NUM_STEPS + 1,
        with_reference=True,
        world=world,
    )
    batch = build.build_batch([_sample(row, config) for row in rows], config, pad_token_id=PAD_ID)
    batch.advantages_B = torch.tensor([row.advantage for row in rows])
    batch.old_logprobs_BT = padded([row.old_logprobs for row in rows])
    loss = build.build_loss(configuration({"loss_fn.reference_policy_kl_penalty": 0.1}).loss_fn)
    streams = global_streams()
    logprobs_BT, batch.ref_logprobs_BT = policy.logprobs(batch), policy.reference_logprobs(batch)
    assert batch.ref_logprobs_BT is not None
    metrics = policy.gradients(batch, loss)
    gradients = {name: gradient.cpu() for name, gradient in policy.named_gradients().items()}
    grad_norm, _ = policy.step()
    later = [policy.train(batch, loss) for _ in range(NUM_STEPS)]
    return RankRecord(
        backend=policy.backend.name,
        mesh=dict(policy.backend.mesh),
        logprobs_BT=logprobs_BT.cpu(),
        reference_logprobs_BT=batch.ref_logprobs_BT.cpu(),
        gradients=gradients,
        grad_norm=grad_norm,
        metrics=metrics,
        later_metrics=later,
        weights={
            name: weight.detach().clone().cpu()
            for name, weight in (*policy.named_weights(), *_draft_state(policy.state_tensors()))
        },
        random_streams_untouched=streams == global_streams(),
    )


def _draft_state(state: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what is trained in addition to the policy: the weights and moments of a draft head."""
    return ((name, tensor) for name, tensor in state.items() if name.startswith("draft."))


def _logged(layout: Layout, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what a layout logs of this: Megatron-core's model does not show the load of its experts."""
    return {
        name: value for name, value in metrics.items() if not (layout.is_megatron and name.startswith("moe/"))
    }


def main(words: Sequence[str]) -> None:
    """Run as one rank: train in each layout of the job, and write down what it saw."""
    folder = Path(words[0])
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    rows = [_row(fields) for fields in job["rows"]]
    torch.set_num_threads(1)
    cluster = _cluster(job["device"], int(os.environ["WORLD_SIZE"]))
    device = local_device(cluster)
    with join(cluster) as world:
        gc.freeze()  # what was imported is not looked through after every layout
        for name, options in job["layouts"].items():
            before, config = groups_of_processes(), policy_configuration(options)
            record = _train(config, rows, device, world)
            torch.save(asdict(record), folder / f"{name}.{world.rank}.pt")
            gc.collect()
            gc.freeze()  # what remains is kept by caches
            # Kept: Megatron-core's, for the next policy with the same; and those of parts of the processes, because
            # DTensor caches what it found for a mesh and gives it to the next mesh of the same processes.
            if not config.megatron_cfg.enabled and world.size == 2:
                leave_groups(groups_of_processes() - before)


if __name__ == "__main__":
    main(sys.argv[1:])
