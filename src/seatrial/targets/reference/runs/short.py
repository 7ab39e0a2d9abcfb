"""Short runs of refrl's own loops, offered to the relations."""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from refrl.config import GRPORunConfig
from refrl.rewards import score_completions
from refrl.training.build import build_rewards
from refrl.training.grpo import run_grpo
from refrl.training.recorder import RunRecorder
from seatrial.relations.records.run import (
    GroupRecord,
    RunOption,
    RunRecord,
    RunRow,
    StepRecord,
    UpdateRecord,
    ValidationRecord,
)
from seatrial.targets.reference.configuration import (
    OTHER_MODELS,
    configuration,
    effective,
    model_directory,
    other_model_directory,
    others_model_directory,
    table,
    wide_model_directory,
)
from seatrial.targets.reference.runs.architectures import (
    OWN_DATA,
    SPECS,
    ReferenceArchitectures,
    architecture_directory,
    media_of,
    plain_logits,
)
from seatrial.targets.reference.runs.ranks import recorded

_OWN = "seatrial.targets.reference.parts.custom"
LONGEST = 128
"""Length of a row in `conformance.yaml`."""
TIED = "tied"
"""What the relations call a model whose head is its embedding."""
VERIFIERS = {"graded": "byte_closeness", "coarse": f"{_OWN}:near_enough", "failing": f"{_OWN}:failing"}
"""What the relations call verifiers by how finely they judge."""
ENVIRONMENTS = {"answering": f"{_OWN}:Answering"}
"""What they call environments."""
SEVERAL = {"byte_closeness": 2.0, f"{_OWN}:failing": 1.0}
"""What they call `several`: verifiers and their weights."""
NEUTRAL: Sequence[Mapping[str, Any]] = (
    {
        "policy.activation_checkpointing": True,
        "policy.logprob_chunk_size": 3,
        "policy.sequence_length_buckets": [24, 48, LONGEST],
    },
    {
        "policy.dynamic_batching.enabled": True,
        "policy.dynamic_batching.logprob_mb_tokens": 40,
        "policy.generation.colocated.enabled": False,
        "policy.generation.weight_bucket_size_bytes": 5000,
    },
    {
        "policy.sequence_packing.enabled": True,
        "policy.sequence_packing.logprob_mb_tokens": 40,
        "policy.logprob_batch_size": 1,
    },
)
"""Options that change how a step is computed, and none of its numbers."""


class ReferenceRuns(ReferenceArchitectures):
    """See `seatrial.relations.contracts.run`."""

    options: Mapping[str, Any]
    validations_repeat = True

    @property
    def changes_in_flight(self) -> bool:
        """Several replicas, or scores in chunks, may sample all rows before a step has ended."""
        return not set(self.options) - {"grpo.async_grpo.enabled", "policy.generation.colocated.enabled"}

    @property
    def neutral_options(self) -> Sequence[Mapping[str, Any]]:
        """Other cells of the configuration refuse some of them by name."""
        return () if self.options else NEUTRAL

    @property
    def other_models(self) -> Sequence[str]:
        """Models of other kinds; Megatron-core refuses them by name."""
        return () if self.options.get("policy.megatron_cfg.enabled") else tuple(OTHER_MODELS)

    def short_run(self, options: Mapping[str, Any], *, seed: int) -> RunRecord:
        with tempfile.TemporaryDirectory() as folder, quiet():
            fixed = {"grpo.seed": seed, "logger.log_dir": f"{folder}/log"}
            config = configuration({**self.options, **with_own_parts(options), **fixed})
            if config.cluster.num_processes > 1:
                return record_of(recorded(config, Path(folder)), config)
            recorder = RunRecorder()
            run_grpo(config, recorder)
        return record_of(recorder.recording, config)

    def run_options(self) -> Mapping[str, RunOption]:
        return {name: RunOption(**fields) for name, fields in table("options").items()}

    def next_token_logits(
        self, weights: Mapping[str, Tensor], ids: Sequence[int], *, media: Tensor | None = None
    ) -> Tensor:
        return plain_logits(weights, ids, media)

    def rewards_of(self, rows: Sequence[RunRow]) -> list[float]:
        verifier = build_rewards(configuration(self.options).data)
        return list(
            score_completions(
                [row.completion for row in rows], [row.answer or "" for row in rows], verifier
            ).rewards
        )

    def stored_weights(self) -> Mapping[str, Tensor]:
        return load_file(model_directory() / "model.safetensors")

    def train_with_evaluation(self, *, evaluate: bool, seed: int) -> Mapping[str, Any]:
        options = {"grpo.val_period": int(evaluate), "grpo.val_at_start": evaluate, "grpo.max_num_steps": 3}
        run = self.short_run(options, seed=seed)
        logged = [(step.prompts_served, step.rows, dict(step.metrics)) for step in run.steps]
        weights = {f"weight {name}": value for name, value in run.final_weights.items()}
        return {
            **weights,
            "logged": logged,
            "global streams untouched": run.global_streams_untouched,
            "training mode": run.in_training_mode,
        }


