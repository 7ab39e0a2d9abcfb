"""TRL's `RewardTrainer`, whichever release is installed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.tiny import TinyCausalModel, tiny_scorer
from seatrial.targets.common.trainers import batch_options, configuration, step_of_rows
from seatrial.targets.trl.named import sources
from seatrial.targets.trl.preferences import LONG, find_trainer, given_tokenizer


class Reward(KnowsFailures, TinyCausalModel):
    """`RewardTrainer` at its defaults, on texts that spell their end token."""

    facts = StackFacts(micro_batch_sizes="equal")
    objective_spec = ObjectiveSpec(kind="reward")
    padding_side = "right"

    def __init__(self) -> None:
        """Find the trainer in the installed release, and whether it takes texts: then it applies a chat template."""
        self.trainer_class, self.config_class = find_trainer("Reward")
        self.takes_texts = any("apply_chat_template" in source for source in sources([self.trainer_class]))

    def objective_model(self) -> Any:
        return _scorer()

    def objective_reference(self) -> Any | None:
        return None

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        scores: Tensor = model(input_ids=ids_S[None], use_cache=False).logits
        return scores

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        return step_of_rows(
            self.trainer_class,
            self.objective_model(),
            [self._row(examples[index]) for part in micro_batches for index in part],
            args=configuration(self.config_class, {**batch_options(micro_batches), "max_length": LONG}),
            **given_tokenizer(self.trainer_class, self.tokenizer),
        )

    def _row(self, example: Example) -> dict[str, Any]:
        """Return texts, or their ids where a release takes no texts."""
        assert example.rejected_ids is not None
        rows = {
            "chosen": (*example.prompt_ids, *example.completion_ids),
            "rejected": (*example.prompt_ids, *example.rejected_ids),
        }
        if self.takes_texts:
            return {name: self.decode(ids) for name, ids in rows.items()}
        return {
            **{f"input_ids_{name}": list(ids) for name, ids in rows.items()},
            **{f"attention_mask_{name}": [1] * len(ids) for name, ids in rows.items()},
        }


@lru_cache(maxsize=1)
def _scorer() -> Any:
    return tiny_scorer(0)
