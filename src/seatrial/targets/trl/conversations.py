"""TRL's `SFTTrainer` on conversations in Qwen3's form, of which answers alone train, whichever release is installed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from seatrial.relations.cases.conversations import Conversation, Part
from seatrial.relations.contracts.conversations import TokenRow
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import batch_options, configuration, target_rows
from seatrial.targets.trl.named import code_has
from seatrial.targets.trl.preferences import find_trainer, given_tokenizer

LONG = 4096
"""Beyond every conversation."""


class SFTConversations(KnowsFailures, TinyCausalModel):
    """`assistant_only_loss` over Qwen3's template, which TRL keeps and trains with a template of its own for.

    Serving is the tokenizer's template, as an engine renders it. See `contracts.Conversations`.
    """

    pad_is_end = True
    padding_side = "right"
    conversation_parts: frozenset[Part] = frozenset(("system", "tools", "thinking"))
    thinking_kept: Literal["all", "last"] = "last"
    conversation_keeps: Literal["start", "end"] | None = "start"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the training template shows thinking in every answer, an empty one where it has none",
            finding="TRL: the training template of Qwen3",
        ).of(
            "R16.conversations/serving is training, several answers",
            "R16.conversations/serving is training, thinking in an earlier answer too",
            "R16.conversations/serving is training, a tool that is called",
            "R16.conversations/serving is training, two results of tools in a row",
        ),
    )

    def __init__(self) -> None:
        """Find the trainer and the template.

        Raises:
            Gone: the trainer has no template of its own, which marks the tokens of answers.
        """
        template = find_name("trl", ["trl.chat_template_utils:qwen3_chat_template"])
        self.trainer_class, self.config_class = find_trainer("SFT")
        if not code_has("get_training_chat_template", self.trainer_class):
            raise Gone(f"SFTTrainer of trl {release('trl')} has no templates for training")
        self._with_template = copy.deepcopy(super().tokenizer)
        self._with_template.chat_template = template

    @property
    def tokenizer(self) -> Any:
        """The tokenizer with Qwen3's template."""
        return self._with_template

    def serve_conversation(self, conversation: Conversation, *, add_generation_prompt: bool) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            conversation.messages(),
            tools=conversation.schemas() or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def train_conversation(self, conversation: Conversation, *, max_length: int | None) -> TokenRow:
        from datasets import Dataset

        row: dict[str, Any] = {"messages": conversation.messages()}
        if conversation.tools:
            row["tools"] = conversation.schemas()
        trainer = self.trainer_class(
            model=copy.deepcopy(self.objective_model()),
            args=configuration(
                self.config_class,
                {**batch_options([[0]]), "max_length": max_length or LONG, "assistant_only_loss": True},
            ),
            train_dataset=Dataset.from_list([row]),
            **given_tokenizer(self.trainer_class, self.tokenizer),
        )
        (only,) = target_rows(next(iter(trainer.get_train_dataloader())))
        return TokenRow(*only)
