"""A sampler's weights against the trainer's: what is stale, missing, unknown or transposed is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from refrl.weight_sync.tensors import fingerprint
from seatrial.cli import main
from seatrial.comparisons.sync import compare_served
from seatrial.comparisons.tensors import of_tensors, write_tensors
from seatrial.errors import BlockedError
from seatrial.evidence.weights import (
    Checkpoint,
    Fingerprint,
    read_fingerprints,
)
from seatrial.verdict import Outcome, Verdict


def weights(seed: int = 0) -> dict[str, Tensor]:
    """More than ten layers, with what engines join."""
    stream = torch.Generator().manual_seed(seed)

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream)

    found = {"model.embed_tokens.weight": made(16, 8), "model.norm.weight": made(8)}
    for layer in range(12):
        prefix = f"model.layers.{layer}"
        found |= {
            f"{prefix}.self_attn.q_proj.weight": made(8, 8),
            f"{prefix}.self_attn.k_proj.weight": made(4, 8),
            f"{prefix}.self_attn.v_proj.weight": made(4, 8),
            f"{prefix}.mlp.gate_proj.weight": made(6, 8),
            f"{prefix}.mlp.up_proj.weight": made(6, 8),
        }
    return found


def joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as a serving engine names them."""
    left = dict(tensors)
    for layer in range(12):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        left[f"{attention}.qkv_proj.weight"] = torch.cat(
            [left.pop(f"{attention}.{name}_proj.weight") for name in "qkv"]
        )
        left[f"{mlp}.gate_up_proj.weight"] = torch.cat(
            [left.pop(f"{mlp}.{name}_proj.weight") for name in ("gate", "up")]
        )
    return left


def stored(path: Path, tensors: dict[str, Tensor]) -> Path:
    """Write a folder of weights."""
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    return path


def prints(tensors: dict[str, Tensor]) -> dict[str, Fingerprint]:
    """Return what a serving process writes down."""
    return of_tensors(tensors.items())


@pytest.fixture
def trained(tmp_path: Path) -> Checkpoint:
    """The policy's weights."""
    return Checkpoint(stored(tmp_path / "trained", weights()))


def failed(verdicts: list[Verdict]) -> str:
    """Return what the verdicts that failed say."""
    return " | ".join(verdict.reason for verdict in verdicts if verdict.outcome is Outcome.FAIL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("as_served", [dict, joined], ids=["apart", "joined"])
def test_what_was_synced_passes(trained: Checkpoint, dtype: torch.dtype, as_served: Any) -> None:
    """In any type that the engine keeps, under its own names."""
    served = {name: tensor.to(dtype) for name, tensor in as_served(weights()).items()}
    verdicts = compare_served(trained, prints(served))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASS, Outcome.PASS], failed(verdicts)
    assert verdicts[1].num_samples == len(served)


@pytest.mark.parametrize("as_served", [dict, joined], ids=["apart", "joined"])
def test_a_stale_tensor_is_named(trained: Checkpoint, tmp_path: Path, as_served: Any) -> None:
    """One layer that the sync left as it was."""
    old = weights(seed=1)
    served = weights()
    served["model.layers.11.self_attn.k_proj.weight"] = old["model.layers.11.self_attn.k_proj.weight"]
    served["model.layers.3.mlp.up_proj.weight"] = old["model.layers.3.mlp.up_proj.weight"]
    before = Checkpoint(stored(tmp_path / "before", old))
    said = failed(compare_served(trained, prints(as_served(served)), before))
    if as_served is dict:
        assert "model.layers.11.self_attn.k_proj.weight (stale: equal to the earlier version)" in said
        assert "model.layers.3.mlp.up_proj.weight (stale" in said
    else:
        assert "model.layers.11.self_attn.qkv_proj.weight (other values" in said
        assert "model.layers.3.mlp.gate_up_proj.weight (other values" in said


