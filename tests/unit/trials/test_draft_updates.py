"""Updates of a draft head, which has an optimizer of its own, computed again from its saved moments."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.runlog import Series
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.optimizer import updates_are_adamws

RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.1


def run_of(folder: Path, *, clipped: float = 1.0, rate: float = RATE, logged: float = 5.0) -> RunEvidence:
    """Return a run whose first update took a gradient of norm 5, clipped, with AdamW."""
    start, gradient = np.full((2, 2), 0.5), np.array([[3.0, 0.0], [0.0, 4.0]]) * clipped / 5
    first, second = (1 - BETAS[0]) * gradient, (1 - BETAS[1]) * gradient**2
    moved = rate * gradient / (np.abs(gradient) + EPSILON)
    after = {
        "draft.w": start * (1 - rate * DECAY) - moved,
        "draft.optimizer.w.exp_avg": first,
        "draft.optimizer.w.exp_avg_sq": second,
    }
    for place, tensors in {
        "model": {"other": start},
        "model/draft": {"w": start},
        "step_1/policy": after,
    }.items():
        (folder / place).mkdir(parents=True)
        single = {name: of.astype(np.float32) for name, of in tensors.items()}
        save_file(single, folder / place / "model.safetensors")
    options: dict[str, Any] = {
        "policy": {
            "train_global_batch_size": 1,
            "max_grad_norm": 1.0,
            "optimizer": {"lr": RATE, "betas": list(BETAS), "eps": EPSILON, "weight_decay": DECAY},
            "scheduler": {"name": "constant", "warmup_steps": 0, "min_lr_ratio": 0.0},
        },
        "grpo": {"seed": 0},
    }
    job: Any = SimpleNamespace(
        absent={},
        num_steps=1,
        first_step=1,
        num_updates_per_step=1,
        backend="hf",
        checkpoint_dir=folder,
        checkpoint_form="step_{step}/policy",
        initial_model=folder / "model",
        configuration=options,
    )
    run = RunEvidence(job, None, [])  # type: ignore[arg-type]
    series = Series(tag="", steps=np.array([1]), values=np.array([logged]))
    run.__dict__["log"] = SimpleNamespace(damage=[], series={"train/draft/grad_norm": series}, tags=set)
    run.__dict__["ledger"] = [
        LedgerRow(step=1, index=0, prompt_id=0, token_ids=(1, 2), prompt_length=1, loss_mask=(0, 1))
    ]
    return run


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"clipped": 2.0}, "the optimizer got a gradient of norm 2"),
        ({"logged": 0.5}, "train/draft/grad_norm is 0.5"),
        ({"rate": 2 * RATE}, "from where AdamW takes it"),
    ],
)
def test_the_update_of_a_draft_head(tmp_path: Path, change: dict[str, float], wrong: str) -> None:
    """AdamW at the schedule's rate, of a gradient clipped to the limit, whose norm is logged before that."""
    found = updates_are_adamws(run_of(tmp_path, **change))[0]
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)
