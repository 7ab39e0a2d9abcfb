"""verl's scalars of a batch of rollouts, and of its validation, whichever release is installed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.contracts.validation import Answers
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import Row
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.estimators import UNUSED

METRICS, TRAINER = "verl.trainer.ppo.metric_utils", "verl.trainer.ppo.ray_trainer"
_OF_ROWS = {"critic/score": "reward", "critic/rewards": "advantage"}
_OF_TOKENS = {
    "critic/advantages": "advantage",
    "critic/returns": "old_minus_current",
    "critic/values": "sampler_difference",
}
_LENGTHS = {"response_length": "completion_length", "prompt_length": "prompt_length"}


def found_metrics(name: str, *newer: str) -> Any:
    """Return a function of metrics, which the trainer's own module has before 0.3.

    Raises:
        Gone: the release has none.
    """
    with contextlib.suppress(ModuleNotFoundError):
        import_without(TRAINER, UNUSED)
    return find_name("verl", [f"{module}:{name}" for module in (*newer, METRICS, TRAINER)])


def _specs() -> dict[str, MetricSpec]:
    found = {}
    for names, over in ((_OF_ROWS, "rows"), (_OF_TOKENS, "tokens"), (_LENGTHS, "rows")):
        for name, quantity in names.items():
            for how in ("mean", "min", "max"):
                spec: Any = {"quantity": quantity, "how": how, "over": over, "rows": "all"}
                found[f"{name}/{how}"] = MetricSpec(**spec)
    return found


class VerlDataMetrics(KnowsFailures):
    """`compute_data_metrics`: the score is the reward, and returns and values are other numbers of each token."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "values, advantages and returns of tokens that do not train are in the means",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.5"),
        ).of(
            *(
                f"R22.named/means and sums, {rows}::{name}/mean"
                for rows in (
                    "tool output inside",
                    "a row without a training token",
                    "anything in the padding",
                )
                for name in _OF_TOKENS
            )
        ),
    )
    facts = StackFacts(dtype="float32")
    metric_specs: Mapping[str, MetricSpec] = _specs()

    def __init__(self) -> None:
        """Find the function and the batch that it takes."""
        self.compute = found_metrics("compute_data_metrics")
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        if len(ranks) != 1 or len(ranks[0]) != 1:
            raise NotServed("the batch of a step is in one process, and whole")
        return {name: float(value) for name, value in self.compute(self._batch(ranks[0][0])).items()}

    def _batch(self, part: MetricPart) -> Any:
        inputs, rows = part.inputs, part.rows
        T = inputs.mask_BT.shape[1]
        P = max(len(row.prompt_ids) for row in rows)
        shown_BT = torch.tensor([_ones(len(row.completion_ids), T) for row in rows])
        shown_BP = torch.tensor([_ones(len(row.prompt_ids), P)[::-1] for row in rows])
        return self.batch_class.from_dict(
            tensors={
                "prompts": torch.ones_like(shown_BP),
                "responses": torch.ones_like(shown_BT),
                "attention_mask": torch.cat([shown_BP, shown_BT], dim=1),
                "response_mask": inputs.mask_BT.clone(),
                "token_level_scores": _at_the_end([row.reward for row in rows], rows, T),
                "token_level_rewards": _at_the_end([row.advantage for row in rows], rows, T),
                "advantages": inputs.advantages_B[:, None].expand(-1, T).clone(),
                "returns": (inputs.old_logprobs_BT - inputs.logprobs_BT).detach(),
                "values": (inputs.sampling_logprobs_BT - inputs.old_logprobs_BT).abs(),
            },
            non_tensors={},
        )


def _ones(length: int, width: int) -> list[int]:
    return [1] * length + [0] * (width - length)


def _at_the_end(values: Sequence[float], rows: Sequence[Row], T: int) -> Tensor:
    """Return each value at the last token of its row."""
    found_BT = torch.zeros(len(rows), T, dtype=torch.float64)
    for place, (value, row) in enumerate(zip(values, rows, strict=True)):
        found_BT[place, len(row.completion_ids) - 1] = value
    return found_BT


OLD_NAME = "final_reward"
"""What old trainers call a row's reward among what its function returns by name."""


class VerlValidation:
    """`process_validation_metrics`; see `contracts.validation.ValidationMetrics`."""

    validation_draws = 1000

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name("verl", [f"{METRICS}:process_validation_metrics"])
        self._own = OLD_NAME if OLD_NAME in inspect.getsource(self.compute) else "reward"

    def validation_metrics(self, answers: Sequence[Answers]) -> Mapping[str, Mapping[str, float]]:
        rows = [
            (one.source, one.prompt, score, pred)
            for one in answers
            for score, pred in zip(one.scores, one.texts or one.scores, strict=True)
        ]
        # The answers of a prompt are not next to each other in a validation of several rounds.
        rows = [*rows[::2], *rows[1::2]]
        scores = [score for *_, score, _ in rows]
        columns = {"score": scores, "pred": [pred for *_, pred in rows]} if answers[0].texts else {}
        found = self.compute(
            [source for source, *_ in rows],
            [prompt for _, prompt, *_ in rows],
            {**columns, **({self._own: scores} if self._own == OLD_NAME or not columns else {})},
        )
        column = "score" if columns else self._own
        return {
            source: {name: float(value) for name, value in columns_of[column].items()}
            for source, columns_of in found.items()
            if column in columns_of
        }


ADAPTERS: dict[str, type[Any]] = {"data-metrics": VerlDataMetrics, "validation-metrics": VerlValidation}
