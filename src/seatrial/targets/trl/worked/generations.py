"""A generation of GRPO or RLOO that is observed: what reward functions are given, the batches of the loss, the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import before
from seatrial.targets.common.made_generation import made_generation
from seatrial.targets.common.tiny import ordinary_ids, tiny_model, tiny_tokenizer
from seatrial.targets.trl.compared.folders import model_folder
from seatrial.targets.trl.named import code_has, takes_no_reward, unknown_choices
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.scorer import Scorer
from seatrial.targets.trl.worked.limits import made_rows
from seatrial.targets.trl.worked.seen import made_trainer

LENGTHS = ((3, 1, 1), (6, 1, 1), (8, 1, 1), (2, 1, 1))
LIMIT, COPIES = 9, 4
CALLABLES = "get_callable_name"
"""Names a reward function that is no plain one, in releases that have it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run of one generation."""

    functions: Sequence[str] = ("plain",)
    """Kinds of reward functions; see `reward_of`."""
    weights: Sequence[float] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    num_batches: int = 1
    """Micro-batches of the generation."""
    conversational: bool = False
    """Whether prompts are conversations."""
    ends: Literal["some", "all", "none"] = "some"
    """Which completions have an end before the limit."""
    evaluates: int = 0
    """Completions of a prompt in an evaluation of untrained weights, in place of a step of training."""


class Said(NamedTuple):
    """A completion as the reward functions see it."""

    asked: str
    text: str
    ids: tuple[int, ...]
    place: int


def _text(one: Any) -> str:
    return one if isinstance(one, str) else str(one[-1]["content"])


def reward_of(kind: str, which: int, asked: str, said: str) -> float | None:
    """Return the reward that a function gives a completion.

    `sparse` gives none for a third of the completions, another one for each function; `silent` for the same ones;
    `constant` has one value for all completions of a prompt of even length.
    """
    total = sum(map(ord, said))
    if total % 3 == {"sparse": which % 3, "silent": 0}.get(kind):
        return None
    if kind == "constant" and len(asked) % 2 == 0:
        return 0.25
    return (total * (which + 3) + len(asked)) % 17 / 8 - 0.5


class _Judge:
    """A reward function that is an object."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, **given: Any) -> Any:
        return self._call(**given)


