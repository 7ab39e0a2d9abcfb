"""A short GRPO run of refrl, with validation in between or without, offered to the relations."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from refrl.algorithms.grpo import train_step
from refrl.config import GRPORunConfig, validate_config
from refrl.logging import RunLogger
from refrl.policy.hf import HFPolicy
from refrl.session import open_session
from refrl.tiny_models import TinyModelSpec, make_model
from refrl.validation import is_validation_step, validate

NUM_STEPS = 3


class ReferenceRuns:
    """Runs of refrl's own loop functions in this process."""

    def train_with_evaluation(self, *, evaluate: bool, seed: int) -> Mapping[str, Any]:
        """See `contracts.Evaluation`: weights, what every step logged, prompts drawn, and global random streams."""
        with tempfile.TemporaryDirectory() as folder, _quiet_and_restored(seed):
            directory = Path(folder) / "model"
            make_model(TinyModelSpec(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1), directory)
            config = _config(Path(folder), directory, evaluate=evaluate, seed=seed)
            with open_session(config, config.grpo, num_updates=2 * NUM_STEPS, with_reference=True) as opened:
                recorder = _Recorder(opened.logger)
                session = dataclasses.replace(opened, logger=cast(RunLogger, recorder))
                for step in range(NUM_STEPS + 1):
                    if step:
                        train_step(session, config, step)
                    if is_validation_step(config.grpo, step):
                        validate(session, config.grpo, step)
            policy = cast(HFPolicy, session.policy)
            return {
                **{f"weight {name}": value.clone() for name, value in policy.model.state_dict().items()},
                **{f"logged {name}": value for name, value in recorder.trained.items()},
                "training mode": policy.model.training,
                "prompts drawn": session.prompts.state_dict(),
                "torch stream": torch.get_rng_state(),
                "python stream": random.getstate(),
                "numpy stream": str(np.random.get_state()),
            }


class _Recorder:
    """Keeps what the training steps log; what a validation logs belongs to it alone."""

    def __init__(self, logger: RunLogger) -> None:
        self.directory = logger.directory
        self.trained: dict[str, float] = {}

    def log(self, metrics: Mapping[str, float], step: int, prefix: str) -> None:
        if prefix == "train":
            self.trained.update({f"{name}, step {step}": value for name, value in metrics.items()})

    def log_rows(self, rows: Iterable[Mapping[str, Any]], name: str, step: int) -> None:
        if name == "train_data":
            self.trained[f"rows, step {step}"] = float(hash(str([sorted(row.items()) for row in rows])))


@contextlib.contextmanager
def _quiet_and_restored(seed: int) -> Iterator[None]:
    """Hold the console output back, seed the global streams, and leave them as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _config(folder: Path, model: Path, *, evaluate: bool, seed: int) -> GRPORunConfig:
    return validate_config(
        GRPORunConfig,
        {
            "policy": {
                "model_name": str(model),
                "train_global_batch_size": 4,
                "train_micro_batch_size": 2,
                "max_total_sequence_length": 32,
                "optimizer": {"lr": 1e-2},
                "scheduler": {"name": "linear", "warmup_steps": 1},
                "generation": {"max_new_tokens": 4},
            },
            "grpo": {
                "num_prompts_per_step": 2,
                "num_generations_per_prompt": 4,
                "max_num_steps": NUM_STEPS,
                "seed": seed,
                "val_period": int(evaluate),
                "val_at_start": evaluate,
                "max_val_samples": 3,
            },
            "data": {
                "task": "reverse",
                "verifier": "byte_closeness",
                "num_train": 5,
                "num_validation": 3,
            },
            "logger": {
                "log_dir": str(folder / "log"),
                "tensorboard_enabled": False,
                "log_train_data": False,
            },
            "checkpointing": {"enabled": False, "checkpoint_dir": str(folder / "checkpoints")},
            "cluster": {"device": "cpu"},
        },
        source="the short run",
    )
