"""What goes wrong outside the mathematics ends in one message: memory, disk, models that do not fit their weights."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch
from pydantic import ValidationError
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

from refrl import cli
from refrl.config import ConfigError, LoraConfig, SFTRunConfig
from refrl.config.run import ClusterConfig
from refrl.directories import naming
from refrl.errors import out_of_memory
from refrl.generation.torch_engine import CachedDecoder
from refrl.logging import EventWriter, write_atomically
from refrl.models.loading import load_model, save_directory
from refrl.models.tokenization import load_tokenizer
from refrl.policy.lora import add_adapters
from refrl.policy.megatron.architecture import architecture_of, read_architecture
from refrl.runtime.launcher import launch
from refrl.runtime.ray_cluster import ray_cluster


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    output = tmp_path / "model"
    assert cli.main(["make-model", "--output", str(output)]) == 0
    return output


def test_layers_of_the_weights_that_the_configuration_cuts_are_refused(
    model_directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The model would train with half of its layers, and nothing would say so."""
    path = model_directory / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "num_hidden_layers": content["num_hidden_layers"] - 1}))
    capfd.readouterr()
    with pytest.raises(ConfigError, match=r"parameters of further layers .*num_hidden_layers.* would be cut"):
        load_model(model_directory)
    path.write_text(json.dumps({**content, "num_hidden_layers": content["num_hidden_layers"] + 1}))
    with pytest.raises(ConfigError, match=r"lack .* they would be random"):
        load_model(model_directory)
    path.write_text(json.dumps({**content, "num_hidden_layers": 0}))
    for load in (load_model, read_architecture):
        with pytest.raises(ConfigError, match=r"num_hidden_layers: 0, a model without layers; copy"):
            load(model_directory)
    assert "MISSING" not in "".join(capfd.readouterr())
    path.write_text(json.dumps(content))
    assert load_model(model_directory).config.num_hidden_layers == content["num_hidden_layers"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"layer_types": ["full_attention"] * 5},
            r"config\.json is not valid: .*num_hidden_layers.*layer_types",
        ),
        ({"intermediate_size": 300}, r"down_proj\.weight is \[64, 192\], and config\.json needs \[64, 300\]"),
    ],
)
def test_a_configuration_of_another_model_is_refused_with_what_differs(
    model_directory: Path, changes: dict[str, Any], words: str
) -> None:
    path = model_directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=words):
        load_model(model_directory)
    if (
        "layer_types" in changes
    ):  # a run loads the tokenizer first, for which transformers reads config.json too
        with pytest.raises(ConfigError, match=words):
            load_tokenizer(model_directory)


