"""TRL's collator of conversations and the batches of on-policy distillation, whichever release is installed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import torch

from seatrial.relations.cases.examples import Example
from seatrial.relations.facts import StackFacts
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import target_rows


class ChatML(KnowsFailures, TinyCausalModel):
    """`DataCollatorForChatML`; see `contracts.Tokenizer`."""

    facts = StackFacts(trains="last")

    def __init__(self) -> None:
        """Find the collator."""
        self.collator_class = find_name(
            "trl",
            [
                "trl.trainer.utils:DataCollatorForChatML",
                "trl.experimental.utils:DataCollatorForChatML",
                "trl.experimental.gkd.gkd_trainer:DataCollatorForChatML",
            ],
        )

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def training_row(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[int]]:
        collator = self.collator_class(tokenizer=self.tokenizer, max_length=512)
        (row,) = target_rows(collator([{"messages": list(messages)}]))
        return row


class GKD(KnowsFailures, TinyCausalModel):
    """`GKDTrainer`'s batch of sampled completions, with a tokenizer whose pad token is its end token."""

    pad_is_end = True
    tokens_train: Literal["completion", "all"] = "completion"

    def __init__(self) -> None:
        """Find the trainer."""
        self.trainer_class = find_name("trl", ["trl.experimental.gkd:GKDTrainer", "trl:GKDTrainer"])

    def trained_tokens(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        """One example at a time: prompts of a batch have one length there."""
        return [self._row(example) for example in examples]

    def _row(self, example: Example) -> tuple[list[int], list[int]]:
        import transformers

        prompt = torch.tensor([example.prompt_ids])
        completion = [*example.completion_ids, self.pad_id, self.pad_id]
        generated = SimpleNamespace(sequences=torch.cat([prompt, torch.tensor([completion])], 1))
        model = SimpleNamespace(generate=lambda **_: generated)
        config_class: Any = transformers.GenerationConfig
        config = config_class(
            eos_token_id=self.eos_id, pad_token_id=self.pad_id, max_new_tokens=len(completion)
        )
        generate: Any = self.trainer_class.generate_on_policy_outputs
        takes_pad = "pad_token_id" in inspect.signature(generate).parameters
        given = {"prompts": prompt, "prompt_attention_mask": torch.ones_like(prompt)}
        ids, shown, labels = generate(
            model, given, config, **({"pad_token_id": self.pad_id} if takes_pad else {})
        )
        if self._loss_cuts_prompts:
            labels[:, : prompt.shape[1]] = -100
        (row,) = target_rows({"input_ids": ids, "attention_mask": shown, "labels": labels})
        return row

    @property
    def _loss_cuts_prompts(self) -> bool:
        """Whether the release's loss leaves out the columns of the prompts by itself, with any labels."""
        return 'inputs["prompts"].shape[1]' in inspect.getsource(self.trainer_class.compute_loss)
