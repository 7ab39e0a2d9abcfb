"""Tiny tokenizers and models for Transformers' pipelines: words in pieces, letters, and weights by names alone."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from seatrial.targets.common.tiny import CHAT_TEMPLATE
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.small_models import model_class as of_name

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORDS = (
    "hello", "world", "my", "name", "is", "sar", "##ah", "and", "live", "in", "lon", "##don", "the", "cat", "sat",
    "on", "mat", "this", "example", "about", "sports", "politics", "where", "does", "she", "he", "works", "for",
    "new", "york",
)  # fmt: skip
SIZES: Mapping[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip
ASKED: Mapping[str, Any] = {"device": -1}
"""Options of every pipeline."""


def tokens() -> dict[str, int]:
    """Return the vocabulary of words and their pieces; any lower-case word is in it by its letters."""
    letters = string.ascii_lowercase + string.digits
    parts = [*SPECIALS.values(), *WORDS, *letters, *(f"##{one}" for one in letters), *".,?!'-:;()"]
    return {token: place for place, token in enumerate(dict.fromkeys(parts))}


def words(**options: Any) -> Any:
    """Return a fast tokenizer of word pieces as BERT's, with a class and a separator."""
    vocabulary = tokens()
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=50))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    core.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(one, vocabulary[one]) for one in ("[CLS]", "[SEP]")],
    )
    return of_name("PreTrainedTokenizerFast")(
        tokenizer_object=core,
        model_max_length=48,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{**{f"{name}_token": token for name, token in SPECIALS.items()}, **options},
    )


def drawn(kind: str, **options: Any) -> Any:
    """Return a model whose weights depend on their names alone."""
    config: Any = of_name(f"{kind.partition('For')[0].removesuffix('Model')}Config")
    return of_config(kind, config(**options))


def of_config(kind: str, config: Any) -> Any:
    """Return a model of a configuration whose weights depend on their names alone."""
    model = of_name(kind)._from_config(config, attn_implementation="eager").float()
    draw_by_names_alone(model)
    return model.eval()


def encoder(kind: str, **options: Any) -> Any:
    """Return a tiny BERT with a head."""
    return drawn(f"BertFor{kind}", **{**SIZES, "vocab_size": len(tokens()), **options})


PAD, END, START, TURN = "<pad>", "<eos>", "<|im_start|>", "<|im_end|>"


def letters(**options: Any) -> Any:
    """Return a fast tokenizer of bytes with a template of chats; it ends and pads rows with tokens of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate((PAD, END, START, TURN, *alphabet))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = of_name("PreTrainedTokenizerFast")(
        tokenizer_object=core,
        model_input_names=["input_ids", "attention_mask"],
        **{
            "pad_token": PAD, "eos_token": END, "additional_special_tokens": [START, TURN],
            "model_max_length": 60, **options,
        },
    )  # fmt: skip
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def decoder() -> Any:
    """Return a tiny Qwen2 that writes bytes."""
    model = drawn(
        "Qwen2ForCausalLM", **SIZES, vocab_size=260, num_key_value_heads=1, pad_token_id=0, eos_token_id=1,
        bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.no_grad():  # letters rather than parts of signs
        model.lm_head.weight[[*range(4, 36), *range(99, 260)]] *= 0.05
        model.lm_head.weight[:4] *= 0.05
    return model


def written_text(value: Any) -> Any:
    """Return an answer of a pipeline: pictures by their sizes, and everything else as it is."""
    if hasattr(value, "getpixel"):
        return [*value.size, value.mode]
    if isinstance(value, Mapping):
        return {str(name): written_text(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [written_text(one) for one in value]
    return float(value) if type(value).__name__ in ("float32", "float64") else value
