"""A family's tiny model on rows longer than its original length or than the places that its layers choose."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.contracts.model_calls import CallForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.target import Gone
from seatrial.targets.transformers.causal import need_packed_masks
from seatrial.targets.transformers.small_models import text_config

Rows = Sequence[Sequence[int]]
Pairs = list[tuple[Tensor, Tensor]]
ORIGINAL = "original_max_position_embeddings"
SHORT, GROWS = 4, 6
"""Original lengths: one that every row exceeds, and one that rows exceed while they are generated."""
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: SHORT}
CHOSEN: Sequence[Mapping[str, Any]] = (
    {"index_topk": 4, "index_n_heads": 12},
    {"attention_chunk_size": 3},
    {"floor_scale": 3, "no_rope_layers": [1, 0]},
)
"""Options of layers that see or scale places by their distance from the first one, where all are known."""
FURTHER: Mapping[str, Sequence[Mapping[str, Any]]] = {"lfm2": ({"layer_types": ["conv", "full_attention"]},)}
"""Other layers of a family whose tiny model has attention alone."""
PADDING = 6
"""Places of padding before a row that is a batch by itself."""
FILLED = 5
"""The id at these places."""
LONG = 20
NEAR = 1e-3
Compared = Callable[[Any, Any, Rows], Pairs]
"""Of a family, its model and rows: the logits of a form with those of the rows by themselves."""


def _rotary(family: Any, more: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options of a configuration with other parameters of rotary embeddings, where it has some."""
    config = text_config(family.model())
    current = getattr(config, "rope_parameters", None)
    if isinstance(current, dict):
        of_kinds = {kind: value for kind, value in current.items() if isinstance(value, dict)}
        changed = {kind: {**value, **more} for kind, value in of_kinds.items()} or {**current, **more}
        yield {"rope_parameters": changed}
    elif "rope_scaling" in config.to_dict():
        yield {"rope_scaling": dict(more)}


def _made(family: Any, options: Mapping[str, Any]) -> Any:
    """Return the model with other options, or None where its configuration refuses them."""
    try:
        return family.made("eager", **options)
    except Exception:  # noqa: BLE001  refused when it is made, before anything is computed
        return None


def _long_models(family: Any) -> list[Any]:
    """Return the models for which every row is long."""
    known = text_config(family.model()).to_dict()
    turned = [] if "places by a factor" in family.row.not_served else [*_rotary(family, YARN)]
    options = [*turned, *(one for one in CHOSEN if all(name in known for name in one))]
    return [model for one in options if (model := _made(family, one)) is not None]


def _alone(family: Any, model: Any, rows: Rows) -> list[Tensor]:
    return [one for row in rows for one in family._forward(model, [row], ModelForm())]


def _padded(family: Any, model: Any, rows: Rows) -> Pairs:
    inputs, places = family._inputs(rows, "left")
    logits_BSV = model(**inputs, **family._uncached()).logits
    found = [logits_BSV[row, place] for row, place in enumerate(places)]
    return [*zip(found, _alone(family, model, rows), strict=True), *_one_padded(family, model, rows)]


def _one_padded(family: Any, model: Any, rows: Rows) -> Pairs:
    """Return logits of batches of one row that is padded on the left."""
    found = []
    for row in rows:
        inputs, places = family._inputs([row, [*row, *[FILLED] * PADDING]], "left")
        one = {name: value[:1].clone() for name, value in inputs.items()}
        # The embedding of the padding id is 0, which changes no state of a layer without a bias.
        one["input_ids"][0, :PADDING] = FILLED
        found.append(model(**one, **family._uncached()).logits[0, places[0]])
    return list(zip(found, _alone(family, model, rows), strict=True))


def _packed(family: Any, model: Any, rows: Rows) -> Pairs:
    ids_1S = torch.tensor([[token for row in rows for token in row]])
    positions_1S = torch.tensor([[place for row in rows for place in range(len(row))]])
    logits_SV = model(input_ids=ids_1S, position_ids=positions_1S, **family._uncached()).logits[0]
    found = logits_SV.split([len(row) for row in rows])
    return list(zip(found, _alone(family, model, rows), strict=True))


def _generated(family: Any, model: Any, rows: Rows) -> Pairs:
    """Return logits of ids that are generated from the cache, against those of whole rows."""
    form = ModelForm(decoded="from the cache", num_last=min(map(len, rows)) - 2)
    found = list(family._decoded(model, rows, form))
    right = _alone(family, model, rows)
    return [(one, whole[-len(one) :]) for one, whole in zip(found, right, strict=True)]


def _near(pairs: Pairs) -> bool:
    return all(float((one - due).abs().max()) <= NEAR * float(due.abs().max()) for one, due in pairs)


def _beyond(compared: Compared, needed: ModelForm) -> Callable[[Any, Rows], Pairs]:
    """Return a form that has to hold on long rows where it holds on short ones."""

    def form(family: Any, rows: Rows) -> Pairs:
        if why := family.family_excludes(needed):
            raise NotServed(why)
        models = _long_models(family)
        if not models:
            raise NotServed("no length that rows can exceed")
        try:
            holds = _near(compared(family, family.model(), rows))
        except (RuntimeError, TypeError, ValueError) as error:
            raise NotServed(error_line(error)) from error
        if not holds:
            raise NotServed("it does not hold on short rows")
        return [pair for model in models for pair in compared(family, model, rows)]

    return form


def _packed_rows(family: Any, rows: Rows) -> Pairs:
    if "position_ids" not in inspect.signature(family.model().forward).parameters:
        raise NotServed("no position_ids")
    try:
        need_packed_masks()
    except Gone as gone:
        raise NotServed(str(gone)) from gone
    return _beyond(_packed, ModelForm())(family, rows)