def with_own_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with refrl's names of verifier and model, and the row length that a budget of tokens needs."""
    found, asked, model = dict(options), options.get("data.verifier"), options.get("policy.model_name")
    if asked in VERIFIERS:
        found["data.verifier"] = VERIFIERS[asked]
    if (environment := options.get("data.environment")) in ENVIRONMENTS:
        found["data.environment"] = ENVIRONMENTS[environment]
    if (answers := found.pop("data.answers", None)) is not None:
        found |= {"data.task": f"{_OWN}:Answers", "data.task_args": {"other": answers == "other"}}
    if model == "others":
        found["policy.model_name"] = str(others_model_directory())
    if asked == "several":
        found |= {"data.verifier": None, "data.verifiers": SEVERAL}
    if model in OTHER_MODELS:
        found["policy.model_name"] = str(other_model_directory(model))
    if model == TIED:
        found["policy.model_name"] = str(wide_model_directory(tied=True))
    if model is not None and model in SPECS:
        found |= {"policy.model_name": str(architecture_directory(model)), **OWN_DATA.get(model, {})}
    budgets = [value for name, value in options.items() if name.endswith("_mb_tokens") and value]
    if budgets:
        found.setdefault("policy.max_total_sequence_length", min(LONGEST, *budgets))
    return found


def record_of(recording: Mapping[str, Any], config: GRPORunConfig) -> RunRecord:
    """Return a recording of refrl as the relations read it."""
    steps = {0: 0} | {step["version"]: step["step"] for step in recording["steps"]}

    def rows(of: Sequence[Mapping[str, Any]]) -> tuple[RunRow, ...]:
        return tuple(
            RunRow(
                **{
                    **row,
                    "media": media_of(row["media"]),
                    "weight_version": steps[row["weight_version"]],
                    "version_segments": tuple(
                        (place, steps[version]) for place, version in row["version_segments"]
                    ),
                }
            )
            for row in of
        )

    return RunRecord(
        options=effective(config),
        initial_weights=recording["initial_weights"],
        initial_draft_weights=recording["initial_draft_weights"],
        final_weights=recording["final_weights"],
        reference_weights_start=recording["reference_start"],
        reference_weights_end=recording["reference_end"],
        trainable=frozenset(recording["trainable"]),
        steps=tuple(
            StepRecord(
                step=step["step"],
                prompts_served=tuple(step["prompts_served"]),
                rows=rows(step["rows"]),
                discarded_rows=rows(step["discarded_rows"]),
                groups=tuple(GroupRecord(**group) for group in step["groups"]),
                updates=tuple(UpdateRecord(**update) for update in step["updates"]),
                metrics=step["metrics"],
                weights_after=step["weights_after"],
                draft_weights_after=step["draft_weights_after"],
            )
            for step in recording["steps"]
        ),
        validations=tuple(
            ValidationRecord(**{**one, "media": tuple(media_of(text) for text in one["media"])})
            for one in recording["validations"]
        ),
        train_prompts=tuple(recording["train_prompts"]),
        global_streams_untouched=recording["global_streams_untouched"],
        vocab_size=recording["vocab_size"],
        stop_ids=tuple(recording["stop_ids"]),
        in_training_mode=recording["in_training_mode"],
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold the console output back, and leave the global random streams as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
