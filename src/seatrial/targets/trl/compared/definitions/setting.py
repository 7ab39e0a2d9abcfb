"""What a step is defined by: rows, options and models of the run, and sums over tokens that definitions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.made_generation import made_completion


@dataclass
class Setting:
    """A step of a run; models are in float64, and only the policy has gradients."""

    options: Mapping[str, Any]
    """All options of the run, and what it has in addition to them; see `adapter.MADE`."""
    rows: Sequence[Mapping[str, Any]]
    tokenizer: Any
    policy: Any
    first: Any
    """The policy before the first step."""
    earlier: Sequence[Any]
    """The policies before the earlier steps, the last one first."""
    reference: Any
    teacher: Any
    teacher_tokenizer: Any
    rewards: Sequence[Callable[..., Sequence[float | None]]]
    letters: Sequence[int]
    ends: Sequence[int]
    limit: int | None
    equal: bool
    tensors: Sequence[Mapping[str, Tensor]]
    """Of the policies before each step, those of adapters as they are."""
    average_start: Mapping[str, Tensor]
    """Tensors that an average of policies begins with: those of the first policy, or of adapters that do nothing."""
    load: Callable[[Mapping[str, Tensor]], Any]
    """Return the model of tensors like these, in float64."""
    scalars: dict[str, float] = field(default_factory=dict)
    """What the step logs; a definition fills it."""
    evaluates: bool = True
    """Whether an evaluation of the rows gives the same; a definition sets it."""

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option of the run; `default` where the release does not have it."""
        value = self.options.get(name, default)
        return default if value is None else value

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text as it is."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt_ids(self, prompt: Any) -> list[int]:
        """Return the ids of a prompt, a text or a conversation."""
        if isinstance(prompt, str):
            return self.ids(prompt)
        text = self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return self.ids(text)

    def answer_ids(self, prompt: Any, answer: Any) -> list[int]:
        """Return the ids of an answer to a prompt, texts or conversations, with its end."""
        if isinstance(prompt, str):
            return self.ids(answer + self.tokenizer.eos_token)
        whole = self.tokenizer.apply_chat_template([*prompt, *answer], tokenize=False)
        return self.ids(whole)[len(self.prompt_ids(prompt)) :]

    def sampled(self, prompt: Sequence[int], number: int = 0, role: int = 0) -> list[int]:
        """Return a completion that the run's generation makes."""
        return made_completion(
            prompt,
            number,
            role,
            letters=self.letters,
            ends=self.ends,
            equal=self.equal,
            limit=self.limit,
        )

    def has_end(self, completion: Sequence[int]) -> bool:
        """Return whether a completion ends, and is not cut."""
        return completion[-1] in self.ends

    def text(self, ids: Sequence[int]) -> str:
        """Return what a reward function is given of a completion."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def rewards_of(self, row: Mapping[str, Any], completion: Sequence[int]) -> list[float | None]:
        """Return what each reward function gives a completion of a row."""
        columns = {name: [value] for name, value in row.items() if name != "prompt"}
        given = {"prompts": [row["prompt"]], "completions": [self.text(completion)]}
        return [one(**given, **columns)[0] for one in self.rewards]

    def reward(self, row: Mapping[str, Any], completion: Sequence[int]) -> float:
        """Return the weighted sum of the rewards that are there."""
        weights = self.option("reward_weights", [1.0] * len(self.rewards))
        given = self.rewards_of(row, completion)
        total = 0.0
        for weight, value in zip(weights, given, strict=True):
            total += 0.0 if value is None else weight * value
        return total

    @property
    def sampler(self) -> Any:
        """The policy that sampled the completions: the first one where iterations share them."""
        return self.earlier[-1] if self.option("num_iterations", 1) > 1 and self.earlier else self.policy

    @property
    def samples(self) -> bool:
        """Whether the step samples completions, and logs what they are."""
        return self.sampler is self.policy

    def counts(self, completion: Sequence[int]) -> bool:
        """Return whether a completion is trained on: those that do not end may be left out."""
        return self.has_end(completion) or not self.option("mask_truncated_completions", False)

    def log_lengths(self, completions: Sequence[Sequence[int]]) -> None:
        """Note the lengths of completions, and of those that end."""
        ended = [len(ids) for ids in completions if self.has_end(ids)] or [0]
        for name, own in (("length", [*map(len, completions)]), ("terminated_length", ended)):
            self.scalars |= {
                f"completions/mean_{name}": mean(own),
                f"completions/min_{name}": min(own),
                f"completions/max_{name}": max(own),
            }
        self.scalars["completions/clipped_ratio"] = mean(float(not self.has_end(ids)) for ids in completions)

    def averaged(self, rate: float, every: int) -> Any:
        """Return a model that begins as the teacher does and moves towards each policy after an `every`-th step."""
        found = self.average_start
        for number, tensors in enumerate(self.tensors[1:], start=1):  # step k ends before step k + 1
            if number % every == 0:
                found = {name: value.lerp(tensors[name], rate) for name, value in found.items()}
        return self.load(found)


def logits_of(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """Return the logits [T, V] that predict a completion's tokens; of those but the first if there is no prompt."""
    ids = torch.tensor([[*prompt, *completion]])
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits[max(len(prompt) - 1, 0) : -1]


def logprobs_of(
    model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
) -> Tensor:
    """Return the log-probabilities [T] of a completion's tokens; of those but the first if there is no prompt."""
    logits = logits_of(model, prompt, completion) / temperature
    return picked(logits.log_softmax(-1), completion[-len(logits) :])


def picked(values_TV: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the value [T] of each id."""
    return values_TV.gather(-1, torch.tensor(list(ids))[:, None])[:, 0]


def mean(values: Iterable[float]) -> float:
    """Return the mean of numbers."""
    found = list(values)
    return sum(found) / len(found)


def average(values: Iterable[Tensor]) -> Tensor:
    """Return the mean of tensors without axes."""
    return torch.stack(list(values)).mean()


def entropy_of(logits_TV: Tensor) -> Tensor:
    """Return the entropy [T] of each place."""
    logprobs = logits_TV.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def divergence(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return the generalized divergence [T] of log-probabilities [T, V] (Agarwal et al. 2024, equation 1).

    The limits are those of Kullback: from the teacher at 0, from the student at 1.
    """

    def kl(one: Tensor, other: Tensor) -> Tensor:
        return (one.exp() * (one - other)).sum(-1)

    if beta == 0:
        return kl(teacher, student)
    if beta == 1:
        return kl(student, teacher)
    mixture = (beta * teacher.exp() + (1 - beta) * student.exp()).log()
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)
