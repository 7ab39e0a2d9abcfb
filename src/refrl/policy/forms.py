"""Rejects what a form of scoring cannot do, by name."""

from __future__ import annotations

from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError


def check_text(option: str, batch: Batch) -> None:
    """Refuse images and sounds in a form of scoring that does not give them to the model.

    Raises:
        ConfigError: the batch has some.
    """
    if batch.media_BX is not None:
        raise ConfigError(f"{option} is not built for prompts with images or sounds: leave it out")


def check_head(model: PreTrainedModel) -> None:
    """Reject a head that is more than a matrix, by name: a probe of small weights would not detect it.

    Raises:
        ConfigError: names what the head does.
    """
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    head = model.get_output_embeddings()
    if cap is not None:
        what = f"caps its logits softly after the head (final_logit_softcapping={cap:g})"
    elif getattr(head, "bias", None) is not None:
        what = "has a head with a bias"
    else:
        return
    raise ConfigError(
        f"policy.logprob_chunk_size: {type(model).__name__} {what}, which scoring in chunks leaves out; unset the "
        "option"
    )
