"""A family's tiny model in several ways of a call; see `contracts.model_calls`."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.contracts.model_calls import IGNORED, CallForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.transformers.family_caches import CACHE_FORMS
from seatrial.targets.transformers.family_lengths import LENGTH_FORMS
from seatrial.targets.transformers.family_parts import PART_FORMS
from seatrial.targets.transformers.family_routers import ROUTER_FORMS
from seatrial.targets.transformers.family_scales import SCALE_FORMS
from seatrial.targets.transformers.small_models import text_config

Rows = Sequence[Sequence[int]]
Pairs = list[tuple[Tensor, Tensor]]
FACTOR = 3
"""Of linear scaling."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
SCALE = 0.7
"""By which the scale of attention grows with the logarithm of the factor (mscale)."""


def _alone(model: Any, row: Sequence[int], **options: Any) -> Any:
    """Return the outputs of one row."""
    given = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model(input_ids=torch.tensor([list(row)]), **{**given, **options})


def _rows_alone(family: Any, rows: Rows) -> list[Tensor]:
    return [_alone(family.model(), row).logits[0] for row in rows]


def _paired(model: Any, rows: Rows, right: list[Tensor], **options: Any) -> Pairs:
    found = [_alone(model, row, **options).logits[0] for row in rows]
    return list(zip(found, right, strict=True))


def _further_outputs(family: Any, rows: Rows) -> Pairs:
    asked = {"output_hidden_states": True, "output_attentions": True}
    return _paired(family.model(), rows, _rows_alone(family, rows), **asked)


def _as_a_tuple(family: Any, rows: Rows) -> Pairs:
    found = [_alone(family.model(), row, return_dict=False)[0][0] for row in rows]
    return list(zip(found, _rows_alone(family, rows), strict=True))


def _after_other_calls(family: Any, rows: Rows) -> Pairs:
    model = copy.deepcopy(family.model())
    long = [token for row in rows for token in row]
    for row in (long[:40], rows[0][:2]):
        _alone(model.train(), row)
        _alone(model.eval(), row)
    return _paired(model, rows, _rows_alone(family, rows))


def _in_float64(family: Any, rows: Rows) -> Pairs:
    model = copy.deepcopy(family.model()).double()
    try:
        found = _paired(model, rows, _rows_alone(family, rows))
    except RuntimeError as error:  # a kernel, or a number that it does not take
        raise NotServed(error_line(error)) from error
    if any(one.dtype is not torch.float64 for one, _ in found):
        raise NotServed("logits are of another type by design")
    return found


def _reversed(family: Any, rows: Rows) -> Pairs:
    form = ModelForm(together="right")
    if why := family.family_excludes(form):
        raise NotServed(why)
    found = family.family_logits(rows[::-1], form)[::-1]
    return list(zip(found, family.family_logits(rows, form), strict=True))


def _with_rotary(family: Any, options: Mapping[str, Any]) -> Any:
    """Return the model with parameters of its rotary embeddings, of each kind of layer where there are several."""
    current = getattr(text_config(family.model()), "rope_parameters", None)
    if not isinstance(current, dict):
        raise NotServed("no rope_parameters")
    # Gemma 3 of some releases has options of no kind next to those of its kinds, and does not read them.
    of_kinds = {kind: value for kind, value in current.items() if isinstance(value, dict)}
    if of_kinds:
        changed = {kind: {**value, **options} for kind, value in of_kinds.items()}
    else:
        changed = {**current, **options}
    try:
        return family.made("eager", rope_parameters=changed)
    except Exception as error:  # refused when it is made, before anything is computed
        raise NotServed(error_line(error)) from error


def _by_a_factor(family: Any, rows: Rows) -> Pairs:
    if "position_ids" not in inspect.signature(family.model().forward).parameters:
        raise NotServed("no position_ids")
    plain = _with_rotary(family, {"rope_type": "default"})
    scaled = _with_rotary(family, {"rope_type": "linear", "factor": float(FACTOR)})
    found = []
    for row in rows:
        places = torch.arange(len(row))[None]
        mask = {"attention_mask": torch.ones_like(places)}  # without it, places that jump begin another row
        one = _alone(scaled, row, position_ids=FACTOR * places, **mask).logits[0]
        found.append((one, _alone(plain, row, position_ids=places, **mask).logits[0]))
    return found


def _by_larger_queries(family: Any, rows: Rows) -> Pairs:
    if not hasattr(text_config(family.model()), "kv_lora_rank"):
        raise NotServed("no latent attention")
    scaled = _with_rotary(family, {**YARN, "mscale": SCALE, "mscale_all_dim": SCALE})
    larger = _with_rotary(family, {**YARN, "attention_factor": 1.0})
    growth = (0.1 * SCALE * math.log(YARN["factor"]) + 1) ** 2  # type: ignore[arg-type]
    names = ("q_b_proj.weight", "q_proj.weight")
    queries = [value for name, value in larger.named_parameters() if name.endswith(names)]
    if not queries:
        raise NotServed("no projection of queries by a known name")
    for value in queries:
        value.data.mul_(growth)
    return _paired(scaled, rows, [_alone(larger, row).logits[0] for row in rows])


FORMS: Mapping[CallForm, Callable[[Any, Rows], Pairs]] = {
    "further outputs": _further_outputs,
    "as a tuple": _as_a_tuple,
    "after other calls": _after_other_calls,
    "in float64": _in_float64,
    "no rows of their own": _reversed,
    "places by a factor": _by_a_factor,
    "yarn by larger queries": _by_larger_queries,
    **CACHE_FORMS,
    **LENGTH_FORMS,
    **PART_FORMS,
    **ROUTER_FORMS,
    **SCALE_FORMS,
}


class FamilyCalls:
    """What a family offers as `contracts.ModelCalls`."""

    def _uncached(self) -> dict[str, Any]:
        return {"use_cache": False} if "use_cache" in self._parameters() else {}  # type: ignore[attr-defined]

    def _as_taken(self, labels_BS: Tensor) -> Tensor:
        """Return labels at the places where the family's loss takes them."""
        if not self.row.labels_in_place:  # type: ignore[attr-defined]
            return labels_BS
        last_B1 = torch.full_like(labels_BS[:, :1], IGNORED)
        return torch.cat([labels_BS[:, 1:], last_B1], dim=1)

    def call_pairs(self, rows: Rows, form: CallForm) -> Pairs:
        if why := self.row.not_served.get(form):  # type: ignore[attr-defined]
            raise NotServed(why)
        return FORMS[form](self, rows)

    def row_logits(self, rows: Rows) -> list[Tensor]:
        found: list[Tensor] = self.family_logits(rows, ModelForm())  # type: ignore[attr-defined]
        return found

    def loss_of_labels(self, rows: Rows, labels: Rows) -> tuple[float, list[str]]:
        model = copy.deepcopy(self.model()).train()  # type: ignore[attr-defined]
        batch, _ = self._inputs(rows, "right")  # type: ignore[attr-defined]
        S = batch["input_ids"].shape[1]
        batch["labels"] = self._as_taken(
            torch.tensor([[*own, *[IGNORED] * (S - len(own))] for own in labels])
        )
        before = {name: value.clone() for name, value in batch.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            loss = model(**batch).loss
        loss.backward()
        changed = [name for name, value in batch.items() if not torch.equal(value, before[name])]
        return float(loss.detach()), changed
