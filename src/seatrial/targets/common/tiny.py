"""A tokenizer of one token a byte and a language model of two layers, made in milliseconds and without a network."""

from __future__ import annotations

import argparse
import json
import string
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PAD, END, START, TURN_END = "<pad>", "<eos>", "<|im_start|>", "<|im_end|>"
ORDINARY = string.ascii_letters + string.digits
"""What texts are made of: a letter is a token, in any place."""
WEIGHT_SCALE = 4.0
"""Initial weights are enlarged: a fresh model hardly sees its input, and hides what reads the wrong part of it."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_tokenizer(*, pad_is_end: bool = False, padding_side: str = "left") -> Any:
    """Return a byte-level `PreTrainedTokenizerFast` with a ChatML template.

    Args:
        pad_is_end: whether padding uses the end token, as in many released tokenizers.
        padding_side: `left` for who samples, `right` for who trains on given texts.
    """
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = [PAD, END, START, TURN_END]
    vocabulary = {token: index for index, token in enumerate(special)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary.setdefault(symbol, len(vocabulary))
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    pad = TURN_END if pad_is_end else PAD
    tokenizer_class: Any = transformers.PreTrainedTokenizerFast
    tokenizer = tokenizer_class(
        tokenizer_object=core,
        pad_token=pad,
        eos_token=TURN_END,
        padding_side=padding_side,
        model_input_names=["input_ids", "attention_mask"],
        additional_special_tokens=[token for token in special if token not in (pad, TURN_END)],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def ordinary_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of letters and digits."""
    return tuple(int(token) for token in tokenizer.convert_tokens_to_ids(list(ORDINARY)))


def tiny_model(tokenizer: Any, seed: int) -> Any:
    """Return a Qwen2 of two layers in float32 on the CPU; the same seed gives the same weights."""
    import transformers

    model_class: Any = transformers.Qwen2ForCausalLM
    return made_model(model_class, _configuration(tokenizer, transformers.Qwen2Config), seed)


def tiny_scorer(seed: int) -> Any:
    """Return a Qwen2 of two layers that gives a sequence one score, in float32 on the CPU."""
    import transformers

    model_class: Any = transformers.Qwen2ForSequenceClassification
    config = _configuration(tiny_tokenizer(), transformers.Qwen2Config)
    config.num_labels = 1
    return made_model(model_class, config, seed)


def made_model(model_class: Any, config: Any, seed: int) -> Any:
    """Return a model with enlarged weights, in float32 on the CPU; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).float()
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.mul_(WEIGHT_SCALE)
    return model


def _configuration(tokenizer: Any, cls: Any) -> Any:
    return cls(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


class TinyCausalModel:
    """The model, the reference and the tokenizer of an adapter; see `contracts.Objective`."""

    pad_is_end = False
    padding_side = "left"

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, one for all adapters of a kind."""
        return _tokenizer(self.pad_is_end, self.padding_side)

    @property
    def ordinary_ids(self) -> tuple[int, ...]:
        return ordinary_ids(self.tokenizer)

    @property
    def eos_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    @property
    def bos_id(self) -> int | None:
        return None

    def objective_model(self) -> Any:
        return _model(self.pad_is_end, 0)

    def objective_reference(self) -> Any | None:
        return _model(self.pad_is_end, 1)

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=ids_S[None], use_cache=False).logits[0]
        return logits

    def decode(self, ids: Any) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


@lru_cache(maxsize=4)
def _tokenizer(pad_is_end: bool, padding_side: str) -> Any:
    return tiny_tokenizer(pad_is_end=pad_is_end, padding_side=padding_side)


@lru_cache(maxsize=4)
def _model(pad_is_end: bool, seed: int) -> Any:
    return tiny_model(tiny_tokenizer(pad_is_end=pad_is_end), seed)


def make_model(output: Path, seed: int) -> None:
    """Write a tiny model with a byte-level tokenizer, whose vocabulary is also in GPT-2's two files."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, seed).save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "vocab.json").write_text(json.dumps(tokenizer.get_vocab()), encoding="utf-8")
    (output / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


def main() -> None:
    """Write the model that the command line names."""
    parser = argparse.ArgumentParser(description="Make a tiny model with a byte-level tokenizer.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make_model(given.output, given.seed)


if __name__ == "__main__":
    main()
