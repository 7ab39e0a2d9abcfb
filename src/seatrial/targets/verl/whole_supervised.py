"""verl's supervised trainer as a user runs it: `SFTTrainer.fit()` on a few examples, with the engine that it builds."""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.trainers import (
    EvaluationSpec,
    TrainerEvaluation,
    TrainerPlan,
    TrainerRecord,
    TrainerSpec,
    TrainerStep,
)
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.run import UpdateRecord
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, since
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.verl.built import REGISTRY, folder_of, on_cpu, whole
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.model_updates import NEXT_RATE
from seatrial.targets.verl.places import no_memory_log, one_process

MODULE, CONFIG = "verl.trainer.sft_trainer", "sft_trainer_engine"
RATE, DECAY, BETAS, EPSILON, CLIP = 0.01, 0.1, (0.9, 0.99), 1e-6, 0.5
NAMES: Mapping[str, str] = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "learning_rate"}
"""The law's names of what the trainer logs."""
ONE_PROCESS = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}


class _StoppedError(Exception):
    """The run was stopped."""


@cache
def configuration() -> Any:
    """Return the release's own configuration of the trainer.

    Raises:
        Gone: it has none.
    """
    import hydra

    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "trainer" / "config"
    if not (folder / f"{CONFIG}.yaml").exists():
        raise Gone(f"verl {release('verl')} has no {CONFIG}")
    with hydra.initialize_config_dir(str(folder), version_base=None):
        return hydra.compose(CONFIG)


class _Watch:
    """What was observed of a run."""

    def __init__(self, numbers: Mapping[tuple[int, ...], Example], stops_after: int) -> None:
        self.numbers, self.stops_after = numbers, stops_after
        self.parts: list[tuple[Example, ...]] = []
        self.evaluated: list[tuple[Example, ...]] = []
        self.steps: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.logged: dict[int, dict[str, float]] = {}
        self.initial: dict[str, Tensor] | None = None
        self.training: list[bool] = []
        self.training_in_evaluation = False

    def attach(self, engine: Any) -> None:
        """Watch an engine from now on."""
        forward, step = engine.forward_step, engine.optimizer_step
        if self.initial is None:
            self.initial = weights_of(engine)

        def forward_step(micro_batch: Any, *more: Any, **options: Any) -> Any:
            rows = tuple(self.numbers[tuple(one.tolist())] for one in micro_batch["input_ids"].unbind())
            if options.get("forward_only", more[-1] if more else False):
                self.evaluated.append(rows)
                self.training_in_evaluation |= engine.module.training
            else:
                if self.stops_after and len(self.steps) == self.stops_after:
                    raise _StoppedError
                self.parts.append(rows)
                self.training.append(engine.module.training)
            return forward(micro_batch, *more, **options)

        def optimizer_step(*more: Any, **options: Any) -> Any:
            made = {
                "gradients": {
                    name: whole(value.grad).clone() for name, value in engine.module.named_parameters()
                },
                "rate": engine.optimizer.param_groups[0]["lr"],
                "parts": tuple(self.parts),
            }
            self.parts = []
            found = step(*more, **options)
            self.steps.append({**made, "norm": float(found), "weights": weights_of(engine)})
            return found

        engine.forward_step, engine.optimizer_step = forward_step, optimizer_step

    def log(self, data: Mapping[str, Any], step: int, **_: Any) -> None:
        """Note what is logged, as the trainer's own tracker does."""
        if "val/loss" in data:
            self.evaluations.append(
                {"step": step, "batches": tuple(self.evaluated), "loss": float(data["val/loss"])}
            )
            self.evaluated = []
        else:
            self.logged[step] = {NAMES[name]: float(data[name]) for name in NAMES if name in data}


def weights_of(engine: Any) -> dict[str, Tensor]:
    """Return copies of an engine's weights."""
    return {name: whole(value).detach().clone() for name, value in engine.module.named_parameters()}


