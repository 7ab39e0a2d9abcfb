"""Transformers' base models of every kind, one adapter a kind; see `contracts.any_models`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.any_models import AnyForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.transformers.any_inputs import ROWS, Inputs, candidates, mask_of
from seatrial.targets.transformers.any_table import BY_DESIGN, FAILURES, KINDS
from seatrial.targets.transformers.families import saved_and_loaded
from seatrial.targets.transformers.family_options import draw_by_names
from seatrial.targets.transformers.small_models import PAD, fresh_model, model_class, small_config

LARGEST = 12_000_000
"""Parameters of a model that is judged: some kinds have no options that make them small."""
SMALLEST = 1e-3
"""Of gradients that are compared, relative to the largest."""
MORE = 7
"""Ids that a resize adds, and padding that a row gets."""
NOISES: Mapping[str, Any] = {
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0, "drop_path_rate": 0.0,
    "apply_spec_augment": False,
}  # fmt: skip
"""Options that draw random numbers in training."""
PARTS = ("vision_config", "text_config", "audio_config")
NOT_AGAIN = ("Sam3LiteText",)
"""Classes that refuse to compute activations again."""
REFUSED = (
    "Expected mat_a", "the same dtype", "should be the same", "All labels must be provided", "not auto",
    "not supported", "has no attribute 'expand'", "float without overflow", "mixed dtype (CPU)", "Missing `**kwargs`",
)  # fmt: skip
"""Parts of messages of parts without float64, training that needs labels, no table of ids, and no token that marks are
replaced with."""


def base_names() -> dict[str, str]:
    """Return the class of the base model by the type of the configuration, of the installed release."""
    mapping = find_name("transformers", ["transformers.models.auto.modeling_auto:MODEL_MAPPING_NAMES"])
    return {kind: name if isinstance(name, str) else name[0] for kind, name in dict(mapping).items()}


class AnyBase(KnowsFailures):
    """A kind of base model with rows of its main input."""

    kind: ClassVar[str]
    thorough = True

    def __init__(self) -> None:
        """Find the model's class in the installed release."""
        mapping = find_name("transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"])
        name = base_names().get(self.kind)
        if name is None or self.kind not in mapping:
            raise Gone(f"transformers {release('transformers')} has no base model {self.kind}")
        self._class, self._config_class = model_class(name), mapping[self.kind]

    def _config(self) -> Any:
        try:
            config = small_config(self._config_class)
        except Exception:  # noqa: BLE001  it refuses these sizes, so it keeps its own
            config = self._config_class()
        config.tie_word_embeddings = getattr(self._config_class(), "tie_word_embeddings", True)
        for part in (config, *(getattr(config, name, None) for name in PARTS)):
            for name, value in NOISES.items():
                if isinstance(getattr(part, name, None), (float, bool)):
                    setattr(part, name, value)
        return config

    def _made(self, attention: str = "eager", seed: int = 0, config: Any = None) -> Any:
        try:
            config = config if config is not None else self._config()
            return fresh_model(self._class, config, LARGEST, attention, seed).eval()
        except NotServed:
            raise
        except Exception as error:  # refused when it is made, before anything is computed
            raise NotServed(error_line(error)) from error

    @cached_property
    def _model(self) -> Any:
        return self._drawn("eager")

    def _drawn(self, attention: str) -> Any:
        model = self._made(attention)
        draw_by_names(model)
        return model

    @cached_property
    def _inputs(self) -> Inputs:
        """The first inputs that give finite outputs, which another seed does not change.

        Raises:
            NotServed: none does.
        """
        for inputs in candidates(self._model):
            try:
                found = self._called(self._model, inputs)
            except Exception:  # noqa: BLE001  the model takes another input, which is tried next
                continue
            if found and all(bool(torch.isfinite(value).all()) for value in found.values()):
                return inputs
        raise NotServed("no input that this kind takes was found")

    @cached_property
    def _draws(self) -> bool:
        """Whether a call draws random numbers."""
        found = [self._called(self._model, self._inputs, seed=seed) for seed in (0, 1)]
        return any(not torch.equal(found[1][name], value) for name, value in found[0].items())

    def _called(self, model: Any, inputs: Mapping[str, Any], *, seed: int = 0, grad: bool = False) -> Inputs:
        """Return outputs whose first dimension is that of rows."""
        main = next(iter(inputs.values()))
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(grad):
            torch.manual_seed(seed)
            found = model(**inputs)
        return tensors_of(found, len(main))

    def _alone(self) -> Inputs:
        if self._draws:
            raise NotServed("a call draws random numbers")
        rows = [
            self._called(self._model, {name: value[row : row + 1] for name, value in self._inputs.items()})
            for row in range(ROWS)
        ]
        names = [name for name in rows[0] if len({one[name].shape for one in rows}) == 1]
        joined = {name: torch.cat([one[name] for one in rows]) for name in names}
        right = self.any_outputs("together")
        # What compares rows with one another, such as texts with pictures, has the number of rows in its shape.
        return {
            name: value
            for name, value in joined.items()
            if name in right and value.shape == right[name].shape
        }

    def _reversed(self) -> Inputs:
        if self._draws:
            raise NotServed("a call draws random numbers")
        found = self._called(self._model, {name: value.flip(0) for name, value in self._inputs.items()})
        across = {name for name, value in found.items() if value.dim() > 1 and value.shape[1] == ROWS}
        return {name: value.flip(0) for name, value in found.items() if name not in across}

    @cached_property
    def _counts(self) -> bool:
        """Whether training keeps statistics of batches."""
        return any("BatchNorm" in type(module).__name__ for module in self._model.modules())

    def _again(self) -> Inputs:
        model = copy.deepcopy(self._model)
        others = {name: value[:2].flip(0) for name, value in self._inputs.items()}
        self._called(model.train(not self._counts), others)
        return self._called(model.eval(), self._inputs)

    def _with(self, **more: Any) -> Inputs:
        """Return outputs with more arguments.

        Raises:
            NotServed: the model does not take one by name.
        """
        takes = inspect.signature(self._model.forward).parameters
        if missing := [name for name in more if name not in takes]:
            raise NotServed(f"no {missing[0]}")
        return self._called(self._model, {**self._inputs, **more})

    def _embedded(self) -> Inputs:
        if "inputs_embeds" not in inspect.signature(self._model.forward).parameters:
            raise NotServed("no inputs_embeds")
        if set(self._inputs) != {"input_ids"}:
            raise NotServed("ids are not its one input")
        table = self._model.get_input_embeddings()
        with torch.no_grad():
            return self._called(self._model, {"inputs_embeds": table(self._inputs["input_ids"])})

    def _masked(self) -> Inputs:
        mask = mask_of(self._model, self._inputs)
        if not mask:
            raise NotServed("no mask")
        try:
            return self._called(self._model, {**self._inputs, **mask})
        except (RuntimeError, AttributeError, KeyError) as error:
            raise NotServed(f"no mask of this shape: {error_line(error)}") from error

    def _unmarked(self) -> Inputs:
        found = self.any_outputs("together").get("last_hidden_state")
        if "bool_masked_pos" not in inspect.signature(self._model.forward).parameters or found is None:
            raise NotServed("no marks")
        for extra in range(6):  # tokens that are no patches
            try:
                marks = torch.zeros(ROWS, found.shape[1] - extra, dtype=torch.bool)
                return self._called(self._model, {**self._inputs, "bool_masked_pos": marks})
            except (RuntimeError, ValueError):
                continue
        raise NotServed("no number of marks that it takes was found")

    def _padded(self) -> Inputs:
        ids = self._inputs.get("input_ids")
        if ids is None or len(self._inputs) > 1 or "attention_mask" not in mask_of(self._model, self._inputs):
            raise NotServed("no ids alone")
        gap = torch.full((ROWS, MORE), PAD)
        mask = torch.cat([torch.ones_like(ids), torch.zeros_like(gap)], 1)
        found = self._called(self._model, {"input_ids": torch.cat([ids, gap], 1), "attention_mask": mask})
        right = self.any_outputs("together")
        return {
            name: value[:, : right[name].shape[1]]
            for name, value in found.items()
            if name in right and value.dim() > 2 and right[name].shape[1] == ids.shape[1]
        }

    def _resized(self) -> Inputs:
        model = copy.deepcopy(self._model)
        if "input_ids" not in self._inputs or not hasattr(model.config, "vocab_size"):
            raise NotServed("no ids")
        before = model.get_input_embeddings().weight.shape[0]
        model.resize_token_embeddings(before + MORE)
        return self._called(model, self._inputs)

    def _training(self) -> Inputs:
        if self._draws or self._counts:
            raise NotServed("statistics of a batch, or random numbers")
        model = copy.deepcopy(self._model).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return self._called(model, self._inputs)

    def _float64(self) -> Inputs:
        model = copy.deepcopy(self._model).double()
        inputs = {
            name: value.double() if value.is_floating_point() else value
            for name, value in self._inputs.items()
        }
        return self._called(model, inputs)

    def _tuple(self) -> Inputs:
        """Return outputs of a tuple by the names that the whole output has, in its order."""
        whole = self._call(return_dict=True)
        if not hasattr(whole, "to_tuple"):
            raise NotServed("its output is no mapping")
        found = self._call(return_dict=False)
        names = [name for name, value in whole.items() if value is not None]
        if not isinstance(found, tuple):
            return {names[0]: found} if isinstance(found, Tensor) else {}
        if len(found) != len(names):
            return {name: torch.empty(0) for name in tensors_of(whole, ROWS)}
        return tensors_of(dict(zip(names, found, strict=True)), ROWS)

    def _call(self, **more: Any) -> Any:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            return self._model(**self._inputs, **more)

    def _strided(self) -> Inputs:
        if not any(value.dim() == 4 for value in self._inputs.values()):
            raise NotServed("no pictures")
        return self._called(
            self._model,
            {
                name: value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
                for name, value in self._inputs.items()
            },
        )

    def _sdpa(self) -> Inputs:
        if not getattr(self._model, "_supports_sdpa", False):
            raise NotServed("no scaled dot-product attention")
        return self._called(self._drawn("sdpa"), self._inputs)

    def _asked(self) -> Inputs:
        taken = inspect.signature(self._model.forward).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in taken.values())
        asked = {
            name: True for name in ("output_hidden_states", "output_attentions") if takes_any or name in taken
        }
        if not asked:
            raise NotServed("it has no further outputs")
        return self._called(self._model, {**self._inputs, **asked})

    def any_outputs(self, form: AnyForm) -> Mapping[str, Tensor]:
        inputs = self._inputs
        if why := BY_DESIGN.get((self.kind, form)):
            raise NotServed(why)
        made: Mapping[str, Callable[[], Inputs]] = {
            "together": lambda: self._called(self._model, inputs),
            "alone": self._alone,
            "reversed": self._reversed,
            "again": self._again,
            "copied": lambda: self._called(copy.deepcopy(self._model), inputs),
            "loaded": lambda: self._called(saved_and_loaded(self._model), inputs),
            "sdpa": self._sdpa,
            "tuple": self._tuple,
            "asked": self._asked,
            "embedded": self._embedded,
            "mask of ones": self._masked,
            "nothing masked": self._unmarked,
            "interpolated": lambda: self._with(interpolate_pos_encoding=True),
            "padded": self._padded,
            "resized": self._resized,
            "training": self._training,
            "float64": self._float64,
            "channels last": self._strided,
            "uncached": lambda: self._with(use_cache=False),
        }
        if form not in made:
            raise NotServed("rows have no mask")
        try:
            return made[form]()
        except (RuntimeError, ValueError, AttributeError, TypeError) as error:
            if any(part in str(error) for part in REFUSED):
                raise NotServed(error_line(error)) from error
            raise

    def any_gradients(self, *, checkpointed: bool) -> Mapping[str, Tensor]:
        model = copy.deepcopy(self._model)
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise NotServed("activations are not computed again")
        if checkpointed and any(name in type(model).__name__ for name in NOT_AGAIN):
            raise NotServed("it says so itself")
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        found = self._called(model, self._inputs, grad=True)
        total = sum(value.double().square().mean() for value in found.values() if value.requires_grad)
        if not isinstance(total, Tensor):
            raise NotServed("no output has a gradient")
        torch.autograd.backward(total)
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        sizes = {name: float(value.abs().max()) for name, value in gradients.items() if value.numel()}
        largest = max(sizes.values())
        return {name: gradients[name] for name, size in sizes.items() if size > SMALLEST * largest}

    def any_changes(self) -> Sequence[str]:
        config = self._config()
        before = copy.deepcopy(config.to_dict())
        model = self._made(config=config)
        inputs = {name: value.clone() for name, value in self._inputs.items()}
        try:
            found = self._called(model.train(), inputs, grad=True)
        except ValueError as error:
            raise NotServed(error_line(error)) from error
        total = sum(value.double().square().mean() for value in found.values() if value.requires_grad)
        if isinstance(total, Tensor):
            torch.autograd.backward(total)
        after = config.to_dict()
        names = [name for name, value in inputs.items() if not torch.equal(value, self._inputs[name])]
        left_out = ("_attn_implementation", "_attn_implementation_internal", "dtype", "torch_dtype")
        options = [
            name
            for name in before
            if name not in left_out and _plain(before[name]) != _plain(after.get(name))
        ]
        return [*names, *(f"{name}: {before[name]!r} to {after.get(name)!r}"[:120] for name in options)]

    def any_missing(self) -> Sequence[str]:
        first, second = (dict(self._made().state_dict()) for _ in range(2))
        other = [name for name, value in first.items() if not torch.equal(value, second[name])]
        places = {value.data_ptr() for value in first.values() if value.numel()}
        shared = [name for name, value in second.items() if value.numel() and value.data_ptr() in places]
        return [*other, *shared]


def _plain(value: Any) -> Any:
    """Return nested values without what a call of the model may note: the kind of attention and the dtype."""
    if isinstance(value, dict):
        noted = ("_attn_implementation", "_attn_implementation_internal", "dtype", "torch_dtype")
        return {str(name): _plain(one) for name, one in value.items() if name not in noted}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def tensors_of(found: Any, rows: int) -> Inputs:
    """Return tensors of numbers by name whose first dimension is that of rows; those of outputs in outputs too."""
    named: dict[str, Any] = dict(found.items()) if hasattr(found, "items") else {"output": found}
    given: Inputs = {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == rows and value.is_floating_point():
            given[name] = value
        elif hasattr(value, "items"):
            given |= {f"{name}.{inner}": one for inner, one in tensors_of(value, rows).items()}
    return given


def _adapter(kind: str) -> type[AnyBase]:
    known = tuple(one for one, kinds in FAILURES if kind in kinds)
    words = {"__doc__": f"The base model {kind}.", "kind": kind, "known_failures": known}
    return type(f"Base_{kind}", (AnyBase,), words)


ADAPTERS: dict[str, type[Any]] = {f"base-{kind}": _adapter(kind) for kind in KINDS}
