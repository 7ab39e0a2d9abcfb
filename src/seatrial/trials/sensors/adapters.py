"""Verdict on which layers got an adapter, and of which rank and scale."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.targets.base import TrainingJob
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.decoder import FAMILIES
from seatrial.trials.sensors.options import options_of
from seatrial.trials.sensors.paths import model_facts, sensor

HALVES = (".lora_A.weight", ".lora_B.weight")
PREFIX = "base_model.model."
"""What PEFT puts before the name of every tensor."""
EMBEDDING, HEAD = "embed_tokens", "lm_head"

MOST_MOVED = 2.0
"""Rates by which Adam moves an element in a step: less than one after a few steps, decay included."""
OF_RANGE = 0.2
"""By which the largest of n uniform numbers may be below the limit: of 100 it is with a chance of 2e-10."""
DEVIATIONS = 7.0
"""Standard deviations that the mean of an A may be off 0: with a chance of 3e-12."""
BASE = "base_model_name_or_path"
PLAIN: Mapping[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "layers_to_transform": None,
}
"""Options of PEFT that change what an adapter computes, at the values of a plain LoRA, which are PEFT's defaults."""


def adapters_are_configured(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The exported adapters are on the layers that the options name, and have their rank, scale, base and form.

    Raises:
        NotGivenError: the run exports no adapters, or its model's linear layers are not known by their weights.
        BlockedError: a file cannot be read.
    """
    options, folder = options_of(evidence), evidence.job.adapter_dir
    if folder is None or model_facts(evidence.job.initial_model).get("model_type") not in FAMILIES:
        raise NotGivenError("the run exports no adapters of a model whose layers are known")
    wanted = set(_layers(stored_tensors(evidence.job.initial_model), options))
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in stored_tensors(folder).items()}
    adapted = {name.removesuffix(half) for name in tensors for half in HALVES if name.endswith(half)}
    wrong = [f"{name} has no adapter" for name in sorted(wanted - adapted)]
    wrong += [f"{name} has an adapter" for name in sorted(adapted - wanted)]
    rank = options["policy.lora_cfg.dim"]
    wrong += [
        f"{name} has shape {tensor.shape}, and policy.lora_cfg.dim is {rank}"
        for name, tensor in tensors.items()
        if (name.endswith(HALVES[0]) and tensor.shape[0] != rank)
        or (name.endswith(HALVES[1]) and tensor.shape[1] != rank)
    ]
    try:
        said = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BlockedError(f"{folder}/adapter_config.json cannot be read: {error}") from error
    for name, value in {"r": rank, "lora_alpha": options["policy.lora_cfg.alpha"], **PLAIN}.items():
        if said.get(name, value if name in PLAIN else None) != value:
            wrong.append(f"adapter_config.json has {name}={said.get(name)}, the run has {value}")
    wrong += _of_another_model(said.get(BASE), evidence.job)
    wrong += _other_targets(said, adapted)
    wrong += _drawn_alike(tensors, options, evidence.job.num_steps)
    return wrong[:3], f"{len(adapted)} layers with an adapter of rank {rank}", len(adapted)


ADAPTED = sensor(
    "adapters: they are on the configured layers",
    "those named, of the rank and scale",
    adapters_are_configured,
)


def _of_another_model(named: str | None, job: TrainingJob) -> Iterator[str]:
    """Yield that the adapters name another base than the model that training started from."""
    if named is None:
        yield f"adapter_config.json names no {BASE}"
    elif Path(named).resolve() == job.final_model.resolve():
        yield f"adapter_config.json has {BASE}={named}, the export, which holds the adapters already"
    elif Path(named).resolve() != job.initial_model.resolve():
        yield f"adapter_config.json has {BASE}={named}, the run started from {job.initial_model}"


def _other_targets(said: Mapping[str, Any], adapted: Collection[str]) -> Iterator[str]:
    """Yield layers that PEFT would adapt by the configuration and that have no tensors, and the other way round."""
    ends = said.get("target_modules") or ()
    if isinstance(ends, str):
        return  # a regular expression
    untargeted = sorted(name for name in adapted if not _ends_with(name, ends))
    unmatched = sorted(end for end in ends if not any(_ends_with(name, [end]) for name in adapted))
    if untargeted:
        yield f"adapter_config.json targets {len(ends)} modules, not {untargeted[0]}, which has an adapter"
    if unmatched:
        yield f"adapter_config.json targets {unmatched[0]}, which has no adapter"


def _drawn_alike(
    tensors: Mapping[str, StoredTensor], options: Mapping[str, Any], num_steps: int
) -> Iterator[str]:
    """Yield pairs of adapters whose A was drawn with the same random numbers, and those drawn from another range.

    A is uniform within 1 / sqrt(in), as PEFT's; Adam moves an element by at most about the rate at each step.
    """
    if options["policy.lora_cfg.adapter_path"]:
        return
    moved = MOST_MOVED * num_steps * options["policy.optimizer.lr"]
    lows = {
        name: tensor.read().astype(np.float64) for name, tensor in tensors.items() if name.endswith(HALVES[0])
    }
    for name, low in lows.items():
        limit, largest = low.shape[1] ** -0.5, float(np.abs(low).max())
        if not (1 - OF_RANGE) * limit - moved <= largest <= limit + moved:
            yield f"the largest element of {name} is {largest:.4g}, one drawn within {limit:.4g} has another"
        mean, spread = float(low.mean()), limit / math.sqrt(3 * low.size)
        if abs(mean) > DEVIATIONS * spread + moved:
            yield f"the mean of {name} is {mean:.4g}, of numbers drawn within {limit:.4g} it is 0 by {spread:.2g}"
    for (name, low), (other, second) in itertools.combinations(lows.items(), 2):
        if low.shape == second.shape and float(np.abs(low - second).max()) <= 2 * moved:
            yield f"{name} and {other} were drawn with the same random numbers"


def _layers(tensors: Mapping[str, StoredTensor], options: Mapping[str, Any]) -> list[str]:
    """Return the linear layers of a decoder that the options adapt."""
    targets, left_out = (options[f"policy.lora_cfg.{name}"] for name in ("target_modules", "exclude_modules"))
    matrices = [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2 and EMBEDDING not in name
    ]
    chosen = [name for name in matrices if (name != HEAD if targets is None else _ends_with(name, targets))]
    return [name for name in chosen if not _ends_with(name, left_out)]


def _ends_with(name: str, ends: Sequence[str]) -> bool:
    return any(name == end or name.endswith(f".{end}") for end in ends)
