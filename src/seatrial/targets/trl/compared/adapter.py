"""One adapter for every trainer of the table; see `contracts.compared`."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import typing
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import Parameter
from typing import Any, Literal

import torch
from packaging.version import Version

from seatrial.relations.contracts.compared import ComparedPlan, ComparedRun, CompareSpec
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.made_generation import ROLE, made_generation
from seatrial.targets.common.ranks import call_on_ranks
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import tiny_model, tiny_scorer
from seatrial.targets.common.trainers import CPU_OPTIONS, freeze_imports
from seatrial.targets.trl.compared.defining import MADE, REWARDS, Defining, add_dropout
from seatrial.targets.trl.compared.folders import model_folder, tokenizer_folder
from seatrial.targets.trl.compared.keeping import OWN_SETTINGS
from seatrial.targets.trl.compared.kinds import (
    BFLOAT16,
    DROPOUT,
    FEEDBACK,
    FORMS,
    GIVEN,
    LOADED_BFLOAT16,
    MAY_BE_REFUSED,
    NEUTRAL,
    ORDERS,
    TURNS,
    Kind,
    Options,
    mixed,
    subject_of,
)
from seatrial.targets.trl.compared.rows import (
    NUM_ROWS,
    OF_ALL_ROWS,
    PAIRED,
    as_texts,
    made_rows,
    rewards_of,
    with_several_turns,
    with_turns,
)
from seatrial.targets.trl.compared.running import NAMED, Run, run_of
from seatrial.targets.trl.compared.table import KINDS
from seatrial.targets.trl.compared.teachers import ADDRESS, paired_folder, paired_tokenizer, served_teacher
from seatrial.targets.trl.compared.tuning import NEUTRAL_ADAPTERS, OTHER_ADAPTERS, adapter_configuration
from seatrial.targets.trl.compared.workers import WORKER, Worker, without_servers
from seatrial.targets.trl.fitting import admits
from seatrial.targets.trl.former import SEEDS
from seatrial.targets.trl.named import averages_tokens, code_has, parameters_of
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.processes import is_one_of_several, made_dataset, shared_folder


class Compared(KnowsFailures, Defining):
    """A trainer of the table."""

    name: str
    thorough: bool

    def __init__(self) -> None:
        """Find the trainer and its options in the installed release.

        Raises:
            Gone: the release does not have the trainer, or takes it another way.
        """
        self.trainer_class, self.config_class = find_trainer(self.kind.trainer)
        self._known = {item.name: item for item in dataclasses.fields(self.config_class)}
        self._takes = parameters_of(self.trainer_class)
        required = {
            name
            for name, one in self._takes.items()
            if one.default is Parameter.empty and one.kind is Parameter.POSITIONAL_OR_KEYWORD
        }
        if unknown := sorted(required - GIVEN):
            raise Gone(f"{self.kind.trainer}Trainer of trl {release('trl')} needs {', '.join(unknown)}")
        for name in self.kind.imports:
            importlib.import_module(name)
        if self.kind.rows in ("prompts", "privileged") and not self._makes_rewards:
            raise Gone(f"{self.kind.trainer}Trainer of trl {release('trl')} takes no prompts with rewards")
        if missing := [name for name in self.kind.requires if name not in self._known]:
            raise Gone(f"{self.config_class.__name__} of trl {release('trl')} has no {', '.join(missing)}")
        neutral = [one for one in (*NEUTRAL, *self.kind.neutral) if self._has(one)]
        defined = [one for one in self.kind.defined if self._has(one)] if self._definition else []
        effective = [one for one in self.kind.effective if self._has(one)]
        self._variations = {_named(one): one for one in (*neutral, *effective)}
        names = list(self._variations)
        orders = [(one, shared) for one, shared in ORDERS if self._has(one)]
        self._variations |= {_named(one): one for one, _ in orders}
        defined_names = ["", *names[len(neutral) :], *map(_named, defined)]
        parts = [one for one in (*effective, *defined) if one.get("ends") != "another"]
        mixes = {_named(one): one for one in mixed(parts)} if self._definition else {}
        self._variations |= {_named(one): one for one in defined} | mixes
        rewards = REWARDS[: 1 + ("reward_weights" in self._known)] if self._takes_functions else ()
        turns = {"turns": "turns as texts"} if self._has_turns else {}
        pairs = dict.fromkeys(PAIRED, "pairs as rows") if self.kind.trainer == "KTO" else {}
        halves = (
            {LOADED_BFLOAT16: BFLOAT16} if self._loads_alike and "model_init_kwargs" in self._known else {}
        )
        dropout = [DROPOUT] if "disable_dropout" in self._known else []
        forms = [*names[: len(neutral)], *FORMS, *dropout, *rewards]
        given = {**dict.fromkeys(forms, ""), **turns, **pairs, **halves}
        self.compare_spec = CompareSpec(
            neutral={name: other for name, other in given.items() if name not in self.kind.leaves_out},
            effective=names[len(neutral) :],
            means=self._means,
            logs_means=self.kind.logs_means,
            resumes=self.kind.resumes,
            evaluates=self.kind.evaluates,
            evaluates_loss=self.kind.evaluates_loss and self._rows == self.kind.rows,
            neutral_of_adapted=dropout,
            defined=defined_names if self._definition else (),
            subjects={_named(one): found for one in defined if (found := subject_of(one)) is not None},
            mixed=[*mixes],
            defined_of_adapted=["", *map(_named, self.kind.adapted)],
            orders=self._streams | {_named(one): shared for one, shared in orders},
            mixed_scalars=self.kind.mixed_scalars,
            adapts=self.kind.adapts and "peft_config" in self._takes,
            neutral_adapters=NEUTRAL_ADAPTERS,
            other_adapters=OTHER_ADAPTERS,
            settings=OWN_SETTINGS,
        )

    @property
    def _takes_functions(self) -> bool:
        return "reward_funcs" in self._takes and not self.kind.scored_by_model

    @property
    def _streams(self) -> dict[str, int]:
        """The order of an iterable data set, where the trainer says that it takes one."""
        return {"a stream": 1} if "Iterable" in str(self._takes["train_dataset"].annotation) else {}

    @property
    def _loads_itself(self) -> bool:
        """Whether the trainer takes no model but its folder, as asynchronous ones do."""
        return WORKER in self._takes

    @property
    def _rows(self) -> str:
        """The kind of rows; distillation before 1.10 takes whole conversations, and evaluates given answers."""
        takes_whole = code_has('messages_key: str = "messages"', self.trainer_class)
        return "messages" if self.kind.rows == "chats" and takes_whole else self.kind.rows

    @property
    def _has_turns(self) -> bool:
        """Whether conversations are their texts: releases before 1.0 add another end token to one of both."""
        return self.kind.rows in TURNS and Version(release("trl")) >= Version("1.0")

    @property
    def _means(self) -> Literal["rows", "tokens", "batch"]:
        """How micro-batches make a step: GRPO had a mean over the tokens of each before it had `dapo`."""
        is_old = self.kind.trainer == "GRPO" and averages_tokens(self.trainer_class)
        return "tokens" if is_old and not code_has("dapo", self.trainer_class) else self.kind.means

    @property
    def _makes_rewards(self) -> bool:
        """Whether the trainer takes what prompts need: rewards, a teacher, or nothing more than the rows."""
        needs = {"reward_funcs", "reward_model", "teacher_model"}
        return self.kind.rows == "privileged" or bool(needs & self._takes.keys())

    def _has(self, options: Options) -> bool:
        """Return whether the release has these options with these values, and the run has others."""
        if self._ignores(options):
            return False
        kinds = typing.get_type_hints(self.config_class)
        options = {name: value for name, value in options.items() if name not in MADE}
        if not options:
            return True
        return all(name in kinds and admits(kinds[name], value) for name, value in options.items()) and any(
            self.kind.options.get(name, self._known[name].default) != value for name, value in options.items()
        )

    def compared_run(self, plan: ComparedPlan) -> ComparedRun:
        freeze_imports()
        if plan.num_ranks > self.kind.most_ranks:
            raise NotServed("rows of a process are compared with one another")
        parts = plan.num_ranks * plan.num_micro_batches
        if parts > self.kind.most_parts:
            raise NotServed(f"micro-batches of {NUM_ROWS // parts} rows")
        if plan.num_ranks > 1 and not is_one_of_several():
            payload = {"name": self.name, "plan": dataclasses.asdict(plan)}
            first, *others = map(run_of, call_on_ranks(f"{__name__}:run_of_rank", payload, plan.num_ranks))
            return dataclasses.replace(first, others=tuple(others))
        run = Run(self, plan)
        with made_generation(self.pad_id, **self._sampling(plan)), self._served_teacher(plan):
            try:
                return run.finished()
            except Exception as error:
                refused = (*MAY_BE_REFUSED, OWN_SETTINGS, *self.compare_spec.mixed)
                if plan.variation not in refused and not plan.adapter_kind and not plan.evaluated_as:
                    raise
                raise NotServed(
                    f"{plan.variation or plan.adapter_kind or plan.evaluated_as}: {error_line(error)[:200]}"
                ) from error

    def _served_teacher(self, plan: ComparedPlan) -> AbstractContextManager[None]:
        """Serve the teacher if the trainer uses a server as one."""
        is_served = ADDRESS in self.kind.options
        return served_teacher(self._models(plan)["teacher_model"]) if is_served else nullcontext()

    def arguments(self, plan: ComparedPlan) -> Any:
        """Return the trainer's configuration."""
        rows = NUM_ROWS * self.kind.copies
        wanted = {
            **CPU_OPTIONS,
            "per_device_train_batch_size": rows // (plan.num_ranks * plan.num_micro_batches),
            "per_device_eval_batch_size": rows // (plan.num_ranks * plan.num_evaluation_parts),
            "gradient_accumulation_steps": plan.num_micro_batches,
            "max_steps": plan.num_steps,
            "total_episodes": rows * plan.num_steps,
            "optim": "adamw_torch",
            "learning_rate": 0.003,
            "logging_steps": plan.logged_every,
            "seed": plan.seed,
            "save_only_model": False,
            "remove_unused_columns": self._known["remove_unused_columns"].default,
            **(
                {"eval_strategy": "steps", "eval_steps": plan.evaluated_every}
                if plan.evaluates != "never"
                else {}
            ),
            **({"eval_on_start": True} if plan.evaluates == "trained" else {}),
            **({"save_strategy": "steps", "save_steps": 1} if plan.ends_after else {}),
            # Transformers before 5 leaves each process its own mean over tokens unless this is on.
            **({"average_tokens_across_devices": True} if plan.num_ranks > 1 else {}),
            **self.kind.options,
            **self._variations.get(plan.variation, {}),
            **({"disable_dropout": True} if plan.variation == DROPOUT else {}),
        }
        if plan.variation == REWARDS[1]:
            wanted["reward_weights"] = [0.5, 0.5]
        if plan.variation in (BFLOAT16, LOADED_BFLOAT16) and self._known.get("beta"):
            wanted["beta"] = 0.2  # so that a trainer without a reference by default has one
        if plan.variation == LOADED_BFLOAT16:
            wanted["model_init_kwargs"] = {"dtype": "bfloat16"}
        if self._pairs_tokens:
            wanted["teacher_tokenizer_name_or_path"] = paired_folder()
        given = {name: value for name, value in wanted.items() if name in self._known}
        return self.config_class(output_dir=shared_folder(), **given)

    def datasets(self, plan: ComparedPlan) -> tuple[Any, Any]:
        """Return the data set of training and the held-out one."""
        equal = plan.lengths == "equal"
        made = [
            [
                row
                for batch in range(plan.num_batches)
                for row in made_rows(
                    self._rows, equal=equal, held_out=held_out, tokenizer=self.tokenizer, batch=batch
                )
            ]
            for held_out in (False, True)
        ]
        if plan.variation == "more columns" and self.kind.rows != "ids":
            made = [[{"source": "x" * number, **row} for number, row in enumerate(rows)] for rows in made]
        if self.kind.rows == "ids" and plan.num_batches == 1:  # so that the first is not the last of an epoch
            made[0] += made[1]
        if "rewards" in self._made(plan):
            made = [[{**row, "grade": number} for number, row in enumerate(rows)] for rows in made]
        if "feedback" in self._made(plan):
            made = [
                [{**row, "privileged_context": FEEDBACK[n]} for n, row in enumerate(rows)] for rows in made
            ]
        if change_all := OF_ALL_ROWS.get(plan.variation):
            made = [change_all(rows) for rows in made]
        changes = {"turns": with_turns, "turns as texts": as_texts}
        several = with_several_turns if "turns" in self._made(plan) else None
        if change := changes.get(plan.variation, several):
            made = [[change(row) for row in rows] for rows in made]
        if self._definition is not None and self.kind.options.get("lmbda") == 1:
            made[0] = [self._as_long(row, plan) for row in made[0]]
        train, held_out = (made_dataset(rows, self.trainer_class) for rows in made)
        if plan.variation == "a stream":
            train = train.to_iterable_dataset()
        evaluated = train if plan.evaluates == "trained" else held_out
        if plan.evaluated_as == "streamed":
            evaluated = evaluated.to_iterable_dataset()
        # The rows that are judged are the last in a mapping.
        return train, {"other": train, NAMED: evaluated} if plan.evaluated_as == "named" else evaluated

    def trainer(self, plan: ComparedPlan, arguments: Any, sets: tuple[Any, Any], tokenizer: Any) -> Any:
        """Return the trainer of a new model."""
        import transformers

        # Python's, NumPy's and torch's: a trainer that sets a seed of its own may leave one of them out.
        transformers.set_seed(1000 + plan.process_seed)
        if plan.variation == "padding on the right":
            tokenizer.padding_side = "right"
        if plan.variation == "padding is the end token":
            tokenizer.pad_token = tokenizer.eos_token
        given: dict[str, Any] = {
            "model": self._model(plan),
            "args": arguments,
            "train_dataset": sets[0],
            # Rows that are passed to `evaluate` are in place of these.
            "eval_dataset": sets[plan.evaluated_as not in ("passed", "passed by name")],
        }
        given["tokenizer" if "processing_class" not in self._takes else "processing_class"] = tokenizer
        given |= self._models(plan)
        if plan.variation == DROPOUT:
            for one in given.values():
                if isinstance(one, torch.nn.Module):
                    add_dropout(one)
        if plan.variation == "no tokenizer":
            given["processing_class"] = given["tokenizer"] = None
        if self._takes_functions and (plan.variation in REWARDS or "rewards" in self._made(plan)):
            given["reward_funcs"] = self._rewards(plan)
        if plan.adapters:
            task = "SEQ_CLS" if self._scores else "CAUSAL_LM"
            given["peft_config"] = adapter_configuration(plan.adapter_kind, task)
        if plan.adapters or plan.adapter_kind:
            given["ref_model"] = None
        if not self._loads_itself:
            return self._trainer_of(given)
        worker = Worker(
            arguments, sets[0], tokenizer, given["teacher_model"], self._sampling(plan), self.trainer_class
        )
        with without_servers(self.trainer_class):
            worker.trainer = self._trainer_of({**given, WORKER: worker, "weight_transfer": worker})
        return worker.trainer

    def _trainer_of(self, given: Mapping[str, Any]) -> Any:
        return self.trainer_class(**{name: one for name, one in given.items() if name in self._takes})

    def _model(self, plan: ComparedPlan) -> Any:
        """Return the model, or its folder, from which some trainers load their reference."""
        import transformers

        folder = model_folder(self._scores, self._made(plan).get("trait", ""))
        if plan.variation in ("the model as a folder", "no tokenizer", LOADED_BFLOAT16) or self._loads_itself:
            return folder
        if plan.variation == BFLOAT16:
            model_class = "Qwen2ForSequenceClassification" if self._scores else "Qwen2ForCausalLM"
            return getattr(transformers, model_class).from_pretrained(folder, dtype="bfloat16")
        model = tiny_scorer(0) if self._scores else self._made_model(plan, 0)
        model.config._name_or_path = folder
        return model

    @property
    def _scores(self) -> bool:
        return self.kind.trainer == "Reward"

    def _models(self, plan: ComparedPlan) -> dict[str, Any]:
        """Return the other models that the trainer may take, and rewards."""
        made: dict[str, Any] = {}
        for seed, name in enumerate(("ref_model", "teacher_model"), start=1):
            is_other = name == "teacher_model" and self._pairs_tokens
            made[name] = tiny_model(paired_tokenizer(), seed) if is_other else self._made_model(plan, seed)
            made[name].config._name_or_path = tokenizer_folder()
            setattr(made[name], ROLE, seed)
        made["reward_funcs"] = tiny_scorer(3) if self.kind.scored_by_model else rewards_of
        if self.kind.scored_by_model:
            made["reward_processing_classes"] = copy.deepcopy(self.tokenizer)
        if "reward_funcs" not in self._takes:
            made["reward_model"] = tiny_scorer(3)
            made["reward_processing_class"] = copy.deepcopy(self.tokenizer)
        made["value_model"] = tiny_scorer(4)
        return made


def _named(options: Options) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _adapter(name: str, kind: Kind) -> type[Compared]:
    members = {
        "__doc__": f"`{kind.trainer}Trainer`, run against run.",
        "name": f"compared-{name}",
        "kind": kind,
        "thorough": kind.thorough,
        "known_failures": (*kind.known_failures, SEEDS),
    }
    return type(f"Compared{name.title().replace('-', '')}", (Compared,), members)


ADAPTERS: dict[str, type[Any]] = {f"compared-{name}": _adapter(name, kind) for name, kind in KINDS.items()}


def run_of_rank(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run a plan as one of several processes, within `torch.distributed`."""
    found = ADAPTERS[payload["name"]]().compared_run(ComparedPlan(**payload["plan"]))
    return dataclasses.asdict(found)
