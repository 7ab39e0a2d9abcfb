"""verl's engine of PyTorch's own parallelism on a tiny model: micro-batches, packing, scores and losses.

The engine's methods run as they are, on a model without FSDP, which they allow, and on the CPU. Its constructor, which
loads a model from a folder and distributes it over GPUs, is left out.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import Row, StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import equal_size
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.places import in_float32, one_process
from seatrial.targets.verl.steps import ACTOR_SPEC, LOSSES, actor_config

IMPLEMENTATION = "verl.workers.engine.fsdp.transformer_impl"
PADDING = ("verl.workers.utils.padding", "verl.workers.roles.utils.padding")
SUMMED = ("actor/pg_loss", "actor/entropy_loss", "kl_loss")
"""Metrics that micro-batches add to."""


def implementation_of_engine() -> Any:
    """Return the engine's module.

    Raises:
        Gone: the release has no such engine.
    """
    try:
        found = import_without(IMPLEMENTATION, UNUSED)
    except ModuleNotFoundError as error:
        if not IMPLEMENTATION.startswith(error.name or " "):
            raise
        raise Gone(f"verl {release('verl')} has no {IMPLEMENTATION}") from error
    return found


def engine_on_cpu(module: Any, *, entropy_chunks: bool, kind: str = "FSDPEngineWithLMHead") -> Any:
    """Return an engine of this model, in the only process of a gloo group; `kind` names its class."""
    implementation = implementation_of_engine()
    balancing = find_name("verl", ["verl.utils:seqlen_balancing"])
    for module_of_names in (implementation, balancing):
        module_of_names.get_device_name = lambda: "cpu"
    implementation.get_device_id = lambda: "cpu"
    one_process()
    engine = object.__new__(getattr(implementation, kind))
    functional = find_name("verl", ["verl.utils:torch_functional"])
    found = {
        "module": module,
        "mode": None,
        "use_ulysses_sp": False,
        "ulysses_sequence_parallel_size": 1,
        "ulysses_device_mesh": None,
        "pad_to_length": False,
        "pad_to_length_bucket": 1,
        "scaler": None,
        "_autocast_dtype": torch.float32,
        "compute_entropy_from_logits": functional.entropy_from_logits,
        "engine_config": SimpleNamespace(
            entropy_checkpointing=False,
            entropy_from_logits_with_chunking=entropy_chunks,
            entropy_from_logits_chunk_size=7,
            use_no_sync_for_gradient_accumulation=True,
        ),
    }
    if entropy_chunks:
        found["compute_entropy_from_logits"] = functional.entropy_from_logits_with_chunking
    for name, value in found.items():
        setattr(engine, name, value)
    return engine


def nested(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """Return rows of unequal lengths as one nested tensor."""
    return torch.nested.as_nested_tensor(
        [torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged
    )


class _Engine(TinyCausalModel):
    """What the adapters share."""

    facts = StackFacts(micro_batch_sizes="equal", epsilon=1e-8, dtype="float32")
    loss_spec = ACTOR_SPEC
    options: ClassVar[Mapping[str, Any]] = {"use_remove_padding": True}
    dynamic: ClassVar[bool] = False
    entropy_chunks: ClassVar[bool] = False

    def __init__(self) -> None:
        """Find the engine, its loss and its batches."""
        self.ppo_loss = find_name("verl", [f"{module}:ppo_loss" for module in LOSSES])
        self.sft_loss = find_name("verl", [f"{module}:sft_loss" for module in LOSSES])
        self.config_class = find_name("verl", ["verl.workers.config:ActorConfig"])
        self.utils = find_name("verl", ["verl.utils:tensordict_utils"])
        engine = implementation_of_engine().FSDPEngineWithLMHead
        if "offsets()" not in inspect.getsource(engine):
            raise Gone(f"engines of verl {release('verl')} take padded rows")
        # To 0.6 the mask of a row is as long as the row.
        left_right = find_name("verl", [f"{module}:left_right_2_no_padding" for module in PADDING])
        self.masks_rows = "loss_mask[-response_len:]" in inspect.getsource(left_right)

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    def _data(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, Any]:
        whole = [[*prompt, *completion] for prompt, completion in sequences]
        return {
            "input_ids": nested(whole, torch.long),
            "position_ids": nested([list(range(len(row))) for row in whole], torch.long),
            "prompts": nested([prompt for prompt, _ in sequences], torch.long),
            "responses": nested([completion for _, completion in sequences], torch.long),
        }

    def _batch(
        self, data: dict[str, Any], micro_batches: Sequence[Sequence[int]], *, temperature: float, **more: Any
    ) -> Any:
        """Return the batch with the options that a worker gives it."""
        batch = self.utils.get_tensordict(data)
        lengths = data["input_ids"].offsets().diff()
        sizes: dict[str, Any] = {"use_dynamic_bsz": self.dynamic}
        if self.dynamic:
            # One micro-batch holds all rows, or as many as the longest row has tokens.
            sizes["max_token_len_per_gpu"] = int(lengths.sum() if len(micro_batches) == 1 else lengths.max())
        else:
            sizes["micro_batch_size_per_gpu"] = equal_size(micro_batches)
        self.utils.assign_non_tensor(
            batch, temperature=temperature, global_batch_size=len(lengths), **sizes, **self.options, **more
        )
        return batch

    def _step(
        self, data: dict[str, Any], loss: Any, micro_batches: Sequence[Sequence[int]], **more: Any
    ) -> StepResult:
        model = copy.deepcopy(self.objective_model())
        engine = engine_on_cpu(model, entropy_chunks=self.entropy_chunks)
        batch = self._batch(data, micro_batches, temperature=1.0, **more)
        with in_float32():
            found = engine.forward_backward_batch(batch, loss)
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        logged = found["metrics"]
        metrics = {
            name: logged[name].aggregate() for name in SUMMED if hasattr(logged.get(name), "aggregate")
        }
        return StepResult(loss=float(sum(found["loss"])), gradients=gradients, metrics=metrics)


class VerlEngine(_Engine):
    """Steps of the policy, and scores of given rows; see `contracts.TrainStep` and `contracts.Policy`.

    Rows go through the model end to end, without padding, in micro-batches of so many rows.
    """

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        if "to_padded_tensor" not in inspect.getsource(self.ppo_loss):
            raise NotServed("the policy loss of this release's engines takes padded rows alone")
        config = actor_config(self.config_class, self.loss_spec)
        given = [rows[index] for part in micro_batches for index in part]
        data = self._data([(row.prompt_ids, row.completion_ids) for row in given])
        masks = [row.completion_mask for row in given]
        data |= {
            "loss_mask": nested(masks, torch.long),
            "response_mask": nested(masks, torch.long),
            "old_log_probs": nested([row.old_logprobs for row in given], torch.float32),
            "ref_log_prob": nested([row.ref_logprobs for row in given], torch.float32),
            "advantages": nested([[row.advantage] * len(row.completion_ids) for row in given], torch.float32),
        }
        return self._step(data, partial(self.ppo_loss, config=config), micro_batches, calculate_entropy=True)

    def scored_model(self) -> Any:
        """Return the model of `score`."""
        return self.objective_model()

    def scored_mask(self, rows: Sequence[Row]) -> Tensor:
        """Return the mask of the rows' losses as the workers of the release give it to the engine."""
        before = [[0] * len(row.prompt_ids) if self.masks_rows else [] for row in rows]
        return nested(
            [[*own, *row.completion_mask] for own, row in zip(before, rows, strict=True)], torch.long
        )

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        data = self._data([(row.prompt_ids, row.completion_ids) for row in rows])
        data["loss_mask"] = self.scored_mask(rows)
        batch = self._batch(data, [[index] for index in range(len(rows))], temperature=temperature)
        engine = engine_on_cpu(self.objective_model(), entropy_chunks=self.entropy_chunks)
        with in_float32():
            found = engine.forward_backward_batch(batch, None, forward_only=True)["model_output"]["log_probs"]
        return [
            tuple(own[len(row.prompt_ids) - 1 : -1].tolist())
            for row, own in zip(rows, found.unbind(), strict=True)
        ]


