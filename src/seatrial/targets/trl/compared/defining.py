"""What a run has by its variation, and the definition of its steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from seatrial.relations.contracts.compared import ComparedPlan, CompareSpec, DefinedStep
from seatrial.targets.common.made_generation import made_completion
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import TinyCausalModel, tiny_model
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.zoo import ZOO, zoo_model
from seatrial.targets.trl.compared.definitions.setting import Setting
from seatrial.targets.trl.compared.keeping import OWN_SETTINGS, give_settings
from seatrial.targets.trl.compared.kinds import SHORT, Kind, Options
from seatrial.targets.trl.compared.rows import graded, graded_in_part, rewards_of
from seatrial.targets.trl.compared.teachers import paired_tokenizer
from seatrial.targets.trl.compared.tuning import ADAPTER, gradients_of, merged
from seatrial.targets.trl.named import code_has, unnamed_scalars

MADE: Mapping[str, Sequence[str]] = {
    "rewards": ("several", "several, some missing"),
    "ends": ("some", "another"),
    "feedback": ("some",),
    "turns": ("several",),
    "trait": tuple(ZOO),
}
"""What a variation may have in addition to options: functions of reward that read a column, completions of which some
do not end or end otherwise, a column of feedback, conversations of several turns, and models with a trait."""
REFERENCES = ("from_path(get_config_model_id(", "from_pretrained(model_id, **model_init_kwargs)")
"""Words in the code of trainers that load the reference of a given model, without or with the options of its own."""
REWARDS = ("a list of rewards", "two rewards of half the weight")


class Defining(TinyCausalModel):
    """A trainer of the table by its variations, and its steps as they are defined."""

    kind: Kind
    trainer_class: type
    compare_spec: CompareSpec
    _variations: dict[str, Options]

    def datasets(self, plan: ComparedPlan) -> tuple[Any, Any]:
        """Return the data set of training and the held-out one."""
        raise NotImplementedError

    def _model(self, plan: ComparedPlan) -> Any:
        """Return the model, or its folder."""
        raise NotImplementedError

    def _models(self, plan: ComparedPlan) -> dict[str, Any]:
        """Return the other models that the trainer may take, and rewards."""
        raise NotImplementedError

    def _made_model(self, plan: ComparedPlan, seed: int) -> Any:
        """Return a model of the student's vocabulary."""
        trait = self._made(plan).get("trait")
        model = zoo_model(trait, self.tokenizer, seed) if trait else tiny_model(self.tokenizer, seed)
        if len(ends := self._sampling(plan)["ends"]) > 1:
            model.generation_config.eos_token_id = ends
        if plan.variation == OWN_SETTINGS:
            give_settings(model, self.tokenizer, several_ends="stop_token" not in self.kind.options)
        return model

    def given_folder(self, plan: ComparedPlan) -> Path:
        """Return a folder with the model and the tokenizer as they are given."""
        model = self._model(plan)
        if isinstance(model, str):
            return Path(model)
        folder = Path(new_folder())
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return folder

    @property
    def _definition(self) -> Callable[[Setting], torch.Tensor] | None:
        """The definition of a step, which is that of releases since `Kind.defined_since`."""
        is_known = Version(release("trl")) >= Version(self.kind.defined_since)
        return self.kind.definition if is_known else None

    @property
    def _loads_alike(self) -> bool:
        """Whether models that a trainer loads with one option have one precision.

        Transformers before 4.56 has the option under another name, and trainers before 1.16 that load the reference
        of a given model do so in float32.
        """
        if Version(release("transformers")) < Version("4.56"):
            return False
        loads_reference = any(code_has(words, self.trainer_class) for words in REFERENCES)
        return not loads_reference or Version(release("trl")) >= Version("1.16")

    def _ignores(self, options: Options) -> bool:
        """Return whether the release is one before 1.15 that does not read what a model of these options has.

        Those end completions at the tokenizer's end token alone, and leave out the scales of Granite's and Falcon-H1's
        logits where they compute logits in chunks.
        """
        if Version(release("trl")) >= Version("1.15"):
            return False
        ends = options.get("ends") == "another"
        scales = options.get("trait") in ("logits_scaling", "lm_head_multiplier")
        return (ends and not code_has("generation_config.eos_token_id", self.trainer_class, "trl")) or (
            scales and code_has("logit_scale", self.trainer_class)
        )

    def _made(self, plan: ComparedPlan) -> Mapping[str, Any]:
        """Return what a variation has in addition to options; see `MADE`."""
        return {name: one for name, one in self._variations.get(plan.variation, {}).items() if name in MADE}

    @property
    def _pairs_tokens(self) -> bool:
        """Whether the teacher has another tokenizer."""
        return bool(self.kind.options.get("use_uld_loss"))

    def _sampling(self, plan: ComparedPlan) -> dict[str, Any]:
        """Return what completions are made of; see `made_generation`."""
        kind = self._made(plan).get("ends")
        first, *others = self.ordinary_ids
        return {
            "letters": others if kind == "another" else self.ordinary_ids,
            "ends": [self.eos_id, *([first] if kind == "another" else [])],
            "equal": plan.lengths == "equal",
            "limit": SHORT["max_completion_length"] if kind == "some" else None,
        }

    def _rewards(self, plan: ComparedPlan) -> list[Any]:
        """Return the functions of reward."""
        if plan.variation in REWARDS:
            return [rewards_of] * (1 + REWARDS.index(plan.variation))
        if kind := self._made(plan).get("rewards"):
            return [rewards_of, graded if kind == "several" else graded_in_part]
        return [rewards_of]

    def _defines(self, plan: ComparedPlan) -> bool:
        """Return whether the steps of a plan are defined: those of a new model on whole batches, in one process."""
        is_whole = plan.num_micro_batches == plan.num_ranks == 1 and plan.num_steps == 2
        is_plain = not (plan.adapter_kind or plan.ends_after or plan.repeats)
        known = (*self.compare_spec.defined, *self.compare_spec.mixed)
        return is_whole and is_plain and plan.variation in known

    def defined_step(
        self, plan: ComparedPlan, arguments: Any, policies: Sequence[Mapping[str, torch.Tensor]]
    ) -> DefinedStep | None:
        """Return a step as the trainer's definition has it, of the rows that every step has."""
        if self._definition is None or not self._defines(plan):
            return None
        load = partial(self._loaded, plan)
        models = [*map(load, policies)]
        base = _in_double(self._made_model(plan, 0)) if plan.adapters else None
        others = [
            _in_double(one) for one in (self._models(plan)[name] for name in ("ref_model", "teacher_model"))
        ]
        options = vars(arguments) | {**self.kind.options, **self._variations.get(plan.variation, {})}
        setting = Setting(
            options=options,
            rows=list(self.datasets(plan)[0]),
            tokenizer=self.tokenizer,
            policy=models[-1],
            first=base or models[0],
            earlier=models[-2::-1],
            reference=base or others[0],
            teacher=others[1],
            teacher_tokenizer=paired_tokenizer() if self._pairs_tokens else self.tokenizer,
            rewards=self._rewards(plan),
            tensors=policies,
            average_start={
                name: torch.zeros_like(value) if ADAPTER in name else value
                for name, value in policies[0].items()
            },
            load=load,
            **self._sampling(plan),
        )
        other = replace(setting, scalars={})
        policy = setting.policy = copy.deepcopy(models[-1]).requires_grad_(True)
        loss = self._definition(setting)
        torch.autograd.backward(loss)
        evaluated = self._scalars(setting, loss) if setting.evaluates else None
        number = options.get("num_generations_eval") or options.get("num_generations")
        if setting.evaluates and number != options.get("num_generations"):
            other.options = options | {"num_generations": number}
            evaluated = self._scalars(other, self._definition(other))
        return DefinedStep(
            loss=float(loss.detach()),
            gradients=gradients_of(
                {name: one.grad for name, one in policy.named_parameters() if one.grad is not None},
                policies[-1],
            ),
            scalars={name: one for name, one in self._scalars(setting, loss).items() if name != "loss"},
            evaluated=evaluated,
        )

    def _loaded(self, plan: ComparedPlan, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Return a model of these tensors in float64, adapters merged."""
        return _in_double(self._made_model(plan, 0), merged(tensors))

    def _scalars(self, setting: Setting, loss: torch.Tensor) -> dict[str, float]:
        """Return a loss with the scalars that the release logs of it."""
        unnamed = unnamed_scalars(setting.scalars, self.trainer_class)
        own = {name: value for name, value in setting.scalars.items() if name not in unnamed}
        return {"loss": float(loss.detach()), **own}

    def _as_long(self, row: Mapping[str, Any], plan: ComparedPlan) -> dict[str, Any]:
        """Return a row whose answer is as long as the one sampled in its place: its tokens divide the loss.

        That is a finding of its own, "TRL: the divisor of sampled answers".
        """
        *turns, answer = row["messages"]
        ids = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        made = made_completion(ids, 0, 0, **self._sampling(plan))
        return {**row, "messages": [*turns, {**answer, "content": "Z" * (len(made) - 1)}]}


def _in_double(model: Any, tensors: Mapping[str, torch.Tensor] | None = None) -> Any:
    """Return a model in float64 without gradients, with these tensors in place of its own."""
    if tensors is not None:
        model.load_state_dict(dict(tensors))
    return model.double().requires_grad_(False)


def add_dropout(model: Any) -> None:
    """Add dropout before a model's last layer."""
    norm = model.model.norm
    norm.dropout = torch.nn.Dropout(0.5)
    norm.register_forward_hook(lambda module, _, out: module.dropout(out))
