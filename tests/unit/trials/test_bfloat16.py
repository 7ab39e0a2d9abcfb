"""Exported weights must show what their type can show, and no more."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from seatrial.evidence.weights import compare_weights
from seatrial.trials.run_evidence import NotGivenError
from seatrial.trials.sensors.paths import int8_layers
from seatrial.trials.sensors.run import parameters_moved
from seatrial.verdict import Outcome


def judged(folder: Path, after: dict[str, torch.Tensor], rates: Sequence[float], lr: float = 1e-3) -> Any:
    """Return the verdict on weights of a norm of ones and a matrix, exported in bfloat16."""
    before = {"norm": torch.ones(8), "matrix": torch.linspace(-0.1, 0.1, 64).reshape(8, 8)}
    for name, tensors in {"before": before, "after": {**before, **after}}.items():
        (folder / name).mkdir()
        save_file(
            {one: tensor.bfloat16() for one, tensor in tensors.items()}, folder / name / "m.safetensors"
        )
    evidence: Any = SimpleNamespace(
        job=SimpleNamespace(
            final_model=folder / "after",
            frozen=(),
            num_updates_per_step=1,
            configuration={"policy": {"optimizer": {"lr": lr}}},
        ),
        need=lambda kind: None,
        series=lambda tag: SimpleNamespace(values=np.array(rates)) if rates else None,
        weights=compare_weights(folder / "before", folder / "after"),
        unreached_experts=frozenset(),
        is_without_signal=False,
        launched=None,
    )
    return parameters_moved(evidence)


MATRIX = {"matrix": torch.linspace(-0.2, 0.1, 64).reshape(8, 8)}


@pytest.mark.parametrize(
    ("after", "rates", "outcome", "words"),
    [
        (MATRIX, [1e-3] * 3, Outcome.PASS, "norm, whose type cannot show"),
        (MATRIX, [1e-2] * 3, Outcome.FAIL, "did not move: norm"),
        (MATRIX, [], Outcome.FAIL, "did not move: norm"),
        (MATRIX, [0.0] * 3, Outcome.FAIL, "did not move: norm"),
        ({"norm": torch.full((8,), 1.1)}, [1e-3] * 3, Outcome.FAIL, "did not move: matrix"),
        ({}, [1e-3] * 3, Outcome.FAIL, "did not move: matrix"),
    ],
)
def test_a_tensor_may_stay_where_its_type_is_too_coarse_for_the_rates(
    tmp_path: Path,
    after: dict[str, torch.Tensor],
    rates: Sequence[float],
    outcome: Outcome,
    words: str,
) -> None:
    """Next to 1, bfloat16 has 1.0078; next to 0 it has as good as everything."""
    verdict = judged(tmp_path, after, rates)
    assert verdict.outcome is outcome
    assert words in verdict.reason


def test_what_is_configured_not_to_move_proves_nothing(tmp_path: Path) -> None:
    """And may not move."""
    with pytest.raises(NotGivenError, match="lr=0: nothing can move"):
        judged(tmp_path, {}, [0.0] * 3, lr=0.0)
    (tmp_path / "moved").mkdir()
    verdict = judged(tmp_path / "moved", MATRIX, [0.0] * 3, lr=0.0)
    assert verdict.outcome is Outcome.FAIL
    assert "1 tensors moved at a learning rate of 0: matrix" in verdict.reason


@pytest.mark.parametrize(
    ("said", "is_good"),
    [
        ("torch 2.11, 2 layers in int8, no static decoding: it does not serve it", True),
        ("torch 2.11, 2 layers in int8", True),
        ("torch 2.11, 12 layers in int8", False),
        ("torch 2.11", False),
    ],
)
def test_the_engine_may_say_more_than_its_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_good: bool
) -> None:
    """On CUDA it also says how it decodes."""
    tensors = {name: torch.ones(4, 4) for name in ("embed_tokens.weight", "lm_head.weight", "a", "b")}
    save_file(tensors, tmp_path / "m.safetensors")
    monkeypatch.setattr("seatrial.trials.sensors.paths.run_facts", lambda evidence: {"generator": said})
    evidence: Any = SimpleNamespace(job=SimpleNamespace(initial_model=tmp_path))
    assert (int8_layers(evidence)[0] == []) is is_good
