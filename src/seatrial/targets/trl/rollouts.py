"""TRL's `GRPOTrainer`, whichever release is installed: completions and rewards to gradients, and its sampling."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.cases.windows import WindowCase, WindowSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import AdvantageSpec, StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import CapturingOptimizer, captured_step, configuration
from seatrial.targets.trl.named import averages_tokens, repeats_prompts, takes_no_reward
from seatrial.targets.trl.preferences import find_trainer

LOCAL_MEAN = KnownFailure(
    "this release has no loss that is divided by the tokens of the window: its mean is over the micro-batch",
    finding="TRL: GRPO's mean over the tokens of a micro-batch",
    releases=lambda adapter: adapter.has_token_mean and adapter.loss_type == "bnpo",
)


class GRPO(KnowsFailures, TinyCausalModel):
    """`GRPOTrainer` with the mean over tokens (DAPO's where a release has it), without a reference policy.

    Releases before 0.16 have the mean of rows alone, and break it: the shown pair trl-2881 is that bug.
    """

    algorithm = "GRPO"
    facts = StackFacts(micro_batch_sizes="equal")
    window_spec = WindowSpec(advantage=AdvantageSpec(epsilon=1e-4), reduction="token")
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        LOCAL_MEAN.of("R1.window/gradients add up, lengths unequal"),
    )

    def __init__(self) -> None:
        """Find the trainer, and the losses that it knows."""
        self.trainer_class, self.config_class = find_trainer(self.algorithm)
        self.options = {item.name: item for item in fields(self.config_class)}
        self.loss_type = self._loss_type()

    def window_step(self, case: WindowCase, num_micro_batches: int) -> StepResult:
        from datasets import Dataset

        if not takes_no_reward(self.trainer_class) and any(row.reward is None for row in case.rows):
            raise NotServed(f"reward functions of trl {release('trl')} return a number for each completion")
        model = copy.deepcopy(self.objective_model())
        optimizer = CapturingOptimizer(model.parameters())
        model.generate = Forced(case, self.pad_id)
        prompts = [self.decode(row.prompt_ids) for row in case.rows]
        required = {"mask_truncated_completions": True} if case.masks_truncated else {}
        arguments = configuration(
            self.config_class,
            {
                "per_device_train_batch_size": self._num_prompts(case, num_micro_batches),
                "gradient_accumulation_steps": num_micro_batches,
                "num_generations": case.num_generations,
                "max_completion_length": case.max_completion_length,
                "temperature": case.temperature,
                "beta": 0.0,
                **required,
            },
            {"loss_type": self.loss_type},
        )
        rewards = {
            (self.decode(row.prompt_ids), self._text(row.completion_ids)): row.reward for row in case.rows
        }

        def reward(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float | None]:
            return [rewards[pair] for pair in zip(prompts, completions, strict=True)]

        trainer = self.trainer_class(
            model=model,
            reward_funcs=reward,
            args=arguments,
            processing_class=self.tokenizer,
            train_dataset=Dataset.from_dict({"prompt": list(dict.fromkeys(prompts))}),
            optimizers=(optimizer, None),
        )
        return captured_step(trainer, model, optimizer)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @property
    def has_token_mean(self) -> bool:
        """Whether the release divides by tokens at all: since 0.16 (PR #2881), by those of the micro-batch first."""
        return "loss_type" in self.options or averages_tokens(self.trainer_class)

    def _num_prompts(self, case: WindowCase, num_micro_batches: int) -> int:
        """Return the size of a micro-batch: in completions, or in prompts where the release repeats them itself.

        Raises:
            NotServed: a micro-batch has no whole number of prompts.
        """
        size = len(case.rows) // num_micro_batches
        if not repeats_prompts(self.trainer_class):
            return size
        if size % case.num_generations:
            raise NotServed(f"{size} completions are no whole number of groups of {case.num_generations}")
        return size // case.num_generations

    def _loss_type(self) -> str:
        """Return the loss that is a mean over the tokens of the window, or else of the micro-batch."""
        option = self.options.get("loss_type")
        words = "" if option is None else str(option.metadata.get("help", ""))
        return "dapo" if "dapo" in words else "bnpo"


class RLOO(GRPO):
    """`RLOOTrainer` with its own leave-one-out baseline, without a reference policy."""

    algorithm = "RLOO"
    known_failures: ClassVar[Sequence[KnownFailure]] = ()
    window_spec = WindowSpec(
        advantage=AdvantageSpec(estimator="rloo", scale="none"), reduction="sequence-sum"
    )

    def __init__(self) -> None:
        """Find the trainer; releases before 0.22 have one of another form."""
        super().__init__()
        if "reward_funcs" not in signature(self.trainer_class.__init__).parameters:
            raise Gone(f"RLOOTrainer of trl {release('trl')} takes a reward model, and no reward functions")


class Forced:
    """Replaces `model.generate`: every prompt gets its completions of the case, in turn."""

    def __init__(self, case: WindowCase, pad_id: int) -> None:
        self._case, self._pad_id = case, pad_id
        self._served: dict[tuple[int, ...], int] = {}

    def __call__(self, *args: Any, **given: Any) -> Tensor:
        """Return prompts with their completions, [B, S], padded as the library pads."""
        prompts = prompts_of(args, given)
        shown = given["attention_mask"].bool()
        config = given.get("generation_config")
        copies = int(getattr(config, "num_return_sequences", None) or 1)
        prompts, shown = prompts.repeat_interleave(copies, 0), shown.repeat_interleave(copies, 0)
        completions = [
            self._next(tuple(row[real].tolist())) for row, real in zip(prompts, shown, strict=True)
        ]
        width = max(map(len, completions))
        padded = [[*ids, *[self._pad_id] * (width - len(ids))] for ids in completions]
        return torch.cat([prompts, torch.tensor(padded)], dim=1)

    def _next(self, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        own = [row.completion_ids for row in self._case.rows if row.prompt_ids == prompt_ids]
        if not own:
            raise ValueError(
                f"the trainer samples for the prompt {list(prompt_ids)}, which the case does not have"
            )
        number = self._served.get(prompt_ids, 0)
        self._served[prompt_ids] = number + 1
        return own[number % len(own)]


def prompts_of(args: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    """Return the prompts that `model.generate` was called with, by whichever name."""
    prompts: Tensor = (
        args[0] if args else given[next(name for name in ("input_ids", "inputs") if name in given)]
    )
    return prompts


class GRPOSampling(KnowsFailures, TinyCausalModel):
    """`GRPOTrainer`'s rollouts at its defaults."""

    num_rows = 16
    num_new_tokens = 100

    def __init__(self) -> None:
        """Find the trainer and the temperature that its loss scores with."""
        self.trainer_class, self.config_class = find_trainer("GRPO")
        self.default_temperature = float(configuration(self.config_class, {}).temperature)

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    def sample_with_defaults(self, logits_V: Tensor, num_tokens: int, seed: int) -> list[int]:
        """Sample from a model whose head is a constant; rows that ended early give what is before their end."""
        from datasets import Dataset

        model = copy.deepcopy(self.objective_model())
        _make_constant(model, logits_V)
        sampled: list[int] = []
        generate = model.generate

        def recorded(*args: Any, **given: Any) -> Any:
            torch.manual_seed(seed + len(sampled))
            out = generate(*args, **given)
            for row in out[:, prompts_of(args, given).shape[1] :].tolist():
                end = row.index(self.eos_id) + 1 if self.eos_id in row else len(row)
                sampled.extend(row[:end])
            return out

        model.generate = recorded
        arguments = configuration(
            self.config_class,
            {
                "per_device_train_batch_size": self.num_rows,
                "num_generations": self.num_rows,
                "max_completion_length": self.num_new_tokens,
                "beta": 0.0,
            },
        )
        arguments.max_steps = 1
        trainer = self.trainer_class(
            model=model,
            reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
            args=arguments,
            processing_class=self.tokenizer,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * self.num_rows}),
            optimizers=(CapturingOptimizer(model.parameters()), None),
        )
        while len(sampled) < num_tokens:
            trainer.train()
        return sampled


def _make_constant(model: Any, logits_V: Tensor) -> None:
    """Give every next token these logits: the head reads one direction that the last norm always gives."""
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias = torch.nn.Parameter(logits_V.to(model.lm_head.weight.dtype))