@pytest.mark.parametrize("content", ["{}", "", "[]", '{"model": {}}'])
def test_a_tokenizer_file_without_a_tokenizer_is_named(model_directory: Path, content: str) -> None:
    (model_directory / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json (holds no tokenizer|cannot be read)"):
        load_tokenizer(model_directory)


def test_adapters_on_transposed_layers_are_refused_by_name() -> None:
    """GPT-2 has no linear layer but its head."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=8, n_positions=8))
    with pytest.raises(ConfigError, match="GPT2LMHeadModel keeps c_attn, c_fc, c_proj as Conv1D layers"):
        add_adapters(model, LoraConfig(enabled=True))
    with pytest.raises(
        ConfigError, match="is called q_proj; there are lm_head; c_attn, c_fc, c_proj are Conv1D"
    ):
        add_adapters(model, LoraConfig(enabled=True, target_modules=("q_proj",)))


def test_a_model_that_megatron_does_not_convert_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"does not convert a model with model_type=gpt2 \(it converts llama, "
    ):
        architecture_of(GPT2Config())


def test_a_module_named_ray_that_is_not_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("ray")
    module.__file__ = "/home/me/ray.py"
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr("refrl.runtime.ray_cluster.needs_ray", lambda config: True)
    with (
        pytest.raises(ConfigError, match=r"the module 'ray' is /home/me/ray\.py, which is not Ray"),
        ray_cluster(SFTRunConfig.model_construct()),
    ):
        pass


def test_a_port_in_use_is_one_line(forked_python: str, model_directory: Path, tmp_path: Path) -> None:
    """As torchrun's ranks meet: rank 0 listens. In a process that has no group from an earlier test."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        overrides = ("cluster.num_processes=2", f"policy.model_name={model_directory}")
        given = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        ran = subprocess.run(
            [forked_python, "-m", "refrl", "grpo", "--config", "grpo-smoke", *overrides],
            cwd=tmp_path,
            env={**os.environ, **given, "MASTER_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ran.returncode == 2
    assert f"the ranks cannot meet at 127.0.0.1:{port}: " in ran.stderr
    assert "Traceback" not in ran.stderr


def test_more_processes_than_processors_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise ConfigError("not started here")

    with pytest.raises(ConfigError, match="not started here"):
        launch(["grpo"], ClusterConfig(num_processes=4096), start=refuse)
    assert capsys.readouterr().err.startswith("cluster.num_processes=4096 is more than the ")


def test_states_that_cannot_be_reordered_are_refused_by_name() -> None:
    """Mamba keeps one state a layer and no keys and values."""
    config = MambaConfig(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=2,
        state_size=4,
        intermediate_size=16,
        use_mambapy=False,
    )
    with pytest.raises(ConfigError, match="MambaForCausalLM keeps between tokens what cannot be reordered"):
        CachedDecoder(MambaForCausalLM(config))


def raising(error: BaseException) -> Callable[[object], None]:
    def run(arguments: object) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1 GiB"
        ),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: 9"
        ),
    ],
)
def test_the_end_of_memory_is_one_line_with_the_remedy(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from refrl.cli import make_model

    monkeypatch.setattr(make_model, "run", raising(error))
    assert cli.main(["make-model", "--output", "x"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("refrl make-model: out of memory: ")
    assert "lower policy.train_micro_batch_size" in told
    assert told.count("\n") == 1


def test_torchs_own_words_for_the_end_of_memory_are_known() -> None:
    """Not made up: two exabytes are asked for."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58)
    assert out_of_memory(caught.value) is not None


def test_another_error_is_not_taken_for_the_end_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours keeps its traceback."""
    from refrl.cli import make_model

    monkeypatch.setattr(make_model, "run", raising(RuntimeError("shapes disagree")))
    with pytest.raises(RuntimeError, match="shapes disagree"):
        cli.main(["make-model", "--output", "x"])


def test_more_threads_than_any_machine_has_are_refused() -> None:
    """Torch ends with a segmentation fault."""
    with pytest.raises(ValidationError, match="less than or equal to 1024"):
        ClusterConfig(num_threads=100_000)
    assert ClusterConfig(num_threads=1024).num_threads == 1024


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """Its own error, of a device that is always full, has no name."""
    (tmp_path / ".rows.jsonl.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*rows\.jsonl'"):
        write_atomically(tmp_path / "rows.jsonl", "x" * 100_000)


def test_a_full_disk_under_the_event_file_names_it(tmp_path: Path) -> None:
    """The write of a step."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    events = EventWriter(tmp_path)
    with Path("/dev/full").open("wb", buffering=0) as full:
        events._records = RecordWriter(full)
        with pytest.raises(OSError, match=r"No space left on device: '.*events\.out\.tfevents"):
            events.write({"train/loss": 1.0}, step=1)
    events.close()


def test_weights_that_cannot_be_written_name_the_directory(
    model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library of the weights raises an error of its own; nothing half written is left."""
    from safetensors import SafetensorError
    from transformers import AutoTokenizer

    model = load_model(model_directory)
    tokenizer = AutoTokenizer.from_pretrained(str(model_directory))
    full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    monkeypatch.setattr(model, "save_pretrained", raising(full))
    with pytest.raises(OSError, match=r"cannot write the weights of .*final: .*No space left on device"):
        save_directory(model, tokenizer, tmp_path / "final")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_an_error_with_a_name_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"), naming(tmp_path / "other"):
        (tmp_path / "missing").read_text()
