"""verl's data set of prompts, `RLHFDataset`, whichever release is installed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from seatrial.relations.contracts.prompt_rows import Messages, PromptRow, Truncation
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import temporary_folder
from seatrial.targets.verl.conversations import TEMPLATE
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.places import in_float32
from seatrial.targets.verl.supervised import made_data_set, written

DATA_SET = "verl.utils.dataset.rl_dataset"


class VerlPrompts(TinyCausalModel):
    """`RLHFDataset`; from 0.7 on it gives conversations, which the agent loop makes ids of."""

    def __init__(self) -> None:
        """Find the data set."""
        import_without(DATA_SET, (*UNUSED, "qwen_vl_utils"))
        self.data_class = find_name("verl", [f"{DATA_SET}:RLHFDataset"])
        source = inspect.getsource(self.data_class.__init__)
        self.may_keep = "filter_overlong_prompts" in source
        self.in_process = "self.num_workers is not None" in source
        self._with_template = copy.deepcopy(super().tokenizer)
        self._with_template.chat_template = TEMPLATE

    @property
    def tokenizer(self) -> Any:
        """The tokenizer with the template."""
        return self._with_template

    def prompt_ids(self, messages: Messages) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            [dict(one) for one in messages], tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt_rows(
        self, conversations: Sequence[Messages], *, max_length: int, filtered: bool, truncation: Truncation
    ) -> Sequence[PromptRow]:
        whole = filtered or max(len(self.prompt_ids(one)) for one in conversations) <= max_length
        if not whole and not self.may_keep:
            raise NotServed(
                f"the data set of verl {release('verl')} leaves out every prompt that is too long"
            )
        path = written(
            [
                {
                    "prompt": [dict(message) for message in one],
                    "data_source": "made",
                    "extra_info": {"index": number},
                }
                for number, one in enumerate(conversations)
            ]
        )
        options = {
            "cache_dir": temporary_folder(),
            "max_prompt_length": max_length,
            "truncation": truncation,
            "filter_overlong_prompts": filtered,
            # Before 0.6 a number is needed, with which the filter runs in a process of its own.
            "filter_overlong_prompts_workers": None if self.in_process else 1,
            "return_raw_chat": True,
        }
        with in_float32():
            data = made_data_set(self.data_class, path, self.tokenizer, options)
            try:
                return [self._row(data[place], whole) for place in range(len(data))]
            except (RuntimeError, NotImplementedError) as error:
                if truncation == "error":
                    raise ValueError(f"a prompt is refused: {error}") from error
                raise

    def _row(self, row: Any, whole: bool) -> PromptRow:
        if "input_ids" not in row:
            if not whole:
                raise NotServed("the data set gives conversations, which it neither cuts nor pads")
            return PromptRow(number=int(row["index"]), ids=self.prompt_ids(row["raw_prompt"]))
        shown = row["attention_mask"].bool()
        return PromptRow(
            number=int(row["index"]),
            ids=row["input_ids"][shown].tolist(),
            sampled=list(row["raw_prompt_ids"]) if "raw_prompt_ids" in row else None,
            padded=row["input_ids"].tolist(),
            mask=row["attention_mask"].tolist(),
            positions=row["position_ids"].tolist(),
        )


ADAPTERS: dict[str, type[Any]] = {"prompts": VerlPrompts}
