"""Made examples of supervised and preference training, and the declaration of an objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from seatrial.relations.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example as token ids; a completion ends with the end token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """The answer, or the one of a pair that was chosen."""
    rejected_ids: tuple[int, ...] | None = None
    """The other one of a pair; None where the objective is not of pairs."""
    desirable: bool | None = None
    """Whether the completion is a good one; None where the objective is not of labels."""
    answered: tuple[bool, ...] = ()
    """Of `sft` that trains each answer: whether a token of the prompt is one of an earlier answer's."""
    margin: float = 0.0
    """Of `reward`: by how much the score of the chosen answer should be larger (Touvron et al. 2023, section 3.2.2)."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """Which objective the stack declares; the float64 oracle computes the same from the definition.

    `sft` is the mean over the trained tokens of the optimizer batch; the others are means over its pairs of a
    sequence's summed log-probability: `dpo` (Rafailov et al. 2023, equation 7), `cpo` (Xu et al. 2024) and, with
    log-probabilities averaged over a completion, `orpo` (Hong, Lee and Thorne 2024). `reward` is the mean over pairs of
    -log sigmoid of the difference of two scores (Bradley and Terry 1952), without a policy.

    `kto` is the mean over labelled completions of weight * (1 - sigmoid(beta * (r - z))), for an undesirable one
    (z - r), with r the log-ratio of its sum to the reference's (Ethayarajh et al. 2024, equations 7 and 8). `gkd` is
    the mean over completion tokens of the divergence beta * KL(T || M) + (1 - beta) * KL(S || M) of teacher (the
    reference) and student, M = beta * T + (1 - beta) * S; at 0 it is KL(T || S) and at 1 KL(S || T) (Agarwal et al.
    2023, section 3).
    """

    kind: Literal["sft", "dpo", "cpo", "orpo", "reward", "kto", "gkd"]
    beta: float = 0.1
    form: str = "sigmoid"
    """Of `dpo` and `cpo`: `sigmoid`, `hinge` (SLiC, Zhao et al. 2023), `ipo` (Azar et al. 2023, on sums); of `dpo` each
    of `oracles.preferences.FORMS`."""
    mixture: tuple[tuple[str, float], ...] = ()
    """Of `dpo`: forms with weights, whose weighted sum is the loss; `form` is then not read."""
    label_smoothing: float = 0.0
    """Of the forms that have one, and of `cpo`; of `sft`: of the vocabulary's mean of -log p (Szegedy 2016)."""
    modulation: float = 0.05
    """Of the form `discopop`: its temperature tau."""
    divergence: Literal["reverse_kl", "forward_kl", "js", "alpha"] = "reverse_kl"
    """Of `dpo`: whose derivative at the probability ratio replaces the log-ratio (f-DPO, Wang et al. 2023)."""
    alpha: float = 0.5
    """Of the divergence `alpha`: (u^(alpha - 1) - 1) / (alpha - 1) is its derivative at u."""
    power: float = 0.0
    """Of `cpo`, if not 0: (1 - p^-power) / power of a probability p replaces log p (AlphaPO, Gupta 2025)."""
    target: float = 0.0
    """Of `cpo`: the margin that is subtracted from beta times the difference (SimPO's gamma, Meng et al. 2024)."""
    tail_weight: float = 1.0
    """Of `dpo`: of the log-probabilities beyond the length of the shorter completion of a pair (LD-DPO, Liu 2024)."""
    weights_pairs: bool = False
    """Of `dpo`: whether a pair is weighted by the product of exp(mean(log p - log sum p^2)) of its completions, with no
    gradient (WPO, Zhou et al. 2024, equation 2 with its alignment of sampled tokens)."""
    weights_tokens: bool = False
    """Of `sft`: whether each token's loss is multiplied by its probability, with no gradient (DFT, Wu 2025)."""
    per_token: bool = False
    """Of `dpo`: whether log-probabilities are averaged over a completion's tokens, as in TRL's `ipo`."""
    reference_point: Literal["batch", "zero"] = "batch"
    """Of `kto`, what z is: the mean log-ratio of each prompt's micro-batch with the completion of the example before it
    (the last one's before the first), no less than 0 and without a gradient; or 0 (APO-zero, D'Oosterlinck 2024)."""
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    centre: float = 0.0
    """Of `reward`: the weight of the mean square of a pair's summed scores, which is added (Eisenstein et al. 2023)."""
    temperature: float = 1.0
    """Of `gkd`: by which the logits of both models are divided."""
    nll_weight: float = 0.0
    """Of the chosen completions' negative log-likelihood, a mean over tokens, that is added."""
    nll_over: Literal["completion", "all"] = "completion"
    """Whose tokens that mean is over: the completion's, or the prompt's too."""
    trains: Literal["completion", "all", "answers"] = "completion"
    """Of `sft`: whether the tokens of the prompt train too, all or those of earlier answers."""
    max_length: int | None = None
    """Tokens of prompt plus completion that are kept."""
    keep: Literal["start", "end"] = "start"
    """Which part of a longer sequence is kept."""

    @property
    def of_pairs(self) -> bool:
        """Whether an example has a rejected completion."""
        return self.kind in ("dpo", "cpo", "orpo", "reward")

    @property
    def of_labels(self) -> bool:
        """Whether an example says if its completion is desirable."""
        return self.kind == "kto"

    @property
    def of_mates(self) -> bool:
        """Whether an example's loss depends on the others of its micro-batch, by definition."""
        forms = [form for form, _ in self.mixture] or [self.form]
        return (self.kind == "kto" and self.reference_point == "batch") or any("aot" in one for one in forms)


