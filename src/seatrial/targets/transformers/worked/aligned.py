"""Worked examples of special tokens that a run aligns between tokenizer and model: texts within, heads, generation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import END, PAD, START, fresh_model, model_class
from seatrial.targets.transformers.worked.every_class import classes, configuration, drawn_model
from seatrial.targets.transformers.worked.processors import text_processors
from seatrial.targets.transformers.worked.runs import arguments

LARGEST = 6_000_000
OWN = {"pad_token": "A", "bos_token": "B", "eos_token": "C"}
"""Special tokens of the tokenizer, none of which is the model's."""
IDS = (4, 5, 6, 7)
"""Of a row, none of which is special."""


def _tokenizer(names: Sequence[str] = tuple(OWN)) -> Any:
    made = tiny_tokenizer(padding_side="right")
    made.add_special_tokens({name: OWN[name] for name in names})
    for name in OWN:
        if name not in names:
            setattr(made, name, None)
    return made


def _made(kind: str, ends: tuple[str, ...]) -> Any:
    """Return a small model of the first class with such an end, with drawn weights and special tokens of its own.

    Raises:
        NotServed: there is none.
    """
    names = [name for name in classes().get(kind, ()) if name.endswith(ends)]
    if not names:
        raise NotServed(f"no such class of {kind}")

    def make() -> Any:
        config = configuration(kind)
        config.num_labels = 1 if "Classification" in ends[0] else 2
        text = config.get_text_config()
        text.pad_token_id, text.eos_token_id, text.bos_token_id = PAD, END, START
        return fresh_model(model_class(names[0]), config, LARGEST)

    return drawn_model(make)


def _trained(trainer_class: Any, model: Any, tokenizer: Any) -> None:
    """Run one step at a rate of 0, of a row that has no special token."""
    row: dict[str, Any] = {"input_ids": torch.tensor(IDS), "labels": torch.tensor(IDS)}
    if model.config.num_labels == 1:
        row["labels"] = torch.tensor(1.0)
    args = arguments(learning_rate=0.0, max_steps=1, per_device_train_batch_size=1)
    trainer = trainer_class(
        model=model, args=args, train_dataset=[row], processing_class=tokenizer, data_collator=default_collate
    )
    try:
        trainer.train()
    except Exception as error:  # it takes more than ids
        raise NotServed(error_line(error)) from error
    model.eval()


def _heads(kind: str, trainer_class: Any) -> list[str]:
    """Return where a head of scores reads another place of a padded row than of the row alone."""
    wrong = []
    vocabulary = 61
    for wrap in (False, True):
        model, tokenizer = _made(kind, ("ForSequenceClassification",)), _tokenizer()
        own = {name: int(getattr(tokenizer, f"{name}_id")) for name in OWN}
        if max(own.values()) >= vocabulary:
            raise NotServed("tokens beyond the vocabulary")
        _trained(trainer_class, model, text_processors()(tokenizer) if wrap else tokenizer)
        text, what = model.config.get_text_config(), "a processor" if wrap else "a tokenizer"
        found = {name: getattr(text, f"{name}_id", None) for name in OWN}
        wrong += [
            f"{what}: {name} is {found[name]}, {due} is due"
            for name, due in own.items()
            if found[name] != due
        ]
        pad = own["pad_token"]
        with torch.no_grad():
            alone = model(
                input_ids=torch.tensor([IDS]), attention_mask=torch.ones(1, len(IDS), dtype=torch.long)
            ).logits
            mask = torch.tensor([[1] * 4 + [0] * 3, [1] * 7])
            both = model(
                input_ids=torch.tensor([[*IDS, *[pad] * 3], [9, 8, 7, 6, 5, 4, 9]]), attention_mask=mask
            ).logits
        if not bool((alone[0] - both[0]).abs().max() <= 1e-4):
            wrong.append(f"{what}: another score in a padded row")
    return wrong


def _generates(kind: str, trainer_class: Any) -> list[str]:
    """Return which special tokens of texts and of generation are not the tokenizer's, where it has them."""
    wrong = []
    for names in (tuple(OWN), ("pad_token",), ("eos_token",), ("bos_token", "pad_token")):
        model, tokenizer = _made(kind, ("ForConditionalGeneration", "ForCausalLM")), _tokenizer(names)
        text, generation = model.config.get_text_config(), model.generation_config
        generation.pad_token_id, generation.eos_token_id, generation.bos_token_id = PAD, END, START
        kept = {name: getattr(text, f"{name}_id", None) for name in OWN}
        whole = copy.deepcopy(model.config).to_dict()
        _trained(trainer_class, model, tokenizer)
        for name in OWN:
            due = getattr(tokenizer, f"{name}_id") if name in names else kept[name]
            found = getattr(text, f"{name}_id", None)
            wrong += [] if found == due else [f"{names}: {name} of the text is {found}, {due} is due"]
            found, old = (
                getattr(generation, f"{name}_id"),
                {"pad_token": PAD, "eos_token": END, "bos_token": START}[name],
            )
            if name in names and name == "eos_token":
                due = [due, old]
            elif name not in names:
                due = old
            wrong += [] if found == due else [f"{names}: {name} of generation is {found}, {due} is due"]
        for part, value in model.config.to_dict().items():
            if part.endswith("token_id") and text is not model.config and value != whole.get(part, value):
                wrong.append(f"{names}: {part} of the whole is changed")
    return wrong[:4]


PLACE = "transformers:Trainer"
HEADS: Sequence[str] = (
    "bloom", "ctrl", "diffllama", "doge", "exaone4", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text",
    "glm", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "helium", "jamba", "llama", "minimax",
    "ministral3", "mistral", "mixtral", "modernvbert", "mpt", "nemotron", "openai-gpt", "opt", "persimmon",
    "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_next",
)  # fmt: skip
GENERATE: Sequence[str] = (
    "aria", "aya_vision", "bart", "cohere2_vision", "deepseek_vl", "exaone4_5", "fuyu", "gemma2", "gemma3",
    "gpt_oss", "idefics3", "internvl", "llama", "llava", "llava_next", "mistral3", "mllama", "paligemma",
    "qwen2", "qwen2_audio", "qwen3_vl", "smolvlm", "t5gemma", "t5gemma2", "voxtral",
)  # fmt: skip
# Source: the documentation of Trainer (processing_class), and of align_special_tokens.
ALIGNED_ROWS: Sequence[Row] = (
    *(
        Row("starts", PLACE, f"special tokens of heads of {kind}", partial(_heads, kind), [], since="5.24")
        for kind in HEADS
    ),
    *(
        Row("starts", PLACE, f"special tokens of {kind}", partial(_generates, kind), [], since="5.24")
        for kind in GENERATE
    ),
)
