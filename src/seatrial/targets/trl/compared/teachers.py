"""A teacher's tokenizer that is another than the student's."""

from __future__ import annotations

import string
import tempfile
from functools import lru_cache
from typing import Any

from seatrial.targets.common.trainers import temporary_folder

PAD, END = "<pad>", "</s>"
PAIRED = string.ascii_lowercase + string.digits
"""Letters of which two in a row are one token."""


@lru_cache(maxsize=1)
def paired_tokenizer() -> Any:
    """Return a byte-level tokenizer that knows no template, with another end, ids in another order and pairs."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pairs = [(one, other) for one in PAIRED for other in PAIRED]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    names = [*letters, *(one + other for one, other in pairs), PAD, END]
    core = Tokenizer(models.BPE(vocab={name: place for place, name in enumerate(names)}, merges=pairs))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer_class: Any = transformers.PreTrainedTokenizerFast
    return tokenizer_class(tokenizer_object=core, pad_token=PAD, eos_token=END)


@lru_cache(maxsize=1)
def paired_folder() -> str:
    """Return the folder of `paired_tokenizer`."""
    folder = tempfile.mkdtemp(dir=temporary_folder())
    paired_tokenizer().save_pretrained(folder)
    return folder
