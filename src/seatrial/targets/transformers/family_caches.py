"""What a family's tiny model computes from a cache that was changed, or that `generate` changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.contracts.model_calls import CallForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.transformers.small_models import text_config

Rows = Sequence[Sequence[int]]
Pairs = list[tuple[Tensor, Tensor]]
CACHES = ("cache", "past_key_values", "cache_params")
"""Names of the argument that takes a cache, and of what is given."""
NUM_AFTER = 3
"""Ids that follow the cache."""
OTHER = 5
"""An id that is read and taken back."""
REFUSED = (
    "inputs_embeds", "does not support `crop`", "doesnot support `crop`", "requires a cache", "stateful models",
    "cannot be reordered", "not used by the model", "only supported with dynamic cache", "no attribute 'cache'",
    "no attribute 'past_key_values'", "'list' object has no attribute", "_is_user_defined",
)  # fmt: skip
"""Words of errors with which a release says that a model does not have this."""


def given_cache(outputs: Any) -> Any:
    """Return the cache in the outputs of a model or of `generate`.

    Raises:
        NotServed: there is none.
    """
    found = [one for name in CACHES if (one := getattr(outputs, name, None)) is not None]
    if not found:
        raise NotServed("no cache is given")
    return found[0]


@dataclass
class Reading:
    """A batch padded on the left whose last ids are read from the cache, one by one."""

    family: Any
    rows: Rows

    def __post_init__(self) -> None:
        """Read the ids before."""
        if why := self.family.family_excludes(ModelForm(together="left")):
            raise NotServed(why)
        self.model = self.family.model()
        self.name = next((name for name in CACHES if name in self.family._parameters()), "")
        if not self.name:
            raise NotServed("no cache is taken")
        if self.name == "cache_params":
            raise NotServed("this release takes ids after a state only with their places in the cache")
        self.inputs, _ = self.family._inputs(self.rows, "left")
        self.start = self.inputs["input_ids"].shape[1] - NUM_AFTER
        before = {name: value[:, : self.start] for name, value in self.inputs.items()}
        self.cache = given_cache(self.model(**before, use_cache=True))

    def read(self, inputs: Mapping[str, Tensor], cache: Any, num: int = NUM_AFTER) -> Tensor:
        """Return [B, num, V] logits of ids that follow the cache."""
        # Attention needs the mask of the ids before as well, which a state holds by itself.
        whole = ("attention_mask",) if hasattr(text_config(self.model), "num_attention_heads") else ()
        found = []
        for place in range(self.start, self.start + num):
            given = {
                name: value[:, : place + 1] if name in whole else value[:, place : place + 1]
                for name, value in inputs.items()
            }
            outputs = self.model(**given, **{self.name: cache}, use_cache=True)
            found.append(outputs.logits[:, -1])
            cache = given_cache(outputs)
        return torch.stack(found, dim=1)

    def pairs(self, cache: Any, places: Sequence[int]) -> Pairs:
        """Return logits of rows in another order, each with those of the whole row by itself."""
        chosen = {name: value[list(places)] for name, value in self.inputs.items()}
        right = self.family.family_logits(self.rows, ModelForm())
        found = self.read(chosen, cache)
        return [(one, right[place][-NUM_AFTER:]) for one, place in zip(found, places, strict=True)]

    def in_order(self, cache: Any) -> Pairs:
        """Return logits of the rows in their order."""
        return self.pairs(cache, range(len(self.rows)))


def _one_by_one(family: Any, rows: Rows) -> Pairs:
    reading = Reading(family, rows)
    return reading.in_order(reading.cache)


def _changed(method: str, argument: Any, places: Sequence[int]) -> Callable[[Any, Rows], Pairs]:
    """Return a form in which a method of the cache changes its rows."""

    def form(family: Any, rows: Rows) -> Pairs:
        reading = Reading(family, rows)
        layers = getattr(reading.cache, "layers", None) or [reading.cache]
        if not all(hasattr(one, method) for one in (reading.cache, *layers)):
            raise NotServed(f"no {method}")
        kept = [place for place in places if place < len(rows)]
        getattr(reading.cache, method)(
            torch.tensor(kept) if isinstance(argument, str) and argument == "places" else argument
        )
        return reading.pairs(reading.cache, kept)

    return form


def _copied(family: Any, rows: Rows) -> Pairs:
    reading = Reading(family, rows)
    other = copy.deepcopy(reading.cache)
    reading.read({**reading.inputs, "input_ids": reading.inputs["input_ids"].flip(0)}, other)
    return reading.in_order(reading.cache)


def _cut(family: Any, rows: Rows) -> Pairs:
    reading = Reading(family, rows)
    if not hasattr(reading.cache, "activate_past_recording"):
        raise NotServed("caches of this release are cut to a length, and not where windows slide")
    if not getattr(reading.cache, "is_croppable", True):
        raise NotServed("the cache says that it cannot be cut")
    reading.cache.activate_past_recording()
    wrong = reading.inputs["input_ids"].clone()
    wrong[:, reading.start :] = OTHER
    reading.read({**reading.inputs, "input_ids": wrong}, reading.cache, 1)
    reading.cache.crop(-1)
    return reading.in_order(reading.cache)


def _generated(family: Any, inputs: Mapping[str, Any], **options: Any) -> Any:
    """Return what `generate` gives, without an end."""
    plain = {
        "do_sample": False,
        "max_new_tokens": 5,
        "pad_token_id": family.padding_id,
        "eos_token_id": None,
        "return_dict_in_generate": True,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return family.model().generate(**inputs, **{**plain, **options})


def _prompts(family: Any, rows: Rows) -> dict[str, Tensor]:
    if why := family.family_excludes(ModelForm(together="left", decoded="from the cache", num_last=1)):
        raise NotServed(why)
    inputs: dict[str, Tensor] = family._inputs(rows, "left")[0]
    inputs.pop("position_ids", None)  # as a caller of `generate` leaves them out
    return inputs


def _beams(family: Any, rows: Rows) -> Pairs:
    inputs = _prompts(family, rows)
    options = {"num_beams": 3, "num_return_sequences": 2, "output_scores": True, "length_penalty": 0.0}
    cached, whole = (_generated(family, inputs, use_cache=use, **options) for use in (True, False))
    scores = [one.sequences_scores[:, None] for one in (cached, whole)]
    return [(scores[0], scores[1]), (cached.sequences, whole.sequences)]


def _until(ids: list[int], ends: Sequence[int], padding: int) -> Tensor:
    """Return [1, 6] ids up to the first end, then padding."""
    place = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
    return torch.tensor([ids[: place + 1] + [padding] * (5 - place)])


def _beams_that_end(family: Any, rows: Rows) -> Pairs:
    inputs = _prompts(family, rows)
    third = _generated(family, inputs, max_new_tokens=3).sequences[:, -1]
    ends = sorted({*third.tolist()})
    options = {"num_beams": 3, "max_new_tokens": 6, "eos_token_id": ends, "output_scores": True}
    together = _generated(family, inputs, **options)
    width = inputs["input_ids"].shape[1]
    pairs: Pairs = []
    for place, row in enumerate(rows):
        alone = _generated(family, {"input_ids": torch.tensor([list(row)])}, **options)
        ids = [together.sequences[place, width:].tolist(), alone.sequences[0, len(row) :].tolist()]
        padded = [_until(one, ends, family.padding_id) for one in ids]
        scores = [one[None, None] for one in (together.sequences_scores[place], alone.sequences_scores[0])]
        pairs += [(scores[0], scores[1]), (padded[0], padded[1])]
    return pairs


def _candidates(family: Any, rows: Rows) -> Pairs:
    # Releases before 5 need an end, here an id that no model draws.
    plain = {"max_new_tokens": 8, "eos_token_id": family.vocab_size}
    options = {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 1, **plain}
    pairs = []
    for row in rows:
        inputs = {"input_ids": torch.tensor([[*row, *row]])}
        found = _generated(family, inputs, **options).sequences
        pairs.append((found, _generated(family, inputs, **plain).sequences))
    return pairs


def _embedded(family: Any, rows: Rows) -> Pairs:
    inputs = _prompts(family, rows)
    right = _generated(family, inputs, output_logits=True)
    embeds = family.model().get_input_embeddings()(inputs.pop("input_ids"))
    found = _generated(family, {"inputs_embeds": embeds, **inputs}, output_logits=True)
    num_new = len(right.logits)
    ids = (found.sequences[:, -num_new:], right.sequences[:, -num_new:])
    return [ids, *zip(found.logits, right.logits, strict=True)]


def _going_on(family: Any, rows: Rows) -> Pairs:
    pairs: Pairs = []
    for row in rows:
        begun = _generated(family, {"input_ids": torch.tensor([row[:4]])}, max_new_tokens=3)
        ids = torch.cat([begun.sequences, torch.tensor([row[4:]])], dim=1)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        right = _generated(family, inputs, max_new_tokens=2, output_logits=True)
        cache = {"past_key_values": given_cache(begun)}
        found = _generated(family, {**inputs, **cache}, max_new_tokens=2, output_logits=True)
        pairs += zip(found.logits, right.logits, strict=True)
    return pairs


def _served(form: Callable[[Any, Rows], Pairs]) -> Callable[[Any, Rows], Pairs]:
    """Return a form that is not served where the release refuses it in words."""

    def called(family: Any, rows: Rows) -> Pairs:
        try:
            return form(family, rows)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            if any(words in str(error) for words in REFUSED):
                raise NotServed(error_line(error)) from error
            raise

    return called


CACHE_FORMS: Mapping[CallForm, Callable[[Any, Rows], Pairs]] = {
    "one by one": _one_by_one,
    "a cache reordered": _changed("reorder_cache", "places", (2, 0, 0)),
    "rows of a cache chosen": _changed("batch_select_indices", "places", (2, 0)),
    "a cache repeated": _changed("batch_repeat_interleave", 2, (0, 0, 1, 1, 2, 2)),
    "a cache copied": _copied,
    "a cache cut": _served(_cut),
    "beams": _served(_beams),
    "beams that end": _served(_beams_that_end),
    "candidates of the prompt": _served(_candidates),
    "embeddings that generate": _served(_embedded),
    "generation that continues": _served(_going_on),
}