@dataclass(frozen=True, kw_only=True)
class ExampleCase(Case):
    """The examples of one optimizer batch."""

    examples: tuple[Example, ...]
    seed: int

    def smaller(self) -> Iterator[ExampleCase]:
        """Yield cases with half of the examples, then with shorter ones."""
        half = len(self.examples) // 2
        if half:
            yield replace(self, examples=self.examples[:half])
            yield replace(self, examples=self.examples[half:])
        for index, example in enumerate(self.examples):
            for shorter in _shorter(example):
                yield replace(self, examples=(*self.examples[:index], shorter, *self.examples[index + 1 :]))

    def describe(self) -> Mapping[str, Any]:
        """Return the examples as JSON values."""
        return {
            "seed": self.seed,
            "examples": [
                {
                    "prompt_ids": list(example.prompt_ids),
                    "completion_ids": list(example.completion_ids),
                    **({"rejected_ids": list(example.rejected_ids)} if example.rejected_ids else {}),
                    **({} if example.desirable is None else {"desirable": example.desirable}),
                }
                for example in self.examples
            ],
        }


def _shorter(example: Example) -> Iterator[Example]:
    if len(example.prompt_ids) > 1:
        yield replace(example, prompt_ids=example.prompt_ids[: len(example.prompt_ids) // 2])
    if len(example.completion_ids) > 2:
        yield replace(example, completion_ids=example.completion_ids[len(example.completion_ids) // 2 :])
    if example.rejected_ids is not None and len(example.rejected_ids) > 2:
        yield replace(example, rejected_ids=example.rejected_ids[len(example.rejected_ids) // 2 :])


def make_examples(
    seed: int,
    *,
    ordinary_ids: Sequence[int],
    eos_id: int,
    pairs: bool,
    labels: bool = False,
    lengths: Literal["equal", "unequal"] = "unequal",
    num_examples: int = 4,
    longest_prompt: int = 9,
    longest_completion: int = 11,
) -> ExampleCase:
    """Return made examples.

    Args:
        seed: of everything that is drawn.
        ordinary_ids: ids that occur in texts.
        eos_id: ends every completion.
        pairs: whether each has a rejected completion.
        labels: whether each is desirable or not: all but every third are.
        lengths: of prompts and of completions; unequal ones hold one completion of a single token besides its end.
        num_examples: of the optimizer batch.
        longest_prompt: in tokens; all have it where lengths are equal.
        longest_completion: in tokens, the end token included.
    """
    rng = np.random.default_rng([seed, num_examples, longest_prompt, longest_completion])

    def ids(length: int) -> tuple[int, ...]:
        return tuple(int(token) for token in rng.choice(list(ordinary_ids), size=length))

    def text(longest: int, shortest: int = 1) -> tuple[int, ...]:
        return ids(longest if lengths == "equal" else int(rng.integers(shortest, longest + 1)))

    def completion() -> tuple[int, ...]:
        return (*text(longest_completion - 1), eos_id)

    examples = [
        Example(
            prompt_ids=text(longest_prompt),
            completion_ids=completion(),
            rejected_ids=completion() if pairs else None,
            desirable=number % 3 != 1 if labels else None,
        )
        for number in range(num_examples)
    ]
    if lengths == "unequal":
        # A mean over the micro-batch is then far from one over the batch, and one row is the longest of all.
        examples[0] = replace(examples[0], completion_ids=(*ids(1), eos_id))
        examples[-1] = replace(examples[-1], completion_ids=(*ids(longest_completion - 1), eos_id))
    return ExampleCase(examples=tuple(examples), seed=seed)
