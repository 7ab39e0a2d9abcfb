"""A teacher with another tokenizer than the student's, and one behind a client in place of a server."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder

CLIENTS = ("trl.generation.vllm_client:VLLMClient", "trl.extras.vllm_client:VLLMClient")
ADDRESS = "teacher_model_server_url"
"""Option of trainers whose teacher is a server."""

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
    folder = new_folder()
    paired_tokenizer().save_pretrained(folder)
    return folder


@contextmanager
def served_teacher(model: Any) -> Iterator[None]:
    """Let TRL's client of a server, which is in place of a teacher in this block, score with this model.

    As the client documents it: log-probabilities at the temperature of the tokens after a prompt, and of the likeliest
    tokens in their place, the likeliest first.
    """

    def score(
        client: Any,
        sequences: Sequence[Sequence[int]],
        prompt_lengths: Sequence[int],
        top_logprobs: int = 100,
        temperature: float = 1.0,
        **_: Any,
    ) -> dict[str, Any]:
        names = ("logprobs", "logprob_token_ids", "actual_logprobs", "actual_token_ids")
        found: dict[str, list[Any]] = {name: [] for name in names}
        for ids, length in zip(sequences, prompt_lengths, strict=True):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()
            logs = (logits[length - 1 : -1] / temperature).log_softmax(-1)
            own = torch.tensor(list(ids[length:]), dtype=torch.long)[:, None]
            likeliest = logs.topk(top_logprobs, -1)
            parts = (likeliest.values, likeliest.indices, logs.gather(-1, own), own)
            for name, value in zip(names, parts, strict=True):
                found[name].append(value.tolist())
        return found

    client_class = find_name("trl", CLIENTS)
    with (
        patch.object(client_class, "__init__", lambda client, *_, **__: None),
        patch.object(client_class, "get_sequence_logprobs", score),
    ):
        yield
