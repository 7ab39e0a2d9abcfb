"""What TRL's trainers that sample draw their tokens from, whichever release is installed.

The model's own `generate` runs; it is called with the scores and logits requested in addition, so that the trainer's
and the model's settings are merged by the library as they are in training.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from inspect import signature
from typing import Any, ClassVar

import torch

from seatrial.relations.contracts.drawing import NEUTRAL, Draw, DrawingCase, Drawn
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, every_release, since
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import CapturingOptimizer, configuration
from seatrial.targets.trl.former import FUNCTIONS
from seatrial.targets.trl.preferences import find_trainer, given_tokenizer
from seatrial.targets.trl.rollouts import prompts_of

NUM_ROWS = 4
PROMPTS = ("a", "bcde")
"""Of unequal lengths."""


MIN_P = KnownFailure(
    "min_p at its default of None lets that of the model's own generation through",
    finding="TRL: a model's own min_p",
    releases=since("transformers", "5"),
).of("R26.drawn/at the defaults, a model with a min_p of its own")
TOP_P = KnownFailure(
    "top_p of the model's own generation is not reset",
    finding=FUNCTIONS,
    releases=before("trl", "1.9"),
).of("R26.drawn/at the defaults, a model that cuts the tails of its distributions")


class Drawing(KnowsFailures, TinyCausalModel):
    """`GRPOTrainer`'s generation; see `contracts.drawing`."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (MIN_P,)
    algorithm = "GRPO"
    limit = "max_completion_length"
    """Option of the number of tokens."""
    data = "prompts"
    padding_side = "right"
    """As tokenizers of most models are saved."""

    def __init__(self) -> None:
        """Find the trainer, and the settings that its configuration has.

        Raises:
            Gone: the release's trainer takes no reward functions, or its configuration no limit of this name.
        """
        self.trainer_class, self.config_class = find_trainer(self.algorithm)
        known = {item.name: item for item in fields(self.config_class)}
        if self.limit not in known:
            raise Gone(f"{self.config_class.__name__} of trl {release('trl')} has no {self.limit}")
        if self.data == "prompts" and not self._takes("reward_funcs"):
            raise Gone(f"{self.algorithm}Trainer of trl {release('trl')} takes no reward functions")
        self._known = frozenset(known)
        defaults: Mapping[str, Any] = {name: item.default for name, item in known.items()}
        self.drawing_defaults: Mapping[str, float] = {
            name: float(neutral if defaults[name] in (None, MISSING) else defaults[name])
            for name, neutral in NEUTRAL.items()
            if name in known
        }
        self.drawn_prompts = frozenset(self._prompt_ids(text) for text in PROMPTS)

    def _takes(self, name: str) -> bool:
        """Return whether the trainer takes an argument; a deprecated place passes all on to its base."""
        bases = [base for base in self.trainer_class.__mro__ if "__init__" in vars(base)]
        return any(name in signature(base.__init__).parameters for base in bases)

    def _prompt_ids(self, text: str) -> tuple[int, ...]:
        if self.data == "messages":
            text = f"<|im_start|>user\n{text}<|im_end|><|im_start|>assistant\n"
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def draw(self, case: DrawingCase) -> Drawn:
        model = copy.deepcopy(self.objective_model())
        for name, value in case.own.items():
            setattr(model.generation_config, name, value)
        recorder = _Recorder(model.generate, self.eos_id, case.seed)
        model.generate = recorder
        options = {**case.options, **self._own_options, self.limit: case.max_new_tokens}
        arguments = configuration(
            self.config_class,
            {"per_device_train_batch_size": NUM_ROWS, **options},
            {"beta": 0.0, "num_generations": 2, "max_length": 96},
        )
        arguments.max_steps = 1
        self._trainer(model, arguments).train()
        return recorder.drawn()

    _own_options: Mapping[str, Any] = {}
    """Of the configuration, so that it samples."""

    def _trainer(self, model: Any, arguments: Any) -> Any:
        from datasets import Dataset

        more: dict[str, Any] = {} if self.data == "messages" else {"reward_funcs": _lengths}
        if self._takes("teacher_model"):
            more["teacher_model"] = copy.deepcopy(self.objective_reference())
        if self._takes("ref_model"):
            more["ref_model"] = copy.deepcopy(self.objective_reference())
        return self.trainer_class(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list([self._row(text) for text in PROMPTS * (NUM_ROWS // 2)]),
            optimizers=(CapturingOptimizer(model.parameters()), None),
            **given_tokenizer(self.trainer_class, copy.deepcopy(self.tokenizer)),
            **more,
        )

    def _row(self, text: str) -> dict[str, Any]:
        if self.data == "prompts":
            return {"prompt": text}
        return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "fg"}]}


