"""verl's reward manager and its log-probabilities of given ids, whichever release is installed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_tokenizer

GSM8K = "openai/gsm8k"
MANAGERS = ("naive", "dapo", "batch")
"""Registered reward managers that an adapter judges."""
LONGEST, BUFFER, PENALTY = 24, 8, 0.5


class VerlReward:
    """`NaiveRewardManager` with the rule of GSM8K: the last `#### number` of a completion is the answer."""

    class_name = "NaiveRewardManager"
    module = "naive"

    def __init__(self) -> None:
        """Find the manager and the container of its rows."""
        manager_class = find_name(
            "verl",
            [
                f"verl.workers.reward_manager:{self.class_name}",
                f"verl.workers.reward_manager.{self.module}:{self.class_name}",
            ],
        )
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.tokenizer = tiny_tokenizer(padding_side="right")
        self.manager = manager_class(tokenizer=self.tokenizer, num_examine=0, **self.options())

    def options(self) -> dict[str, Any]:
        """Return options of the manager."""
        return {}

    def reward_cases(self) -> Iterable[tuple[Any, str, float]]:
        """Answers to two problems, right and wrong ones; the rule takes what follows the four hashes."""
        return [
            ("72", "48 / 2 = 24, and 48 + 24 is #### 72", 1.0),
            ("72", "#### 72", 1.0),
            ("72", "it is #### 27", 0.0),
            ("72", "it is 72", 0.0),
            ("1200", "#### 1,200", 1.0),
            ("1200", "#### 120", 0.0),
            ("-3", "#### -3", 1.0),
            ("-3", "#### 3", 0.0),
        ]

    def reward(self, problems: Sequence[Any], completions: Sequence[str]) -> list[float]:
        """Score all rows as one padded batch; a reward that does not stand at a row's last token is an error.

        Raises:
            ValueError: a row has a reward at another token.
        """
        # As in a prompt with solved examples: only the completion is scored.
        prompts = [self._ids(f"is it #### {answer}? {'so ' * row}") for row, answer in enumerate(problems)]
        answers = [[*self._ids(text), self.tokenizer.eos_token_id] for text in completions]
        prompts_BP, shown_BP = self._padded(prompts, left=True)
        answers_BT, shown_BT = self._padded(answers, left=False)
        batch = self.batch_class.from_dict(
            tensors={
                "prompts": prompts_BP,
                "responses": answers_BT,
                "attention_mask": torch.cat([shown_BP, shown_BT], dim=1),
            },
            non_tensors={
                "reward_model": objects([{"ground_truth": answer} for answer in problems]),
                "data_source": objects([GSM8K] * len(problems)),
                "extra_info": objects([{} for _ in problems]),
            },
        )
        with contextlib.redirect_stdout(io.StringIO()):
            rewards_BT: Tensor = self.manager(batch)
        last_B = shown_BT.sum(1) - 1
        rewards_B = rewards_BT.gather(1, last_B[:, None])[:, 0]
        if not torch.equal(rewards_BT.sum(1), rewards_B):
            raise ValueError("a reward is at another token than the last of its row")
        return [float(reward) for reward in rewards_B]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _padded(self, rows: Sequence[Sequence[int]], *, left: bool) -> tuple[Tensor, Tensor]:
        """Return ids and mask, [B, the longest], padded on one side."""
        width = max(map(len, rows))
        gaps = [[self.tokenizer.pad_token_id] * (width - len(row)) for row in rows]
        ids = [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)]
        masks = [
            [0] * len(gap) + [1] * len(row) if left else [1] * len(row) + [0] * len(gap)
            for row, gap in zip(rows, gaps, strict=True)
        ]
        return torch.tensor(ids), torch.tensor(masks)


class VerlBatchReward(VerlReward):
    """`BatchRewardManager` with a function that scores all rows at once: whether a row has the answer's text."""

    class_name = "BatchRewardManager"
    module = "batch"

    def options(self) -> dict[str, Any]:
        return {"compute_score": _scores_of_batch}

    def reward_cases(self) -> Iterable[tuple[Any, str, float]]:
        """Answers of unequal lengths, with the right text or another one."""
        return [("72", "it is 72", 1.0), ("72", "27", 0.0), ("1200", "1200 of them", 1.0), ("a", "", 0.0)]


class VerlOverlongReward(VerlReward):
    """`DAPORewardManager` with a buffer for overlong rows (Yu et al. 2025, equation 13).

    Within the last `BUFFER` tokens before the longest row the penalty rises from 0 to `PENALTY`.
    """

    class_name = "DAPORewardManager"
    module = "dapo"

    def options(self) -> dict[str, Any]:
        from omegaconf import OmegaConf

        buffer = {"enable": True, "len": BUFFER, "penalty_factor": PENALTY, "log": False}
        return {"max_resp_len": LONGEST, "overlong_buffer_cfg": OmegaConf.create(buffer)}

    def reward_cases(self) -> Iterable[tuple[Any, str, float]]:
        """Right and wrong answers at the buffer's begin, in it and at its end; an end token is added to each."""
        lengths = (8, LONGEST - BUFFER, LONGEST - BUFFER + 2, LONGEST - 1, LONGEST)
        cases = []
        for length in lengths:
            penalty = PENALTY * max(0, length - (LONGEST - BUFFER)) / BUFFER
            filler = "x" * (length - len(" #### 72") - 1) if length > len(" #### 72") else ""
            text = f"{filler} #### 72"[-(length - 1) :]
            cases += [("72", text, 1.0 - penalty), ("27", text, -penalty)]
        return cases


class VerlTokenLogprobs:
    """`logprobs_from_logits`, of the logits that predict the ids."""

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name("verl", ["verl.utils.torch_functional:logprobs_from_logits"])

    def token_logprobs(
        self, logits_BSV: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
    ) -> Tensor:
        """Take the logits at the places before the ids, as verl's actor cuts them, and divide as it does."""
        places_BT = prompt_lens_B[:, None] - 1 + torch.arange(completion_ids_BT.shape[1])
        places_BT = places_BT.clamp(max=logits_BSV.shape[1] - 1)
        logits_BTV = logits_BSV.gather(1, places_BT[..., None].expand(-1, -1, logits_BSV.shape[-1]))
        logprobs_BT: Tensor = self.compute(
            logits=logits_BTV / temperature, labels=completion_ids_BT, inplace_backward=False
        )
        return logprobs_BT


def _scores_of_batch(
    data_sources: Any, solution_strs: Sequence[str], ground_truths: Sequence[str], extra_infos: Any, **_: Any
) -> list[float]:
    return [float(answer in text) for text, answer in zip(solution_strs, ground_truths, strict=True)]


class ReadsFirstAnswers(KnowsFailures):
    """A rule that reads the first marked answer of a text in older releases."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the first answer that is marked is read, not the last",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.4"),
        ).of("R17.reward/reward of each answer"),
    )


def objects(values: Sequence[Any]) -> Any:
    """Return an array of Python objects, as `DataProto` holds what is no tensor."""
    array = numpy.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return array


ADAPTERS: dict[str, type[Any]] = {
    "reward": VerlReward,
    "reward-batch": VerlBatchReward,
    "reward-dapo": VerlOverlongReward,
    "token-logprobs": VerlTokenLogprobs,
}
