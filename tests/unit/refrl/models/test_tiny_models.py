"""Tiny models are ordinary Hugging Face directories, made from a seed; broken directories are refused in words."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from refrl.config import ConfigError
from refrl.models.loading import load_model
from refrl.models.tiny import Family, TinyModelSpec, make_model, model_config


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_directory_is_read_by_plain_transformers(tmp_path: Path, family: Family, tied: bool) -> None:
    """Model, tokenizer, and the option to tie the embeddings."""
    make_model(TinyModelSpec(family=family, tie_word_embeddings=tied), tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / "model"))
    assert model.config.model_type == family
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert model.config.head_dim >= 32
    assert any("q_norm" in name for name, _ in model.named_parameters()) == (family == "qwen3")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} <= {".json", ".safetensors"}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_what_is_written_is_what_transformers_would_make(tmp_path: Path, family: Family, tied: bool) -> None:
    """The same parameters, of the same shapes and spread, under a configuration that says no more than was asked."""
    spec = TinyModelSpec(family=family, tie_word_embeddings=tied, num_layers=3)
    make_model(spec, tmp_path / "model")
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(str(tmp_path / "model"))
    ).state_dict()
    if tied:
        del theirs["lm_head.weight"]
    ours = load_file(tmp_path / "model" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: t.shape for name, t in theirs.items()
    }
    for name, tensor in ours.items():
        assert tensor.std(correction=0).item() == pytest.approx(
            theirs[name].std(correction=0).item(), rel=0.05
        ), name
        assert tensor.mean().item() == pytest.approx(theirs[name].mean().item(), abs=2e-3), name
    written = model_config(spec)
    read = AutoConfig.from_pretrained(str(tmp_path / "model")).to_dict()
    assert {key: read[key] for key in written} == {**written, "dtype": read["dtype"]}


def test_small_norms_move_by_a_small_step_in_bfloat16(tmp_path: Path) -> None:
    """One element in four of every norm; norms of 1 stay as they are."""
    make_model(TinyModelSpec(small_norms=True), tmp_path / "model")
    norms = [one for one in load_file(tmp_path / "model" / "model.safetensors").values() if one.ndim == 1]
    moved = [((norm + 1e-5).bfloat16() != norm.bfloat16()).float().mean().item() for norm in norms]
    assert moved
    assert moved == [0.25] * len(norms)


def test_a_model_with_experts_has_the_files_that_transformers_would_write(tmp_path: Path) -> None:
    """Each expert under its own number, beyond nine, and a router in every layer."""
    spec = TinyModelSpec(family="qwen3_moe")
    make_model(spec, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "model"))
    model.save_pretrained(str(tmp_path / "theirs"))
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert "model.layers.1.mlp.experts.11.down_proj.weight" in ours
    assert model.config.model_type == "qwen3_moe"
    with pytest.raises(ConfigError, match="experts_per_token=13 must be 1 to num_experts=12"):
        TinyModelSpec(family="qwen3_moe", experts_per_token=13)


def test_making_a_model_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    """Their import takes seconds, and a smoke test makes a model first."""
    code = (
        "import sys; from refrl.cli import main; "
        f"assert main(['make-model', '--output', {str(tmp_path / 'model')!r}]) == 0; "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_weights_come_from_the_seed_alone(tmp_path: Path) -> None:
    """torch's global generator neither matters nor moves."""
    before = torch.random.get_rng_state()
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        torch.manual_seed(len(name) + seed)
        state = torch.random.get_rng_state()
        make_model(TinyModelSpec(seed=seed), tmp_path / name)
        assert torch.equal(torch.random.get_rng_state(), state)
    torch.random.set_rng_state(before)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["lm_head.weight"], c["lm_head.weight"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head_dim": 16}, "head_dim=16"),
        ({"head_dim": 33}, "head_dim=33"),
        ({"num_heads": 3, "num_kv_heads": 2}, "num_kv_heads=2 must divide"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"hidden_size": -1}, "hidden_size=-1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_shapes_that_no_backend_takes_are_refused(change: dict[str, int], words: str) -> None:
    """When the shape is given, before anything is made."""
    with pytest.raises(ConfigError, match=words):
        TinyModelSpec(**change)  # type: ignore[arg-type]


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a directory with something in it nor a file; an empty directory is used, and a private one stays so."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ConfigError, match="is the current folder: name a new one"):
        make_model(TinyModelSpec(), Path())
    mask = os.umask(0o077)
    try:
        make_model(TinyModelSpec(draft_head=True), tmp_path / "empty" / "private")
    finally:
        os.umask(mask)
    for path in ((tmp_path / "empty" / "private"), *(tmp_path / "empty" / "private").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    shutil.rmtree(tmp_path / "empty" / "private")
    monkeypatch.chdir(tmp_path)
    make_model(TinyModelSpec(), tmp_path / "empty")
    with pytest.raises(ConfigError, match="not an empty directory"):
        make_model(TinyModelSpec(), tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="not an empty directory"):
        make_model(TinyModelSpec(), tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot write"):
        make_model(TinyModelSpec(), tmp_path / "file" / "below")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    """Return a good model directory to be broken."""
    make_model(TinyModelSpec(num_layers=1), tmp_path / "model")
    return tmp_path / "model"


def test_a_good_directory_is_loaded_in_float32_and_evaluation_mode(model_directory: Path) -> None:
    """Also where the weights are stored in bfloat16."""
    weights = load_file(model_directory / "model.safetensors")
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save_file(halved, model_directory / "model.safetensors", metadata={"format": "pt"})
    model = load_model(model_directory)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


def test_missing_parts_are_refused_with_the_remedy(model_directory: Path, tmp_path: Path) -> None:
    """No directory, no configuration, no weights: three messages."""
    with pytest.raises(ConfigError, match=r"is not a directory.*make-model"):
        load_model(tmp_path / "none")
    (model_directory / "model.safetensors").rename(tmp_path / "weights")
    with pytest.raises(ConfigError, match="holds no weights"):
        load_model(model_directory)
    (tmp_path / "weights").rename(model_directory / "model.safetensors")
    (model_directory / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load_model(model_directory)


def test_a_name_on_the_hub_is_not_looked_up() -> None:
    """Models are directories; the network is never asked."""
    with pytest.raises(ConfigError, match="is not a directory"):
        load_model(Path("Qwen/Qwen2.5-0.5B"))


def test_a_truncated_file_of_weights_is_refused(model_directory: Path) -> None:
    """In one message that names the directory."""
    path = model_directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(model_directory)


def test_an_unknown_architecture_is_refused(model_directory: Path) -> None:
    """In one message that names the directory."""
    path = model_directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "nonesuch"}))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(model_directory)


def test_weights_that_lack_a_parameter_are_refused(model_directory: Path) -> None:
    """transformers would draw it at random and go on."""
    path = model_directory / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 parameters of the model \(model\.norm\.weight\)"):
        load_model(model_directory)
