"""Families of causal language models with outputs on record; see `contracts.recorded`."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.not_served import Absent, NotServed
from seatrial.relations.raised import error_line, refusal_of
from seatrial.targets.common.known import KnownFailure, KnowsFailures, between
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers.families import VOCABULARY
from seatrial.targets.transformers.family_drawn import draw_by_names_alone, pieces
from seatrial.targets.transformers.family_failures import PROBABILITIES
from seatrial.targets.transformers.family_options import FamilyOptions, OptionedFamily
from seatrial.targets.transformers.family_routers import OPTIONS as OF_ROUTERS
from seatrial.targets.transformers.family_table import FAMILIES
from seatrial.targets.transformers.option_values import Variant, variants_of

RECORD = Path(__file__).with_name("recorded.json")
OLDEST = "4.53"
"""The oldest release whose outputs the record has."""
LINES: Mapping[str, tuple[str, str]] = {"4": ("4.57.6", "5"), "5": ("5.24", "6")}
"""Releases that a record holds for, the first and the one after the last, by the name of the line in the record."""
OUTPUTS = ("@states", "@left", "@cached", "@loss", "@routers")
"""What is recorded besides logits: hidden states of every layer, a batch padded on the left whose positions the model
counts by itself, a pass that continues from a cache, the loss with its gradient, and that of routers."""
OF_THE_LOSS = ("aux_loss", "z_loss", "router_aux", "output_router")
"""Beginnings of the names of options that act on the loss."""
COEFFICIENTS = (
    "router_aux_loss_coef",
    "aux_loss_coef",
    "aux_loss_alpha",
    "z_loss_coefficient",
    "router_z_loss_coef",
)
"""Of the losses of routers."""
LONGER_ROW = KnownFailure(
    "frequencies of a longer row stay",
    finding="Transformers: dynamic rotary embeddings after a longer row",
    releases=between("transformers", "5", "5.13"),
)
FLOOR = 1e-3
"""Of gradients, relative to the largest: what is smaller weighs less."""
NOISE = 1e-5
"""Of gradients, relative to the largest: what is smaller is left out, as some machines round it to zero."""


def line_of() -> str | None:
    """Return the line of releases of the installed one, None where none is recorded."""
    installed = Version(release("transformers"))
    within = (name for name, (first, end) in LINES.items() if Version(first) <= installed < Version(end))
    return next(within, None)


def unserved(error: Exception) -> NotServed:
    """Return what a call that raises is: absent where a package is missing or the release refuses it in words."""
    absent = isinstance(error, ImportError) or refusal_of(error) is not None
    return (Absent if absent else NotServed)(error_line(error))


@cache
def record(path: Path = RECORD) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return by kind and option the oldest release with these projections, and the projections."""
    if not path.exists():
        return {}
    found: Mapping[str, Mapping[str, Sequence[Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def before_5(path: Path) -> Path:
    """Return the file next to a record with what releases before 5 give otherwise."""
    return path.with_stem(f"{path.stem}_4")


def is_recorded(path: Path, kind: str) -> bool:
    """Return whether a record has a kind, of any release."""
    return kind in record(path) or kind in record(before_5(path))


def recorded_of(path: Path, kind: str) -> Mapping[str, Sequence[float]]:
    """Return the projections of a kind that the record has for the installed release."""
    installed = Version(release("transformers"))
    own = dict(record(path).get(kind, {}))
    if installed < Version("5"):
        own |= record(before_5(path)).get(kind, {})
    return {name: values for name, (oldest, *values) in own.items() if installed >= Version(oldest)}


def rows() -> list[list[int]]:
    """Return the rows of the record."""
    rng = np.random.default_rng(11)
    return [[int(token) for token in rng.integers(3, VOCABULARY, size=size)] for size in (13, 6, 10)]


def projection(value: Tensor) -> float:
    """Return a sum of a tensor's numbers with fixed weights, about as large as one of them."""
    value = value.double()
    places = torch.arange(value.numel(), dtype=torch.float64).view_as(value)
    scale: float = (2 / max(value.numel(), 1)) ** 0.5
    return float((value * torch.cos(1.3 * places)).sum()) * scale


def projected(values: Sequence[Tensor]) -> list[float]:
    """Return a projection of each tensor, and the root of the mean square of all their numbers.

    Raises:
        NotServed: they have no numbers, or some that are not finite.
    """
    every = [value.double().flatten() for value in values]
    size = float(torch.cat(every).square().mean().sqrt()) if every else math.nan
    if not math.isfinite(size):
        raise NotServed("no finite numbers")
    return [*map(projection, values), size]


def of_gradients(loss: float, gradients: Mapping[str, Tensor]) -> list[float]:
    """Return a loss and two sums over gradients, in which every parameter weighs about the same.

    Raises:
        NotServed: a number is not finite.
    """
    own = {name: value for whole, every in gradients.items() for name, value in pieces(whole, every)}
    sizes = {name: float(value.double().square().mean().sqrt()) for name, value in own.items()}
    largest = max(sizes.values(), default=0.0)
    floor = FLOOR * largest
    total, logs, num = 0.0, 0.0, 0
    for name, value in sorted(own.items()):
        if sizes[name] <= NOISE * largest:
            continue  # also an expert that no token goes to, which is no tensor of its own in each release
        num += 1
        weight = math.cos(zlib.crc32(name.encode()))
        total += weight * projection(value) / (sizes[name] + floor)
        logs += weight * math.log(sizes[name] + floor)
    if not num:
        raise NotServed("no gradients")
    scale = math.sqrt(num)
    found = [loss, total / scale, logs / scale, max(1.0, abs(loss))]
    if not all(map(math.isfinite, found)):
        raise NotServed("no finite numbers")
    return found


class _Recorded(OptionedFamily):
    """A family's tiny model with weights that depend on their names alone."""

    def _draw(self, model: Any) -> None:
        draw_by_names_alone(model)


class _Options(FamilyOptions):
    """Every option of a family by itself, and some of its routers together."""

    def __init__(self) -> None:
        self._plain = _Recorded(self.family, {})
        self._made: dict[str, OptionedFamily] = {"": self._plain}

    @cached_property
    def _variants(self) -> Mapping[str, Variant]:
        config = self._plain._config()
        singles = variants_of(self._plain._config_class, config, self._row.options)
        known = config.to_dict()
        given = {name: value for name, value in OF_ROUTERS.items() if name in known}
        extra: list[Variant] = []
        coefficients = dict.fromkeys((name for name in COEFFICIENTS if name in known), 0.5)
        if coefficients or len(given) > 1:
            given |= coefficients
            extra.append(Variant(name="routers", options=given))
            for name in ("norm_topk_prob", "use_bidirectional_attention", "tie_word_embeddings"):
                if name in known:
                    more = {**given, name: not known[name]}
                    extra.append(Variant(name=f"routers {name}", options=more))
        if "output_router_logits" in known:
            extra.append(Variant(name="output_router_logits", options={"output_router_logits": True}))
        return {one.name: one for one in (*singles, *extra)}

    def with_option(self, name: str) -> OptionedFamily:
        if name not in self._made:
            self._made[name] = _Recorded(self.family, self._variants[name].options)
        return self._made[name]


def _logits(model: OptionedFamily) -> list[float]:
    return projected(model.family_logits(rows(), ModelForm()))


def _states(model: OptionedFamily) -> list[float]:
    found = model.model()(input_ids=torch.tensor([rows()[0]]), output_hidden_states=True, **model._uncached())
    states = getattr(found, "hidden_states", None)
    if not states:
        raise NotServed("no hidden states")
    scale = [float(one.double().square().mean().sqrt()) for one in states]
    return projected([one / max(size, 1e-9) for one, size in zip(states, scale, strict=True)])


def _left(model: OptionedFamily) -> list[float]:
    if model.family_excludes(ModelForm(together="left")):
        raise NotServed("no padding on the left")
    inputs, places = model._inputs(rows(), "left")
    inputs.pop("position_ids", None)
    logits = model.model()(**inputs, **model._uncached()).logits
    return projected([logits[row, place] for row, place in enumerate(places)])


def _cached(model: OptionedFamily) -> list[float]:
    form = ModelForm(decoded="in two passes", num_last=3)
    if model.family_excludes(form):
        raise NotServed("not from a cache")
    return projected(model.family_logits(rows(), form))


def _loss(model: OptionedFamily) -> list[float]:
    with torch.enable_grad():
        step = model.family_step(rows(), checkpointed=False)
    return of_gradients(step.loss, step.gradients)


def _routers(model: OptionedFamily) -> list[float]:
    """Return the loss of a padded batch with that of routers, by itself and by each of their logits."""
    parameters = model._parameters()
    if "output_router_logits" not in parameters and not hasattr(model.model().config, "output_router_logits"):
        raise NotServed("no logits of routers")
    inputs, places = model._inputs(rows(), "right")
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, place in enumerate(places):
        labels[row, place] = inputs["input_ids"][row, place]
    found = model.model()(**inputs, labels=labels, output_router_logits=True, **model._uncached())
    losses = [getattr(found, name, None) for name in ("loss", "aux_loss")]
    logits = [one for one in getattr(found, "router_logits", None) or () if isinstance(one, Tensor)]
    if not logits:
        raise NotServed("no logits of routers are given")
    numbers = [float(one) for one in losses if one is not None]
    return [*numbers, *projected([one.reshape(-1, one.shape[-1])[: len(rows()[0])] for one in logits])]


MADE: Mapping[str, Callable[[OptionedFamily], list[float]]] = {
    "@states": _states,
    "@left": _left,
    "@cached": _cached,
    "@loss": _loss,
    "@routers": _routers,
}


class FamilyRecord(KnowsFailures):
    """A family with outputs on record."""

    known_failures = (
        PROBABILITIES.of("R5.recorded/logits::@routers, routers @routers"),
        LONGER_ROW.of("R5.recorded/logits::rope_type=dynamic*"),
    )
    thorough = True
    path: ClassVar[Path] = RECORD
    kind: ClassVar[str]

    def __init__(self) -> None:
        """Find the family in the installed release."""
        if Version(release("transformers")) < Version(OLDEST):
            raise Gone(f"the record begins with transformers {OLDEST}")
        self._options = type("Optioned", (_Options,), {"family": self.kind})()

    @property
    def is_of_the_line(self) -> bool:
        return line_of() is not None

    @cached_property
    def recorded(self) -> Mapping[str, Sequence[float]]:
        return recorded_of(self.path, self.kind)

    def option_names(self) -> list[str]:
        """Return what can be recorded: options that the release has, and outputs."""
        known = self._options.option_names
        losses = [f"{name} @loss" for name in known if name.startswith(OF_THE_LOSS)]
        return ["", *OUTPUTS, "routers @routers", "routers @loss", *known, *losses]

    def projections(self, name: str) -> Sequence[float]:
        option, marked, output = name.partition("@")
        option = option.strip()
        if option and option not in self._options.option_names:
            raise Absent(f"no option {option}")
        make = MADE[f"@{output}"] if marked else _logits
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return make(self._options.with_option(option))
        except NotServed:
            raise
        except Exception as error:  # not served, which is no wrong number
            raise unserved(error) from error


def _adapter(family: str) -> type[FamilyRecord]:
    return type(
        f"Recorded_{family}",
        (FamilyRecord,),
        {"__doc__": f"The family {family} on record.", "kind": family},
    )


EVERY: dict[str, type[Any]] = {f"recorded-{family}": _adapter(family) for family in FAMILIES}
"""Those that can be recorded."""
ADAPTERS: dict[str, type[Any]] = {name: one for name, one in EVERY.items() if is_recorded(one.path, one.kind)}
