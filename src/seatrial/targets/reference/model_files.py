"""What the files of a model say of it, read without the stack."""

from __future__ import annotations

import json
from pathlib import Path


def vocabulary_size(model: Path) -> int | None:
    """Return how many ids a model knows; None where its configuration does not say."""
    try:
        config = json.loads((model / "config.json").read_text())
        size = config.get("text_config", config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def model_type(model: Path) -> str:
    """Return the name of its kind in transformers; nothing where its configuration does not say."""
    try:
        return str(json.loads((model / "config.json").read_text()).get("model_type"))
    except (OSError, ValueError, AttributeError):
        return ""


def is_byte_level(tokenizer: Path) -> bool:
    """Whether the tokenizer has one token per byte and no merges."""
    try:
        model = json.loads((tokenizer / "tokenizer.json").read_text())["model"]
        return sorted(model["vocab"].values()) == list(range(256)) and not model["merges"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
