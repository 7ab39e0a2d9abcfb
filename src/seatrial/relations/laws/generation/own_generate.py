"""R26.generate: every model that generates follows the options of sampling, of limits and of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed

NUM_NEW, NUM_LONG = 6, 24
SAMPLING = {"do_sample": True, "top_k": 0}
SEEDS = range(4)
IGNORED = "an option that is ignored"


@dataclass(frozen=True, kw_only=True)
class Options(Case):
    """Options of a call."""

    options: Mapping[str, Any] = field(default_factory=dict)


GENERATE = Relation(
    id="R26.generate",
    name="models-of-every-kind-follow-the-options",
    component="own_generation",
    statement="A cut that leaves one candidate is greedy, other temperatures draw other ids, seeds repeat, the model's "
    "own options give way to the caller's, limits and ends hold, and a row does not depend on its batch.",
    cost="CPU, a second a model",
    cases=lambda stack, seed, tidy: Options(),
    seeded=False,
)


def _ids(stack: Any, *, num_new: int = NUM_NEW, **options: Any) -> list[int]:
    """Return the ids of the first row."""
    given = {"max_new_tokens": num_new, "do_sample": False, **options}
    return list(stack.generated(given).rows[0])


def _same(found: list[int], right: list[int], what: str) -> Measure:
    wrong = [] if found == right else [f"{found[:12]}, due {right[:12]}"]
    return Measure.count(wrong, what)


@GENERATE.law("one candidate by top_k", "top_k is ignored", options={"top_k": 1})
@GENERATE.law("one candidate by top_p", "top_p is ignored", options={"top_p": 1e-6})
@GENERATE.law("one candidate by min_p", "min_p is ignored", options={"min_p": 1.0})
@GENERATE.law(
    "one candidate by epsilon_cutoff", "epsilon_cutoff is ignored", options={"epsilon_cutoff": 0.999}
)
@GENERATE.law("a temperature near zero", "temperature is ignored", options={"temperature": 1e-5})
@GENERATE.law(
    "one candidate by top_k at a high temperature",
    "cuts before temperature",
    options={"top_k": 1, "temperature": 9.0},
)
def one_candidate_is_greedy(stack: Any, case: Options, *, options: Mapping[str, Any]) -> Measure:
    """Compare sampled ids where one candidate is left with the greedy ones."""
    found = _ids(stack, **{**SAMPLING, **options})
    return _same(found, _ids(stack), "ids of the only candidate against greedy ones")


@GENERATE.law(
    "temperature acts", "temperature is ignored", options={"temperature": 30.0}, base={"temperature": 0.7}
)
@GENERATE.law("top_k acts", "top_k is ignored", options={"top_k": 2}, base={"temperature": 30.0})
@GENERATE.law("top_p acts", "top_p is ignored", options={"top_p": 0.05}, base={"temperature": 30.0})
@GENERATE.law(
    "do_sample acts", "do_sample is ignored", options={"do_sample": False}, base={"temperature": 30.0}
)
def option_changes_ids(
    stack: Any, case: Options, *, options: Mapping[str, Any], base: Mapping[str, Any]
) -> Measure:
    """Check that an option of sampling changes the ids of at least one of several seeds."""
    pairs = [
        tuple(
            stack.generated({"max_new_tokens": NUM_NEW, **SAMPLING, **base, **more}, seed=seed).rows[0]
            for more in ({}, options)
        )
        for seed in SEEDS
    ]
    changed = any(one != other for one, other in pairs)
    return Measure.count(
        [] if changed else [f"{pairs[0][0][:12]} with and without"], "options that change no id"
    )


@GENERATE.law("seeds", "random numbers of another generator, or none")
def seeds_repeat(stack: Any, case: Options) -> Measure:
    """Check that a seed repeats its ids, and that other seeds give others."""
    options = {"max_new_tokens": NUM_NEW, **SAMPLING, "temperature": 30.0}
    once = [stack.generated(options, seed=seed).rows for seed in SEEDS]
    again = stack.generated(options, seed=0).rows
    wrong = [] if again == once[0] else ["the same seed gives other ids"]
    if all(one == once[0] for one in once):
        wrong.append("all seeds give the same ids")
    return Measure.count(wrong, "seeds")


@GENERATE.law("options of the model's own", "a default of the library over the model's option")
def own_options_act(stack: Any, case: Options) -> Measure:
    """Compare ids with options that the model has of its own with those where the caller gives them."""
    own = {"do_sample": True, "top_k": 3, "temperature": 5.0}
    found = stack.generated({"max_new_tokens": NUM_NEW}, defaults=own).rows[0]
    return _same(
        found, stack.generated({"max_new_tokens": NUM_NEW, **own}).rows[0], "ids by the model's own options"
    )


@GENERATE.law("the caller's options over the model's", "the model's option over the caller's")
def callers_options_win(stack: Any, case: Options) -> Measure:
    """Compare ids where the caller overrides the model's own options with those where there are none."""
    own = {"do_sample": True, "top_k": 0, "temperature": 30.0}
    found = stack.generated({"max_new_tokens": NUM_NEW, "top_k": 1}, defaults=own).rows[0]
    return _same(found, _ids(stack), "ids of the only candidate against greedy ones")


