"""What trials ask of the files of an export."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seatrial.errors import BlockedError
from seatrial.trials.sensors.exported import files_are_exported, types_are_exported

TOKENS = json.dumps({"model": {"vocab": {"a": 5}}, "added_tokens": [{"content": "<end>", "id": 7}]})


def export(folder: Path) -> Any:
    """Return a run that exported a model of two parts, and a draft head."""
    (folder / "draft").mkdir(parents=True)
    parts = {f"w{number}": f"model-{number}.safetensors" for number in (1, 2)}
    files = {
        "config.json": "{}",
        "model.safetensors.index.json": json.dumps({"weight_map": parts}),
        "draft/model.safetensors": "weights",
        **dict.fromkeys(parts.values(), "weights"),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    (folder / "draft").chmod(0o755)
    model = folder.parent / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"dtype": "float32", "layers": 2, "renamed": 1}))
    for at in (model, folder):
        (at / "tokenizer.json").write_text(TOKENS)
        (at / "tokenizer.json").chmod(0o644)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "other": 3}))
    (folder / "generation_config.json").chmod(0o644)
    job = SimpleNamespace(
        final_model=folder, initial_model=model, configuration={"policy": {}}, byte_level=None
    )
    return SimpleNamespace(job=job, need=lambda part: None)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda at: None, ""),
        (
            lambda at: (at / "draft" / "model.safetensors").chmod(0o600),
            "draft/model.safetensors has mode 600",
        ),
        (lambda at: (at / "draft").chmod(0o700), "draft has mode 700"),
        (lambda at: (at / "config.json").chmod(0o600), ""),
        (lambda at: (at / ".model.tmp").write_text("x"), ".model.tmp is left over"),
        (lambda at: (at / "merges.txt").touch(0o644), "merges.txt is empty"),
        (lambda at: (at / "model-2.safetensors").unlink(), "model-2.safetensors is named by"),
        (lambda at: (at / "model-3.safetensors").write_text("x"), "model-3.safetensors is not named by"),
        (
            lambda at: (at / "generation_config.json").write_text('{"eos_token_id": 1}'),
            "eos_token_id of generation_config.json is 1",
        ),
        (lambda at: (at / "generation_config.json").unlink(), "generation_config.json is missing"),
        (lambda at: (at / "config.json").write_text('{"layers": 3}'), "layers of config.json is 3"),
        (lambda at: (at / "tokenizer.json").write_text(TOKENS.replace("7", "8")), "added tokens"),
        (lambda at: (at / "tokenizer.json").write_text(TOKENS.replace("5", "6")), "another vocabulary"),
    ],
    ids=[
        "sound",
        "file",
        "folder",
        "private",
        "left over",
        "empty",
        "lost",
        "unnamed",
        "changed",
        "dropped",
        "other",
        "added",
        "vocabulary",
    ],
)
def test_files_are_readable_whole_and_alone(
    tmp_path: Path, change: Callable[[Path], object], wrong: str
) -> None:
    """Also those in folders of the export."""
    evidence = export(tmp_path / "final")
    change(tmp_path / "final")
    found, _, number = files_are_exported(evidence)
    assert number >= 5
    assert any(wrong in text for text in found) if wrong else not found, found


def test_no_export_is_no_evidence(tmp_path: Path) -> None:
    """It does not pass."""
    evidence = export(tmp_path / "final")
    evidence.job.final_model = tmp_path / "nothing"
    with pytest.raises(BlockedError, match=r"config\.json"):
        files_are_exported(evidence)


def test_parts_of_a_model_keep_their_configuration(tmp_path: Path) -> None:
    """Such as the width of a draft head."""
    run = export(tmp_path / "final")
    (tmp_path / "model" / "draft").mkdir()
    (tmp_path / "model" / "draft" / "config.json").write_text('{"width": 2}')
    assert "width of draft/config.json is None, the model has 2" in files_are_exported(run)[0]
    written = tmp_path / "final" / "draft" / "config.json"
    written.write_text('{"width": 2}')
    written.chmod(0o644)
    assert files_are_exported(run)[0] == []


@pytest.mark.parametrize(
    ("kind", "said", "wrong"),
    [
        (torch.bfloat16, "bfloat16", ""),
        (torch.float32, "bfloat16", "w is exported as F32"),
        (torch.bfloat16, "float32", "has dtype=float32"),
    ],
)
def test_tensors_have_the_type_of_the_policy(
    tmp_path: Path, kind: torch.dtype, said: str, wrong: str
) -> None:
    """In the files and in the configuration."""
    for name, dtype in (("model", torch.float32), ("final", kind)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.ones(2, dtype=dtype)}, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps({"dtype": said}))
    job = SimpleNamespace(
        final_model=tmp_path / "final",
        initial_model=tmp_path / "model",
        configuration={"policy": {"precision": "bfloat16"}},
    )
    found = types_are_exported(SimpleNamespace(job=job, need=lambda part: None))[0]  # type: ignore[arg-type]
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)


@pytest.mark.parametrize(
    ("said", "byte_level", "wrong"),
    [
        ({"eos_token": "<end>"}, True, ""),
        ({"eos_token": "<other>"}, True, "eos_token of tokenizer_config.json is <other>, of id None"),
        ({"eos_token": "<other>"}, None, ""),
        ({"model_input_names": ["input_ids"]}, True, "without one of input_ids, attention_mask"),
    ],
    ids=["sound", "token", "given", "inputs"],
)
def test_special_tokens_of_a_made_model_are_those_of_its_configuration(
    tmp_path: Path, said: dict[str, Any], byte_level: bool | None, wrong: str
) -> None:
    """Models that are given may differ by design."""
    run = export(tmp_path / "final")
    run.job.byte_level = byte_level
    for at in (run.job.initial_model, run.job.final_model):
        (at / "config.json").write_text(json.dumps({"eos_token_id": 7}))
        (at / "tokenizer_config.json").write_text(json.dumps(said))
        (at / "tokenizer_config.json").chmod(0o644)
    found = "; ".join(files_are_exported(run)[0])
    assert (wrong in found) if wrong else not found
