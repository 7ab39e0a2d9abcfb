"""Folders of the compared trainers' model and tokenizer."""

from __future__ import annotations

from functools import lru_cache

import torch

from seatrial.targets.common.tiny import tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.zoo import zoo_model
from seatrial.targets.trl.processes import is_one_of_several, shared_folder


@lru_cache(maxsize=8)
def model_folder(scores: bool, trait: str = "") -> str:
    """Return the folder of the first model with its tokenizer."""
    folder, tokenizer = shared_folder(), tiny_tokenizer()
    model = zoo_model(trait, tokenizer, 0) if trait else tiny_model(tokenizer, 0)
    (tiny_scorer(0) if scores else model).save_pretrained(folder)  # the first process alone writes
    tokenizer.save_pretrained(folder)
    if is_one_of_several():
        torch.distributed.barrier()
    return folder


@lru_cache(maxsize=1)
def tokenizer_folder() -> str:
    """Return a folder with the tokenizer alone."""
    folder = new_folder()
    tiny_tokenizer().save_pretrained(folder)
    return folder
