"""Low-rank adapters on every family of Transformers' causal language models; see `contracts.adapted_families`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.adapted_families import Layers, Use
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.families import CausalFamily
from seatrial.targets.transformers.family_table import FAMILIES

Rows = Sequence[Sequence[int]]
Pairs = list[tuple[Tensor, Tensor]]
RANK = 2
LEAST = 1e-4
"""The least difference that an adapter with drawn factors makes, relative to the largest logit."""


CROSS_ATTENTION = "encoder_attn"
"""The part of a decoder that reads an encoder: a decoder alone does not call it."""
LINEAR = ("linear layers: merged", "linear layers: merged for good", "linear layers: trains")
READ_ALONE = KnownFailure(
    "the model reads the weight of an adapted layer itself: the adapter does nothing before it is merged",
    finding="PEFT: adapters on layers whose weight a model reads",
).of(*(f"R29.families/{law}" for law in LINEAR))
NOT_FOUND = KnownFailure(
    "factors on shared experts are not found in the file, and stay as they were drawn",
    finding="PEFT: an adapter of Laguna that is saved and loaded",
).of("R29.families/linear layers: saved and loaded")
KNOWN: Mapping[str, Sequence[KnownFailure]] = {
    "jamba": (READ_ALONE,),
    "longcat_flash": (READ_ALONE,),
    "laguna": (NOT_FOUND,),
}
NOT_SERVED: Mapping[tuple[str, str], str] = {
    ("deepseek_v32", "trains"): "its indexer chooses keys, and no gradient of the loss reaches it",
    ("hy_v4", "trains"): "its indexer chooses keys, and no gradient of the loss reaches it",
    ("big_bird", "trains"): "a language model does not use its pooler",
    ("fuyu", "trains"): "a text has no patches of an image, which one of its layers reads",
    ("doge", "trains"): "a factor of the tiny model is zero, past which no gradient goes",
    ("longcat_flash", "experts"): "no token of the tiny model is sent to an expert",
}
"""By the family and a word of the law."""


class AdaptedCausalFamily(KnowsFailures):
    """A family's tiny model with adapters."""

    vocab_size = CausalFamily.vocab_size
    thorough = True
    family: ClassVar[str]

    def __init__(self) -> None:
        """Find the family in the installed release of Transformers."""
        kind = type("Plain", (CausalFamily,), {"family": self.family})
        self._family: Any = kind()

    @cached_property
    def _base(self) -> Any:
        return self._family.model()

    def _check(self, *words: str) -> None:
        """Raise NotServed where the table says so."""
        for word in words:
            if why := NOT_SERVED.get((self.family, word)):
                raise NotServed(why)

    def _experts(self) -> list[str]:
        """Return the names of the parameters that hold all experts of a layer."""
        named = self._base.named_parameters()
        return [name for name, value in named if value.dim() == 3 and ".experts." in name]

    def _targets(self, layers: Layers) -> dict[str, Any]:
        """Return the options that name the layers."""
        if layers == "linear layers":
            return {"target_modules": "all-linear"}
        modules = dict(self._base.named_modules())
        if layers == "experts":
            named = self._experts()
            if not named:
                raise NotServed("no experts in one tensor")
            return {"target_modules": [], "target_parameters": named}
        ends = [self._base.get_input_embeddings(), self._base.get_output_embeddings()]
        names = [name for name, module in modules.items() if any(module is end for end in ends)]
        if len(names) < 2:
            raise NotServed("no head of its own")
        return {"target_modules": names}

    def _adapted(self, layers: Layers) -> Any:
        """Return the model with an adapter whose factors are drawn."""
        import peft

        base = copy.deepcopy(self._base)
        try:
            config = peft.LoraConfig(
                r=RANK, init_lora_weights=False, task_type="CAUSAL_LM", **self._targets(layers)
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return peft.get_peft_model(base, config).eval()
        except (TypeError, ValueError, NotImplementedError) as error:
            raise NotServed(error_line(error)) from error

    def _logits(self, model: Any, rows: Rows) -> list[Tensor]:
        given = {"use_cache": False} if "use_cache" in self._family._parameters() else {}
        with _refuses_routers():
            return [model(input_ids=torch.tensor([list(row)]), **given).logits[0] for row in rows]

    def _gradients(self, layers: Layers, rows: Rows, *, checkpointed: bool) -> dict[str, Tensor | None]:
        model = self._adapted(layers).train()
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        inputs, places = self._family._inputs(rows, "right")
        labels = torch.full_like(inputs["input_ids"], -100)
        for row, place in enumerate(places):
            labels[row, place] = inputs["input_ids"][row, place]
        given = {"use_cache": False} if "use_cache" in self._family._parameters() else {}
        with _refuses_routers(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model(**inputs, labels=labels, **given).loss.backward()
        return {name: value.grad for name, value in model.named_parameters() if value.requires_grad}

    def _checkpointed(self, rows: Rows, layers: Layers) -> Pairs:
        if not self._base.supports_gradient_checkpointing:
            raise NotServed("no gradient checkpointing")
        found, right = (self._gradients(layers, rows, checkpointed=again) for again in (True, False))
        pairs = [
            (torch.zeros_like(due) if (one := found[name]) is None else one, due)
            for name, due in right.items()
            if due is not None
        ]
        return [
            (
                torch.cat([one.flatten() for one, _ in pairs])[None],
                torch.cat([due.flatten() for _, due in pairs])[None],
            )
        ]

    def adapted_pairs(self, rows: Rows, layers: Layers, use: Use) -> Pairs:
        self._check(layers, use)
        if use == "checkpointed":
            return self._checkpointed(rows, layers)
        model = self._adapted(layers)
        right = self._logits(model, rows)
        plain = self._logits(self._base, rows)
        found = self._used(model, rows, use)
        if use == "disabled":
            right = plain
        acts = any(
            float((one - own).abs().max() / own.abs().max()) > LEAST
            for one, own in zip(found if use != "disabled" else self._logits(model, rows), plain, strict=True)
        )
        if not acts:
            raise AssertionError("the adapter changes no logits")
        return list(zip(found, right, strict=True))

    def _used(self, model: Any, rows: Rows, use: Use) -> list[Tensor]:
        """Return the logits of a use of the adapter."""
        if use == "merged for good":
            return self._logits(model.merge_and_unload(), rows)
        if use == "saved and loaded":
            import peft

            folder = new_folder()
            model.save_pretrained(folder)
            loaded = peft.PeftModel.from_pretrained(copy.deepcopy(self._base), folder)
            return self._logits(loaded.eval(), rows)
        if use == "loaded by the model itself":
            folder = new_folder()
            model.save_pretrained(folder)
            base = copy.deepcopy(self._base)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                base.load_adapter(folder)
            return self._logits(base.eval(), rows)
        if use == "disabled":
            with model.disable_adapter():
                return self._logits(model, rows)
        if use == "next to another":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                model.add_adapter("other", copy.deepcopy(model.peft_config["default"]))
            model.set_adapter("other")
            self._logits(model, rows)
            model.set_adapter("default")
            return self._logits(model.eval(), rows)
        model.merge_adapter()
        if use == "unmerged":
            self._logits(model, rows)
            model.unmerge_adapter()
        return self._logits(model, rows)

    def misplaced(self, layers: Layers) -> list[str]:
        self._check(layers)
        if layers == "experts":
            raise NotServed("they are named in full")
        if layers == "linear layers" and self._experts():
            raise NotServed("names of linear layers are taken for those of experts, which are no layers here")
        named, head = self._targets(layers)["target_modules"], self._base.get_output_embeddings()
        due = {
            name
            for name, layer in self._base.named_modules()
            if (layer is not head and _is_linear(layer) if named == "all-linear" else name in named)
        }
        adapted = self._adapted(layers).get_base_model()
        found = {
            name
            for name, layer in adapted.named_modules()
            if getattr(layer, "lora_A", None) or getattr(layer, "lora_embedding_A", None)
        }
        wrong = [f"{name} has no adapter" for name in sorted(due - found)]
        return wrong + [f"{name} has one" for name in sorted(found - due)]

    def untrained(self, rows: Rows, layers: Layers) -> list[str]:
        self._check(layers, "trains")
        gradients = self._gradients(layers, rows, checkpointed=False)
        called = {name: value for name, value in gradients.items() if f".{CROSS_ATTENTION}." not in name}
        return [name for name, value in called.items() if value is None or not value.abs().any()]


def _is_linear(layer: torch.nn.Module) -> bool:
    return isinstance(layer, torch.nn.Linear) or type(layer).__name__ == "Conv1D"


@contextmanager
def _refuses_routers() -> Iterator[None]:
    """Raise NotServed for the error of an adapter on a router, which is a linear layer that returns a tuple."""
    try:
        yield
    except AttributeError as error:
        if "'tuple' object has no attribute 'dtype'" in str(error):
            raise NotServed(error_line(error)) from error
        raise


def _adapter(family: str) -> type[AdaptedCausalFamily]:
    return type(
        f"On_{family}",
        (AdaptedCausalFamily,),
        {
            "__doc__": f"Low-rank adapters on the family {family}.",
            "family": family,
            "known_failures": KNOWN.get(family, ()),
        },
    )


ADAPTERS: dict[str, type[Any]] = {f"lora-on-{family}": _adapter(family) for family in FAMILIES}