@GENERATE.law("options in a GenerationConfig", "a configuration whose options are left out")
def configuration_is_options(stack: Any, case: Options) -> Measure:
    """Compare ids by a `GenerationConfig` with those by single options."""
    options = {"max_new_tokens": NUM_NEW, "do_sample": True, "top_k": 3, "temperature": 5.0}
    found = stack.generated(options, as_config=True).rows[0]
    return _same(found, stack.generated(options).rows[0], "ids by a configuration against those by options")


@GENERATE.law("limits", "one id more or fewer, another beginning")
def limits_cut(stack: Any, case: Options) -> Measure:
    """Check that a lower limit cuts the same ids."""
    whole = stack.generated({"max_new_tokens": NUM_NEW, "do_sample": False})
    wrong = []
    for num_new in (1, 3):
        found = _ids(stack, num_new=num_new)
        if stack.generates_text and found != whole.rows[0][: num_new * whole.width]:
            wrong.append(f"limit {num_new}: {found}, without it {whole.rows[0]}")
        if len(found) > (num_new + 1) * whole.width:
            wrong.append(f"limit {num_new}: {len(found) // whole.width} steps")
    return Measure.count(wrong, "limits that are not kept")


@GENERATE.law("ends", "ids after an end, or an end that is not one")
def ends_end(stack: Any, case: Options) -> Measure:
    """Check that an id of the greedy ones ends the row where it is named as the end, alone or in a list."""
    _needs_text(stack)
    whole = _ids(stack)
    end = whole[2] if len(whole) > 2 else whole[-1]
    due = whole[: whole.index(end) + 1]
    wrong = []
    other = next(token for token in range(3, len(whole) + 4) if token not in whole)
    for given in (end, [other, end]):
        found = _ids(stack, eos_token_id=given)
        if found[: len(due)] != due or any(token not in (0, end) for token in found[len(due) :]):
            wrong.append(f"end {given}: {found}, due {due}")
    return Measure.count(wrong, "rows that do not end at their end")


def _needs_text(stack: Any) -> None:
    if not stack.generates_text:
        raise NotServed("ids are not those of a vocabulary")


@GENERATE.law("suppress_tokens", IGNORED, options=lambda *ids: {"suppress_tokens": [*ids]})
@GENERATE.law("bad_words_ids", IGNORED, options=lambda *ids: {"bad_words_ids": [[one] for one in ids]})
@GENERATE.law(
    "sequence_bias", IGNORED, options=lambda *ids: {"sequence_bias": [[[one], -1e4] for one in ids]}
)
def banned_ids_are_absent(stack: Any, case: Options, *, options: Any) -> Measure:
    """Check that greedy ids that are banned do not come."""
    _needs_text(stack)
    ids = _ids(stack)
    if stack.end_id in ids:
        raise NotServed("the model ends")
    found = _ids(stack, **options(ids[0], ids[-1]))
    return Measure.count([token for token in found if token in (ids[0], ids[-1])], "banned ids")


@GENERATE.law("begin_suppress_tokens", IGNORED)
def first_id_is_banned(stack: Any, case: Options) -> Measure:
    """Check that the greedy first id does not come first where it is banned there."""
    _needs_text(stack)
    ids = _ids(stack)
    found = _ids(stack, begin_suppress_tokens=[ids[0]])
    return Measure.count([ids[0]] if found[0] == ids[0] else [], "banned first ids")


