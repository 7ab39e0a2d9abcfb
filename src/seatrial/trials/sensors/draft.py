"""Verdict on a draft head: its loss, acceptance and gradient at every step whose weights before it are known."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.options import options_of, steps_of
from seatrial.trials.sensors.paths import by_step
from seatrial.trials.sensors.saved import WEIGHT, saved_steps, tensors_at
from seatrial.trials.sensors.scoring import draft_of, load_model, policy_precision
from seatrial.trials.sensors.transformers_model import write_model

DRAFT_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
"""Of the draft head's loss, relative, by the policy's precision.

Losses of random weights for two tokens are 1e-3 apart.
"""
DRAFT_GRADIENT = {"float32": 1e-4, "bfloat16": 0.1}
"""Of the norm of its gradient."""
FOLDER, HEAD = "draft", "draft."
"""Of a model, and what comes before the names of the head's tensors in a checkpoint."""


def draft_is_that_of_the_rows(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Loss, acceptance and gradient's norm of the head are those of the rows, at step 1 and after each saved step.

    Raises:
        NotGivenError: the evidence does not say what is needed.
        BlockedError: a checkpoint or a model cannot be read.
    """
    options = options_of(evidence)
    temperature, precision = float(options["policy.generation.temperature"]), policy_precision(evidence)
    bounds = dict.fromkeys(("loss", "acceptance_rate"), DRAFT_TOLERANCE[precision])
    rows, wrong, seen, total = steps_of(evidence), [], [], 0
    for step, weights, head in _known(evidence):
        if step not in rows:
            continue
        with tempfile.TemporaryDirectory(prefix="seatrial-model-") as folder:
            place = evidence.job.initial_model
            if weights is not None:
                place = Path(folder)
                write_model(weights, evidence.job.initial_model, place)
            model, facts = load_model(place)
            found, number = draft_of(model, facts, _trainable(head), rows[step], temperature)
        total += number
        seen.append(f"{found['loss']:.6g}")
        for name, right in found.items():
            logged = by_step(evidence, f"train/draft/{name}").get(step, math.nan)
            if not math.isclose(right, logged, rel_tol=bounds.get(name, DRAFT_GRADIENT[precision])):
                wrong.append(
                    f"step {step}: train/draft/{name} is logged as {logged:.6g}, the rows give {right:.6g}"
                )
    return wrong[:3], f"losses {', '.join(seen)} over {total} tokens", total


def _known(
    evidence: RunEvidence,
) -> Iterator[tuple[int, Mapping[str, StoredTensor] | None, Mapping[str, StoredTensor]]]:
    """Yield each step whose weights before it are known, the policy's (None: the initial ones) and the head's."""
    job = evidence.job
    if job.first_step > 1:
        raise NotGivenError("the run continues another one: step 1 is not its own")
    yield 1, None, stored_tensors(job.initial_model / FOLDER)
    if job.checkpoint_dir is None or "checkpoints" in job.absent:
        return
    for step in saved_steps(job.checkpoint_dir, job.checkpoint_form):
        tensors = tensors_at(evidence, step)
        parts = {
            prefix: {name.removeprefix(prefix): of for name, of in tensors.items() if name.startswith(prefix)}
            for prefix in (WEIGHT, HEAD)
        }
        yield step + 1, parts[WEIGHT], parts[HEAD]


def _trainable(head: Mapping[str, StoredTensor]) -> dict[str, Any]:
    import torch

    return {
        name: torch.from_numpy(np.array(tensor.read(), dtype=np.float32)).requires_grad_()
        for name, tensor in head.items()
        if not name.startswith("optimizer.")
    }
