"""How refrl encodes text, with its own byte-level tokenizer or any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from refrl.config.loading import ConfigError
from refrl.models.byte_tokenizer import BOS, EOS, MODEL_INPUT_NAMES, PAD, byte_tokenizer


def make_byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return the byte-level tokenizer of `refrl.models.byte_tokenizer` as transformers has it."""
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
    """Return the ids of texts that follow a prompt, without special tokens; of no text there are none."""
    if not texts:
        return []
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
    from huggingface_hub.errors import StrictDataclassError
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
    _check_tokenizer_file(directory / "tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except StrictDataclassError as error:
        raise ConfigError(
            f"{directory}/config.json is not valid: {' '.join(str(error).split())}; copy the model's config.json there"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ConfigError(
            f"the tokenizer in {directory} cannot be read: {' '.join(str(error).split())}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {directory} names no eos_token; set it in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_tokenizer_file(path: Path) -> None:
    """Raise if there is a `tokenizer.json` without a tokenizer, such as `{}` or an empty file.

    Raises:
        ConfigError: names the file and what is missing from it.
    """
    if not path.exists():
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}; copy the model's tokenizer files there"
        ) from error
    missing = [
        key for key in ("model", "added_tokens") if not isinstance(content, dict) or key not in content
    ]
    if missing:
        raise ConfigError(
            f"{path} holds no tokenizer (no {' and no '.join(map(repr, missing))}); copy the model's tokenizer files "
            "there"
        )