SHORT_MASK = KnownFailure(
    "the mask of attention is as long as the mask of the answer",
    finding="verl: small functions of older releases",
    releases=lambda adapter: not adapter.masks_rows and between("verl", "0.7.0.dev0", "0.8")(adapter),
).of("R5.policy/the model's own log-probabilities")


class VerlPaddedEngine(KnowsFailures, VerlEngine):
    """The same, rows padded to the longest of their micro-batch."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (SHORT_MASK,)
    options: ClassVar[Mapping[str, Any]] = {"use_remove_padding": False}


class VerlDynamicEngine(VerlEngine):
    """The same, in micro-batches of at most so many tokens; entropies in chunks."""

    facts = dataclasses.replace(VerlEngine.facts, micro_batch_sizes="any")
    dynamic = True
    entropy_chunks = True


OWN_SCALE = KnownFailure(
    "micro-batches are weighted by their rows, and their losses divided by their own tokens",
    finding="verl: the supervised trainer's means of micro-batches",
    releases=before("verl", "0.6.1"),
)


class VerlSupervisedEngine(KnowsFailures, _Engine):
    """`sft_loss` of the engine on examples; see `contracts.objectives.Objective`."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (OWN_SCALE.of("R1.objective"),)
    objective_spec = ObjectiveSpec(kind="sft", trains="completion")

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        given = [examples[index] for part in micro_batches for index in part]
        data = self._data([(one.prompt_ids, one.completion_ids) for one in given])
        masks = [[0] * len(one.prompt_ids) + [1] * len(one.completion_ids) for one in given]
        data["loss_mask"] = nested(masks, torch.long)
        return self._step(data, partial(self.sft_loss, config=None), micro_batches)


ADAPTERS: dict[str, type[Any]] = {
    "engine": VerlEngine,
    "engine-padded": VerlPaddedEngine,
    "engine-dynamic": VerlDynamicEngine,
    "engine-supervised": VerlSupervisedEngine,
}
