"""A public model class with small sizes: what it gives in every form of a call, as projections."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.transformers.any_pictures import films_of, rows_with
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.family_records import of_gradients, projected
from seatrial.targets.transformers.folder_configs import config_of, parts_of
from seatrial.targets.transformers.folder_inputs import (
    Inputs,
    every_candidate,
    labels_of,
    padded_to,
    shown_part,
    takes,
    tensors_in,
)
from seatrial.targets.transformers.folder_starts import start_of
from seatrial.targets.transformers.folder_table import AT_ONCE, INPUTS
from seatrial.targets.transformers.option_values import variants_of
from seatrial.targets.transformers.small_models import fresh_model

LARGEST = 8_000_000
"""Parameters of a model that is made."""
TRIED = 40
"""Inputs that are tried at most."""
FORMS = (
    "plain", "right", "left", "asked", "cached", "embedded", "sdpa", "films", "features", "places", "loss", "shifted",
    "generated", "fresh",
)  # fmt: skip
"""What is called: a batch as it is, padded on a side, with states and attention, from a cache, with embeddings in place
of ids, by the other attention, with films, its parts' features, positions of pictures, labels, ids made of labels,
logits of a greedy generation, fresh weights."""
Numbers = dict[str, list[float]]


class OneClass:
    """A class with weights that depend on their names alone."""

    def __init__(self, model_class: Any) -> None:
        self.model_class = model_class
        self._found: dict[str, Numbers] = {}
        self._is_small = False

    def made(self, attention: str = "eager", config: Any = None) -> Any:
        """Return a model in evaluation mode.

        Raises:
            NotServed: it is too large, or has no attention of the kind.
        """
        config = copy.deepcopy(self.config if config is None else config)
        if self._is_small:
            with torch.random.fork_rng(devices=[]):
                model = self.model_class._from_config(config, attn_implementation=attention).float().eval()
        else:
            model = fresh_model(self.model_class, config, LARGEST, attention).eval()
            self._is_small = True
        draw_by_names_alone(model)
        return model

    @cached_property
    def config(self) -> Any:
        return config_of(self.model_class)

    @cached_property
    def model(self) -> Any:
        return self.made()

    @cached_property
    def inputs(self) -> Inputs:
        """The first inputs that give finite outputs.

        Raises:
            NotServed: there are none.
        """
        own = INPUTS.get(type(self.model).__name__)
        for number, inputs in enumerate([own(self.model)] if own else every_candidate(self.model)):
            if number > TRIED:
                break
            try:
                found = self.called(self.model, inputs)
            except Exception:  # noqa: BLE001  the model takes another input, which is tried next
                continue
            if found and all(bool(torch.isfinite(one).all()) for every in found.values() for one in every):
                return inputs
        raise NotServed("no input that this class takes was found")

    def called(self, model: Any, inputs: Inputs, seed: int = 0) -> dict[str, list[Tensor]]:
        """Return the tensors of a call's output by name."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            return tensors_in(model(**copy.deepcopy(inputs)))

    @cached_property
    def batch(self) -> Inputs:
        """The inputs padded on the left where they are ids alone."""
        for side in ("left", "right"):
            try:
                inputs = self.with_mask(side)
                self.called(self.model, inputs)
            except Exception:  # noqa: BLE001  not padded then
                continue
            return inputs
        return self.inputs

    def with_mask(self, side: str) -> Inputs:
        """Return the inputs padded on a side.

        Raises:
            NotServed: the class takes no mask.
        """
        if "attention_mask" not in takes(self.model.forward):
            raise NotServed("no mask")
        return padded_to(self.inputs, side)

    def numbers(self, model: Any, inputs: Inputs) -> Numbers:
        """Return projections of the outputs of a call by field, of those that draw no random numbers."""
        return {
            name: projected([shown_part(one, inputs) for one in every])
            for name, every in self.called(model, inputs).items()
            if name not in self._drawn
        }

    @cached_property
    def _drawn(self) -> set[str]:
        """The fields that another seed changes."""
        found, again = (self.called(self.model, self.inputs, seed) for seed in (0, 1))
        return {name for name, every in found.items() if not all(map(torch.equal, every, again[name]))}

    def of(self, form: str) -> Numbers:
        """Return the numbers of a form or of an option by field; empty where it is not served."""
        if form not in self._found:
            try:
                make = self._made_by.get(form)
                self._found[form] = make() if make else self._with_option(form)
            except Exception as error:  # noqa: BLE001  not served, which is no wrong number
                self._found[form] = {}
                self.refused[form] = error_line(error)
        return self._found[form]

    @cached_property
    def refused(self) -> dict[str, str]:
        """Why a form is not served."""
        return {}

    @property
    def _made_by(self) -> Mapping[str, Callable[[], Numbers]]:
        return {
            "plain": lambda: self.numbers(self.model, self.inputs),
            "right": lambda: self.numbers(self.model, self.with_mask("right")),
            "left": lambda: self.numbers(self.model, self.with_mask("left")),
            "asked": self._asked,
            "cached": self._cached,
            "embedded": self._embedded,
            "sdpa": lambda: self.numbers(self.made("sdpa"), self.batch),
            "films": self._films,
            "features": self._features,
            "places": self._places,
            "loss": self._loss,
            "shifted": self._shifted,
            "generated": self._generated,
            "fresh": lambda: {"weights": start_of(self.model_class, self.config, LARGEST)},
        }

    def _asked(self) -> Numbers:
        asked = {"output_hidden_states": True, "output_attentions": True}
        known = takes(self.model.forward)
        given = asked if "kwargs" in known else {name: True for name in asked if name in known}
        if not given:
            raise NotServed("states are not given")
        found = self.numbers(self.model, {**self.batch, **given})
        return {name: value for name, value in found.items() if name not in self.of("plain")}

    def _cached(self) -> Numbers:
        inputs = {**self.batch, "use_cache": True}
        name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
        start = inputs[name].shape[-1] - 3
        cut = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"} & {*inputs}
        if name == "decoder_input_ids":
            cut = {name}
        before = {one: value[..., :start] if one in cut else value for one, value in inputs.items()}
        with torch.no_grad():
            past = self.model(**copy.deepcopy(before)).past_key_values
        rest = {
            one: value[..., start:] if one in cut - {"attention_mask"} else value
            for one, value in inputs.items()
            if not one.startswith(("pixel", "input_features", "image", "video"))
        }
        if past is None:
            raise NotServed("no cache")
        if self._drawn:
            raise NotServed("random numbers are drawn")
        with torch.no_grad():
            found = tensors_in(self.model(**rest, past_key_values=past))
        first = next(one for one in ("logits", "last_hidden_state") if one in found)
        return {first: projected([one[:, -3:] for one in found[first]])}

    def _embedded(self) -> Numbers:
        inputs = dict(self.batch)
        if "inputs_embeds" not in takes(self.model.forward) or "input_ids" not in inputs:
            raise NotServed("no embeddings are taken")
        with torch.no_grad():
            embedded = self.model.get_input_embeddings()(inputs["input_ids"])
        if "pixel_values" not in inputs and "input_features" not in inputs:
            inputs.pop("input_ids")
            return self.numbers(self.model, {**inputs, "inputs_embeds": embedded})
        raise NotServed("ids are needed for places")

    def _films(self) -> Numbers:
        for media in films_of(self.model):
            inputs = rows_with(self.model, media)
            inputs.pop("labels", None)
            try:
                return self.numbers(self.model, inputs)
            except Exception:  # noqa: BLE001  films of another form
                continue
        raise NotServed("no films")

    def _generated(self) -> Numbers:
        if self._drawn or not self.model.can_generate():
            raise NotServed("it does not generate")
        inputs = {name: value for name, value in self.batch.items() if not name.startswith("decoder_")}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            found = self.model.generate(
                **inputs, do_sample=False, max_new_tokens=4, min_new_tokens=4, num_beams=1,
                return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        return {"logits": projected(list(found.logits))}

    def _features(self) -> Numbers:
        found: Numbers = {}
        for name in dir(type(self.model)):
            if not re.fullmatch(r"get_\w+_(features|embeds)", name) or "input" in name:
                continue
            method = getattr(self.model, name)
            given = {one: value for one, value in self.batch.items() if one in takes(method)}
            try:
                with torch.no_grad():
                    every = tensors_in(method(**given))
            except Exception:  # noqa: BLE001  it takes other inputs
                continue
            found |= {f"{name}.{field}": projected(values) for field, values in every.items() if values}
        return found

    def _places(self) -> Numbers:
        owner = self.model if hasattr(self.model, "get_rope_index") else getattr(self.model, "model", None)
        method = getattr(owner, "get_rope_index", None)
        if method is None:
            raise NotServed("no positions of pictures")
        known = takes(method)
        found: Numbers = {}
        for name, inputs in AT_ONCE.items():
            try:
                given = {one: value for one, value in inputs(self.model).items() if one in known}
                places, deltas = method(**given)[:2]
            except Exception:  # noqa: BLE001  rows of another form
                continue
            found[name] = projected([places.float(), deltas.float()])
        return found

    def _loss(self) -> Numbers:
        if self._drawn:
            raise NotServed("random numbers are drawn")
        for labels in labels_of(self.model, self.batch):
            model = copy.deepcopy(self.model).train()
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            inputs = copy.deepcopy({**self.batch, **labels})
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    loss = model(**inputs).loss
                    torch.autograd.backward(loss)
            except Exception:  # noqa: BLE001  labels of another form
                continue
            gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
            return {"loss": of_gradients(float(loss.detach()), gradients)}
        raise NotServed("no loss")

    def _shifted(self) -> Numbers:
        labels = torch.tensor([[5, 9, 7, -100], [4, 6, -100, -100], [8, 5, 5, 3]])
        found: Numbers = {}
        for name in ("prepare_decoder_input_ids_from_labels", "_shift_right"):
            if hasattr(self.model, name):
                found[name] = projected([getattr(self.model, name)(labels.clone()).float()])
        return found

    @cached_property
    def options(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """The part and the options of each name."""
        found: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for part, config in parts_of(self.config):
            if type(config).__module__.split(".")[:-1] != self.model_class.__module__.split(".")[:-1]:
                continue  # a part of another folder, whose classes are recorded there
            for one in variants_of(type(config), config, {}):
                if not one.trains and not {*one.options} & {"tie_word_embeddings", "head_dim"}:
                    found[f"{part} {one.name}".strip()] = (part, one.options)
        return found

    def _with_option(self, name: str) -> Numbers:
        part, options = self.options[name]
        config = copy.deepcopy(self.config)
        for option, value in options.items():
            setattr(getattr(config, part) if part else config, option, copy.deepcopy(value))
        found = self.numbers(self.made(config=config), self.batch)
        first = next(iter(found))
        return {first: found[first]}
