"""Worked examples of `generate` while a model trains: computing activations again changes no token, with any cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.family_options import draw_by_names
from seatrial.targets.transformers.small_models import PAD, fresh_model, media, model_class
from seatrial.targets.transformers.worked.every_class import classes, configuration

LARGEST, NUM_NEW, CLOSE = 6_000_000, 5, 1e-3
IDS = ((5, 16, 7, 28, 9, 11, 30, 4), (15, 33, 8, 21, 40, 6, 17, 3))
CACHES = ("dynamic", "dynamic_full", "static", "sliding_window", "hybrid", "offloaded")


def _made(kind: str) -> Any:
    """Return a small model of a kind that generates, without dropout, in training mode.

    Raises:
        NotServed: no small one is made.
    """
    names = [name for name in classes().get(kind, ()) if name.endswith(("ForCausalLM", "LMHeadModel", "Generation"))]
    if not names:
        raise NotServed(f"no {kind} generates")
    try:
        model = fresh_model(model_class(names[0]), configuration(kind), LARGEST)
    except NotServed:
        raise
    except Exception as error:  # refused when it is made, before anything is computed
        raise NotServed(error_line(error)) from error
    draw_by_names(model)
    if not model.can_generate() or not getattr(model, "supports_gradient_checkpointing", False):
        raise NotServed("it does not generate, or does not compute activations again")
    for name in ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        setattr(model.generation_config, name, None)
    model.generation_config.num_beams = 1
    return model.train()


def _generated(model: Any, kind: str, **options: Any) -> Tensor:
    """Return [NUM_NEW, B, V] logits."""
    ids = torch.tensor(IDS)
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), **media(kind, len(IDS)), max_new_tokens=NUM_NEW,
        min_new_tokens=NUM_NEW, do_sample=False, disable_compile=True, eos_token_id=[10_000], pad_token_id=PAD,
        return_dict_in_generate=True, output_logits=True, **options,
    )  # fmt: skip
    return torch.stack(found.logits)


def _called(model: Any, kind: str, grad: bool) -> Tensor:
    """Return the logits of one call."""
    ids = torch.tensor(IDS)
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.set_grad_enabled(grad):
        found: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), **media(kind, len(IDS)), **more).logits
    return found.detach()


def _far(found: Tensor, due: Tensor) -> bool:
    return found.shape != due.shape or not bool((found - due).abs().max() <= CLOSE)


def _trains(kind: str, mixin: Any) -> list[str]:
    """Return where logits change when activations are computed again: of each cache, of none, of calls."""
    model, due = _made(kind), {}
    ways = {"no cache": {"use_cache": False}, "a cache": {"use_cache": True}} | {
        f"a cache {name}": {"use_cache": True, "cache_implementation": name} for name in CACHES
    }
    for name, options in ways.items():
        try:
            due[name] = _generated(model, kind, **options)
        except Exception:  # noqa: BLE001  not by this model, or not without pictures
            continue
    if not due:
        raise NotServed("it does not generate from ids alone")
    calls = {name: _called(model, kind, name == "gradients") for name in ("gradients", "no gradients")}
    model.gradient_checkpointing_enable()
    wrong = [name for name, right in due.items() if _far(_generated(model, kind, **ways[name]), right)]
    wrong += [
        f"a call with {name}" for name, right in calls.items() if _far(_called(model, kind, name == "gradients"), right)
    ]
    return wrong


KINDS: Sequence[str] = ("bart",)
# Sources: the documentation of gradient_checkpointing_enable, and of GenerationConfig: neither changes a result.
CHECKPOINTED_ROWS: Sequence[Row] = tuple(
    Row(
        "inputs",
        "transformers:GenerationMixin",
        f"activations of {kind} that are computed again",
        partial(_trains, kind),
        [],
        since="5.24",
    )
    for kind in KINDS
)
