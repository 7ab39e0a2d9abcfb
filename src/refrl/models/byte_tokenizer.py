"""A byte-level tokenizer made locally: ids 0-255 are the bytes, three special tokens stand above them.

Without torch and transformers, whose import takes seconds: making a model needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
SPECIAL_TOKEN_IDS = {PAD: 256, BOS: 257, EOS: 258}
VOCAB_SIZE = 256 + len(SPECIAL_TOKEN_IDS)
MODEL_INPUT_NAMES = ["input_ids", "attention_mask"]


def byte_alphabet() -> list[str]:
    """Return the character of each byte in the byte-level alphabet of GPT-2.

    Printable bytes stand for themselves; the others take code points from 256 up, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    rest = (chr(256 + number) for number in range(256))
    return [chr(byte) if byte in printable else next(rest) for byte in range(256)]


def byte_tokenizer(further: Sequence[str] = ()) -> Tokenizer:
    """Return the tokenizer with one token per byte; it puts `<|bos|>` before a text.

    Args:
        further: special tokens in addition to its own, with ids above them.
    """
    vocabulary = {character: byte for byte, character in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (*SPECIAL_TOKEN_IDS, *further)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, SPECIAL_TOKEN_IDS[BOS])]
    )
    return tokenizer


def tokenizer_config() -> dict[str, object]:
    """Return what tokenizer_config.json says of it: the roles of the special tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": MODEL_INPUT_NAMES,
    }
