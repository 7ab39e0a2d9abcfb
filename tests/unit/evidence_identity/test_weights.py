"""Weights are compared tensor by tensor, against numpy and the safetensors library."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from seatrial.errors import BlockedError
from seatrial.evidence.weights import compare_weights, stored_tensors


def folder(tmp_path: Path, name: str, **tensors: np.ndarray) -> Path:
    """Save tensors as a folder with one file."""
    path = tmp_path / name
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    return path


RANDOM = np.random.default_rng(0)
A = RANDOM.normal(size=(3, 5)).astype(np.float32)
B = RANDOM.normal(size=(7,)).astype(np.float32)


def test_what_moved_and_by_how_much(tmp_path: Path) -> None:
    """One element of one tensor."""
    moved = A.copy()
    moved[2, 1] += 0.5
    moved[0, 0] -= 0.25
    found = compare_weights(folder(tmp_path, "old", a=A, b=B), folder(tmp_path, "new", a=moved, b=B))
    change = {item.name: item for item in found.changes}
    assert change["a"].max_abs_change == pytest.approx(0.5, rel=1e-6)
    assert (change["a"].num_changed, change["a"].num_elements) == (2, 15)
    assert found.unmoved == ["b"]
    assert not found.only_before + found.only_after + found.reshaped


def test_names_are_a_closed_set(tmp_path: Path) -> None:
    """Lost, added and reshaped tensors are named, also across several files."""
    old = folder(tmp_path, "old", a=A, b=B, lost=B)
    new = folder(tmp_path, "new", a=A.reshape(5, 3))
    save_file({"b": B, "added": B}, new / "more.safetensors")
    found = compare_weights(old, new)
    assert found.only_before == ("lost",)
    assert found.only_after == ("added",)
    assert found.reshaped == ("a: (3, 5) became (5, 3)",)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_shows(tmp_path: Path, value: float) -> None:
    """A tensor that turned to NaN has changed, and is counted."""
    spoilt = B.copy()
    spoilt[3] = value
    (change,) = compare_weights(folder(tmp_path, "old", b=B), folder(tmp_path, "new", b=spoilt)).changes
    assert change.num_nonfinite == 1
    assert change.num_changed == 1
    assert not np.isfinite(change.max_abs_change)


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    """torch's own conversion is the oracle."""
    values = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    (tmp_path / "m").mkdir()
    save_torch({"w": values, "i": torch.arange(5)}, tmp_path / "m" / "model.safetensors")
    stored = stored_tensors(tmp_path / "m")
    np.testing.assert_array_equal(stored["w"].read(), values.float().numpy())
    np.testing.assert_array_equal(stored["i"].read(), np.arange(5))


@pytest.mark.parametrize("size", [0, 5, 8, 60, -1])
def test_a_truncated_file_is_blocked(tmp_path: Path, size: int) -> None:
    """Wherever it ends."""
    path = folder(tmp_path, "m", a=A, b=B) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BlockedError, match=r"model\.safetensors"):
        stored_tensors(path.parent)


def test_garbage_and_nothing_are_blocked(tmp_path: Path) -> None:
    """No weights is not equal weights."""
    with pytest.raises(BlockedError, match=r"holds no \*\.safetensors"):
        stored_tensors(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(np.arange(1000, dtype=np.uint8).tobytes())
    with pytest.raises(BlockedError):
        stored_tensors(tmp_path)
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(BlockedError, match="F8_E4M3"):
        stored_tensors(tmp_path)


def test_one_name_in_two_files_is_blocked(tmp_path: Path) -> None:
    """It is not known which one counts."""
    path = folder(tmp_path, "m", a=A)
    save_file({"a": A}, path / "other.safetensors")
    with pytest.raises(BlockedError, match="is in"):
        stored_tensors(path)


def test_rounding_to_bfloat16_is_no_change(tmp_path: Path) -> None:
    """An export in bfloat16 of float32 weights that did not train has not moved; torch's rounding is the oracle."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(200, 30, generator=generator) * torch.logspace(-30, 30, 200)[:, None]
    moved = values.bfloat16()
    moved[17, 3] *= 1.01
    for name, tensors in {
        "old": {"a": values, "b": values.clone()},
        "new": {"a": values.bfloat16(), "b": moved},
    }.items():
        (tmp_path / name).mkdir()
        save_torch(tensors, tmp_path / name / "model.safetensors")
    found = compare_weights(tmp_path / "old", tmp_path / "new")
    assert [change.num_changed for change in found.changes] == [0, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_resolution_is_the_distance_to_the_next_value_of_the_type(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """Of the smallest element."""
    (tmp_path / "m").mkdir()
    save_torch({"w": torch.tensor([3.0, -1.0, 2.0]).to(dtype)}, tmp_path / "m" / "model.safetensors")
    (change,) = compare_weights(tmp_path / "m", tmp_path / "m").changes
    assert change.resolution == torch.finfo(dtype).eps
