"""Models of texts and pictures with rows of pictures and films, one adapter a kind; see `contracts.any_models`.

Laws of rows without pictures: `any_models`. Outputs on record: `any_records`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.any_models import AnyForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.transformers.any_models import LARGEST
from seatrial.targets.transformers.any_pictures import (
    TURNED,
    TURNED_FILMS,
    Inputs,
    Media,
    films_of,
    media_of,
)
from seatrial.targets.transformers.any_records import KINDS, PicturesRecord
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.small_models import fresh_model

GIVEN_BY_ROW = 2
"""The first rows, which have a picture each; the third has none."""
UNMASKED = KnownFailure(
    "positions of a film or a picture are taken for the beginnings of rows",
    finding="Transformers: pictures without a mask",
    releases=before("transformers", "5.3"),
).of("R5.base/rows without a mask")
OTHERS = "models without pictures are judged by it"


@dataclass(frozen=True)
class Rows:
    """A batch of rows padded on the left, two with a picture or a film each."""

    inputs: Inputs
    names: Sequence[str]
    """Of what is given besides ids."""

    @property
    def shown(self) -> Tensor:
        """Return where no padding is, [B, S]."""
        return self.inputs["attention_mask"].bool()

    def alone(self, row: int) -> Inputs:
        """Return a row without padding, with its own picture."""
        shown = self.shown[row]
        found = {
            name: value[row : row + 1, shown] for name, value in self.inputs.items() if name not in self.names
        }
        if row >= GIVEN_BY_ROW:
            return found
        return {**found, **{name: self._given(name, row) for name in self.names}}

    def _given(self, name: str, row: int) -> Tensor:
        """Return the part of a row: patches by the grids, which lie end to end, or one of two pictures."""
        value = self.inputs[name]
        grids = next((self.inputs[one] for one in self.names if one.endswith("_grid_thw")), None)
        if grids is None or name.endswith("_grid_thw"):
            return value[row : row + 1]
        ends = [0, *grids.prod(dim=1).cumsum(0).tolist()]
        return value[ends[row] : ends[row + 1]]

    def reversed(self) -> Inputs:
        """Return the two rows with a picture in the other order, behind the third."""
        order = [2, 1, 0]
        found = {name: value[order] for name, value in self.inputs.items() if name not in self.names}
        return {
            **found,
            **{name: torch.cat([self._given(name, row) for row in (1, 0)]) for name in self.names},
        }


class MediaModel(PicturesRecord):
    """A kind of model with rows of unlike pictures."""

    recorded: Mapping[str, Sequence[float]] = {}

    @cached_property
    def _has_pieces(self) -> bool:
        """Whether each frame of a film has places of its own, as the code says that makes positions."""
        base = self._plain.model if hasattr(self._plain, "model") else self._plain
        index = getattr(base, "get_rope_index", None)
        return index is not None and "repeat_interleave(video_grid_thw" in inspect.getsource(index)

    @cached_property
    def _rows(self) -> Mapping[str, Rows]:
        """Return rows with pictures and with films by these names, of those that the model takes."""
        made: Mapping[str, Callable[[Any], Iterator[Media]]] = {
            "pictures": media_of,
            "turned pictures": partial(media_of, grids=TURNED),
            "films": films_of,
            "turned films": partial(films_of, grids=TURNED_FILMS),
        }
        try:
            model = self._plain
        except NotServed:
            raise
        except Exception as error:  # refused when it is made, before anything is computed
            raise NotServed(error_line(error)) from error
        found = {}
        for what, media in made.items():
            every = media(model)
            if what.endswith("films") and self._has_pieces:
                next(every, None)
            try:
                inputs = self._inputs(model, every)
            except NotServed:
                continue
            inputs.pop("labels", None)
            if "attention_mask" in inputs:
                names = [name for name in inputs if name.startswith(("pixel_", "image_", "video_"))]
                if what in ("pictures", "films") or any(name.endswith("_grid_thw") for name in names):
                    found[what] = Rows(inputs, names)
        if not found:
            raise NotServed("no pictures that it takes were found")
        return found

    def _logits(self, inputs: Inputs, *, model: Any = None, **more: Any) -> Tensor:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            found: Tensor = (model or self._plain)(**inputs, **more).logits
        return found

    def _whole(self, rows: Rows, **more: Any) -> list[Tensor]:
        found = self._logits(rows.inputs, **more)
        return [one[shown] for one, shown in zip(found, rows.shown, strict=True)]

    def _single(self, rows: Rows, *, masked: bool = True) -> list[Tensor]:
        found = []
        for row in range(len(rows.shown)):
            inputs = rows.alone(row)
            if not masked:
                del inputs["attention_mask"]
            try:
                found.append(self._logits(inputs, use_cache=masked)[0])
            except RuntimeError as error:
                if masked or "expand(" not in str(error):
                    raise
                raise NotServed(f"rows need a mask: {error_line(error)}") from error
        return found

    def _turned(self, rows: Rows) -> list[Tensor]:
        found = self._logits(rows.reversed())
        return [one[shown] for one, shown in zip(found.flip(0), rows.shown, strict=True)]

    def _again(self, rows: Rows) -> list[Tensor]:
        model = copy.deepcopy(self._plain)
        for row in (1, 2):
            self._logits(rows.alone(row), model=model)
        return self._whole(rows, model=model)

    def _sdpa(self, rows: Rows) -> list[Tensor]:
        if not getattr(self._plain, "_supports_sdpa", False):
            raise NotServed("no scaled dot-product attention")
        try:
            model = fresh_model(self._class, copy.deepcopy(self._config), LARGEST, "sdpa").eval()
        except ValueError as error:  # a part of it has none
            raise NotServed(error_line(error)) from error
        draw_by_names_alone(model)
        return self._whole(rows, model=model)

    def any_outputs(self, form: AnyForm) -> Mapping[str, Tensor]:
        forms: Mapping[str, Callable[[Rows], list[Tensor]]] = {
            "together": self._whole,
            "alone": self._single,
            "unmasked": lambda rows: self._single(rows, masked=False),
            "reversed": self._turned,
            "again": self._again,
            "sdpa": self._sdpa,
            "uncached": lambda rows: self._whole(rows, use_cache=False),
            "asked": lambda rows: self._whole(rows, output_hidden_states=True, output_attentions=True),
        }
        if form not in forms:
            raise NotServed(OTHERS)
        try:
            return {
                f"{what}, row {row}": value
                for what, rows in self._rows.items()
                for row, value in enumerate(forms[form](rows))
            }
        except TypeError as error:
            if "required positional argument" not in str(error):
                raise
            raise NotServed(error_line(error)) from error  # no row without pictures

    def any_gradients(self, *, checkpointed: bool) -> Mapping[str, Tensor]:
        raise NotServed(OTHERS)

    def any_changes(self) -> Sequence[str]:
        raise NotServed(OTHERS)

    def any_missing(self) -> Sequence[str]:
        raise NotServed(OTHERS)


def _adapter(kind: str) -> type[MediaModel]:
    known = (UNMASKED,) if kind in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe") else ()
    words = {"__doc__": f"Rows of {kind} with pictures.", "kind": kind, "known_failures": known}
    return type(f"Media_{kind}", (MediaModel,), words)


ADAPTERS: dict[str, type[Any]] = {f"media-{kind}": _adapter(kind) for kind in KINDS}