class VerlWholeSupervised(KnowsFailures, TinyCausalModel):
    """`SFTTrainer.fit()` with the engine by FSDP2; see `contracts.trainers`."""

    thorough = True
    facts = StackFacts(micro_batch_sizes="equal")
    padding_side = "right"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        replace(NEXT_RATE, releases=since("verl", "0.6")).of("R10.whole/logged learning rate"),
        KnownFailure(
            "the loss of a validation is divided by the number of its micro-batches",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.7"),
        ).of("R23.whole/logged loss and scalars::loss"),
    )
    options: ClassVar[Mapping[str, Any]] = {}
    """Of the run, by their full names, where they are not the defaults of this adapter."""
    trainer_spec = TrainerSpec(
        objective=ObjectiveSpec(kind="sft", trains="completion"),
        drops_last=True,
        evaluation=EvaluationSpec(),
        spreads=False,
    )

    def __init__(self) -> None:
        """Find the trainer and its configuration."""
        configuration()
        options = find_name("verl", ["verl.workers.config:FSDPOptimizerConfig"])
        if "override_optimizer_config" not in {one.name for one in fields(options)}:
            raise Gone(f"the optimizer of verl {release('verl')} has no override_optimizer_config")
        try:
            self.module = import_without(MODULE, (*UNUSED, "codetiming"))
        except ModuleNotFoundError as error:
            if not MODULE.startswith(error.name or " "):
                raise
            raise Gone(f"verl {release('verl')} has no {MODULE}") from error

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        """Return the logits of the plain model."""
        from torch.func import functional_call

        given = {"input_ids": torch.tensor([list(ids)]), "use_cache": False}
        found: Tensor = functional_call(self._plain, dict(weights), (), given).logits[0]
        return found

    @cached_property
    def _plain(self) -> Any:
        return copy.deepcopy(self.objective_model()).double().eval()

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """Examples of unequal lengths, no two alike."""
        stream = random.Random(0)

        def ids(longest: int) -> tuple[int, ...]:
            return tuple(stream.choices(self.ordinary_ids, k=stream.randint(2, longest)))

        return tuple(Example(prompt_ids=ids(7), completion_ids=(*ids(9), self.eos_id)) for _ in range(64))

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        """Run the trainer in this process."""
        if plan.num_ranks > 1 or plan.predicts or plan.logging_steps > 1:
            raise NotServed(
                "the trainer logs every step, and no predictions; several processes are not tried"
            )
        split, held_out = self.examples[: plan.num_examples], self.examples[-plan.num_rows :]
        folder = new_folder()
        numbers = {(*one.prompt_ids, *one.completion_ids): one for one in self.examples}
        watch = _Watch(numbers, plan.ends_after)
        if plan.ends_after:
            with contextlib.suppress(_StoppedError):
                self._fit(plan, folder, watch, split, held_out)
            watch.parts, watch.stops_after = [], 0
        engine = self._fit(plan, folder, watch, split, held_out)
        assert watch.initial is not None
        state = {
            f"{name}.{key}": whole(torch.as_tensor(moment)).detach().clone()
            for name, value in engine.module.named_parameters()
            for key, moment in engine.optimizer.state[value].items()
        }
        return TrainerRecord(
            options={
                "policy.optimizer.name": "adamw",
                "policy.optimizer.lr": RATE,
                "policy.optimizer.weight_decay": DECAY,
                "policy.optimizer.betas": BETAS,
                "policy.optimizer.eps": EPSILON,
                "policy.max_grad_norm": CLIP,
                "policy.scheduler.name": "cosine",
                "policy.scheduler.warmup_steps": 0,
            },
            initial_weights=watch.initial,
            final_weights=weights_of(engine),
            trainable=frozenset(watch.initial),
            steps=tuple(
                TrainerStep(
                    step=number,
                    micro_batches=one["parts"],
                    update=UpdateRecord(
                        row_indices=(),
                        micro_batches=None,
                        gradients=one["gradients"],
                        grad_norm=one["norm"],
                        learning_rate=one["rate"],
                        weights_after=one["weights"],
                    ),
                    logged=watch.logged.get(number, {}),
                )
                for number, one in enumerate(watch.steps, start=1)
            ),
            evaluations=tuple(
                TrainerEvaluation(
                    step=one["step"],
                    batches=one["batches"],
                    logged={"loss": one["loss"]},
                    was_training=watch.training_in_evaluation,
                )
                for one in watch.evaluations
            ),
            rollouts=(),
            reference_weights=None,
            optimizer=state,
            was_training=all(watch.training),
            split=split,
            held_out=held_out,
        )

    def _fit(
        self,
        plan: TrainerPlan,
        folder: str,
        watch: _Watch,
        split: Sequence[Example],
        held_out: Sequence[Example],
    ) -> Any:
        """Run the trainer and return its engine."""
        config = self._configuration(plan, folder, evaluates=bool(plan.eval_steps))
        sets = {"train": _Rows(split), "held": _Rows(held_out)}
        given = {
            "create_sft_dataset": lambda paths, *_, **__: sets[str(paths)],
            "Tracking": lambda *_, **__: watch,
        }
        one_process()
        no_memory_log()
        with self._here(), mock.patch.dict(vars(self.module), given):
            random.seed(plan.process_seed)
            torch.manual_seed(plan.process_seed)
            trainer = self.module.SFTTrainer(config)
            watch.attach(trainer.engine)
            trainer.fit()
        return trainer.engine

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        with mock.patch.dict(os.environ, ONE_PROCESS), on_cpu(), _registered_for_cpu():
            yield

    def _configuration(self, plan: TrainerPlan, folder: str, *, evaluates: bool) -> Any:
        from omegaconf import OmegaConf

        float32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        steps_of_an_epoch = max(1, plan.num_examples // plan.num_rows)
        given = {
            "model.path": folder_of(self.objective_model(), self.tokenizer),
            "model.override_config": {"attn_implementation": "sdpa"},
            "model.enable_gradient_checkpointing": False,
            "model.use_remove_padding": True,
            "engine.strategy": "fsdp2",
            "engine.use_torch_compile": False,
            "engine.mixed_precision": float32,
            "engine.model_dtype": "fp32",
            "optim.lr": RATE,
            "optim.weight_decay": DECAY,
            "optim.betas": list(BETAS),
            "optim.clip_grad": CLIP,
            "optim.lr_scheduler_type": "cosine",
            "optim.min_lr_ratio": 0.0,
            "optim.lr_warmup_steps": 0,
            "optim.lr_warmup_steps_ratio": 0.0,
            "optim.override_optimizer_config": {"eps": EPSILON},
            "data.train_files": "train",
            "data.val_files": "held" if evaluates else None,
            "data.train_batch_size": plan.num_rows,
            "data.micro_batch_size_per_gpu": plan.num_rows // plan.num_micro_batches,
            "data.use_dynamic_bsz": False,
            "data.num_workers": 0,
            "data.pad_mode": "no_padding",
            "trainer.default_local_dir": folder,
            "trainer.total_training_steps": plan.num_steps,
            "trainer.total_epochs": -(-plan.num_steps // steps_of_an_epoch),
            "trainer.save_freq": 1 if plan.ends_after else -1,
            "trainer.test_freq": plan.eval_steps or -1,
            "trainer.seed": plan.seed,
            "trainer.device": "cpu",
            "trainer.logger": ["console"],
            **self.options,
        }
        config = OmegaConf.create(OmegaConf.to_container(configuration(), resolve=False))
        for name, value in given.items():
            OmegaConf.update(config, name, value, force_add=True)
        return config


@contextlib.contextmanager
def _registered_for_cpu() -> Iterator[None]:
    """Let the choice of an engine take the one for GPUs."""
    registry = find_name("verl", [f"{REGISTRY}:EngineRegistry"])
    engines = {
        kind: {
            name: {**own, "cpu": next((cls for key, cls in own.items() if "cuda" in str(key)), None)}
            for name, own in of.items()
        }
        for kind, of in registry._engines.items()
    }
    with mock.patch.object(registry, "_engines", engines):
        yield


class _Rows:
    """A data set of examples as rows without padding."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        one = self.examples[place]
        ids = torch.tensor([*one.prompt_ids, *one.completion_ids])
        mask = torch.tensor([0] * len(one.prompt_ids) + [1] * len(one.completion_ids))
        return {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}


SETUPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "whole-supervised": ("rows without padding", {}),
    "whole-supervised-padded": ("rows padded for the model", {"model.use_remove_padding": False}),
    "whole-supervised-dynamic": (
        "micro-batches of at most 40 tokens",
        {"data.use_dynamic_bsz": True, "data.max_token_len_per_gpu": 40},
    ),
    "whole-supervised-checkpointed": (
        "checkpoints of layers, weights and states moved off between the steps",
        {
            "model.enable_gradient_checkpointing": True,
            "engine.param_offload": True,
            "engine.optimizer_offload": True,
            "engine.reshard_after_forward": False,
        },
    ),
}

ADAPTERS: dict[str, type[Any]] = {
    name: type(
        f"Verl_{name}",
        (VerlWholeSupervised,),
        {"__doc__": f"`SFTTrainer.fit()`, {what}.", "options": options},
    )
    for name, (what, options) in SETUPS.items()
}