class RLOODrawing(Drawing):
    """`RLOOTrainer`'s generation."""

    algorithm = "RLOO"


class OnlineDPODrawing(Drawing):
    """`OnlineDPOTrainer`'s generation."""

    known_failures = (replace(MIN_P, releases=every_release),)
    """Its generation is merged with the model's own by Transformers 4 too."""
    algorithm = "OnlineDPO"
    limit = "max_new_tokens"


class GKDDrawing(Drawing):
    """`GKDTrainer`'s generation by the student."""

    known_failures = (TOP_P,)
    algorithm = "GKD"
    limit = "max_new_tokens"
    data = "messages"
    _own_options: Mapping[str, Any] = {"lmbda": 1.0}


def _lengths(completions: Sequence[Any], **_: Any) -> list[float]:
    return [float(len(str(one))) for one in completions]


class _Recorder:
    """Calls a model's `generate` and keeps what the first generation draws from."""

    def __init__(self, generate: Any, end: int, seed: int) -> None:
        self._generate, self._end, self._seed = generate, end, seed
        self._drawn: Drawn | None = None

    def __call__(self, *args: Any, **given: Any) -> Any:
        torch.manual_seed(self._seed)
        needs_all = given.pop("return_dict_in_generate", None)
        found = self._generate(
            *args, **given, return_dict_in_generate=True, output_scores=True, output_logits=True
        )
        if self._drawn is None:
            prompts = prompts_of(args, given)
            self._drawn = self._read(prompts, given["attention_mask"], found)
        return found if needs_all else found.sequences

    def _read(self, prompts: Any, mask: Any, found: Any) -> Drawn:
        start = prompts.shape[1]
        copies = len(found.sequences) // len(prompts)
        draws, completions, ended = [], [], []
        for number, row in enumerate(found.sequences.tolist()):
            said = row[start:]
            length = said.index(self._end) + 1 if self._end in said else len(said)
            completions.append(tuple(said[:length]))
            ended.append(said[length - 1] == self._end)
            draws += [
                Draw(
                    ids=tuple(row[: start + place]),
                    logits_V=found.logits[place][number].detach().clone(),
                    scores_V=found.scores[place][number].detach().clone(),
                )
                for place in range(length)
            ]
        rows = zip(prompts.tolist(), mask.tolist(), strict=True)
        return Drawn(
            draws=tuple(draws),
            prompts=tuple((tuple(ids), tuple(shown)) for ids, shown in rows for _ in range(copies)),
            completions=tuple(completions),
            ended=tuple(ended),
        )

    def drawn(self) -> Drawn:
        """Return the first generation.

        Raises:
            RuntimeError: there was none.
        """
        if self._drawn is None:
            raise RuntimeError("the trainer took a step without a generation")
        return self._drawn


ADAPTERS: dict[str, type[Any]] = {
    "grpo-drawing": Drawing,
    "rloo-drawing": RLOODrawing,
    "online-dpo-drawing": OnlineDPODrawing,
    "gkd-drawing": GKDDrawing,
}
