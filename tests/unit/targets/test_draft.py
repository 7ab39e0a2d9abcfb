"""The YAML file that `seatrial new target --yaml` writes from a finished run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.unit.targets.test_command_target import TOY, run
from tests.unit.targets.toy_command import save

from seatrial.cli import main
from seatrial.targets import get_target
from seatrial.targets.command.draft import draft
from seatrial.targets.command.schema import read_stack
from seatrial.targets.command.target import CommandTarget
from seatrial.verdict import Outcome


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model and data."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "model", {name: np.ones((3, 5), dtype=np.float32) for name in ("embed", "head")})
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    return tmp_path


def trained(command: str) -> dict[str, Any]:
    """Run a command that writes to the folder `out`, and return what is written of it."""
    Path("out").mkdir()
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    content: dict[str, Any] = yaml.safe_load(draft(Path("out"), shlex.split(command)))
    return content


@pytest.mark.parametrize("epoch", ["", " epoch=2"])
def test_the_file_of_a_run_passes_its_trial_as_it_is_written(here: Path, epoch: str) -> None:
    """By the command line; checkpoints by step and by epoch."""
    command = f"{sys.executable} {TOY} kind=sft model=model out=out seed=7 max_steps=4{epoch}"
    written = trained(command)
    assert written["checkpoints"] == ("{out}/epoch-{epoch}" if epoch else "{out}/checkpoint-{step}")
    assert main(["new", "target", "my_toy", "--yaml", "out", "--", *shlex.split(command)]) == 0
    target = get_target("my_toy.yaml")
    assert isinstance(target, CommandTarget)
    assert target.stack.recipes["sft-smoke"].epoch_steps == (2 if epoch else None)
    results = run(target, here)
    assert results.outcome is Outcome.PASS, results.requested_trials()
    (sent,) = (one for one in results.requested_trials()[0].commands if "toy_command" in one)
    assert "max_steps=4" in sent
    assert f"{here}/out" not in sent


def finished(**files: str) -> Path:
    """Return the folder of a run with these files, `__` for a slash."""
    folder = Path("out")
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_options_with_dashes_lists_and_flags(here: Path) -> None:
    folder = finished(
        **{"runs__Nov25_10-00-00_host__log_DOT_jsonl": '{"step": 1, "loss": 2.0}\n{"step": 5, "loss": 1.0}\n'}
    )
    save(folder / "checkpoint-5", {"embed": np.ones(2, dtype=np.float32)})
    save(folder, {"embed": np.ones(2, dtype=np.float32)})
    words = "CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=2 "
    words += "trl grpo --model_name_or_path model --output_dir out/ --seed 3 --max_steps 5 --dataset_name . "
    words += "--reward_funcs a.b c.d --bf16 --learning_rate 1e-3 --logging_steps 1"
    text = draft(folder, shlex.split(words))
    written = yaml.safe_load(text)
    assert written["override"] == ["--{name}", "{value}"]
    assert written["run"] == ["trl", "grpo", "--bf16"]
    assert written["options"] == {
        "model_name_or_path": "{model}",
        "output_dir": "{out}",
        "seed": "{seed}",
        "max_steps": "{steps}",
        "dataset_name": "{data}/plain",
        "reward_funcs": ["a.b", "c.d"],
        "learning_rate": "1e-3",
        "logging_steps": 1,
    }
    assert written["environment"] == {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert (written["logs"], written["export"]) == ("{out}/runs", "{out}")
    assert written["kind"] == "grpo"
    assert written["recipes"] == {"grpo-smoke": {"steps": 5}}
    Path("my.yaml").write_text(text)
    assert read_stack(Path("my.yaml")).checkpoints == "{out}/checkpoint-{step}"


def test_a_file_or_folder_named_by_the_time_is_found_again(here: Path) -> None:
    """What the file cannot know is in its comments."""
    folder = finished(**{"v0-20261125-101500__logging_DOT_jsonl": '{"step": 1, "loss": 2.0}\n'})
    text = draft(folder, ["swift", "sft", "--model=model", "--output_dir=out"])
    assert yaml.safe_load(text)["logs"] == "{out}/v0-*"
    for placeholder in ("seed", "steps", "data"):
        assert f"# look: {{{placeholder}}} is in no option" in text


def test_what_cannot_be_read_is_a_comment(here: Path) -> None:
    text = draft(finished(note_DOT_txt="nothing\n"), ["train", "out=out"])
    assert "# look: logs: " in text
    assert "no log can be read there" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--yaml", "nowhere", "--", "train"], "nowhere: no such folder"),
        (["--yaml", "model"], "the command of the run is missing; write it after --"),
        (["--", "train"], "a command after -- needs --yaml RUN_DIR"),
        (["--yaml", "model", "--", "train"], "my.yaml is there already"),
    ],
)
def test_wrong_words_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    if "already" in message:
        (here / "my.yaml").touch()
    assert main(["new", "target", "my", *words]) == 2
    assert message in capsys.readouterr().err
