"""What is recorded of a class of text models with rich configurations; see `class_rich`."""

from __future__ import annotations

import copy
import inspect
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.any_inputs import ROWS
from seatrial.targets.transformers.class_inputs import (
    Inputs,
    drawn,
    takes,
    whole_numbers,
    width_of,
)
from seatrial.targets.transformers.class_outputs import called, number_of, tensors_of
from seatrial.targets.transformers.family_caches import CACHES, given_cache
from seatrial.targets.transformers.family_records import of_gradients
from seatrial.targets.transformers.rich_configs import PADDING
from seatrial.targets.transformers.rich_inputs import (
    LENGTH,
    T_DECODER,
    labelled,
    mask_of,
    padded,
    with_labels,
)
from seatrial.targets.transformers.small_models import END

STEPS = (5, 8, 9, 10, 14)
"""Ends of the pieces that are read into a cache, one after another."""
SINGLE_STEPS = (6, 7, 8, 9)
"""The same of states that take one id at a time after the first ones."""
PACKED = (5, 4, 3)
"""Lengths of texts in one row."""
MADE: dict[str, Callable[[Any, Inputs], Sequence[float]]] = {}
"""By what is recorded: how its numbers are made of a model and its inputs."""
PRECISE = (
    "softmax", "log_softmax", "rsqrt", "mean", "pow", "square", "cos", "sin", "topk", "sigmoid", "exp", "softplus",
    "cumsum", "layer_norm", "rms_norm", "tanh", "sqrt", "norm",
)  # fmt: skip
"""Functions whose precision matters."""
LONG = 140
"""Ids of a row of several pieces of linear attention, which are of 64 or less."""
NOISY = ("noisy", "noisy routers", "still")
"""What is recorded of configurations with noise."""
OF_PLAIN = ("long",)
"""What is recorded of the main class alone, without options."""
OF_MAIN = (
    "steps", "steps placed", "far", "packed", "noisy routers", "asked", "scaled", "scaled steps", "eager experts",
    "start",
)  # fmt: skip
"""What is recorded of the main class of a configuration alone, with every group of options."""


def _makes(name: str) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        MADE[name] = function
        return function

    return keep