def _row_padded(family: Any, rows: Rows) -> Pairs:
    if why := family.family_excludes(ModelForm(together="left")):
        raise NotServed(why)
    models = [family.model(), *(family.made("eager", **one) for one in FURTHER.get(family.family, ()))]
    return [pair for model in models for pair in _one_padded(family, model, rows)]


def _grown(family: Any, rows: Rows) -> Pairs:
    """Return logits of ids with a cache and without one, of rows that grow beyond the length of short factors."""
    model = family.model()
    own = getattr(model, "prepare_inputs_for_generation", None)
    if own is None or ORIGINAL not in inspect.getsource(own):
        raise NotServed("what is kept of a short row stays when it grows")
    config = text_config(model)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    half = size // 2
    factors = {"short_factor": [1.0] * half, "long_factor": [2.0 + place for place in range(half)]}
    scales = {"short_mscale": 1.0, "long_mscale": 1.2}
    changed = None
    for given in ({"rope_type": "longrope", ORIGINAL: GROWS}, {"type": "longrope"}):
        for more in ({}, scales):
            for options in _rotary(family, {**given, **factors, **more}):
                changed = changed or _made(family, {**options, ORIGINAL: GROWS})
    if changed is None:
        raise NotServed("no long and short factors")
    shortest = min(len(row) for row in rows if len(row) > GROWS + 1)
    batch = [row[: shortest - number % 2] for number, row in enumerate(rows) if len(row) >= shortest]
    pairs = []
    for some in ([batch[0]], batch):
        T = shortest - SHORT
        found, right = (
            list(family._decoded(changed, some, ModelForm(decoded=how, num_last=T)))
            for how in ("from the cache", "without a cache")
        )
        pairs += list(zip(found, right, strict=True))
    return pairs


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, neighbours: bool) -> Tensor:
    """Return [..., S, D] turned by angles [S, D]: pairs are neighbours, or a number and one half a size later."""
    half = x.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    one, other = (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., :half], x[..., half:])
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)


def index_scores(indexer: Any, given: Mapping[str, Any]) -> list[Tensor]:
    """Return [S, S] scores of keys for each query, by each way in which a part of a head can be turned.

    The sum over heads of a weight times the part of (query * key) above 0 (DeepSeek-V3.2-Exp, equation 1).
    """
    states_SD = given["hidden_states"][0]
    H, D, size = indexer.n_heads, indexer.head_dim, indexer.qk_rope_head_dim
    cos, sin = (one[0] for one in given["position_embeddings"])
    query_HSD = indexer.wq_b(given["q_resid"][0]).view(-1, H, D).transpose(0, 1)
    key_SD = indexer.k_norm(indexer.wk(states_SD).to(indexer.k_norm.weight.dtype))
    weights_SH = indexer.weights_proj(states_SD)
    found = []
    for first, neighbours in ((True, False), (True, True), (False, False)):

        def turn(x: Tensor, first: bool = first, neighbours: bool = neighbours) -> Tensor:
            turned, rest = (
                (x[..., :size], x[..., size:]) if first else (x[..., D - size :], x[..., : D - size])
            )
            return torch.cat([_turned(turned, cos, sin, neighbours=neighbours), rest], dim=-1)

        products_HST = turn(query_HSD) @ turn(key_SD).T
        scale = D**-0.5 * H**-0.5
        found.append(torch.einsum("sh,hst->st", weights_SH, products_HST.clamp(min=0)) * scale)
    return found


def _chosen(family: Any, rows: Rows) -> Pairs:
    """Return scores of the places that an indexer chooses, against the largest, and the places that are seen."""
    config = text_config(family.model())
    if not all(hasattr(config, name) for name in ("index_topk", "index_n_heads")):
        raise NotServed("no indexer of single places")
    model = family.made("eager", index_topk=4, index_n_heads=4)
    calls: list[tuple[Any, Mapping[str, Any], Tensor]] = []

    def keep(indexer: Any, args: Any, kwargs: Any, found: Tensor) -> None:
        bound = inspect.signature(indexer.forward).bind(*args, **kwargs).arguments
        calls.append((indexer, bound, found))

    parts = [one for one in model.modules() if hasattr(one, "wq_b") and hasattr(one, "weights_proj")]
    for one in parts:
        one.register_forward_hook(keep, with_kwargs=True)
    ids = torch.tensor([(list(rows[0]) * 3)[:LONG]])
    model(input_ids=ids, **family._uncached())
    pairs = []
    for indexer, given, found in calls:
        if "q_resid" not in given or found.dtype.is_floating_point or found.shape[-1] != 4:
            continue
        later = torch.ones(LONG, LONG).triu(1).bool()
        ways = [one.masked_fill(later, float("-inf"))[4:] for one in index_scores(indexer, given)]
        errors = []
        for scores in ways:
            due = scores.topk(4).values
            chosen = scores.gather(1, found[0, 4:].long()).sort(descending=True).values
            errors.append((chosen.nan_to_num(neginf=-1e3), due))
        pairs.append(min(errors, key=lambda pair: float((pair[0] - pair[1]).abs().max())))
    if not pairs:
        raise NotServed("no indexer of single places")
    return pairs


LENGTH_FORMS: Mapping[CallForm, Callable[[Any, Rows], Pairs]] = {
    "a row padded by itself": _row_padded,
    "padded beyond a length": _beyond(_padded, ModelForm(together="left")),
    "packed beyond a length": _packed_rows,
    "generated beyond a length": _beyond(_generated, ModelForm(decoded="from the cache", together="left")),
    "grown beyond a length": _grown,
    "places of an index": _chosen,
}
