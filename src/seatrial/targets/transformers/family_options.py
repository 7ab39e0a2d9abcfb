"""Families of causal language models with every option at another value; see `contracts.model_options`."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone
from seatrial.targets.common.tiny import WEIGHT_SCALE
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.causal import need_packed_masks
from seatrial.targets.transformers.families import CausalFamily
from seatrial.targets.transformers.family_table import FAMILIES, Family
from seatrial.targets.transformers.option_table import NOT_JUDGED, failures_of, why_excluded
from seatrial.targets.transformers.option_values import OWN_ROTARY, Variant, structures_of, variants_of

NOISE = 0.1
"""Spread that biases and norms get, which are constant in a fresh model: an option that leaves one out then shows."""
OF_LLAMA3 = "low_freq_factor"
"""A key that raises in a family that takes rotary embeddings of the kind `llama3` alone, as Llama 4 before 5."""
DERIVED = ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures")


class OptionedFamily(CausalFamily):
    """A family's tiny model with options at other values; its weights are drawn by their names."""

    def __init__(self, family: str, options: Mapping[str, Any]) -> None:
        """Keep the options, and find the family."""
        self.family = family  # type: ignore[misc]
        self._options = options
        super().__init__()

    def _config(self, **more: Any) -> Any:
        return super()._config(**{**self._options, **more})

    def _draw(self, model: Any) -> None:
        draw_by_names(model)

    def _weighted(self, build: Any, config: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build(config).float()
        self._draw(model)
        return model

    def packed_logits(self, rows: Sequence[Sequence[int]], attention: str) -> list[Tensor]:
        if "position_ids" not in self._parameters():
            raise NotServed("no position_ids")
        try:
            need_packed_masks()
        except Gone as gone:
            raise NotServed(str(gone)) from gone
        ids_1S = torch.tensor([[token for row in rows for token in row]])
        positions_1S = torch.tensor([[place for row in rows for place in range(len(row))]])
        logits_SV = self.model(attention)(
            input_ids=ids_1S, position_ids=positions_1S, use_cache=False
        ).logits[0]
        return list(logits_SV.split([len(row) for row in rows]))

    def option_step(
        self, rows: Sequence[Sequence[int]], *, attention: str = "eager", num_items: int | None = None
    ) -> StepResult:
        return self.family_step(rows, checkpointed=False, attention=attention, num_items=num_items)

    def drawn_logits(self, rows: Sequence[Sequence[int]], seed: int, attention: str) -> list[Tensor]:
        model = copy.deepcopy(self.model(attention)).train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return [one for row in rows for one in self._forward(model, [row], ModelForm(attention="sdpa"))]

    def options_lost(self) -> Sequence[str]:
        config = self.model().config
        folder = new_folder()
        config.save_pretrained(folder)
        loaded, before = type(config).from_pretrained(folder).to_dict(), config.to_dict()
        return [
            f"{name} {loaded.get(name)!r}, before {value!r}"
            for name, value in before.items()
            if name not in DERIVED and not name.startswith("_") and _plain(loaded.get(name)) != _plain(value)
        ]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: tuples are lists."""
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def draw_by_names(model: Any) -> None:
    """Draw the weights of a model by their names, and the biases that are buffers."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            _draw(name, value)
        saved = {*model.state_dict()}
        for name, value in model.named_buffers():
            if name in saved and name.endswith("bias") and value.is_floating_point():
                _draw(name, value)


def _draw(name: str, value: Tensor) -> None:
    """Draw a tensor by its name, with an enlarged spread; what is constant gets a little noise."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    drawn = torch.randn(value.shape, generator=generator)
    spread = float(value.std()) if value.numel() > 1 else 0.0
    if value.dim() > 1 and spread > 0:
        value.copy_(drawn * WEIGHT_SCALE * 2.0 ** round(math.log2(spread)))
    else:
        value.add_(NOISE * drawn)


class FamilyOptions(KnowsFailures):
    """A family's options; see `contracts.ModelOptions`."""

    vocab_size = CausalFamily.vocab_size
    thorough = True
    family: ClassVar[str]

    def __init__(self) -> None:
        """Find the family in the installed release."""
        self._plain = OptionedFamily(self.family, {})
        self._made: dict[str, OptionedFamily] = {"": self._plain}
        if not self._variants:
            raise Gone(f"no option of {self.family} is judged yet")

    @property
    def _row(self) -> Family:
        return FAMILIES[self.family]

    @cached_property
    def _variants(self) -> Mapping[str, Variant]:
        given = self._plain._config_class, self._plain._config()
        if self.family in NOT_JUDGED:
            return {one.name: one for one in structures_of(*given)}
        singles = variants_of(*given, self._row.options)
        half = len(singles) // 2
        pairs = [
            Variant(name=f"{one.name} & {other.name}", options={**one.options, **other.options})
            for one, other in zip(singles[:half], singles[half:], strict=False)
            if not {*one.options} & {*other.options}
        ]
        return {one.name: one for one in (*singles, *pairs)}

    @property
    def option_names(self) -> Sequence[str]:
        return list(self._variants)

    @property
    def trains_alone(self) -> Sequence[str]:
        return [name for name, one in self._variants.items() if one.trains]

    def with_option(self, name: str) -> OptionedFamily:
        if name not in self._made:
            made = OptionedFamily(self.family, self._variants[name].options)
            try:
                made.model()
            except Exception as error:
                if not _refuses(error):
                    raise
                raise NotServed(f"{name}: {error_line(error)}") from error
            self._made[name] = made
        return self._made[name]

    def option_excludes(self, law: str, name: str) -> str | None:
        return why_excluded(self.family, law, name)

    def option_failures(self, law: str) -> Mapping[str, str]:
        return failures_of(self, law)


def _refuses(error: Exception) -> bool:
    """Return whether a configuration's own check raised an error, before anything was computed.

    Errors of its strict data classes derive from `Exception` alone, and a missing rotary option is a `KeyError`.
    """
    return (
        isinstance(error, (ValueError, NotImplementedError))
        or type(error).__name__.startswith("StrictDataclass")
        or (isinstance(error, TypeError) and "field must be" in str(error))
        or (
            isinstance(error, KeyError)
            and any(one in str(error) for one in ("Missing required keys", OF_LLAMA3, *OWN_ROTARY))
        )
    )


def _adapter(family: str) -> type[FamilyOptions]:
    return type(
        f"Options_{family}",
        (FamilyOptions,),
        {"__doc__": f"Options of the family {family}.", "family": family},
    )


ADAPTERS: dict[str, type[Any]] = {
    f"options-{family}": _adapter(family)
    for family in FAMILIES
    if family not in NOT_JUDGED or not FAMILIES[family].has_parts
}
