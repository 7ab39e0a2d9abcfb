"""verl's data set of conversations with several turns, of which every answer trains, whichever release is installed."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from seatrial.relations.cases.conversations import Conversation, Part
from seatrial.relations.contracts.conversations import TokenRow
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, since
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.verl.estimators import UNUSED

DATA_SET = "verl.utils.dataset.multiturn_sft_dataset"
LONG = 4096
"""Beyond every conversation."""
TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe brief.<|im_end|>' }}{%- endif %}"
    "{%- if tools %}{{- tools | tojson }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] %}{{- call['function'] | tojson }}{%- endfor %}"
    "{{- '<|im_end|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""A template that begins with a system turn of its own where a conversation has none, as Qwen2.5's does; with tools
and their calls as JSON."""
OTHER_SIDE = KnownFailure(
    "rows without padding are cut at their end, also where `truncation` is left",
    finding="verl: truncation of rows without padding",
    releases=since("verl", "0.6"),
).of("R16.conversations/a longer row is cut")
LISTS = KnownFailure(
    "arguments of calls that are lists stay arrays of NumPy, which templates cannot write (verl#4125)",
    finding="verl: small functions of older releases",
    releases=before("verl", "0.7.1"),
).of(
    "R16.conversations/answers alone train, two results of tools in a row",
    "R16.conversations/serving is training, two results of tools in a row",
)


class VerlConversations(KnowsFailures, TinyCausalModel):
    """`MultiTurnSFTDataset`, padded on the right; see `contracts.Conversations`."""

    padding_side = "right"
    pad_is_end = True
    conversation_parts: frozenset[Part] = frozenset(("system", "tools"))
    thinking_kept: Literal["all", "last"] = "all"
    conversation_keeps: Literal["start", "end"] | None = "start"
    options: ClassVar[Mapping[str, Any]] = {"pad_mode": "right", "truncation": "right"}
    known_failures: ClassVar[Sequence[KnownFailure]] = (LISTS,)

    def __init__(self) -> None:
        """Find the data set; releases before 0.7 have no mode without padding."""
        import_without(DATA_SET, (*UNUSED, "qwen_vl_utils"))
        self.data_class = find_name("verl", [f"{DATA_SET}:MultiTurnSFTDataset"])
        mode = self.options["pad_mode"]
        if mode == "no_padding" and mode not in inspect.getsource(self.data_class).lower():
            raise Gone(f"MultiTurnSFTDataset of verl {release('verl')} pads all rows")
        self._with_template = copy.deepcopy(super().tokenizer)
        self._with_template.chat_template = TEMPLATE

    @property
    def tokenizer(self) -> Any:
        """The tokenizer with the template."""
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
        import pyarrow
        import pyarrow.parquet
        from omegaconf import OmegaConf

        record: dict[str, Any] = {"messages": conversation.messages()}
        if conversation.tools:
            record["tools"] = conversation.schemas()
        path = Path(new_folder()) / "rows.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), path)
        # Releases before 0.7 have these options one level deeper.
        given = {"max_length": max_length or LONG, **self.options}
        config = OmegaConf.create({**given, "multiturn": {"messages_key": "messages"}})
        with contextlib.redirect_stdout(io.StringIO()):
            row = self.data_class(parquet_files=str(path), tokenizer=self.tokenizer, config=config)[0]
        shown = row["attention_mask"].bool() if "attention_mask" in row else slice(None)
        return TokenRow(row["input_ids"][shown].tolist(), row["loss_mask"][shown].tolist())


class VerlConversationsKeepingTheEnd(VerlConversations):
    """The same, rows cut on the left."""

    conversation_keeps = "end"
    options: ClassVar[Mapping[str, Any]] = {"pad_mode": "right", "truncation": "left"}


class VerlConversationsWithoutPadding(VerlConversations):
    """The same without padding, as its engines take rows, cut on the right."""

    options: ClassVar[Mapping[str, Any]] = {"pad_mode": "no_padding", "truncation": "right"}


class VerlConversationsWithoutPaddingKeepingTheEnd(VerlConversations):
    """The same without padding, cut on the left."""

    conversation_keeps = "end"
    options: ClassVar[Mapping[str, Any]] = {"pad_mode": "no_padding", "truncation": "left"}
    known_failures: ClassVar[Sequence[KnownFailure]] = (LISTS, OTHER_SIDE)


ADAPTERS: dict[str, type[Any]] = {
    "conversations": VerlConversations,
    "conversations-end": VerlConversationsKeepingTheEnd,
    "conversations-unpadded": VerlConversationsWithoutPadding,
    "conversations-unpadded-end": VerlConversationsWithoutPaddingKeepingTheEnd,
}
