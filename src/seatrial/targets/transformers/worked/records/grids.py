"""Models of pictures and films in grids of patches: positions, features, logits, losses and generation, on record."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.class_outputs import number_of, tensors_of
from seatrial.targets.transformers.family_records import of_gradients
from seatrial.targets.transformers.small_models import END, PAD, classes_of_release
from seatrial.targets.transformers.worked.records.answers import given, rows_of
from seatrial.targets.transformers.worked.records.completed import small_model
from seatrial.targets.transformers.worked.records.layouts import (
    FILM_FORMS,
    LAYOUTS,
    SIDES,
    Inputs,
    in_grids,
    names_of,
    rows_of_layout,
)

RECORD = "grids_record"
NUM_NEW = 3
STEPS: Mapping[str, Mapping[str, Any]] = {
    "generated": {},
    "beams": {"num_beams": 2},
    "uncached steps": {"use_cache": False},
    "static steps": {"cache_implementation": "static", "disable_compile": True},
}
"""Options of generation by the name of a case."""
SECONDS = (0.5, 2.0, 1.5)
"""Of a frame of each film."""


def whole_numbers(value: Tensor) -> list[str]:
    """Return a line of words of each row of whole numbers."""
    flat = value.reshape(-1, value.shape[-1]) if value.dim() else value.reshape(1, 1)
    return [" ".join(f"{one:g}" for one in row) for row in flat.tolist()]


def inputs_of(model: Any, asked: Mapping[str, Any]) -> Inputs:
    """Return the rows of a case."""
    layout = LAYOUTS[asked["layout"]]
    inputs = rows_of_layout(
        model, layout, in_grids(model, layout), asked.get("side", "left"), asked.get("form", "whole")
    )
    films = names_of(layout, "V")
    for name in ("second_per_grid_ts", "video_second_per_grid"):
        needed = asked.get("seconds") or name != "second_per_grid_ts"
        if films and needed and name in inspect.signature(model.forward).parameters:
            inputs[name] = torch.tensor(SECONDS[: len(films)])
    return inputs


def _taken(function: Any, inputs: Inputs) -> Inputs:
    names = inspect.signature(function).parameters
    sizes = ("image_merge_sizes",) if "pixel_values" in names else ("video_merge_sizes",)
    return {name: value for name, value in inputs.items() if name in names or name in sizes}


def positions_of(model: Any, inputs: Inputs, asked: Mapping[str, Any]) -> Any:
    """Return the positions of each axis and the gaps of rows, in words."""
    base = model if hasattr(model, "get_rope_index") else model.model
    if asked.get("unmasked"):
        inputs = {name: value for name, value in inputs.items() if name != "attention_mask"}
    if "video_second_per_grid" in inputs:
        inputs["second_per_grids"] = inputs["video_second_per_grid"]
    found = base.get_rope_index(**_taken(base.get_rope_index, inputs))
    return [whole_numbers(one) for one in found]


def by_row(found: Any, inputs: Inputs) -> list[Any]:
    """Return projections of the logits of each row where no padding is."""
    shown = inputs["attention_mask"].bool()
    return [number_of(one[mask]) for one, mask in zip(found, shown, strict=True)]


def loss_of(model: Any, inputs: Inputs) -> list[float]:
    """Return a loss in training, and projections of its gradients."""
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    found = model(**inputs)
    torch.autograd.backward(found.loss)
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return of_gradients(float(found.loss.detach()), gradients)


def generated(model: Any, inputs: Inputs, **options: Any) -> Any:
    """Return projections of the logits of each step, and the ids."""
    given_inputs = {name: value for name, value in inputs.items() if name != "labels"}
    found = model.generate(
        **given_inputs, do_sample=False, max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, output_logits=True,
        return_dict_in_generate=True, pad_token_id=PAD, eos_token_id=END, **options,
    )  # fmt: skip
    return [number_of(one) for one in found.logits], whole_numbers(found.sequences[:, -NUM_NEW:])


def outputs_of(model: Any, inputs: Inputs, what: str) -> Any:
    """Return a loss with its gradients, what is generated, or logits by row."""
    if what == "loss":
        with torch.enable_grad():
            return loss_of(model, inputs)
    if what in STEPS:
        return generated(model, inputs, **STEPS[what])
    inputs.pop("labels", None)
    return by_row(model(**inputs).logits, inputs)


def features_of(model: Any, method: str, inputs: Inputs) -> Any:
    """Return projections of features of pictures or films."""
    function = getattr(model, method, None)
    if function is None:
        raise NotServed(f"no {method}")
    found = function(**_taken(function, inputs))
    return [number_of(one) for _, one in tensors_of(found) if one.is_floating_point()]


def _ask(model_class: Any, case: str) -> Any:
    asked = json.loads(case)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(model_class)
        inputs = inputs_of(model, asked)
        what = asked["what"]
        if what == "positions":
            return positions_of(model, inputs, asked)
        if what.startswith("get_"):
            return features_of(model, what, inputs)
        return outputs_of(model, inputs, what)


def _cases(model_class: Any) -> Iterator[str]:
    for layout, rows in LAYOUTS.items():
        films = names_of(rows, "V")
        for form in FILM_FORMS if films else ("whole",):
            base = {"layout": layout, "form": form} if films else {"layout": layout}
            for side in SIDES:
                yield json.dumps({"what": "positions", **base, "side": side})
            yield json.dumps({"what": "positions", **base, "unmasked": True})
            yield json.dumps({"what": "logits", **base, "side": "left"})
            if films:
                yield json.dumps({"what": "positions", **base, "seconds": True})
                yield json.dumps({"what": "logits", **base, "seconds": True})
            if layout in ("pictures", "mixed"):
                yield json.dumps({"what": "logits", **base, "side": "right"})
                for what in ("loss", "generated", "uncached steps"):
                    yield json.dumps({"what": what, **base})
            if layout == "turned":
                yield json.dumps({"what": "beams", **base})
        if layout in ("pictures", "large pictures", "mixed"):
            yield json.dumps({"what": "get_image_features", "layout": layout})
        if layout in ("films", "mixed"):
            yield json.dumps({"what": "get_video_features", "layout": layout})


def classes_with(*arguments: str, without: Sequence[str] = (), more: Iterable[str] = ()) -> dict[str, str]:
    """Return places of models of text and others that take these arguments, by name; `more`: of further classes."""
    import transformers

    found = {}
    for name in sorted({*classes_of_release().values(), *more}):
        one = getattr(transformers, name, None)
        taken = {*inspect.signature(one.forward).parameters} if one is not None else {*()}
        if {*arguments} <= taken and not taken & {*without}:
            found[name] = place_of(name)
    return found


def place_of(name: str) -> str:
    """Return where a class is."""
    return f"transformers:{name}"


OMNI = ("Qwen2_5OmniThinkerForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
"""Parts of other models that take pictures and sounds."""


def classes() -> dict[str, str]:
    """Return places of classes that take grids, by name."""
    return classes_with("image_grid_thw", more=("Glm46VForConditionalGeneration", *OMNI))


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given(classes(), _cases, _ask)


GRID_ROWS: Sequence[Row] = rows_of(RECORD, place_of, _ask, "pictures and films", "inputs")
