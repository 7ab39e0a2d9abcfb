"""What is recorded of the outputs, gradients and starts of a class of models; see `class_records`."""

from __future__ import annotations

import copy
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import Absent, NotServed
from seatrial.targets.transformers.class_inputs import ARGUMENTS, Inputs, takes
from seatrial.targets.transformers.family_caches import CACHES, given_cache
from seatrial.targets.transformers.family_records import of_gradients, projection
from seatrial.targets.transformers.small_models import END, PAD

FLOOR = 1e-3
"""Spread of an output below which its numbers are not enlarged."""
OF_START = 60.0
"""Scale of starting values: a spread may be off by a quarter, that of few numbers by more: see `start_of`."""
CONSTANT = 50.0
"""A parameter of zeros is its negative, one of another constant is that much more than the constant."""
OF_DRAWS = 5 * math.log2(math.e)
"""Over the root of how many numbers are drawn: five times how far apart two spreads of them are, in powers of 2."""


def tensors_of(found: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested outputs, those of caches too, with their places."""
    if isinstance(found, Tensor):
        yield name, found
    elif isinstance(found, Mapping):
        for key, one in found.items():
            yield from tensors_of(one, f"{name}.{key}")
    elif isinstance(found, (list, tuple)):
        for place, one in enumerate(found):
            yield from tensors_of(one, f"{name}.{place}")
    elif any(part in type(found).__name__ for part in ("Cache", "Layer", "Output")) and hasattr(
        found, "__dict__"
    ):
        for key, one in sorted(vars(found).items()):
            if not key.startswith("_"):
                yield from tensors_of(one, f"{name}.{key}")


def number_of(found: Any) -> list[float]:
    """Return a projection of nested outputs in which each weighs about the same, the mean of their sizes, and 1.

    Raises:
        NotServed: they have no numbers.
    """
    total, sizes, num = 0.0, 0.0, 0
    for name, tensor in tensors_of(found):
        if not tensor.numel():
            continue
        value = tensor.detach().double()
        if value.is_complex():
            continue
        finite = torch.isfinite(value)
        value = torch.where(finite, value, torch.zeros_like(value))
        size = float(value.square().mean().sqrt())
        weight = 1.0 + math.cos(zlib.crc32(name.encode())) / 2
        total += weight * projection(value) / max(size, FLOOR)
        sizes += weight * math.log(max(size, FLOOR)) + float((~finite).double().mean())
        num += 1
    if not num:
        raise NotServed("no numbers")
    return [total / math.sqrt(num), sizes / math.sqrt(num), 1.0]


def start_of(model: Any, due: Sequence[float] = ()) -> Sequence[float]:
    """Return how widely a fresh model draws its parameters, those of all layers as one, in the order of their names.

    A spread that differs from the due one by at most what other random numbers make of it is the due one.
    """
    values: dict[str, list[Tensor]] = {}
    for own, value in model.named_parameters():
        values.setdefault(re.sub(r"\.\d+(?=\.|$)", ".*", own), []).append(value.detach().double().flatten())
    joined = {own: torch.cat(parts) for own, parts in sorted(values.items())}
    drawn = [one for one in joined.values() if one.numel()]
    found = [*map(_spread, drawn), OF_START]
    if len(due) != len(found):
        return found
    bounds = [OF_DRAWS / len(one) ** 0.5 for one in drawn] + [0.0]
    near = [_are_near(*given) for given in zip(found, due, bounds, strict=True)]
    return [right if is_near else one for one, right, is_near in zip(found, due, near, strict=True)]


def _are_near(one: float, right: float, bound: float) -> bool:
    """Return whether two numbers of `_spread` are spreads, and not constants, that are near each other."""
    return max(abs(one), abs(right)) < CONSTANT and abs(one - right) <= bound


def _spread(value: Tensor) -> float:
    """Return a number that says which constant a parameter is, or how widely it is drawn."""
    spread = float(value.std(correction=0))
    if spread < 1e-12:
        return -CONSTANT if not float(value[0]) else CONSTANT + float(value[0])
    return math.log2(spread) if value.numel() >= 64 else 0.0


def called(model: Any, inputs: Mapping[str, Any], seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        return model(**{name: _copied(value) for name, value in inputs.items()})


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def step(model: Any, inputs: Inputs, what: str) -> Sequence[float]:
    """Return the projections of a loss and its gradients; of a class without labels, of the squares of its outputs."""
    if any("BatchNorm" in type(module).__name__ for module in model.modules()):
        model = copy.deepcopy(model)
    checkpointed = what == "checkpointed"
    if checkpointed:
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise NotServed("activations are not computed again")
        model.gradient_checkpointing_enable()
    try:
        return _gradients(model.train(what != "loss"), inputs)
    finally:
        if checkpointed:
            model.gradient_checkpointing_disable()
        model.eval().zero_grad()


def _gradients(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the projections of a loss and its gradients.

    Raises:
        NotServed: the loss depends on random numbers.
    """
    losses = []
    for seed in (0, 1):
        model.zero_grad()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.default_generator.manual_seed(seed)
            found = model(**{name: _copied(value) for name, value in inputs.items()})
            loss = getattr(found, "loss", None)
            if loss is None:
                given = [one for _, one in tensors_of(found) if one.requires_grad]
                loss = torch.stack([one.square().mean() for one in given]).sum()
        torch.autograd.backward(loss.mean())
        losses.append(float(loss.detach().mean()))
    if abs(losses[0] - losses[1]) > 1e-6 * max(1.0, abs(losses[0])):
        raise NotServed("random numbers are drawn")
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return of_gradients(losses[-1], gradients)


def of_text(model: Any, inputs: Inputs) -> Sequence[float]:
    if set(inputs) <= {"input_ids", "attention_mask", "decoder_input_ids"} or "input_ids" not in inputs:
        raise NotServed("text is its one input")
    return number_of(
        called(model, {"input_ids": torch.tensor([[5, 40, 22, 17, 31, 6, 9], [4, 7, 9, 11, 30, 8, 3]])})
    )


def of_method(model: Any, method: str, inputs: Inputs) -> Sequence[float]:
    function = getattr(model, method, None)
    if function is None:
        raise Absent(f"no {method}")
    names = takes(function)
    with torch.no_grad():
        return number_of(function(**{name: value for name, value in inputs.items() if name in names}))


def generated(model: Any, inputs: Inputs, *, num_beams: int) -> Sequence[float]:
    if not getattr(model, "can_generate", lambda: False)():
        raise NotServed("it does not generate")
    given = {name: _copied(value) for name, value in inputs.items() if name != "decoder_input_ids"}
    if "input_ids" in given and "attention_mask" not in given and given["input_ids"].dim() == 2:
        given = ARGUMENTS["padded left"][1](model, given)
    with torch.no_grad():
        found = model.generate(
            **given, do_sample=False, num_beams=num_beams, max_new_tokens=4, min_new_tokens=4, output_logits=True,
            return_dict_in_generate=True, pad_token_id=PAD, eos_token_id=END,
        )  # fmt: skip
    return number_of({"logits": found.logits, "sequences": found.sequences})


def in_two_passes(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the outputs of a second pass, which continues from the cache of a first one of rows padded on the left."""
    if set(inputs) - {"input_ids", "attention_mask"}:
        raise NotServed("other inputs than ids")
    given = ARGUMENTS["padded left"][1](model, inputs)
    ids, mask = given["input_ids"], given["attention_mask"]
    with torch.no_grad():
        before = model(input_ids=ids[:, :5], attention_mask=mask[:, :5], use_cache=True)
        name = next((name for name in CACHES if name in takes(model.forward)), None)
        if name is None:
            raise NotServed("no cache is taken")
        rest = {name: given_cache(before)}
        found = model(input_ids=ids[:, 5:], attention_mask=mask, use_cache=True, **rest)
    return number_of(found[0])
