"""The models of a run after each step that it saved, with their gradient: dense, adapted, and those of transformers.

Adapters are merged into the weights that they were trained on; the gradient of a merged weight gives that of its
adapter (LoRA, arXiv 2106.09685).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.decoder import Decoder, why_not
from seatrial.trials.sensors.first_step import MEDIA_TASKS, MOST_BYTES
from seatrial.trials.sensors.model import Model
from seatrial.trials.sensors.paths import model_facts
from seatrial.trials.sensors.saved import WEIGHT, LoadedTensor, saved_steps, tensors_at
from seatrial.trials.sensors.scoring import placeholder_of
from seatrial.trials.sensors.transformers_model import TransformersModel, write_model

Array = npt.NDArray[np.float64]
LOW, HIGH = ".lora_A.weight", ".lora_B.weight"
"""After the name of a layer: the two factors of its adapter."""


class SavedModels:
    """The models of a run by the step after which they were saved; 0 is the initial one."""

    def __init__(self, evidence: RunEvidence, options: Mapping[str, Any]) -> None:
        """Find the steps.

        Raises:
            NotGivenError: the run saves none, or its model is not computed again.
        """
        evidence.need("checkpoints")
        job = evidence.job
        if job.checkpoint_dir is None or job.first_step > 1:
            raise NotGivenError("the run saves no checkpoints of its own steps")
        if job.backend not in (None, "hf"):
            raise NotGivenError(f"the policy of {job.backend} is computed again at step 1 alone")
        if job.num_updates_per_step != 1:
            raise NotGivenError("the weights before each update are not saved")
        self._evidence = evidence
        self._folder, self._facts = job.initial_model, model_facts(job.initial_model)
        self._initial = stored_tensors(job.initial_model)
        reason = why_not(self._facts, self._folder)
        self._is_dense = reason is None
        self._scale: float | None = None
        if options["policy.lora_cfg.enabled"]:
            self._scale = options["policy.lora_cfg.alpha"] / options["policy.lora_cfg.dim"]
        if reason is not None:
            _need_small(self._folder, self._facts, options, reason)
            if self._scale is not None:
                raise NotGivenError(f"adapters of {reason} are not merged again")
        saved = saved_steps(job.checkpoint_dir, job.checkpoint_form)
        starts_adapted = bool(options["policy.lora_cfg.enabled"] and options["policy.lora_cfg.adapter_path"])
        self.steps = frozenset(saved) | (frozenset() if starts_adapted else {0})
        self.are_the_samplers = job.precision == options["policy.precision"]
        """Whether each token is drawn with the weights of one step, not rounded to int8."""
        self._held: dict[int, Mapping[str, StoredTensor]] = {}

    def at(self, step: int) -> Model:
        """Return the model after a step, without a gradient yet."""
        tensors = self._tensors(step)
        if self._scale is not None:
            return AdaptedDecoder(tensors, self._facts, self._adapters(step), self._scale)
        if self._is_dense:
            return Decoder(tensors, self._facts)
        if step == 0:
            return TransformersModel(self._evidence)
        with tempfile.TemporaryDirectory(prefix="seatrial-model-") as folder:
            write_model(tensors, self._folder, Path(folder))
            return TransformersModel(self._evidence, Path(folder))

    def rounded_at(self, step: int) -> Decoder:
        """Return the model after a step with its linear layers rounded to int8: a sampler's.

        Raises:
            NotGivenError: it is no dense decoder without adapters.
        """
        if not self._is_dense or self._scale is not None:
            raise NotGivenError(
                "a rounded sampler is computed again for a dense decoder without adapters alone"
            )
        return Decoder(int8_rounded(self._tensors(step)), self._facts)

    def has_gradient(self, step: int) -> bool:
        """Return whether the gradient at a step's weights is known: not that of new adapters, which are not saved."""
        return self._scale is None or step > 0

    def _tensors(self, step: int) -> Mapping[str, StoredTensor]:
        """Return the weights after a step; of adapters, those that they were trained on."""
        if step == 0 or self._scale is not None:
            return self._read(0)
        return self._read(step)

    def _adapters(self, step: int) -> dict[str, StoredTensor]:
        held = self._read(step) if step else {}
        return {name: tensor for name, tensor in held.items() if name.endswith((LOW, HIGH))}

    def _read(self, step: int) -> Mapping[str, StoredTensor]:
        if step == 0:
            return self._initial
        if step not in self._held:
            saved = tensors_at(self._evidence, step)
            self._held[step] = {
                name.removeprefix(WEIGHT): of for name, of in saved.items() if name.startswith(WEIGHT)
            }
        return self._held[step]


class AdaptedDecoder(Decoder):
    """A decoder with merged adapters, whose gradients are those of the adapters."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        facts: Mapping[str, Any],
        adapters: Mapping[str, StoredTensor],
        scale: float,
    ) -> None:
        """Merge the adapters.

        Args:
            tensors: weights that the adapters were trained on.
            facts: of config.json.
            adapters: `<layer>.lora_A.weight` [r, in] and `<layer>.lora_B.weight` [out, r]; empty: none has moved.
            scale: alpha / r.
        """
        super().__init__(tensors, facts)
        self._scale = scale
        self._factors: dict[str, tuple[Array, Array]] = {}
        for name, tensor in adapters.items():
            if name.endswith(LOW):
                layer = name.removesuffix(LOW)
                low = tensor.read().astype(np.float64)
                high = adapters[f"{layer}{HIGH}"].read().astype(np.float64)
                self._factors[f"{layer}.weight"] = low, high
                self._weights[f"{layer}.weight"] = self._weights[f"{layer}.weight"] + scale * (high @ low)

    def norms(self) -> dict[str, float]:
        """Return the norm of the gradient of each factor of an adapter."""
        found = {}
        for name, (low, high) in self._factors.items():
            gradient = self._gradients[name]
            found[f"{name}{LOW}"] = self._scale * float(np.linalg.norm(high.T @ gradient))
            found[f"{name}{HIGH}"] = self._scale * float(np.linalg.norm(gradient @ low.T))
        return found


def int8_rounded(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the weights with every linear layer but the head rounded to int8, each row by its largest element.

    The scale of a row is its largest magnitude over 127 (symmetric, per output channel).
    """
    found: dict[str, StoredTensor] = dict(tensors)
    for name, tensor in tensors.items():
        if len(tensor.shape) != 2 or "embed_tokens" in name or "lm_head" in name:
            continue
        values = tensor.read().astype(np.float32)
        largest = np.abs(values).max(1, keepdims=True)
        scale = np.where(largest > 0, largest / np.float32(127), np.float32(1))
        rounded = (np.clip(np.rint(values / scale), -127, 127) * scale).astype(np.float32)
        found[name] = LoadedTensor(
            file=tensor.file, dtype="F32", shape=tensor.shape, start=0, end=rounded.nbytes, values=rounded
        )
    return found


def _need_small(folder: Path, facts: Mapping[str, Any], options: Mapping[str, Any], reason: str) -> None:
    """Raise NotGivenError for a model that is too large, or whose images or sounds are not drawn again."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size > MOST_BYTES:
        raise NotGivenError(f"{reason} is too large to be computed again")
    if placeholder_of(facts) is not None and options["data.task"] not in MEDIA_TASKS:
        raise NotGivenError(f"the images or sounds of data.task={options['data.task']} are not drawn again")