@GENERATE.law("no_repeat_ngram_size", IGNORED)
def no_id_repeats(stack: Any, case: Options) -> Measure:
    """Check that no new id repeats where none may, in a row whose greedy ids repeat."""
    _needs_text(stack)
    if not _repeated(_ids(stack, num_new=NUM_LONG), stack.end_id):
        raise NotServed("greedy ids do not repeat")
    found = _ids(stack, num_new=NUM_LONG, no_repeat_ngram_size=1)
    return Measure.count(_repeated(found, stack.end_id), "ids that repeat")


def _repeated(ids: list[int], end: int) -> list[int]:
    return [token for token in {*ids} if token > end and ids.count(token) > 1]


@GENERATE.law("min_new_tokens", IGNORED)
def rows_are_long_enough(stack: Any, case: Options) -> Measure:
    """Check that an end that is the best id from the start is held off."""
    _needs_text(stack)
    first = _ids(stack)[0]
    found = _ids(stack, eos_token_id=first, min_new_tokens=4)
    return Measure.count([found] if first in found[:4] else [], "rows that end too soon")


@GENERATE.law("rows of a batch", "padding that is attended to, rows that are mixed up")
def rows_do_not_depend_on_the_batch(stack: Any, case: Options) -> Measure:
    """Compare greedy ids of each row of a batch with those of the row by itself."""
    options = {"max_new_tokens": NUM_NEW, "do_sample": False}
    places = range(len(stack.prompts))
    together = stack.generated(options, places=places)
    wrong = []
    for place in places:
        alone = stack.generated(options, places=(place,)).rows[0]
        length = min(len(alone), len(together.rows[place]))
        if together.rows[place][:length] != alone[:length]:
            wrong.append(f"row {place}: {together.rows[place][:12]}, alone {alone[:12]}")
    return Measure.count(wrong, "rows that differ")


@GENERATE.law("beams without a cache", "a state that stays with its place in the batch")
def beams_do_not_depend_on_the_cache(stack: Any, case: Options) -> Measure:
    """Compare ids of a search with beams from the cache with those without one."""
    places = range(len(stack.prompts))
    options = {"max_new_tokens": NUM_NEW, "do_sample": False, "num_beams": 3}
    found = stack.generated(options, places=places).rows
    right = stack.generated({**options, "use_cache": False}, places=places).rows
    wrong = [
        f"row {place}: {one[:12]}, due {due[:12]}"
        for place, (one, due) in enumerate(zip(found, right, strict=True))
        if one != due
    ]
    return Measure.count(wrong, "rows of beams that differ")


@GENERATE.law("several of a prompt", "rows of another prompt, or the same draws for all")
def several_are_of_the_prompt(stack: Any, case: Options) -> Measure:
    """Check the number of rows of several completions, that each is its prompt's, and that draws differ."""
    places = range(len(stack.prompts))
    options = {"max_new_tokens": NUM_NEW, "num_return_sequences": 3}
    several = stack.generated({**options, **SAMPLING, "top_k": 1}, places=places).rows
    single = stack.generated({"max_new_tokens": NUM_NEW, "do_sample": False}, places=places).rows
    wrong = [] if len(several) == 3 * len(single) else [f"{len(several)} rows of {len(single)} prompts"]
    wrong += [
        f"row {place}: {one[:12]}, due {single[place // 3][:12]}"
        for place, one in enumerate(several[: 3 * len(single)])
        if one != single[place // 3]
    ]
    drawn = stack.generated({**options, **SAMPLING, "temperature": 30.0}).rows
    if all(one == drawn[0] for one in drawn):
        wrong.append("three draws of a prompt are the same")
    return Measure.count(wrong, "completions that are wrong")


@GENERATE.law("without a cache", "a mask or positions of another step", options={"use_cache": False})
def cache_changes_no_id(stack: Any, case: Options, *, options: Mapping[str, Any]) -> Measure:
    """Compare greedy ids without a cache with those from it."""
    return _same(_ids(stack, **options), _ids(stack), "greedy ids against those from the cache")
