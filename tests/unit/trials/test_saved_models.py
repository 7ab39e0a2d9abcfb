"""Models that trials compute again after a step: with adapters, and rounded as a sampler in int8."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from refrl.generation.quantized import quantize
from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.weights import stored_tensors
from seatrial.trials.sensors.adapters import _drawn_alike, _other_targets
from seatrial.trials.sensors.decoder import Decoder
from seatrial.trials.sensors.paths import model_facts
from seatrial.trials.sensors.saved_models import AdaptedDecoder, int8_rounded

LAYER = "model.layers.0.mlp.down_proj"
OPTIONS: dict[str, Any] = {"policy.lora_cfg.adapter_path": None, "policy.optimizer.lr": 1e-3}


def tiny(folder: Path) -> Path:
    """Make a tiny model."""
    make_model(
        TinyModelSpec(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=24), folder
    )
    return folder


def test_the_gradient_of_an_adapter_is_that_of_its_factors(tmp_path: Path) -> None:
    """Against differences of the loss when each factor is moved along its gradient's direction."""
    folder = tiny(tmp_path / "model")
    tensors, facts = stored_tensors(folder), model_facts(folder)
    out, wide = tensors[f"{LAYER}.weight"].shape
    generator = np.random.default_rng(3)
    factors = {
        f"{LAYER}.lora_A.weight": generator.normal(size=(2, wide)) * 0.1,
        f"{LAYER}.lora_B.weight": generator.normal(size=(out, 2)) * 0.1,
    }
    row = LedgerRow(step=1, index=0, prompt_id=0, token_ids=(1, 2, 3, 4), prompt_length=1)
    weights_SV = generator.normal(size=(4, facts["vocab_size"]))

    def model(changed: dict[str, Any]) -> AdaptedDecoder:
        save_file(changed, tmp_path / "adapter.safetensors")
        return AdaptedDecoder(tensors, facts, stored_tensors_of(tmp_path / "adapter.safetensors"), 4.0)

    def value(changed: dict[str, Any]) -> float:
        return float((model(changed).logits(row) * weights_SV).sum())

    adapted = model(factors)
    adapted.logits(row)
    adapted.backward(weights_SV)
    norms = adapted.norms()
    for name, factor in factors.items():
        found = np.zeros_like(factor)
        for place in np.ndindex(factor.shape):
            moved = []
            for sign in (1, -1):
                other = factor.copy()
                other[place] += sign * 1e-5
                moved.append(value({**factors, name: other}))
            found[place] = (moved[0] - moved[1]) / 2e-5
        logged = next(norm for key, norm in norms.items() if key.endswith(name.removeprefix(LAYER)))
        assert np.isclose(logged, np.linalg.norm(found), rtol=1e-5)


def stored_tensors_of(file: Path) -> Any:
    """Return the tensors of one file."""
    folder = file.parent / "adapter"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(file.read_bytes())
    return stored_tensors(folder)


def test_rounding_is_that_of_the_sampler(tmp_path: Path) -> None:
    """Each row of a linear layer by its largest element over 127; embedding, head and norms stay."""
    tensors = stored_tensors(tiny(tmp_path / "model"))
    rounded = int8_rounded(tensors)
    for name, tensor in tensors.items():
        values = rounded[name].read()
        if len(tensor.shape) != 2 or "embed" in name or "lm_head" in name:
            assert np.array_equal(values, tensor.read())
            continue
        weight_OI, scale_O = quantize(torch.from_numpy(np.array(tensor.read())))
        assert np.array_equal(values, (weight_OI * scale_O[:, None]).numpy())
        assert not np.array_equal(values, tensor.read())
    assert (
        Decoder(rounded, model_facts(tmp_path / "model"))
        .logits(LedgerRow(step=1, index=0, prompt_id=0, token_ids=(1, 2), prompt_length=1))
        .shape[0]
        == 2
    )


def test_adapters_of_one_stream_or_range_are_seen(tmp_path: Path) -> None:
    """Each A is drawn by itself, within 1 / sqrt(in)."""
    generator = np.random.default_rng(0)
    first, second = (generator.uniform(-0.25, 0.25, (8, 16)).astype(np.float32) for _ in range(2))

    def said(**tensors: Any) -> str:
        save_file(
            {f"{name}.lora_A.weight": of for name, of in tensors.items()}, tmp_path / "model.safetensors"
        )
        return "".join(_drawn_alike(stored_tensors(tmp_path), OPTIONS, 3))

    assert said(a=first, b=second) == ""
    assert "drawn with the same random numbers" in said(a=first, b=first + np.float32(1e-3))
    assert "the largest element" in said(a=first * 2, b=second)
    assert "the largest element" in said(a=first / 2, b=second)
    assert "mean" in said(a=np.abs(first), b=second)


def test_targets_are_the_adapted_layers() -> None:
    """By whole names or their ends, none missing and none more."""
    adapted = {"a.q_proj", "b.q_proj", "b.k_proj"}
    assert not list(_other_targets({"target_modules": ["q_proj", "k_proj"]}, adapted))
    assert "not b.k_proj" in "".join(_other_targets({"target_modules": ["q_proj"]}, adapted))
    assert "targets v_proj" in "".join(
        _other_targets({"target_modules": ["q_proj", "k_proj", "v_proj"]}, adapted)
    )
