"""The laws of rollout windows, trained tokens and default sampling: a plain stack obeys, planted faults are seen."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.unit.relations.plain_objectives import EOS_ID, PAD_ID, VOCAB_SIZE, TinyModel
from torch import Tensor

from seatrial.relations.cases.examples import Example
from seatrial.relations.cases.windows import WindowCase, WindowRow, WindowSpec, make_window
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.windows import window
from seatrial.relations.records import AdvantageSpec, StepResult
from seatrial.relations.registry import select
from seatrial.verdict import Outcome


@dataclass
class PlainRollouts:
    """A padded policy gradient, the targets of its batches and its sampling; each fault is one line."""

    faults: frozenset[str] = frozenset()
    window_spec: WindowSpec = field(default_factory=lambda: WindowSpec(advantage=AdvantageSpec(epsilon=1e-6)))
    ordinary_ids: Sequence[int] = tuple(range(2, VOCAB_SIZE))
    eos_id: int = EOS_ID
    tokens_train: str = "completion"
    vocab_size: int = 200
    default_temperature: float = 1.0
    model: TinyModel = field(default_factory=lambda: TinyModel(0))

    def objective_model(self) -> TinyModel:
        """Return the model."""
        return self.model

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        """Score one sequence."""
        return model(ids_S[None])[0]

    def window_step(self, case: WindowCase, num_micro_batches: int) -> StepResult:
        """Accumulate gradients over micro-batches."""
        self.model.zero_grad()
        advantages = self._advantages(case)
        size = len(case.rows) // num_micro_batches
        counted = [row for row in case.rows if case.is_trained(row) or "counted though masked" in self.faults]
        tokens = sum(len(row.completion_ids) for row in counted)
        for start in range(0, len(case.rows), size):
            for row, advantage in list(zip(case.rows, advantages, strict=True))[start : start + size]:
                if case.is_trained(row):
                    width = max(len(one.prompt_ids) for one in case.rows)
                    padding = (width - len(row.prompt_ids)) if "padding is seen" in self.faults else 0
                    logprobs_T = self._logprobs(
                        replace(row, prompt_ids=(*[PAD_ID] * padding, *row.prompt_ids)),
                        1.0 if "no temperature" in self.faults else case.temperature,
                    )
                    own = len(row.completion_ids) * len(case.rows)
                    weight = 1 / (own if "mean of rows" in self.faults else tokens)
                    (-advantage * weight * logprobs_T.sum()).backward()
        scale = num_micro_batches if "summed micro-batches" in self.faults else 1
        gradients = {name: scale * value.grad for name, value in self.model.named_parameters()}
        return StepResult(loss=0.0, gradients=gradients)

    def _advantages(self, case: WindowCase) -> list[float]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, row in enumerate(case.rows):
            groups.setdefault(row.prompt_ids, []).append(index)
        result = [0.0] * len(case.rows)
        for rows in groups.values():
            rewards = [case.rows[index].reward for index in rows]
            if "none is zero" in self.faults:
                rewards = [reward or 0.0 for reward in rewards]
            scored = [
                (index, reward) for index, reward in zip(rows, rewards, strict=True) if reward is not None
            ]
            values = torch.tensor([reward for _, reward in scored], dtype=torch.float64)
            for (index, _), value in zip(
                scored, (values - values.mean()) / (values.std() + 1e-6), strict=True
            ):
                result[index] = float(value)
        return result

    def _logprobs(self, row: WindowRow, temperature: float) -> Tensor:
        ids_S = torch.tensor([*row.prompt_ids, *row.completion_ids])
        logprobs_SV = torch.log_softmax(self.model(ids_S[None])[0, :-1] / temperature, -1)
        return logprobs_SV.gather(1, ids_S[1:, None]).squeeze(1)[len(row.prompt_ids) - 1 :]

    def trained_tokens(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        """Mark completions, padded by the end token."""
        rows = []
        for one in examples:
            ids = [*one.prompt_ids, *one.completion_ids]
            shift = 1 if "span off by one" in self.faults else 0
            mask = [int(at >= len(one.prompt_ids) - shift) for at in range(len(ids))]
            if "end by pad id" in self.faults:
                mask = [int(on and token != EOS_ID) for token, on in zip(ids, mask, strict=True)]
            header = [PAD_ID] if "header at the end" in self.faults else []
            rows.append((ids + header, mask + [0] * len(header)))
        return rows

    def sample_with_defaults(self, logits_V: Tensor, num_tokens: int, seed: int) -> list[int]:
        """Sample, from the 50 most probable where that is planted."""
        if "top k" in self.faults:
            logits_V = logits_V.masked_fill(logits_V < logits_V.topk(50).values[-1], float("-inf"))
        temperature = 0.2 if "another temperature" in self.faults else 1.0
        generator = torch.Generator().manual_seed(seed)
        return (
            torch.softmax(logits_V / temperature, 0)
            .multinomial(num_tokens, True, generator=generator)
            .tolist()
        )


RELATIONS = ("R1.window", "R12.window", "R15.trained", "R6.defaults")


def broken_laws(stack: PlainRollouts, tidy: bool = False) -> list[str]:
    """Return the laws that a stack breaks."""
    verdicts = [run_relation(relation, stack, seeds=[0], tidy=tidy) for relation in select(RELATIONS)]
    assert all(verdict.outcome in (Outcome.PASS, Outcome.FAIL) for verdict in verdicts), verdicts
    return [law for verdict in verdicts for law in verdict.details.get("laws_broken", [])]


def test_a_plain_stack_obeys() -> None:
    """Every law, three times."""
    assert broken_laws(PlainRollouts()) == []


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("mean of rows", ["gradient, lengths unequal", "gradient, truncated completions left out"]),
        ("padding is seen", ["gradient, prompts of unequal lengths"]),
        ("no temperature", ["gradient, temperature not 1"]),
        ("none is zero", ["gradient, completions without a reward"]),
        ("counted though masked", ["gradient, truncated completions left out"]),
        ("summed micro-batches", ["gradients add up, lengths equal", "gradients add up, lengths unequal"]),
        ("span off by one", ["targets before the end token"]),
        ("end by pad id", ["end token"]),
        ("header at the end", ["ids", "end token"]),
        ("top k", ["tail of the distribution"]),
        ("another temperature", ["tail of the distribution"]),
    ],
)
def test_a_planted_fault_is_seen_by_the_law_about_it(fault: str, laws: list[str]) -> None:
    """And by no other one: one trap a law."""
    assert broken_laws(PlainRollouts(frozenset({fault}))) == laws


def test_tidy_windows_hide_the_traps() -> None:
    """Equal lengths, temperature 1, every completion scored and whole."""
    faults = frozenset({"mean of rows", "no temperature", "none is zero", "counted though masked"})
    assert broken_laws(PlainRollouts(faults), tidy=True) == []


def test_a_group_of_equal_rewards_has_no_gradient() -> None:
    """A closed form: nothing to learn from a group without contrast."""
    stack = PlainRollouts()
    rows = [
        WindowRow(prompt_ids=(2, 3), completion_ids=(token, EOS_ID), reward=0.7) for token in (4, 5, 6, 7)
    ]
    case = WindowCase(rows=tuple(rows), num_generations=4, max_completion_length=4, eos_id=EOS_ID)
    assert all(float(value.abs().max()) == 0 for value in window(stack, case).gradients.values())


def test_smaller_windows_keep_whole_groups() -> None:
    """A trainer takes no half of a group."""
    case = make_window(0, ordinary_ids=range(2, 17), eos_id=EOS_ID, lengths="unequal", unscored=True)
    assert [row.reward for row in case.rows].count(None) == 1
    assert all(len(smaller.rows) in (4, 8) for smaller in case.smaller())
