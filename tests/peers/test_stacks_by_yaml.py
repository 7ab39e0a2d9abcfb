"""Stacks under test by their files in examples/targets: they pass as released, and fail on each planted fault."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(2400)]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of an installed stack, and the verdict that fails on it."""

    name: str
    trial: str
    verdict: str
    changes: tuple[tuple[str, str], ...]
    """Texts, each with what replaces it; each is once in one of the stack's modules."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack with its file in examples/targets."""

    environment: str
    """Of environments.toml."""
    trials: tuple[str, ...]
    packages: tuple[str, ...]
    """Those that are copied, so that the command takes the copy."""
    modules: tuple[str, ...]
    """The files that the faults change."""
    faults: tuple[Fault, ...]


EPOCHS = "        for curr_epoch in range(self.epochs_run, self.total_epochs):\n"
TORCHTUNE = (
    Fault(
        name="gradient-not-divided",
        trial="sft-smoke",
        verdict='max(data["train/grad_norm"]) < 20',
        changes=(
            ("scale_grads(self._model, 1 / num_tokens)", "scale_grads(self._model, torch.tensor(1.0))"),
        ),
    ),
    Fault(
        name="learning-rate-ignored",
        trial="sft-smoke",
        verdict='abs(max(data["train/lr"]) - 0.002) < 1e-6',
        changes=(
            (
                "optimizer = config.instantiate(cfg_optimizer, self._model.parameters())",
                "optimizer = torch.optim.AdamW(self._model.parameters())",
            ),
        ),
    ),
    Fault(
        name="nothing-trained",
        trial="sft-smoke",
        verdict="every trainable tensor moved",
        changes=(("                        self._optimizer.step()\n", ""),),
    ),
    Fault(
        name="optimizer-not-restored",
        trial="sft-resume-diamond",
        verdict="diamond: same weights",
        changes=(
            (
                "                optimizer.load_state_dict(opt_state_dict)\n",
                '                optimizer.load_state_dict({**opt_state_dict, "state": {}})\n',
            ),
        ),
    ),
    Fault(
        name="schedule-begins-again",
        trial="sft-resume-diamond",
        verdict="diamond: same learning rate",
        changes=(("last_epoch=self.global_step - 1,", "last_epoch=-1,"),),
    ),
    Fault(
        name="saved-before-training",
        trial="checkpoint-save",
        verdict="every trainable tensor moved",
        changes=(
            (
                EPOCHS,
                "        self.early = {k: v.clone() for k, v in self._model.state_dict().items()}\n" + EPOCHS,
            ),
            ("{training.MODEL_KEY: self._model.state_dict()}", "{training.MODEL_KEY: dict(self.early)}"),
        ),
    ),
    Fault(
        name="resume-crashes",
        trial="sft-resume-diamond",
        verdict="resumed: training ends with status 0",
        changes=(
            (
                "            self._update_recipe_state(checkpoint_dict)\n",
                '            raise KeyError("seed")\n',
            ),
        ),
    ),
)
TRL = (
    Fault(
        name="advantages-without-the-mean",
        trial="grpo-smoke",
        verdict="ledger: advantages recomputed equal the logged",
        changes=(("advantages = rewards - mean_grouped_rewards", "advantages = rewards"),),
    ),
    Fault(
        name="rewards-of-the-next-row",
        trial="grpo-smoke",
        verdict="ledger: rewards recomputed equal the logged",
        changes=(
            (
                "rewards_per_func[:, i] = torch.tensor(output_reward_func, dtype=torch.float32, device=device)",
                "rewards_per_func[:, i] = torch.tensor(output_reward_func, device=device).float().roll(1)",
            ),
        ),
    ),
    Fault(
        name="advantages-not-used",
        trial="grpo-smoke",
        verdict='min(data["train/grad_norm"]) > 0',
        changes=(
            (
                "advantages = advantages[process_slice]",
                "advantages = torch.zeros_like(advantages[process_slice])",
            ),
        ),
    ),
)
MS_SWIFT = (
    Fault(
        name="learning-rate-ignored",
        trial="grpo-smoke",
        verdict='abs(max(data["train/lr"]) - 0.000667) < 1e-6',
        changes=(
            (
                "self.optimizer = self.optimizer_callback.create_optimizer(model=model)",
                "self.optimizer = torch.optim.AdamW(self.model.parameters())\n"
                "        self.optimizer.param_groups[0]['lr'] = 5e-5",
            ),
        ),
    ),
    Fault(
        name="schedule-off",
        trial="grpo-smoke",
        verdict='abs(max(data["train/lr"]) - 0.000667) < 1e-6',
        changes=(
            (
                "self.optimizer_callback.create_scheduler(num_training_steps, optimizer)",
                "torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)",
            ),
        ),
    ),
    Fault(
        name="rewards-of-the-next-row",
        trial="grpo-smoke",
        verdict="ledger: rewards recomputed equal the logged",
        changes=(
            (
                "total_rewards_per_func = self._compute_rewards_per_func(samples)",
                "total_rewards_per_func = self._compute_rewards_per_func(samples).roll(1, 0)",
            ),
        ),
    ),
    Fault(
        name="mean-of-the-batch",
        trial="grpo-smoke",
        verdict="ledger: advantages recomputed equal the logged",
        changes=(
            (
                "group_mean = grouped.mean(dim=1).repeat_interleave(K)",
                "group_mean = rewards.mean()",
            ),
        ),
    ),
    Fault(
        name="saved-before-training",
        trial="checkpoint-save",
        verdict="every trainable tensor moved",
        changes=(
            (
                "        self.hub = get_hub()\n",
                "        self.hub = get_hub()\n"
                "        self.early = {k: v.clone() for k, v in model.state_dict().items()}\n",
            ),
            ("self._save_model(output_dir, state_dict)", "self._save_model(output_dir, self.early)"),
        ),
    ),
    Fault(
        name="weights-of-the-first-save",
        trial="checkpoint-save",
        verdict="checkpoints: each holds other weights than the one before",
        changes=(
            (
                "        self._save_model(output_dir, state_dict)\n",
                "        now = {k: v.clone() for k, v in self.model.state_dict().items()}\n"
                "        self._save_model(output_dir, self.__dict__.setdefault('first_state', now))\n",
            ),
        ),
    ),
    Fault(
        name="optimizer-not-restored",
        trial="sft-resume-diamond",
        verdict="diamond: same weights",
        changes=(
            (
                "        super()._load_optimizer_and_scheduler(*args, **kwargs)\n",
                "        super()._load_optimizer_and_scheduler(*args, **kwargs)\n"
                "        self.optimizer.state.clear()\n",
            ),
        ),
    ),
)
STACKS = {
    "ms_swift": Stack(
        environment="ms_swift",
        trials=("grpo-smoke", "checkpoint-save", "sft-resume-diamond"),
        packages=("swift",),
        modules=(
            "swift/trainers/mixin.py",
            "swift/rlhf_trainers/grpo_trainer.py",
            "swift/rl_core/advantage.py",
        ),
        faults=MS_SWIFT,
    ),
    "torchtune": Stack(
        environment="torchtune",
        trials=("sft-smoke", "checkpoint-save", "sft-resume-diamond"),
        packages=("recipes", "torchtune"),
        modules=("recipes/full_finetune_single_device.py",),
        faults=TORCHTUNE,
    ),
    "trl_cli": Stack(
        environment="trl",
        trials=("grpo-smoke", "grpo-lora", "checkpoint-save", "sft-resume-diamond"),
        packages=("trl",),
        modules=("trl/trainer/grpo_trainer.py",),
        faults=TRL,
    ),
}