class Run:
    """A step of training, or an evaluation, and what was seen of it."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.trainer_class = find_trainer(name)[0]
        self.tokenizer = tiny_tokenizer(padding_side="right")
        self.calls: dict[int, list[Said]] = {}
        self.states: list[Any] = []
        self.batches: list[dict[str, Any]] = []
        self.names = [f"{kind}{which}" for which, kind in enumerate(plan.functions)]
        self.scorer = Scorer() if "model" in plan.functions else None
        self._check()
        self.trainer = self._trainer()
        self._watch()
        letters = ordinary_ids(self.tokenizer)[:6]
        ends = letters[:1] if plan.ends == "none" else [self.tokenizer.eos_token_id]
        limit = LIMIT if plan.ends == "some" else None
        with made_generation(
            self.tokenizer.pad_token_id, letters=letters, ends=ends, equal=plan.ends == "none", limit=limit
        ):
            (self.trainer.evaluate if plan.evaluates else self.trainer.train)()
        prefix = "eval_" if plan.evaluates else ""
        rows = [one for one in self.trainer.state.log_history if f"{prefix}loss" in one]
        self.logged = {key.removeprefix(prefix): value for key, value in rows[0].items()}

    def _check(self) -> None:
        """Check that the release has what no option of its own says.

        Raises:
            NotServed: it does not.
        """
        trainer_class, config_class = find_trainer(self.name)
        if missing := unknown_choices(self.plan.options, trainer_class, config_class):
            raise NotServed(f"this release has no {', '.join(missing)}")
        kinds = set(self.plan.functions)
        if kinds & {"sparse", "silent"} and not takes_no_reward(trainer_class):
            raise NotServed("reward functions return a number for each completion")
        if "silent" in kinds and not code_has("unscorable", trainer_class):
            raise NotServed("a completion without a reward counts as 0")
        if kinds & {"object", "partial"} and not code_has(CALLABLES, trainer_class):
            raise NotServed("reward functions are plain ones")

    def _function(self, which: int, kind: str) -> Any:
        def reward(prompts: Sequence[Any], completions: Sequence[Any], **given: Any) -> list[float | None]:
            if "completion_ids" not in given and before("trl", "0.18")(None):
                raise NotServed("reward functions are given no ids of completions")
            rows = zip(prompts, completions, given["completion_ids"], given["place"], strict=True)
            made = [Said(_text(p), _text(c), tuple(map(int, i)), int(n)) for p, c, i, n in rows]
            self.calls.setdefault(which, []).extend(made)
            self.states.append(given.get("trainer_state"))
            return [reward_of(kind, which, one.asked, one.text) for one in made]

        async def awaited(**given: Any) -> list[float | None]:
            return reward(**given)

        reward.__name__ = awaited.__name__ = self.names[which]
        if kind == "awaited" and code_has("async def", self.trainer_class):
            return awaited
        if kind == "object":
            self.names[which] = _Judge.__name__
            return _Judge(reward)
        return partial(reward) if kind == "partial" else reward

    def _trainer(self) -> Any:
        from datasets import Dataset

        plan = self.plan
        functions: list[Any] = []
        classes: list[Any] = [None] * len(plan.functions)
        for which, kind in enumerate(plan.functions):
            if self.scorer is not None and kind == "model":
                self.scorer.model.config._name_or_path = f"folder/{self.names[which]}"
                classes[which] = tiny_tokenizer(padding_side="left")
                classes[which].pad_token = None
                functions.append(self.scorer.model)
            else:
                functions.append(self._function(which, kind))
        rows = [
            {"prompt": self._prompt(one["prompt"]), "place": number}
            for number, one in enumerate(made_rows("prompts", LENGTHS))
        ]
        size = COPIES * len(rows)
        options = {
            "num_generations": COPIES,
            "max_completion_length": LIMIT,
            "per_device_train_batch_size": size // plan.num_batches,
            "per_device_eval_batch_size": size,
            "gradient_accumulation_steps": plan.num_batches,
            "learning_rate": 0.0,
            **({"num_generations_eval": plan.evaluates} if plan.evaluates else {}),
            **({"reward_weights": list(plan.weights)} if plan.weights else {}),
            **plan.options,
        }
        more: dict[str, Any] = {"reward_funcs": functions if len(functions) > 1 else functions[0]}
        if self.scorer is not None:
            more["reward_processing_classes"] = classes
        if plan.evaluates:
            more["eval_dataset"] = Dataset.from_list(rows)
        if options.get("beta"):
            more["model"] = _moved()
        self.beta = options.get("beta", 0.0)
        return made_trainer(self.name, rows, options, arguments=more, tokenizer=self.tokenizer)

    def shown(self, asked: str) -> str:
        """Return a prompt as the template writes it."""
        turns = f"<|im_start|>user\n{asked}<|im_end|><|im_start|>assistant\n"
        return turns if self.plan.conversational else asked

    def _prompt(self, text: str) -> Any:
        return [{"role": "user", "content": text}] if self.plan.conversational else text

    def _watch(self) -> None:
        """Keep the batches whose loss is computed."""
        own = self.trainer.compute_loss

        def kept(model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            self.batches.append(dict(inputs))
            return own(model, inputs, *given, **named)

        self.trainer.compute_loss = kept

    @property
    def said(self) -> list[Said]:
        """The completions in the order of their generation."""
        return self.calls[0]

    @property
    def num_copies(self) -> int:
        return self.plan.evaluates or COPIES

    def rewards(self) -> list[list[float | None]]:
        """Return by completion what each function is due to give."""
        return [
            [
                self._scored(one) if kind == "model" else reward_of(kind, which, one.asked, one.text)
                for which, kind in enumerate(self.plan.functions)
            ]
            for one in self.said
        ]

    def _scored(self, one: Said) -> float:
        assert self.scorer is not None
        return self.scorer.score(self.tokenizer(one.asked + one.text)["input_ids"])

    def weighted(self) -> list[float]:
        """Return each completion's sum of rewards; NaN for one without any."""
        weights = self.plan.weights or [1.0] * len(self.plan.functions)
        return [
            math.nan
            if all(value is None for value in row)
            else sum(weight * value for weight, value in zip(weights, row, strict=True) if value is not None)
            for row in self.rewards()
        ]


def _moved() -> Any:
    """Return a model that is not the one of the folder that it names."""
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    model = auto_model.from_pretrained(model_folder(False))
    model.load_state_dict(tiny_model(tiny_tokenizer(), 4).state_dict())
    return model
