"""Every class of a model's module, with every argument and option, on record; see `contracts.recorded`."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from seatrial.relations.not_served import Absent, NotServed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers import class_inputs
from seatrial.targets.transformers.any_models import LARGEST
from seatrial.targets.transformers.class_configs import (
    OF_CLASSES,
    Options,
    class_config,
    for_class,
    options_of,
    smaller_configs,
    with_option,
)
from seatrial.targets.transformers.class_inputs import ARGUMENTS, Inputs, takes
from seatrial.targets.transformers.class_modes import MODES, NOISY_MODES, in_noise, noisy_config
from seatrial.targets.transformers.class_outputs import (
    called,
    generated,
    in_two_passes,
    number_of,
    of_method,
    of_text,
    start_of,
    step,
)
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.family_records import LINES as LINES
from seatrial.targets.transformers.family_records import line_of, unserved
from seatrial.targets.transformers.small_models import fresh_model, is_small

CLASSES = Path(__file__).with_name("recorded_classes.json")
MAIN = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForCTC", "Model")
"""Ends of the names of the class whose options are recorded, the first that a module has."""
PLAIN = (
    "", "asked", "loss", "train", "checkpointed", "items", "start", "generated", "beams", "two passes", "films", "text",
    "sdpa padded", *MODES, *NOISY_MODES,
)  # fmt: skip
"""What is recorded of a class besides its arguments."""


@cache
def record(path: Path = CLASSES) -> Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]:
    """Return by module, what was recorded, and line of releases the numbers; an empty line: both."""
    if not path.exists():
        return {}
    found: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]] = json.loads(
        path.read_text(encoding="utf-8")
    )
    return found


class ClassRecord(KnowsFailures):
    """The classes of a module of models."""

    thorough = True
    path: ClassVar[Path] = CLASSES
    is_of_the_line = True
    kind: ClassVar[str]

    def __init__(self) -> None:
        """Find the module in the installed release."""
        if line_of() is None:
            raise Gone("the record has neither this release nor one that it follows")
        try:
            package = importlib.import_module(f"transformers.models.{self.kind}")
        except ImportError as error:
            raise Gone(f"transformers {release('transformers')} has no models.{self.kind}") from error
        names = [one.name for one in pkgutil.iter_modules(package.__path__)]
        self._modules = [
            f"{package.__name__}.{name}" for name in names if name.startswith("modeling_") and "_tf" not in name
            and "_flax" not in name
        ]  # fmt: skip

    @cached_property
    def _classes(self) -> Mapping[str, type[Any]]:
        import transformers

        found: dict[str, type[Any]] = {}
        for place in self._modules:
            module = importlib.import_module(place)
            for name, one in vars(module).items():
                own = inspect.isclass(one) and issubclass(one, transformers.PreTrainedModel)
                if not own or one.__module__ != place or one.config_class is None:
                    continue
                if not name.endswith("PreTrainedModel") and one.forward is not torch.nn.Module.forward:
                    found[name] = one
        return found

    @cached_property
    def _main(self) -> Sequence[str]:
        """The classes whose options are recorded, one for each kind of configuration."""
        found: dict[Any, str] = {}
        ends = sorted(self._classes, key=lambda name: (self._rank(name), name))
        for name in ends:
            found.setdefault(self._classes[name].config_class, name)
        return list(found.values())

    @staticmethod
    def _rank(name: str) -> int:
        return next((place for place, end in enumerate(MAIN) if name.endswith(end)), len(MAIN))

    @cached_property
    def recorded(self) -> Mapping[str, Sequence[float]]:
        line = line_of() or ""
        own = record(self.path).get(self.kind, {}).items()
        found = ((name, lines.get(line, lines.get(""))) for name, lines in own)
        return {name: values for name, values in found if values is not None}

    def option_names(self) -> list[str]:
        """Return what can be recorded: of each class its arguments and outputs, of some their options."""
        found = []
        for name, one in self._classes.items():
            given = takes(one.forward)
            found += [f"{name}|{plain}" for plain in PLAIN]
            found += [
                f"{name}|{argument}" for argument, (parameter, _) in ARGUMENTS.items() if parameter in given
            ]
            found += [
                f"{name}|@{method}"
                for method in dir(one)
                if method.startswith("get_") and "feature" in method
            ]
            found += [f"{name}|@get_rope_index", f"{name}|labels numbers", f"{name}|labels several"]
            if name in self._main:
                with suppress(Exception):  # a configuration that refuses small sizes has no options
                    found += [f"{name}|={option}" for option in self._options(name)]
        return found

    @staticmethod
    def _small_config(model_class: type[Any]) -> Any:
        """Return the first small configuration that makes a small model; the first one if none does."""
        own = OF_CLASSES.get(model_class.__name__, {})
        config = for_class(class_config(model_class.config_class), own)
        if is_small(model_class, config, LARGEST):
            return config
        others = (for_class(one, own) for one in smaller_configs(model_class.config_class))
        return next((one for one in others if is_small(model_class, one, LARGEST)), config)

    @cache  # noqa: B019  an adapter lives as long as its process
    def _config(self, name: str) -> Any:
        config = self._small_config(self._classes[name])
        if name.endswith("QuestionAnswering"):
            config.num_labels = 2
        elif hasattr(config, "num_labels"):
            config.num_labels = 3
        return config

    @cache  # noqa: B019
    def _options(self, name: str) -> Mapping[str, Options]:
        return options_of(self._config(name))

    @cache  # noqa: B019
    def _fresh(self, name: str) -> tuple[Any, Sequence[float]]:
        """Return a model in evaluation mode whose weights depend on their names alone, and its starting values."""
        model = fresh_model(self._classes[name], copy.deepcopy(self._config(name)), LARGEST).eval()
        start = start_of(model, self.recorded.get(f"{name}|start", ()))
        draw_by_names_alone(model)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model, start

    def _noisy(self, name: str) -> Any:
        """Return a model in evaluation mode that drops values in training."""
        model = fresh_model(self._classes[name], noisy_config(self._config(name)), LARGEST).eval()
        draw_by_names_alone(model)
        return model

    def _model(self, name: str) -> Any:
        model = self._fresh(name)[0]
        # Where a call raises, releases of 4 leave wrappers of methods, which copies would share.
        for module in model.modules():
            vars(module).pop("forward", None)
        return model

    @cache  # noqa: B019
    def _inputs(self, name: str) -> Inputs:
        """Return the first inputs that a class takes.

        Raises:
            NotServed: none is found.
        """
        model = self._model(name)
        for inputs in class_inputs.inputs_of(model):
            try:
                first, second = (called(model, inputs, seed) for seed in (0, 1))
                if number_of(first) == number_of(second):
                    return inputs
            except Exception:  # noqa: BLE001  the class takes another input, which is tried next
                continue
        raise NotServed("no inputs that it takes without random numbers were found")

    @cache  # noqa: B019
    def _labels(self, name: str) -> Inputs:
        model, inputs = self._model(name), self._inputs(name)
        for labels in class_inputs.labels_of(model, inputs):
            try:
                loss = called(model, {**inputs, **labels}).loss
                if loss is not None and bool(torch.isfinite(loss).all()):
                    return labels
            except Exception:  # noqa: BLE001  the class takes other labels, which are tried next
                continue
        raise NotServed("no labels that it takes were found")

    def _labelled(self, name: str, what: str) -> Inputs:
        """Return the labels of a class, none where it takes none and something else can be recorded."""
        try:
            return self._labels(name)
        except NotServed:
            if what in ("loss", "items"):
                raise
            return {}

    def projections(self, name: str) -> Sequence[float]:
        class_name, _, what = name.partition("|")
        if class_name not in self._classes:
            raise Absent(f"no {class_name}")
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                found = self._given(class_name, what)
        except NotServed:
            raise
        except Exception as error:
            raise unserved(error) from error
        if not all(map(math.isfinite, found)):
            raise NotServed("no finite numbers")
        return found

    def _given(self, name: str, what: str) -> Sequence[float]:
        if what == "start":
            return self._fresh(name)[1]
        if what.startswith("="):
            return self._with_option(name, what[1:])
        inputs, model = self._inputs(name), self._model(name)
        if what.startswith("@"):
            return of_method(model, what[1:], inputs)
        if what == "asked":
            return number_of(
                called(model, {**inputs, "output_hidden_states": True, "output_attentions": True})
            )
        if what in ("loss", "train", "checkpointed"):
            return step(model, {**inputs, **self._labelled(name, what)}, what)
        if what == "items":
            return number_of(called(model, {**inputs, **self._labels(name), "num_items_in_batch": 7}).loss)
        if what == "text":
            return of_text(model, inputs)
        if what in MODES:
            return MODES[what](model, inputs)
        if what in NOISY_MODES:
            given = inputs if what == "still" else {**inputs, **self._labelled(name, what)}
            return in_noise(self._noisy(name), given, what)
        if what.startswith("labels "):
            return self._problem(name, what.partition(" ")[2])
        if what in ("generated", "beams"):
            return generated(model, inputs, num_beams=2 if what == "beams" else 1)
        if what == "two passes":
            return in_two_passes(model, inputs)
        if what == "films":
            return self._films(model)
        if what == "sdpa padded":
            if not getattr(model, "_supports_sdpa", False) or model.config._attn_implementation == "sdpa":
                raise NotServed("no scaled dot-product attention")
            other = copy.deepcopy(model)
            other.set_attn_implementation("sdpa")
            return number_of(called(other, ARGUMENTS["padded"][1](model, inputs)))
        if what and ARGUMENTS[what][0] not in takes(model.forward):
            raise Absent(f"no argument {ARGUMENTS[what][0]}")
        given = ARGUMENTS[what][1](model, inputs) if what else inputs
        if what == "routers":
            given = {**given, **self._labelled(name, what)}
        return number_of(called(model, given))

    def _with_option(self, name: str, option: str) -> Sequence[float]:
        if option not in self._options(name):
            raise Absent(f"no option {option}")
        config = with_option(self._config(name), self._options(name)[option])
        self._fresh(name)  # which refuses large ones
        model = self._classes[name]._from_config(config, attn_implementation="eager").float().eval()
        if sum(value.numel() for value in model.parameters()) > LARGEST:
            raise NotServed("too large")
        draw_by_names_alone(model)
        inputs = dict(self._inputs(name))
        if (
            "input_ids" in inputs
            and "attention_mask" not in inputs
            and "attention_mask" in takes(model.forward)
        ):
            inputs = ARGUMENTS["padded"][1](model, inputs)
        if option.endswith("a decoder with an encoder"):
            inputs = ARGUMENTS["encoder padded"][1](model, inputs)
        inputs |= self._labelled(name, option)
        return number_of(called(model, inputs))

    def _problem(self, name: str, labels: str) -> Sequence[float]:
        model, inputs = self._model(name), self._inputs(name)
        for known, problem, given in class_inputs.further_labels(model):
            if known == labels:
                before, model.config.problem_type = model.config.problem_type, problem
                try:
                    return number_of(called(model, {**inputs, "labels": given}))
                finally:
                    model.config.problem_type = before
        raise NotServed("its labels are of one kind")

    def _films(self, model: Any) -> Sequence[float]:
        for inputs in class_inputs.film_inputs(model):
            try:
                return number_of(called(model, inputs))
            except Exception:  # noqa: BLE001  films of another form
                continue
        raise NotServed("no films")


def _adapter(kind: str) -> type[ClassRecord]:
    words = {"__doc__": f"Every class of models.{kind} on record.", "kind": kind}
    return type(f"RecordedClasses_{kind}", (ClassRecord,), words)


ADAPTERS: dict[str, type[Any]] = {f"recorded-classes-{kind}": _adapter(kind) for kind in record()}