def test_a_transposed_tensor_is_named(trained: Checkpoint) -> None:
    """A square one, which no shape gives away."""
    served = weights()
    name = "model.layers.0.self_attn.q_proj.weight"
    served[name] = served[name].t()
    assert f"{name} (transposed)" in failed(compare_served(trained, prints(served)))


def test_names_are_a_closed_set(trained: Checkpoint) -> None:
    """A tensor too few and one too many."""
    served = weights()
    served["model.extra"] = served.pop("model.norm.weight")
    said = failed(compare_served(trained, prints(served)))
    assert "1 trained tensors are not served: model.norm.weight" in said
    assert "1 served tensors were not trained: model.extra" in said


def test_nothing_is_no_proof(trained: Checkpoint) -> None:
    """An engine that told of no tensor fails both questions."""
    assert [verdict.outcome for verdict in compare_served(trained, {})] == [Outcome.FAIL, Outcome.FAIL]


@pytest.mark.parametrize("is_stale", [False, True])
def test_what_an_engine_packed_away_is_not_said_to_be_the_same(trained: Checkpoint, is_stale: bool) -> None:
    """vLLM on a CPU leaves an empty tensor where it packed a matrix: no evidence, no Pass; what is seen may fail."""
    served = weights()
    served["model.layers.4.mlp.up_proj.weight"] = torch.empty(0)
    if is_stale:
        served["model.norm.weight"] += 1
    _, bits = compare_served(trained, prints(served))
    assert bits.outcome is (Outcome.FAIL if is_stale else Outcome.BLOCKED)
    assert ("model.norm.weight" if is_stale else "model.layers.4.mlp.up_proj.weight") in bits.reason


@pytest.mark.parametrize("is_current", [True, False], ids=["current", "stale"])
def test_a_head_that_is_the_embedding(tmp_path: Path, is_current: bool) -> None:
    """It is stored once; an engine that keeps it twice may leave one of them behind."""
    trained = Checkpoint(stored(tmp_path / "tied", weights()))
    served = weights()
    source = served if is_current else weights(seed=1)
    served["lm_head.weight"] = source["model.embed_tokens.weight"]
    verdicts = compare_served(trained, prints(served))
    assert (failed(verdicts) == "") is is_current
    if not is_current:
        assert "lm_head.weight (other values" in failed(verdicts)


def test_bits_are_cast_as_torch_casts_them(tmp_path: Path) -> None:
    """Ties to even, the largest numbers, infinities, minus zero; and refrl makes the same fingerprints."""
    odd = torch.tensor([1.00390625, 1.01171875, 3.4e38, float("inf"), -float("inf"), -0.0, 1e-40])
    checkpoint = Checkpoint(stored(tmp_path / "odd", {"odd": odd}))
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        assert checkpoint.fingerprint(["odd"], name).digest == fingerprint(odd.to(dtype))
    assert prints({"odd": odd})["odd"].digest == fingerprint(odd)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 for weights that are the same, 1 with the name of one that is not, 3 for what cannot be read."""
    new, served = stored(tmp_path / "new", weights()), tmp_path / "served.json"
    write_tensors(served, joined(weights()).items())
    assert main(["syncproof", str(new), str(served), "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["outcome"] == "Pass"
    wrong = weights()
    wrong["model.norm.weight"][3] += 1
    assert main(["syncproof", str(new), str(stored(tmp_path / "wrong", wrong))]) == 1
    assert "model.norm.weight (other values" in capsys.readouterr().out
    assert main(["syncproof", str(new), str(tmp_path / "nowhere")]) == 3
    assert main(["syncproof", str(served), str(new)]) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 1, "tensors": {"a": 1}}']
)
def test_another_file_is_blocked(tmp_path: Path, text: str) -> None:
    """With how to write the right one."""
    path = tmp_path / "served.json"
    path.write_text(text)
    with pytest.raises(BlockedError, match="write_tensors"):
        read_fingerprints(path)
