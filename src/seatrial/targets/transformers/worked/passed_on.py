"""Arguments that a model with a head passes on to the model under it: each arrives there unchanged.

A law over every class of every module: a call with one argument, in which the model under the head only keeps what
it is given. The same holds for methods of both that return the features of pictures, films and sounds.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers import class_records
from seatrial.targets.transformers.any_models import LARGEST
from seatrial.targets.transformers.small_models import fresh_model

SWITCHES = (
    "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "interpolate_pos_encoding",
    "return_loss",
)  # fmt: skip
"""Arguments that are on or off: both are tried."""
REAL = ("pixel", "embeds", "states", "features", "values")
"""Parts of the names of arguments that are real numbers."""
LEFT_OUT = ("self", "return_dict", "labels", "rope_deltas")
"""Parameters that a head answers itself, and one that is an output in the documentation."""
KEPT: Mapping[str, str] = {
    "ColPaliForRetrieval": "input_ids",
    "ColQwen2ForRetrieval": "input_ids",
    "Data2VecVisionForSemanticSegmentation": "output_hidden_states",
    "FlavaForPreTraining": "bool_masked_pos",
    "MobileNetV2ForSemanticSegmentation": "output_hidden_states",
    "MobileViTForSemanticSegmentation": "output_hidden_states",
    "MobileViTV2ForSemanticSegmentation": "output_hidden_states",
    "RwkvForCausalLM": "attention_mask",
}
"""By class: what its head replaces by its own, as its documentation says, or RWKV does not read."""
OLDER: Mapping[str, Sequence[str]] = {
    "DeepseekVLForConditionalGeneration": ("logits_to_keep",),
    "DeepseekVLHybridForConditionalGeneration": ("logits_to_keep",),
    "Emu3ForConditionalGeneration": ("pixel_values", "image_sizes"),
    "JanusForConditionalGeneration": ("logits_to_keep",),
    "JetMoeForCausalLM": ("output_router_logits",),
    "Ovis2ForConditionalGeneration": ("logits_to_keep",),
    "Qwen2_5OmniThinkerForConditionalGeneration": ("input_ids",),
    "RecurrentGemmaForCausalLM": ("output_hidden_states",),
}
"""The same in releases before 5, where a part has parameters that it does not read, and heads lose some."""


class _ReachedError(Exception):
    """The model under the head was called."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__("reached")
        self.given = given


def _keeper(function: Any) -> Callable[..., Any]:
    """Return a function that raises what it is given, by the names of another's parameters."""
    signature = inspect.signature(function)

    def keep(*args: Any, **words: Any) -> Any:
        bound = signature.bind_partial(*args, **words).arguments
        raise _ReachedError({**bound, **bound.get("kwargs", {})})

    return keep


def _is(found: Any, value: Any) -> bool:
    """Return whether a switch is the given one, or a tensor has the given numbers, in any shape and precision."""
    if not isinstance(value, Tensor):
        return found is value
    return isinstance(found, Tensor) and torch.equal(found.flatten().double(), value.flatten().double())


def _value(name: str) -> Tensor:
    """Return a tensor by the name of an argument."""
    numbers = torch.arange(1, 5)[None] + zlib.crc32(name.encode()) % 8
    return numbers.double() if any(part in name for part in REAL) else numbers


def _reaches(outer: Any, inner: Any, method: str, name: str, value: Any) -> bool | None:
    """Return whether the inner method is given the value; None: the outer one does something else first."""
    function = getattr(inner, method)
    with patch.object(inner, method, _keeper(function)), torch.no_grad():
        try:
            getattr(outer, method)(**{name: value})
        except _ReachedError as reached:
            return _is(reached.given.get(name), value)
        except Exception:  # noqa: BLE001  the head looks at other arguments first
            return None
    return None


def _shared(outer: Any, inner: Any) -> Iterator[tuple[str, str]]:
    """Yield methods of both models and the parameters that both name."""
    methods = [name for name in dir(type(outer)) if name.startswith("get_") and name.endswith("_features")]
    for method in ("forward", *methods):
        if not callable(getattr(inner, method, None)):
            continue
        known = inspect.signature(getattr(inner, method)).parameters
        for name, given in inspect.signature(getattr(outer, method)).parameters.items():
            if name in known and name not in LEFT_OUT and given.kind is not given.VAR_KEYWORD:
                yield method, name


def lost(model: Any) -> list[str]:
    """Return the arguments that a model does not pass on."""
    kind = type(model).__name__
    inner = getattr(model, model.base_model_prefix or "model", None)
    if not isinstance(inner, torch.nn.Module) or inner is model:
        inner = getattr(model, "model", None)
    if not isinstance(inner, torch.nn.Module) or type(inner).forward is torch.nn.Module.forward:
        return []
    found = []
    for method, name in _shared(model, inner):
        values: Sequence[Any] = [True, False] if name in SWITCHES else [_value(name)]
        given = {_reaches(model, inner, method, name, value) for value in values}
        older = OLDER.get(kind, ()) if Version(release("transformers")) < Version("5") else ()
        if False in given and name not in (KEPT.get(kind), *older):
            found.append(f"{kind}.{method} {name}")
    return found


def _of_module(kind: str, function: Any) -> list[str]:
    """Return the arguments that classes of a module do not pass on."""
    try:
        stack = class_records._adapter(kind)()
    except Gone as gone:
        raise NotServed(str(gone)) from gone
    wrong, num = [], 0
    for name, one in stack._classes.items():
        try:
            model = fresh_model(one, stack._config(name), LARGEST).eval()
        except Exception:  # noqa: BLE001  no small model of the class is made
            continue
        num += 1
        wrong += lost(model)
    if not num:
        raise NotServed("no small model is made")
    return wrong


# Source: the documentation of the classes, in which an argument of a head is that of the model under it.
PASSED_ROWS: Sequence[Row] = tuple(
    Row(
        "models",
        "transformers:PreTrainedModel",
        f"arguments passed on in {kind}",
        partial(_of_module, kind),
        [],
    )
    for kind in sorted(class_records.record())
)


class PassedOn(Worked):
    """Arguments that heads pass on; see `contracts.worked`."""

    package = "transformers"
    worked_rows = PASSED_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-passed-on": PassedOn}
