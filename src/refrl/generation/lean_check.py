"""Compares the lean decoder with the model's own forward before it is used.

The traits of an architecture say how its forward computes. A checkpoint's configuration may switch on what they do not
cover, and a later version of Transformers may change a forward: both show in the logits of a few made tokens.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from refrl.generation.decoder import pad_prompts
from refrl.generation.lean_decoder import LeanDecoder
from refrl.generation.lean_traits import traits_of

PROMPT_LENS = (12, 5)
NUM_STEPS = 3
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Largest root-mean-square distance of the logits, relative to their spread, that rounding explains."""


def difference(model: PreTrainedModel) -> str | None:
    """Return how the lean decoder's logits differ from the model's own; None if they agree, or need no check.

    Args:
        model: one that `lean_support.supports_lean`, in the mode for evaluation.

    Raises:
        FloatingPointError: the model's own logits are not finite, so that nothing can be compared.
    """
    traits = traits_of(model)
    if traits is None or not traits.is_checked:
        return None
    vocab_size: int = model.config.vocab_size
    num_tokens = sum(PROMPT_LENS) + NUM_STEPS * len(PROMPT_LENS)
    # Numbers that spread over the vocabulary, and repeat at other places only by accident.
    made = [(number * 7919 + 13) % vocab_size for number in range(num_tokens)]
    rows = [made[: PROMPT_LENS[0] + NUM_STEPS], made[PROMPT_LENS[0] + NUM_STEPS :]]
    with torch.no_grad():
        own_TBV = torch.stack([_own_logits(model, row) for row in rows], dim=1)
        lean_TBV = _lean_logits(model, rows)
    if not bool(torch.isfinite(own_TBV).all()):
        raise FloatingPointError("the model's logits are not finite: look for NaN in the weights")
    distance = float((lean_TBV - own_TBV).square().mean().sqrt() / own_TBV.std().clamp_min(1e-30))
    # `not <=`, as NaN agrees with nothing.
    if not distance <= TOLERANCES[model.dtype]:
        return f"its logits differ from the model's own by {distance:.2g} of their spread"
    return None


def _own_logits(model: PreTrainedModel, row: list[int]) -> torch.Tensor:
    """Return the logits after the prompt and after each step, from one forward without a cache."""
    ids = torch.tensor([row], device=model.device)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits[0, -NUM_STEPS - 1 :].float()


def _lean_logits(model: PreTrainedModel, rows: list[list[int]]) -> torch.Tensor:
    """Return the same logits from the lean decoder: a padded prompt, and steps with a cache."""
    decoder = LeanDecoder(model, NUM_STEPS)
    prompts = pad_prompts([row[:-NUM_STEPS] for row in rows], 0, model.device)
    logits = [decoder.prefill(prompts)]
    for step in range(NUM_STEPS):
        logits.append(
            decoder.step(torch.tensor([row[step - NUM_STEPS] for row in rows], device=model.device))
        )
    return torch.stack(logits).float()
