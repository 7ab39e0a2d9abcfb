"""TRL's trainers as a user runs them: `train()` on a small data set, observed through a callback and hooks.

One mechanism serves every trainer; `setups` lists them. Hooks wrap public methods of the trainer's instance
(`compute_loss`, `prediction_step`, `evaluate`), the accelerator's clipping and the model's `generate`, which returns
made completions, so that lengths, ends and texts are known.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.trainers import (
    LoggedRow,
    Rollout,
    ServedBatch,
    TrainerEvaluation,
    TrainerPlan,
    TrainerRecord,
    TrainerRow,
    TrainerSpec,
    TrainerStep,
)
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.run import UpdateRecord
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.ranks import call_on_ranks
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import freeze_imports, resuming
from seatrial.targets.common.zoo import ZOO, balance_loss, zoo_model
from seatrial.targets.trl.adapted import VIRTUAL, adapter_config, merged, of_the_reference
from seatrial.targets.trl.fitting import fitted_setup
from seatrial.targets.trl.former import OF_EVERY_TRAINER
from seatrial.targets.trl.fused import plain_liger, refusals
from seatrial.targets.trl.made_rows import MadeRows
from seatrial.targets.trl.named import generates_micro_batches, scalars_of, sources, unnamed_scalars
from seatrial.targets.trl.planned import intended_options, optimizer_options
from seatrial.targets.trl.preferences import find_trainer, given_tokenizer
from seatrial.targets.trl.processes import is_one_of_several, made_dataset, shared_folder
from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.listed import SETUPS
from seatrial.targets.trl.specs import spec_for
from seatrial.targets.trl.tables import logged_rows, logging
from seatrial.targets.trl.tools import ASYNC_TOOLS, ENVIRONMENTS, Environment, tools
from seatrial.targets.trl.watch import Watch


class Whole(KnowsFailures, TinyCausalModel):
    """A trainer with the options of a setup; see `contracts.trainers`."""

    facts = StackFacts(micro_batch_sizes="equal", decays="matrices")

    setup_name: str
    setup: Setup
    thorough: bool
    dropped: frozenset[str] = frozenset()
    """Options that the trainer does not get although the laws expect them; see `dropping`."""

    def __init__(self) -> None:
        """Find the trainer and its options in the installed release.

        Raises:
            Gone: the release does not have one of them.
        """
        self.pad_is_end, self.padding_side = self.setup.pad_is_end, self.setup.padding_side
        self.trainer_class, self.config_class = find_trainer(self.setup.trainer)
        self.setup = fitted_setup(self.setup, self.trainer_class, self.config_class)
        defaults = {item.name: item.default for item in dataclasses.fields(self.config_class)}
        self.known_options = frozenset(defaults)
        spec = spec_for(self.setup, defaults)
        self.trainer_spec: TrainerSpec = dataclasses.replace(
            spec,
            scalars=scalars_of(self.trainer_class, spec),
            generates_for="micro_batch" if generates_micro_batches(self.trainer_class) else "window",
            unnamed_scalars=unnamed_scalars(self.setup.scalars, self.trainer_class),
        )
        self.rows = MadeRows(self.setup, self.tokenizer)

    @property
    def shuffles(self) -> bool:
        """Whether the order of the rows is that of the `Trainer`'s sampler; KTO keeps the order that it is given."""
        return self.setup.trainer != "KTO"

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        """Return the logits of the plain model, adapters merged into its matrices."""
        from torch.func import functional_call

        given: dict[str, Any] = {"input_ids": torch.tensor([list(ids)]), "use_cache": False}
        if (virtual := weights.get(VIRTUAL)) is not None:
            embedded = weights["model.embed_tokens.weight"][given.pop("input_ids")[0]]
            given["inputs_embeds"] = torch.cat([virtual, embedded])[None]
            weights = {name: value for name, value in weights.items() if name != VIRTUAL}
            return functional_call(self._plain, weights, (), given).logits[0, len(virtual) :]  # type: ignore[no-any-return]
        found: Tensor = functional_call(self._plain, merged(weights), (), given).logits
        return found if self.setup.scores else found[0]

    def balance_loss(self, weights: Mapping[str, Tensor], sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return the load-balancing loss of the plain model's routers, over all tokens of these sequences."""
        from torch.func import functional_call

        plain = merged(weights)
        inputs = [{"input_ids": torch.tensor([list(ids)]), "use_cache": False} for ids in sequences]
        found = [
            functional_call(self._plain, plain, (), {**one, "output_router_logits": True}).router_logits
            for one in inputs
        ]
        layers = [torch.cat([one[layer] for one in found]) for layer in range(len(found[0]))]
        return balance_loss(layers, self._plain.config.num_experts_per_tok)

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        """Run the trainer in this process, or in several."""
        if plan.num_rows % (plan.num_ranks * plan.num_micro_batches):
            raise NotServed(
                f"{plan.num_rows} rows in {plan.num_ranks} x {plan.num_micro_batches} equal parts"
            )
        if plan.num_ranks == 1:
            return self._record(plan, [self.observed_run(plan)])
        payload = {
            "setup": self.setup_name,
            "plan": dataclasses.asdict(plan),
            "dropped": sorted(self.dropped),
        }
        return self._record(plan, call_on_ranks(f"{__name__}:run_of_rank", payload, plan.num_ranks))

    @cached_property
    def _plain(self) -> Any:
        return self._made_model(0, **self.setup.options.get("model_init_kwargs", {})).double().eval()

    def _made_model(self, seed: int, **options: Any) -> Any:
        setup = self.setup
        options = {"scores": setup.scores, **setup.model_options, **options}
        model = zoo_model(setup.trait, self.tokenizer, seed, **options)
        if setup.second_end:
            second = self.rows.second_end_id
            model.generation_config.eos_token_id = (
                second if setup.second_end == "alone" else [self.eos_id, second]
            )
        return model

    def observed_run(self, plan: TrainerPlan) -> dict[str, Any]:
        """Run the plan as one process and return what it observed, as tensors, numbers and texts."""
        freeze_imports()
        folder = shared_folder()
        watch = Watch(self.rows)
        if plan.ends_after:
            self._train(plan, folder, watch, stops=True)
            self._train(plan, folder, watch, resumes=True)
        else:
            self._train(plan, folder, watch)
        return watch.observed

    def _train(
        self, plan: TrainerPlan, folder: str, watch: Watch, *, stops: bool = False, resumes: bool = False
    ) -> None:
        checkpoint = str(Path(folder) / f"checkpoint-{plan.ends_after}") if resumes else None
        with resuming(), plain_liger(self.setup.fused), refusals(self.setup):
            trainer = self._trainer(plan, folder, watch)
            watch.attach(trainer, plan.ends_after if stops else 0)
            trainer.train(resume_from_checkpoint=checkpoint)
        watch.finish()
        if self.setup.logs_rows:
            watch.observed["tables"] = logged_rows(folder, self.rows, watch.observed["rollouts"])

    def _trainer(self, plan: TrainerPlan, folder: str, watch: Watch) -> Any:
        import transformers

        setup = self.setup
        model, more = self._model(), dict[str, Any]()
        if setup.reference == "given":
            # In evaluation mode, as `from_pretrained` returns it, with the dropout of its trait.
            own = {
                name: ZOO[setup.trait].options[name] for name in setup.model_options if name == "resid_pdrop"
            }
            more["ref_model"] = self._made_model(1, **own).eval()
        if setup.reference == "teacher":
            more["teacher_model"] = self._made_model(1)
        if setup.lora in ("made", "virtual tokens"):
            more["peft_config"] = adapter_config(setup)
        elif setup.lora == "given":
            from peft import get_peft_model

            torch.manual_seed(0)
            model = get_peft_model(model, adapter_config(setup))
        if setup.formats:
            more["formatting_func"] = lambda row: row["asked"] + row["said"]
        if setup.samples:
            first, *others = self.rows.reward_functions()
            more["reward_funcs"] = [logging(first) if setup.logs_rows else first, *others]
        if setup.reward_model == "given":
            more["reward_processing_classes"] = [self.rows.tokenizer()]
        if setup.tools == "environment":
            more["environment_factory"] = Environment
        elif setup.tools == "environments":
            more["environment_factory"] = ENVIRONMENTS
        elif setup.tools:
            are_awaited = any(ASYNC_TOOLS in source for source in sources([self.trainer_class]))
            if setup.tools == "mixed" and not are_awaited:
                raise NotServed("this release does not await tools")
            more["tools"] = tools(are_awaited=are_awaited)
        if plan.predicts:
            more |= watch.predictions.arguments(self.trainer_class)
        transformers.set_seed(plan.process_seed)
        return self.trainer_class(
            model=model,
            args=self._arguments(plan, folder),
            train_dataset=made_dataset(self.rows.data(plan.num_examples), self.trainer_class),
            **({"eval_dataset": self._held_out_set()} if self._evaluates(plan) else {}),
            **given_tokenizer(self.trainer_class, self.rows.tokenizer()),
            **more,
        )

    def _held_out_set(self) -> Any:
        return made_dataset(self.rows.held_out_data(), self.trainer_class)

    def _evaluates(self, plan: TrainerPlan) -> bool:
        options = self.setup.options
        return bool(plan.eval_steps or options.get("eval_on_start") or "eval_strategy" in options)

    def _model(self) -> Any:
        """Return the model; of a trainer that loads the reference itself, from the folder that it loads that from."""
        if "model_init_kwargs" in self.setup.options or self.setup.adds_head:
            return self._saved_model
        if self.setup.reference != "loaded":
            return self._made_model(0)
        import transformers

        auto_model: Any = transformers.AutoModelForCausalLM
        return auto_model.from_pretrained(self._saved_model)

    @cached_property
    def _saved_model(self) -> str:
        folder = shared_folder()
        model = self._made_model(0, scores=self.setup.scores and not self.setup.adds_head)
        model.save_pretrained(folder)  # in several processes only the first one writes
        self.tokenizer.save_pretrained(folder)
        if is_one_of_several():
            torch.distributed.barrier()
        return folder

    def _arguments(self, plan: TrainerPlan, folder: str) -> Any:
        given = copy.deepcopy(self._intended(plan))  # trainers add entries to dictionaries
        if "chat_template_path" in given:
            given["chat_template_path"] = self.rows.template_file(folder)
        return self.config_class(
            output_dir=folder, **{name: value for name, value in given.items() if name not in self.dropped}
        )

    def _intended(self, plan: TrainerPlan) -> dict[str, Any]:
        """Return the options of a run that the release has."""
        given = intended_options(self.setup, plan)
        return {name: value for name, value in given.items() if name in self.known_options}

    def _record(self, plan: TrainerPlan, ranks: Sequence[dict[str, Any]]) -> TrainerRecord:
        """Return the record of what all processes observed; weights and log are the first one's."""
        first = ranks[0]
        rollouts = [[Rollout(**_tuples(one)) for one in rank["rollouts"]] for rank in ranks]

        def row(rank: int, number: int) -> TrainerRow:
            return rollouts[rank][number] if self.setup.samples else self.rows.examples[number]

        def parts(of: Sequence[Sequence[Sequence[int]]]) -> tuple[tuple[TrainerRow, ...], ...]:
            """Return the micro-batches of all ranks; `of` has them by rank."""
            longest = max(map(len, of), default=0)
            return tuple(
                tuple(row(rank, number) for number in own[place])
                for place in range(longest)
                for rank, own in enumerate(of)
                if place < len(own)
            )

        steps = tuple(
            TrainerStep(
                step=one["step"],
                micro_batches=parts([rank["steps"][place]["parts"] for rank in ranks]),
                update=UpdateRecord(
                    row_indices=(),
                    micro_batches=None,
                    gradients=one["gradients"],
                    grad_norm=float("nan"),
                    learning_rate=one["rate"],
                    weights_after=one["weights"],
                ),
                logged=first["logged"].get(str(one["step"]), {}),
            )
            for place, one in enumerate(first["steps"])
        )
        evaluations = tuple(
            TrainerEvaluation(
                step=one["step"],
                batches=parts([rank["evaluations"][place]["parts"] for rank in ranks]),
                logged=one["logged"],
                was_training=any(rank["evaluations"][place]["was_training"] for rank in ranks),
                flattened=any(rank["evaluations"][place]["flattened"] for rank in ranks),
                predictions=tuple(one["predictions"]),
            )
            for place, one in enumerate(first["evaluations"])
        )
        return TrainerRecord(
            options=optimizer_options(self._intended(plan)),
            initial_weights=first["initial_weights"],
            final_weights=first["final_weights"],
            trainable=frozenset(first["trainable"]),
            steps=steps,
            evaluations=evaluations,
            rollouts=tuple(one for rank in rollouts for one in rank if one.batch >= 0),
            evaluated=tuple(one for rank in rollouts for one in rank if one.batch < 0),
            reference_weights=self._reference_weights(first["initial_weights"]),
            optimizer=first["optimizer"],
            was_training=all(rank["was_training"] for rank in ranks),
            split=tuple(self.rows.examples[: plan.num_examples]),
            held_out=tuple(self.rows.held_out),
            logged_rows=tuple(
                LoggedRow(
                    step=one["step"],
                    rollout=None if one["rollout"] is None else rollouts[0][one["rollout"]],
                    rewards=tuple(one["rewards"]),
                    advantage=one["advantage"],
                )
                for one in first.get("tables", ())
            ),
            sampling=tuple(one for rank in ranks for one in rank["sampling"]),
            sampling_states=tuple(rank["sampling_state"] for rank in ranks if "sampling_state" in rank),
            dropout=max(rank["dropout"] for rank in ranks),
            flattened=any(rank["flattened"] for rank in ranks),
            widths=frozenset(width for rank in ranks for width in rank["widths"]),
            rank_gradients=tuple(rank["steps"][-1]["gradients"] for rank in ranks),
            served=tuple(
                ServedBatch(
                    rows=tuple(self.rows.examples[number] for number in numbers),
                    sequences=tuple(sequences),
                    num_padded_targets=num_padded,
                )
                for numbers, sequences, num_padded in (first["served"] if plan.num_ranks == 1 else ())
            ),
        )

    def _reference_weights(self, initial: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        if self.setup.reference is None:
            return None
        if self.setup.reference in ("given", "teacher"):
            return {name: value.detach() for name, value in self._made_model(1).named_parameters()}
        return of_the_reference(self.setup, initial)


def _adapter_of(name: str, setup: Setup) -> type[Whole]:
    """Return the class of a setup's adapter."""
    own = {
        "setup_name": name,
        "setup": setup,
        "thorough": setup.thorough,
        "known_failures": (*setup.known_failures, *OF_EVERY_TRAINER),
        "__doc__": f"`{setup.trainer}Trainer` with {dict(setup.options)}.",
    }
    return type(f"Whole_{name}", (Whole,), own)


ADAPTERS: Mapping[str, type[Whole]] = {name: _adapter_of(name, setup) for name, setup in SETUPS.items()}


def run_of_rank(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run a plan as one of several processes, within `torch.distributed`."""
    adapter = ADAPTERS[payload["setup"]]()
    adapter.dropped = frozenset(payload["dropped"])
    return adapter.observed_run(TrainerPlan(**payload["plan"]))


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list | tuple) else value for name, value in fields.items()
    }
