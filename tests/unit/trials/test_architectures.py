"""What the trials of level 5 ask of the weights of a run that is not what it should be."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.evidence.weights import compare_weights
from seatrial.trials.architectures import architecture_trials, differ_by_seed
from seatrial.verdict import Outcome

SENSORS = {trial.made: trial.sensors[0] for trial in architecture_trials()}
SHAPES: Mapping[str, dict[str, Any]] = {
    "dense": {"family": "llama"},
    "tied": {"tie_word_embeddings": True},
    "moe": {"family": "qwen3_moe"},
}


def judged(
    folder: Path,
    made: str,
    shape: Mapping[str, Any],
    spoil: Mapping[str, Any] | None = None,
    unreached: frozenset[str] = frozenset(),
) -> Outcome:
    """Return what the sensor says of a model of which every element moved but those of the spoiled tensors."""
    before, after = folder / "before", folder / "after"
    for directory in (before, after):
        make_model(TinyModelSpec(hidden_size=32, **shape), directory)
    weights = load_file(after / "model.safetensors")
    moved = {name: tensor + np.float32(0.01) for name, tensor in weights.items()}
    for name, what in (spoil or {}).items():
        if what == "unmoved":
            moved[name] = weights[name]
        elif what == "lost":
            del moved[name]
        else:
            moved[name] = moved["model.embed_tokens.weight"] + what
    save_file(moved, after / "model.safetensors")
    evidence: Any = SimpleNamespace(
        job=SimpleNamespace(final_model=after),
        weights=compare_weights(before, after),
        unreached_experts=unreached,
    )
    return SENSORS[made].judge(evidence).outcome


def test_a_draft_head_that_the_run_did_not_leave_fails(tmp_path: Path) -> None:
    """The run ended; that there is nothing to compare is its fault, and does not block the verdict."""
    make_model(TinyModelSpec(hidden_size=32, draft_head=True), tmp_path / "before")
    make_model(TinyModelSpec(hidden_size=32), tmp_path / "after")
    evidence: Any = SimpleNamespace(
        job=SimpleNamespace(initial_model=tmp_path / "before", final_model=tmp_path / "after"),
        launched=SimpleNamespace(describe=lambda: "exit status 0"),
    )
    verdict = SENSORS["draft"].judge(evidence)
    assert verdict.outcome is Outcome.FAIL
    assert "left no draft head" in verdict.reason


@pytest.mark.parametrize("made", list(SHAPES))
def test_a_model_of_the_architecture_that_moved_passes(tmp_path: Path, made: str) -> None:
    """With every tensor of it."""
    assert judged(tmp_path, made, SHAPES[made]) is Outcome.PASS


def test_an_expert_that_no_token_was_sent_to_may_stay(tmp_path: Path) -> None:
    """It alone: a router that stays fails."""
    expert, router = "model.layers.1.mlp.experts.11.up_proj.weight", "model.layers.0.mlp.gate.weight"
    assert judged(tmp_path, "moe", SHAPES["moe"], {expert: "unmoved"}, frozenset({expert})) is Outcome.PASS
    (tmp_path / "other").mkdir()
    spoilt = {expert: "unmoved", router: "unmoved"}
    assert judged(tmp_path / "other", "moe", SHAPES["moe"], spoilt, frozenset({expert})) is Outcome.FAIL


@pytest.mark.parametrize(
    ("made", "spoil"),
    [
        ("moe", {"model.layers.1.mlp.experts.11.up_proj.weight": "unmoved"}),
        ("moe", {"model.layers.0.mlp.gate.weight": "unmoved"}),
        ("dense", {"lm_head.weight": "unmoved"}),
        ("tied", {"model.embed_tokens.weight": "unmoved"}),
        ("tied", {"lm_head.weight": np.float32(1e-3)}),
    ],
)
def test_a_part_that_did_not_train_fails(tmp_path: Path, made: str, spoil: dict[str, Any]) -> None:
    """One expert, one router, the head; and a head beside the one it is tied to."""
    assert judged(tmp_path, made, SHAPES[made], spoil) is Outcome.FAIL


@pytest.mark.parametrize(("made", "other"), [("moe", "dense"), ("dense", "moe"), ("tied", "dense")])
def test_a_model_of_another_architecture_fails(tmp_path: Path, made: str, other: str) -> None:
    """Whatever moved in it."""
    assert judged(tmp_path, made, SHAPES[other]) is Outcome.FAIL


def test_few_experts_are_no_proof(tmp_path: Path) -> None:
    """Below ten, names in the order of text are in the order of numbers."""
    assert judged(tmp_path, "moe", {**SHAPES["moe"], "num_experts": 8}) is Outcome.FAIL


def test_a_head_tied_by_its_bits_passes(tmp_path: Path) -> None:
    """An export may write the shared matrix twice."""
    assert judged(tmp_path, "tied", SHAPES["tied"], {"lm_head.weight": np.float32(0)}) is Outcome.PASS


def test_an_export_that_says_it_is_untied_fails(tmp_path: Path) -> None:
    """Whoever loads it makes a head of its own."""
    judged(tmp_path, "tied", SHAPES["tied"])
    path = tmp_path / "after" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": False}))
    evidence: Any = SimpleNamespace(
        job=SimpleNamespace(final_model=tmp_path / "after"),
        weights=compare_weights(tmp_path / "before", tmp_path / "after"),
    )
    assert SENSORS["tied"].judge(evidence).outcome is Outcome.FAIL


def test_random_tensors_that_no_seed_determines_are_seen(tmp_path: Path) -> None:
    """Also those of a draft head in a folder of its own; tensors of one value, and fixed ones, may be the same."""
    random, ones = np.random.default_rng(0), np.ones(4, dtype=np.float32)
    table = np.arange(4, dtype=np.float32)
    for name in ("one", "other"):
        (tmp_path / name / "draft").mkdir(parents=True)
        drawn = random.normal(size=4).astype(np.float32)
        save_file({"w": drawn, "norm": ones, "table": table}, tmp_path / name / "model.safetensors")
        save_file({"d": drawn}, tmp_path / name / "draft" / "model.safetensors")
    one, other = tmp_path / "one", tmp_path / "other"
    assert differ_by_seed(one, other, ["table"]).outcome is Outcome.PASS
    assert "table is the same" in differ_by_seed(one, other).reason
    (other / "draft" / "model.safetensors").write_bytes((one / "draft" / "model.safetensors").read_bytes())
    verdict = differ_by_seed(one, other, ["table"])
    assert verdict.outcome is Outcome.FAIL
    assert "draft/d is the same for two seeds" in verdict.reason


def test_models_without_a_random_tensor_say_nothing_of_seeds(tmp_path: Path) -> None:
    """Their tensors have one value each."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        save_file({"norm": np.ones(4, dtype=np.float32)}, tmp_path / name / "model.safetensors")
    assert differ_by_seed(tmp_path / "one", tmp_path / "other").outcome is Outcome.BLOCKED