@pytest.fixture(scope="module")
def trials(
    peer_python: Callable[[str], Path], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[int, dict[str, dict[str, Any]]]]:
    """Return a function that runs trials of a stack and gives the exit code and the verdicts of each trial by name."""

    def run(stack: str, *words: str, first: Path | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
        folder = tmp_path_factory.mktemp("trials")
        file = repository / "examples" / "targets" / f"{stack}.yaml"
        places = [str(repository / "src"), *([] if first is None else [str(first)])]
        programs = f"{peer_python(STACKS[stack].environment).parent}{os.pathsep}{os.environ['PATH']}"
        ran = subprocess.run(
            [sys.executable, "-m", "seatrial", "run", "--target", str(file), "--output", str(folder), *words],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PATH": programs,
                "PYTHONPATH": os.pathsep.join(places),
            },
            capture_output=True,
            text=True,
            timeout=2300,
            check=False,
        )
        found = list(folder.glob("*/results.json"))
        assert found, ran.stdout[-2000:] + ran.stderr[-3000:]
        requested = [one for one in json.loads(found[0].read_text())["trials"] if one["verdicts"]]
        return ran.returncode, {
            one["name"]: {verdict["name"]: verdict for verdict in one["verdicts"]} for one in requested
        }

    return run


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_passes_as_it_is_released(
    trials: Callable[..., tuple[int, dict[str, dict[str, Any]]]], name: str
) -> None:
    code, verdicts = trials(name, "--level", "0,1")
    assert set(verdicts) == set(STACKS[name].trials)
    assert code == 0, [one for of in verdicts.values() for one in of.values() if one["outcome"] == "Fail"]
    assert verdicts["sft-resume-diamond"]["diamond: same weights"]["outcome"] == "Pass"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, id=f"{name}-{fault.name}")
        for name, of in STACKS.items()
        for fault in of.faults
    ],
)
def test_a_planted_fault_fails(
    trials: Callable[..., tuple[int, dict[str, dict[str, Any]]]],
    peer_python: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    fault: Fault,
) -> None:
    stack = STACKS[name]
    (packages,) = peer_python(stack.environment).parents[1].glob("lib/python*/site-packages")
    for package in stack.packages:
        shutil.copytree(packages / package, tmp_path / package)
    texts = {tmp_path / module: (tmp_path / module).read_text() for module in stack.modules}
    for before, after in fault.changes:
        (file,) = (file for file, text in texts.items() if before in text)
        assert texts[file].count(before) == 1
        texts[file] = texts[file].replace(before, after)
        file.write_text(texts[file])
    code, verdicts = trials(name, "--trial", fault.trial, first=tmp_path)
    assert code == 1
    assert verdicts[fault.trial][fault.verdict]["outcome"] == "Fail"