def learned(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the projections of a loss and its gradients, of the squares of the outputs where there is no loss."""
    with torch.enable_grad():
        found = model(**inputs)
        loss = getattr(found, "loss", None)
        if loss is None:
            given = [one for _, one in tensors_of(found) if one.requires_grad]
            loss = torch.stack([one.square().mean() for one in given]).sum()
    torch.autograd.backward(loss.mean())
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return of_gradients(float(loss.detach().mean()), gradients)


@_makes("padded")
def _padded(model: Any, inputs: Inputs) -> Sequence[float]:
    return number_of(called(model, padded(model, inputs)))


@_makes("padded left")
def _padded_left(model: Any, inputs: Inputs) -> Sequence[float]:
    return number_of(called(model, padded(model, inputs, left=True)))


@_makes("padded untold")
def _padded_untold(model: Any, inputs: Inputs) -> Sequence[float]:
    return number_of(called(model, padded(model, inputs, masked=False)))


@_makes("learned")
def _learned_padded(model: Any, inputs: Inputs) -> Sequence[float]:
    return learned(model, with_labels(model, padded(model, inputs)))


@_makes("labels alone")
def _labels_alone(model: Any, inputs: Inputs) -> Sequence[float]:
    """A decoder's inputs are made of its labels, or of the encoder's inputs."""
    if "decoder_input_ids" not in inputs:
        raise NotServed("no decoder of its own")
    given = padded(model, {"input_ids": inputs["input_ids"]})
    if "labels" not in takes(model.forward):
        return number_of(called(model, given))
    labels = inputs["decoder_input_ids"].masked_fill(mask_of(T_DECODER) == 0, -100)
    return number_of(called(model, {**given, "labels": labels}))


@_makes("from states")
def _from_states(model: Any, inputs: Inputs) -> Sequence[float]:
    """The encoder's states are given in place of its inputs."""
    if not {"encoder_outputs", "decoder_input_ids"} <= {*takes(model.forward)}:
        raise NotServed("no encoder of its own")
    given = padded(model, inputs)
    del given["input_ids"]
    return number_of(
        called(model, {**given, "encoder_outputs": (drawn(9, ROWS, LENGTH, width_of(model.config)),)})
    )


@_makes("everything")
def _everything(model: Any, inputs: Inputs) -> Sequence[float]:
    """Padding, types, positions and labels together, and every output."""
    names, given = takes(model.forward), padded(model, inputs)
    ids = given["input_ids"]
    more = {
        "token_type_ids": whole_numbers(7, 2, *ids.shape),
        "position_ids": (torch.arange(LENGTH) + 2).expand(ids.shape),
        "global_attention_mask": (torch.arange(LENGTH) % 5 == 1).long().expand(ids.shape),
        "langs": whole_numbers(8, 2, *ids.shape),
        "cls_index": torch.tensor([1, 0, 3]),
        "p_mask": (whole_numbers(8, 4, *ids.shape) == 0).float(),
        "output_hidden_states": True,
        "output_attentions": True,
        "output_router_logits": True,
    }
    always = ("output_hidden_states", "output_attentions")
    given |= {name: value for name, value in more.items() if name in (*names, *always)}
    return number_of(called(model, with_labels(model, given)))


@_makes("embedded")
def _embedded(model: Any, inputs: Inputs) -> Sequence[float]:
    """States in place of ids, with padding."""
    given = padded(model, inputs)
    ids = given.pop("input_ids")
    if "inputs_embeds" not in takes(model.forward):
        raise NotServed("no states are taken")
    width = model.get_input_embeddings().weight.shape[1]
    return number_of(called(model, {**given, "inputs_embeds": drawn(6, *ids.shape, width)}))


def _read(model: Any, inputs: Inputs, *, placed: bool) -> Sequence[float]:
    """Return outputs of pieces of rows that are padded on the left, each read after those before."""
    names = takes(model.forward)
    cached = next((name for name in CACHES if name in names), None)
    if cached is None:
        raise NotServed("no cache is taken")
    given = padded(model, {"input_ids": inputs["input_ids"]}, left=True)
    whole, more, key = given["input_ids"], {}, "input_ids"
    mask = given.get("attention_mask")
    if "decoder_input_ids" in names:
        with torch.no_grad():
            states = model.get_encoder()(**given)
        key, whole = "decoder_input_ids", 4 + whole_numbers(17, 43, ROWS, LENGTH)
        more = {"encoder_outputs": states, **({"attention_mask": mask} if mask is not None else {})}
        mask = None
    if placed and ("position_ids" not in names or mask is None):
        raise NotServed("no places of tokens are taken")
    if getattr(model.config, "add_cross_attention", False) and "encoder_hidden_states" in names:
        more["encoder_hidden_states"] = drawn(9, ROWS, 5, width_of(model.config))
        more["encoder_attention_mask"] = torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [0] + [1] * 4])
    places = (mask_of(LENGTH, left=True).cumsum(-1) - 1).clamp(min=0)
    found, state, start = [], None, 0
    for end in STEPS if cached != "cache_params" else SINGLE_STEPS:
        now = {**more, key: whole[:, start:end]}
        if mask is not None:
            now["attention_mask"] = mask[:, :end]
        if placed:
            now["position_ids"] = places[:, start:end]
        if state is not None:
            now[cached] = state
        if cached == "cache_params" and "cache_position" in names:
            now["cache_position"] = torch.arange(start, end)
        with torch.no_grad():
            outputs = model(**now, use_cache=True)
        state, start = given_cache(outputs), end
        found.append(outputs[0])
    return number_of(found)


@_makes("steps")
def _steps(model: Any, inputs: Inputs) -> Sequence[float]:
    return _read(model, inputs, placed=False)


@_makes("steps placed")
def _steps_placed(model: Any, inputs: Inputs) -> Sequence[float]:
    return _read(model, inputs, placed=True)


