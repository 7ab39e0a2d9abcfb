"""How refrl encodes text, with its own byte-level tokenizer or any other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from refrl.config.loading import ConfigError

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


def make_byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return the byte-level tokenizer of `refrl.models.tokenization` as transformers has it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(),
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        model_input_names=MODEL_INPUT_NAMES,
    )


def encode_prompts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the ids of prompts, with what the tokenizer puts around a text (such as a first token).

    Text that spells a special token stays text: a prompt cannot end itself.
    """
    return [tuple(ids) for ids in tokenizer(list(texts), split_special_tokens=True)["input_ids"]]


def encode_answers(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the ids of texts that follow a prompt, without special tokens."""
    encoded = tokenizer(list(texts), split_special_tokens=True, add_special_tokens=False)
    return [tuple(ids) for ids in encoded["input_ids"]]


def decode_completions(tokenizer: PreTrainedTokenizerBase, completions: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of completions without their special tokens."""
    return tokenizer.batch_decode([list(ids) for ids in completions], skip_special_tokens=True)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory; nothing is downloaded. A missing padding token becomes the end token.

    Raises:
        ConfigError: the directory or its tokenizer is missing or unreadable, or it has no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    if not directory.is_dir():
        raise ConfigError(
            f"tokenizer directory {directory} does not exist; give a Hugging Face directory, or make one: "
            f"python -m refrl make-model --output {directory}"
        )
    if not any(
        (directory / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    ):
        raise ConfigError(
            f"{directory} holds no tokenizer (tokenizer.json); copy the model's tokenizer files there or set "
            "policy.tokenizer.name to the directory that has them"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"the tokenizer in {directory} cannot be read: {' '.join(str(error).split())}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {directory} names no eos_token; set it in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
