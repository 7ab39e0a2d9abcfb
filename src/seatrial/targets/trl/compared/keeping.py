"""Settings that a model is given with, and what a trainer saves in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.targets.common.tiny import END

OWN_SETTINGS = "a model with settings of its own"
"""A variation: of generation."""
SAMPLING: Mapping[str, Any] = {"do_sample": True, "temperature": 0.6, "top_k": 7}
FREE = (
    "use_cache", "_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "bos_token_id",
    "eos_token_id", "pad_token_id", "_attn_implementation_autoset", "id2label", "label2id",
)  # fmt: skip
"""Of a model's configuration: what a run chooses, where the model is, and the tokens of its tokenizer."""
OF_TOKENIZERS = ("eos_token", "pad_token", "chat_template", "truncation_side")


def give_settings(model: Any, tokenizer: Any, *, several_ends: bool) -> None:
    """Give a model settings of generation, and a second end token if there may be several."""
    config = model.generation_config
    for name, value in SAMPLING.items():
        setattr(config, name, value)
    second = int(tokenizer.convert_tokens_to_ids(END))
    config.eos_token_id = [tokenizer.eos_token_id, second] if several_ends else tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id


def unlike(saved: Path, given: Path) -> Iterator[str]:
    """Yield which settings of a saved model, its generation and its tokenizer are not those of the given folder."""
    import transformers

    automatic: Any = transformers.AutoConfig
    configs = [automatic.from_pretrained(one).to_dict() for one in (saved, given)]
    for name, value in configs[1].items():
        if name not in FREE and configs[0].get(name) != value:
            yield f"{name} of the model is {configs[0].get(name)}, and not {value}"
    if (given / "generation_config.json").exists():
        automatic = transformers.GenerationConfig
        found, due = (automatic.from_pretrained(one) for one in (saved, given))
        if missing := _ids(due.eos_token_id) - _ids(found.eos_token_id):
            yield f"generation does not end at {sorted(missing)}, but at {sorted(_ids(found.eos_token_id))}"
        for name in (*SAMPLING, "pad_token_id"):
            if getattr(found, name) != getattr(due, name):
                yield f"{name} of generation is {getattr(found, name)}, and not {getattr(due, name)}"
    automatic = transformers.AutoTokenizer
    found, due = (automatic.from_pretrained(one) for one in (saved, given))
    for name in OF_TOKENIZERS:
        if getattr(found, name) != getattr(due, name):
            yield f"{name} of the tokenizer is {getattr(found, name)}, and not {getattr(due, name)}"
    if found.get_vocab() != due.get_vocab():
        yield "the tokenizer has another vocabulary"


def _ids(given: Any) -> set[int]:
    return set() if given is None else {given} if isinstance(given, int) else set(given)
