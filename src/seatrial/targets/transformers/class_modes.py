"""What is recorded of a class in other modes: asked by its configuration, with noise, in half precision, with parts.

Part of `class_records`.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.class_configs import parts_of
from seatrial.targets.transformers.class_inputs import Inputs, takes
from seatrial.targets.transformers.class_outputs import called, number_of, tensors_of
from seatrial.targets.transformers.rich_configs import drop_values, even_noise
from seatrial.targets.transformers.rich_outputs import Precisions, learned

TABLES = ("input_embeddings", "output_embeddings", "encoder", "decoder")
"""Ends of the names of methods that return and replace a part."""


def noisy_config(config: Any) -> Any:
    """Return a copy of a configuration whose every part drops values, layers and experts in training."""
    found = copy.deepcopy(config)
    changed = False
    for part in parts_of(found).values():
        changed |= drop_values(part)
    if not changed:
        raise NotServed("nothing is dropped")
    return found


def _asked(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return all outputs, as the configuration requests."""
    other = copy.deepcopy(model)
    for part in parts_of(other.config).values():
        part.output_hidden_states = part.output_attentions = True
    return number_of(called(other, inputs))


def _as_tuples(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return outputs as a tuple, as the configuration requests, and as a mapping in spite of it."""
    other = copy.deepcopy(model)
    other.config.return_dict = False
    found = called(other, inputs)
    named = called(other, {**inputs, "return_dict": True}) if "return_dict" in takes(model.forward) else found
    return number_of({"tuple": found, type(named).__name__: named})


def _of_names(names: Sequence[str]) -> Sequence[float]:
    weighted = sum(zlib.crc32(name.encode()) % 997 for name in names)
    return [float(len(names)), weighted / 97, 1.0]


def _keys(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return sums over the names of what is saved, of buffers, and of what is tied or left out of files."""
    buffers = [f"{name} {value.dtype}" for name, value in model.named_buffers()]
    first: dict[int, str] = {}
    shared = [
        f"{name} is {first.setdefault(value.data_ptr(), name)}"
        for name, value in model.state_dict().items()
        if value.numel()
    ]
    return _of_names([*model.state_dict(), *buffers, *shared])


def _parts_given(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return sums over the names of parts that methods return, and of the places where given ones are put."""
    names = {id(module): name for name, module in model.named_modules()}
    found = []
    for end in TABLES:
        try:
            part = getattr(model, f"get_{end}")()
        except (AttributeError, NotImplementedError, TypeError):
            continue
        found.append(f"get_{end} {names.get(id(part), 'none')}")
        given = torch.nn.Embedding(7, 5, _weight=torch.zeros(7, 5))
        other = copy.deepcopy(model)
        try:
            getattr(other, f"set_{end}")(given)
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            continue
        places = [name for name, one in other.named_modules(remove_duplicate=False) if one is given]
        found.append(f"set_{end} {places}")
    other = copy.deepcopy(model)
    before = {name: len(module._forward_hooks) for name, module in other.named_modules()}
    for method in ("enable_input_require_grads", "disable_input_require_grads"):
        getattr(other, method)()
        # an earlier call that asked for hidden states leaves hooks of its own
        hooked = [name for name, module in other.named_modules() if len(module._forward_hooks) > before[name]]
        found.append(f"{method} {hooked}")
    return _of_names(found)


def _in_half(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return sums over the types in which functions of a model in half precision compute."""
    other = copy.deepcopy(model).to(torch.bfloat16)
    given = {
        name: value.to(torch.bfloat16) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    with Precisions() as seen:
        found = called(other, given)
    counts = seen.counts
    counts.update(f"{name} {value.dtype}" for name, value in tensors_of(found))
    weighted = sum((zlib.crc32(name.encode()) % 97 + 1) * num for name, num in counts.items())
    return [float(sum(counts.values())), weighted / 97, 1.0]


def _wider(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the outputs of pictures that are twice as wide, for which positions are interpolated."""
    pictures = inputs.get("pixel_values")
    if pictures is None or pictures.dim() != 4 or "interpolate_pos_encoding" not in takes(model.forward):
        raise NotServed("positions are not interpolated")
    wider = torch.cat([pictures, pictures.flip(-1)], -1)
    return number_of(called(model, {**inputs, "pixel_values": wider, "interpolate_pos_encoding": True}))


def _single(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the outputs of rows of one id each."""
    if set(inputs) - {"input_ids", "attention_mask", "decoder_input_ids"} or "input_ids" not in inputs:
        raise NotServed("text is its one input")
    return number_of(called(model, {name: value[..., :1] for name, value in inputs.items()}))


MODES: Mapping[str, Callable[[Any, Inputs], Sequence[float]]] = {
    "asked by configuration": _asked,
    "tuples by configuration": _as_tuples,
    "keys": _keys,
    "parts given": _parts_given,
    "half": _in_half,
    "wider pictures": _wider,
    "single ids": _single,
}
"""By what is recorded: how its numbers are made of a model and its inputs."""
NOISY_MODES = ("still", "noisy")
"""What is recorded of a model whose configuration drops values: outputs in evaluation, and gradients in training."""


def in_noise(model: Any, inputs: Inputs, what: str) -> Sequence[float]:
    """Return the numbers of a model that drops values.

    Raises:
        NotServed: it draws random numbers that are not replaced by known ones.
    """
    before = torch.get_rng_state()
    with even_noise():
        found = number_of(called(model, inputs)) if what == "still" else learned(model.train(), inputs)
    if what == "noisy" and not torch.equal(before, torch.get_rng_state()):
        raise NotServed("random numbers are drawn")
    return found
