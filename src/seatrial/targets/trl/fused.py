"""Liger's losses without its Triton kernels, which need a GPU: plain torch computes what the kernel is given.

Its losses of preferences and rollouts are torch's already. That of supervised training is a kernel, which the forward
of the patched model calls: a caller's labels, mask, divisor and scaling of tokens reach it through that forward alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line, innermost, is_stated
from seatrial.targets.common.target import Gone, release
from seatrial.targets.trl.named import sources
from seatrial.targets.trl.setup import Setup

REFUSED = "fused_linear_cross_entropy"
"""A kernel that trainers with a fused head of their own refuse, in whose code it is named."""
_OF_IDS = re.compile(r"if args\.use_liger_kernel:\n(?:.*\n)?.*dataset\.select_columns")
"""Code that leaves rows without what trainers that extend this one read."""
_OPTION = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


def with_liger(setup: Setup, trainer_class: type, defaults: Mapping[str, Any]) -> Setup:
    """Return a setup with Liger's loss as the installed release takes it.

    Raises:
        Gone: the trainer does not name it, or the package is not installed.
    """
    own = sources([one for one in trainer_class.__mro__ if one.__module__.startswith("trl")][:1])
    if not any("liger" in source for source in own):
        raise Gone(f"{setup.trainer}Trainer of trl {release('trl')} has no loss of Liger")
    if find_spec("liger_kernel") is None:
        raise Gone("liger-kernel is not installed here")
    if (reason := _misfit()) is not None:
        raise Gone(f"liger-kernel {release('liger-kernel')} does not fit: {reason}")
    if not _names_liger(trainer_class) and any(_OF_IDS.search(source) for source in own):
        raise Gone(f"{setup.trainer}Trainer of trl {release('trl')} keeps the ids of rows alone for Liger")
    options = dict(setup.options)
    if setup.trainer != "SFT" and defaults.get("use_liger_loss", True) is False:
        options["use_liger_loss"] = True
    is_kernel = setup.trainer == "SFT" and not any(REFUSED in source for source in own)
    options["liger_kernel_config"] = {**options["liger_kernel_config"], REFUSED: is_kernel}
    return replace(setup, options=options)


def _misfit() -> str | None:
    """Return why the installed Liger does not run with the other packages; None where it does."""
    try:
        import_module("liger_kernel.transformers.monkey_patch")
        utils = import_module("trl.import_utils")
    except ImportError as error:
        return error_line(error)[:200]
    is_taken = getattr(utils, "is_liger_kernel_available", lambda: True)
    return None if is_taken() else f"trl {release('trl')} takes another one"


def _names_liger(trainer_class: type) -> bool:
    return "liger" in inspect.getsource(import_module(trainer_class.__module__))


@contextmanager
def plain_liger(is_fused: bool) -> Iterator[None]:
    """Replace the kernel of Liger's cross-entropy."""
    if not is_fused:
        yield
        return
    import liger_kernel.transformers.functional as functional

    # Liger compiles its losses, which takes minutes on a CPU and changes no number.
    with (
        patch.object(functional, "liger_fused_linear_cross_entropy", _cross_entropy),
        torch.compiler.set_stance("force_eager"),
    ):
        yield


@contextmanager
def refusals(setup: Setup) -> Iterator[None]:
    """Let a combination that the trainer or Liger refuses be one that is not served.

    Raises:
        NotServed: the error names Liger or an adapter of the head, or is raised within Liger; or it names two options
            or arguments, and is stated where the trainer is made.
    """
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:
        words = [*(["liger"] if setup.fused else []), *(["lm_head"] if setup.head == "adapted" else [])]
        raised = innermost(error)
        assert raised is not None
        within = setup.fused and "liger_kernel" in inspect.getfile(raised.tb_frame)
        stated = raised.tb_frame.f_code.co_name in ("__init__", "__post_init__") and is_stated(error)
        combined = stated and len(set(_OPTION.findall(str(error)))) > 1
        if not within and not combined and not any(word in str(error).lower() for word in words):
            raise
        raise NotServed(error_line(error)[:200]) from error


def _cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: Any = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Any:
    """Return the mean or sum of the cross-entropy of a head's logits, as Liger documents it.

    Args:
        input: hidden states, [N, D].
        weight: of the head, [V, D].
        target: ids, [N]; `ignore_index` for those that do not count.
        bias: of the head, [V].
        ce_weight: weights of ids, [V].
        ignore_index: see `target`.
        lse_square_scale: weight of the squared logarithm of the sum; 0 here.
        label_smoothing: see `torch.nn.functional.cross_entropy`.
        reduction: `mean` or `sum`.
        softcap: bound of the logits.
        return_z_loss: not served.
        accum_dtype: of the kernel's sums.
        use_token_scaling: whether each token's loss is multiplied by its probability, which gets no gradient.
        return_token_accuracy: whether the share of right predictions is returned too.
        return_predicted_tokens: whether the likeliest ids are returned too.
    """
    logits = torch.nn.functional.linear(input, weight, bias).float()
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    losses = torch.nn.functional.cross_entropy(
        logits,
        target,
        ce_weight,
        ignore_index=ignore_index,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    counted = target != ignore_index
    if use_token_scaling:
        losses = losses * torch.exp(-losses.detach())
    loss = losses.sum() if reduction == "sum" else losses.sum() / counted.sum()
    if not return_token_accuracy and not return_predicted_tokens:
        return loss
    import liger_kernel.transformers.functional as functional

    guessed = logits.argmax(-1)
    accuracy = ((guessed == target) & counted).sum() / counted.sum().clamp(min=1)
    more = {"predicted_tokens": guessed} if return_predicted_tokens else {}
    return functional.CrossEntropyOutput(loss=loss, token_accuracy=accuracy, **more)