@_makes("far")
def _far(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the logits of many generated tokens."""
    if not getattr(model, "can_generate", lambda: False)():
        raise NotServed("it does not generate")
    given = padded(model, {"input_ids": inputs["input_ids"]}, left="decoder_input_ids" not in inputs)
    with torch.no_grad():
        found = model.generate(
            **given, do_sample=False, max_new_tokens=10, min_new_tokens=10, output_logits=True,
            return_dict_in_generate=True, pad_token_id=PADDING, eos_token_id=END,
        )  # fmt: skip
    return number_of({"logits": found.logits, "sequences": found.sequences})


@_makes("packed")
def _packed(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the outputs of one row of several texts, which their places alone distinguish."""
    if "position_ids" not in takes(model.forward) or "decoder_input_ids" in inputs:
        raise NotServed("no places of tokens are taken")
    places = torch.cat([torch.arange(size) for size in PACKED])[None]
    given = {"input_ids": inputs["input_ids"][:1, : sum(PACKED)], "position_ids": places}
    if "use_cache" in inspect.signature(model.forward).parameters:
        given["use_cache"] = False
    return number_of(called(model, given))


@_makes("asked")
def _asked(model: Any, inputs: Inputs) -> Sequence[float]:
    given = padded(model, inputs, left=True)
    return number_of(called(model, {**given, "output_hidden_states": True, "output_attentions": True}))


@_makes("still")
def _still(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the outputs of a model with noise, which is not in training."""
    return number_of(called(model, padded(model, inputs)))


@_makes("noisy")
def _noisy(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the gradients of a loss with noise."""
    given = with_labels(model, padded(model, inputs))
    return learned(model.train(), given)


@_makes("noisy routers")
def _noisy_routers(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the gradients of a loss with noise and the losses of routers."""
    if "output_router_logits" not in takes(model.forward) and not hasattr(
        model.config, "output_router_logits"
    ):
        raise NotServed("no logits of routers")
    given = labelled(model, padded(model, inputs))
    return learned(model.train(), {**given, "output_router_logits": True})


def _scaled(model: Any) -> Any:
    """Return a model made with scaled dot-product attention: in releases of 4 some have classes of their own for it."""
    if not getattr(model, "_supports_sdpa", False):
        raise NotServed("no scaled dot-product attention")
    with torch.random.fork_rng(devices=[]):
        made = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="sdpa")
    other = made.float().eval()
    other.load_state_dict(model.state_dict())
    return other


@_makes("scaled")
def _scaled_rows(model: Any, inputs: Inputs) -> Sequence[float]:
    other = _scaled(model)
    return number_of([called(other, padded(other, inputs, left=left)) for left in (True, False)])


@_makes("scaled steps")
def _scaled_steps(model: Any, inputs: Inputs) -> Sequence[float]:
    return _read(_scaled(model), inputs, placed=False)


class Precisions(TorchFunctionMode):
    """Counts the types of results by the names of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in PRECISE:
            first = found[0] if isinstance(found, tuple) else found
            self.counts[f"{name} {first.dtype}"] += 1
        return found


@_makes("precision")
def _precision(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return sums over the types in which functions of a model in half precision compute."""
    other = copy.deepcopy(model).to(torch.bfloat16)
    given = padded(model, inputs)
    with Precisions() as seen, torch.no_grad():
        found = other(**given)
    counts = seen.counts + Counter(f"{name} {value.dtype}" for name, value in tensors_of(found))
    weighted = sum((zlib.crc32(name.encode()) % 97 + 1) * num for name, num in counts.items())
    return [float(sum(counts.values())), weighted / 97, 1.0]


@_makes("tables")
def _tables(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return sums over the names of a model's parts, also after embeddings were given to it."""
    names = {id(module): name for name, module in model.named_modules()}
    found = {}
    for method in ("get_input_embeddings", "get_output_embeddings", "get_encoder", "get_decoder"):
        try:
            part = getattr(model, method)()
        except (AttributeError, NotImplementedError, TypeError):
            continue
        found[method] = names.get(id(part), "none")
    other = copy.deepcopy(model)
    given = torch.nn.Embedding(7, 5, _weight=torch.zeros(7, 5))
    try:
        other.set_input_embeddings(given)
        found["set_input_embeddings"] = ",".join(
            name for name, one in other.named_modules(remove_duplicate=False) if one is given
        )
    except (AttributeError, NotImplementedError, TypeError):
        pass
    weighted = sum(zlib.crc32(f"{method} {name}".encode()) % 997 for method, name in found.items())
    return [float(len(found)), weighted / 97, 1.0]


@_makes("shifted")
def _shifted(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return what a decoder reads, of its labels."""
    function = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if function is None:
        raise NotServed("labels are not shifted")
    labels = 4 + whole_numbers(16, 43, ROWS, T_DECODER)
    return number_of(function(labels=labels.masked_fill(mask_of(T_DECODER) == 0, -100)).float())


@_makes("eager experts")
def _eager_experts(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the gradients of experts that are computed one by one."""
    routed = any("experts" in name for name, _ in model.named_parameters())
    if not routed or not hasattr(model, "set_experts_implementation"):
        raise NotServed("experts are computed in one way")
    other = copy.deepcopy(model)
    other.set_experts_implementation("eager")
    return learned(other, with_labels(other, padded(other, inputs)))


@_makes("long")
def _long(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the outputs of rows that are longer than a piece of linear attention."""
    if "decoder_input_ids" in inputs:
        raise NotServed("rows of a decoder alone are long")
    ids = 4 + whole_numbers(18, 43, 2, LONG)
    mask = (torch.arange(LONG) >= torch.tensor([[0], [9]])).long()
    given = {"input_ids": ids, "attention_mask": mask}
    given = {name: value for name, value in given.items() if name in takes(model.forward)}
    return number_of(called(model, given)[0])


@_makes("several labels")
def _several_labels(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the loss of rows whose problem follows from their labels."""
    if not type(model).__name__.endswith("SequenceClassification"):
        raise NotServed("no rows are classified")
    other, num = copy.deepcopy(model), int(model.config.num_labels)
    other.config.problem_type = None
    labels = whole_numbers(3, 2, ROWS, num).float()
    return number_of(called(other, {**padded(other, inputs), "labels": labels}).loss)


@_makes("spans")
def _spans(model: Any, inputs: Inputs) -> Sequence[float]:
    """Return the loss of spans in columns, one of them beyond the end."""
    if not {"start_positions", "end_positions"} <= {*takes(model.forward)}:
        raise NotServed("no spans are found")
    labels = {
        "start_positions": torch.tensor([[2], [1], [0]]),
        "end_positions": torch.tensor([[4], [3], [90]]),
    }
    return number_of(called(model, {**padded(model, inputs), **labels}).loss)
