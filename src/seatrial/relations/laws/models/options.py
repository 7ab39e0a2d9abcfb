"""R5.options: with every option of its configuration, a model is one in every form, and the option acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.models.families import (
    FAMILY,
    NUM_DECODED,
    RowsCase,
    checkpointing_changes_no_gradient,
    largest_logit_difference,
    logits_are_those_of_the_row,
    loss_is_of_the_logits,
    reload_changes_nothing,
)
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line, is_stated, place_of
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.worst import relative_error

GRADIENT_BOUND = 2e-3
"""Float32, relative to the largest gradient; sums of many terms that cancel."""
BOUND = 5e-4
ACTS = 1e-6
"""The least difference of logits, relative, that an option makes."""
OPTIONS = Relation(
    id="R5.options",
    name="a-model-is-one-with-every-option",
    component="model_options",
    statement="With each option of a configuration at another value, and with pairs of them, the laws of `R5.family` "
    "hold, the option is saved, and it changes the logits.",
    cost="CPU, seconds a family",
    cases=FAMILY.cases,
    seeded=False,
)
OF_EVALUATION = ("loss", "sdpa gradient")
"""Laws that compare training mode with evaluation mode or with other draws, which dropout makes differ."""
MASK = "an option that another kind of attention, a mask or the cache does not know"
Judge = Callable[[Any, RowsCase], Measure]


def _over_options(stack: Any, case: RowsCase, law: str, judge: Judge, *, pairs: bool = True) -> Measure:
    """Return a measure that counts the options with which a judgement fails, and the model without any."""
    names = [
        name
        for name in ("", *stack.option_names)
        if (pairs or " & " not in name)
        and not (law in OF_EVALUATION and name in stack.trains_alone)
        and not stack.option_excludes(law, name)
    ]
    return _over(stack, case, law, judge, names, "models with other options, those that differ")


def _over(stack: Any, case: RowsCase, law: str, judge: Judge, names: Sequence[str], what: str) -> Measure:
    """Return a measure that counts the names with which a judgement fails.

    Known failures are left out and named: `option_failures` has them, and they may hold on another release.

    Raises:
        NotServed: none of them is served, so that there is no evidence.
    """
    known = stack.option_failures(law)
    wrong, left_out, judged = [], [], 0
    for name in names:
        error = _error(stack, case, name, judge)
        judged += error is not None
        if error and _is_known(name, known):
            left_out.append(name or "no option")
        elif error:
            wrong.append(f"{name or 'no option'}: {error}")
            if not name:
                break  # what fails without an option fails with each
    if not judged:
        raise NotServed("no option is served")
    if len(left_out) == judged:
        raise NotServed(f"only known failures: {', '.join(left_out)}")
    return Measure.count(wrong, f"of {judged} {what}{_named(left_out)}")


def _named(left_out: Sequence[str]) -> str:
    """Return the known failures as a part of what a law measures."""
    return f" (known failures left out: {', '.join(left_out)})" if left_out else ""


def _is_known(name: str, known: Mapping[str, str]) -> bool:
    """Return whether an option, or one of two, is among those that are known to fail."""
    return any(part.startswith(option) for part in name.split(" & ") for option in known)


def _error(stack: Any, case: RowsCase, name: str, judge: Judge) -> str | None:
    """Return what is wrong with an option; empty if nothing is, None if it is not served."""
    try:
        measure = judge(stack.with_option(name), case)
    except NotServed:
        return None
    except Exception as error:  # noqa: BLE001  a crash with an option is what is wrong with it
        if isinstance(error, ImportError) and is_stated(error):
            return None  # it needs a package that is not installed, and says so
        return f"{error_line(error)[:200]} at {place_of(error)}"
    return "" if measure.holds else f"{measure.what}: {measure.error:.3g}, at most {measure.bound:.3g}"


def _form(**options: Any) -> dict[str, Any]:
    return {"form": ModelForm(**options)}


@OPTIONS.law("padded on the right", MASK, **_form(together="right"))
@OPTIONS.law("scaled dot-product attention", MASK, **_form(attention="sdpa"))
@OPTIONS.law(
    "scaled dot-product attention, padded on the left", MASK, **_form(attention="sdpa", together="left")
)
@OPTIONS.law(
    "decoded from the cache", MASK, **_form(decoded="from the cache", together="left", num_last=NUM_DECODED)
)
@OPTIONS.law(
    "decoded from the cache, scaled dot-product attention",
    MASK,
    **_form(decoded="from the cache", together="left", attention="sdpa", num_last=NUM_DECODED),
)
def form_changes_nothing(stack: Any, case: RowsCase, *, form: ModelForm) -> Measure:
    """Compare logits of a form with those of each row by itself, with every option."""

    def judge(model: Any, case: RowsCase) -> Measure:
        why = model.family_excludes(form)
        if why:
            raise NotServed(why)
        return logits_are_those_of_the_row(model, case, form=form)

    plain = stack.with_option("")
    best = "eager" if plain.family_excludes(ModelForm(attention="sdpa")) else "sdpa"
    pairs = form.attention == best and bool(form.decoded)
    return _over_options(stack, case, _name(form), judge, pairs=pairs)


def _name(form: ModelForm) -> str:
    """Return the name under which failures of a form are declared."""
    return form.decoded or form.attention.removeprefix("eager") + form.together


@OPTIONS.law("saved and loaded", "an option that is not saved, tensors that are made again")
def options_are_saved(stack: Any, case: RowsCase) -> Measure:
    """Compare logits and options after a reload with those before."""

    def judge(model: Any, case: RowsCase) -> Measure:
        lost = model.options_lost()
        if lost:
            return Measure.count(lost, "options after a reload")
        return reload_changes_nothing(model, case, form=ModelForm(reloaded=True))

    return _over_options(stack, case, "saved", judge, pairs=False)


@OPTIONS.law("loss", "labels shifted twice, a scale of the logits that the loss leaves out")
def losses_are_of_the_logits(stack: Any, case: RowsCase) -> Measure:
    """Compare the loss with the cross-entropy of the logits, with every option."""
    return _over_options(stack, case, "loss", loss_is_of_the_logits, pairs=False)


@OPTIONS.law("loss by a count of items", "a count that is ignored, or a mean beneath it")
def losses_are_by_the_items(stack: Any, case: RowsCase) -> Measure:
    """Compare the loss with a given count of items with the loss by its own count."""

    def judge(model: Any, case: RowsCase) -> Measure:
        own = sum(len(row) - 1 for row in case.rows)
        found = model.option_step(case.rows, num_items=own + 7).loss
        right = model.option_step(case.rows).loss * own / (own + 7)
        what = f"loss {found:.6g} against {right:.6g}, relative difference"
        return Measure(error=relative_error(found, right, 1e-3), bound=BOUND, what=what)

    return _over_options(stack, case, "items", judge, pairs=False)


@OPTIONS.law("checkpointed gradients", "an option that is lost where activations are computed again")
def gradients_are_those_of_checkpoints(stack: Any, case: RowsCase) -> Measure:
    """Compare gradients with activations computed again with those without, with every option."""

    def judge(model: Any, case: RowsCase) -> Measure:
        if not model.family_checkpoints:
            raise NotServed("no gradient checkpointing")
        return checkpointing_changes_no_gradient(model, case)

    return _over_options(stack, case, "checkpointed", judge, pairs=False)


@OPTIONS.law(
    "gradients of scaled dot-product attention", "a branch of the backward pass that an option misses"
)
def gradients_are_of_both_kinds(stack: Any, case: RowsCase) -> Measure:
    """Compare gradients of scaled dot-product attention with those of eager attention."""

    def judge(model: Any, case: RowsCase) -> Measure:
        why = model.family_excludes(ModelForm(attention="sdpa"))
        if why:
            raise NotServed(why)
        found, right = (model.option_step(case.rows, attention=one).gradients for one in ("sdpa", "eager"))
        error, name = largest_gradient_difference(found, right)
        return Measure(error=error, bound=GRADIENT_BOUND, what=f"gradient of {name}, relative difference")

    return _over_options(stack, case, "sdpa gradient", judge, pairs=False)


@OPTIONS.law(
    "rows laid end to end", "rows that see each other, positions that do not begin again", attention="eager"
)
@OPTIONS.law(
    "rows laid end to end, scaled dot-product attention",
    "rows that see each other, positions that do not begin again",
    attention="sdpa",
)
def packed_rows_are_apart(stack: Any, case: RowsCase, *, attention: str) -> Measure:
    """Compare logits of rows laid end to end with those of each row by itself."""

    def judge(model: Any, case: RowsCase) -> Measure:
        why = model.family_excludes(ModelForm(attention=attention))  # type: ignore[arg-type]
        if why:
            raise NotServed(why)
        with torch.no_grad():
            found = model.packed_logits(case.rows, attention)
            right = model.family_logits(case.rows, ModelForm())
        return largest_logit_difference(found, right, BOUND)

    return _over_options(stack, case, f"packed {attention}", judge, pairs=False)


@OPTIONS.law("options act", "an option that is ignored", attention="eager")
@OPTIONS.law(
    "options act, scaled dot-product attention",
    "an option that one kind of attention ignores",
    attention="sdpa",
)
def options_act(stack: Any, case: RowsCase, *, attention: str) -> Measure:
    """Check that every option changes the logits of a model with the same weights."""
    form = ModelForm(attention=attention)  # type: ignore[arg-type]
    if why := stack.with_option("").family_excludes(form):
        raise NotServed(why)
    with torch.no_grad():
        plain = stack.with_option("").family_logits(case.rows, form)

    def judge(model: Any, case: RowsCase) -> Measure:
        with torch.no_grad():
            changed = model.family_logits(case.rows, form)
        pairs = zip(changed, plain, strict=True)
        moved = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
        return Measure.count(
            [] if moved > ACTS else [f"logits differ by {moved:.2g}"], "an option that is ignored"
        )

    names = [
        name
        for name in stack.option_names
        if name not in stack.trains_alone and " & " not in name and not stack.option_excludes("acts", name)
    ]
    return _over(stack, case, "acts", judge, names, "options, those that are ignored")


@OPTIONS.law(
    "dropout acts in training alone", "dropout that is ignored, or that acts in evaluation", attention="eager"
)
@OPTIONS.law(
    "dropout acts in training alone, scaled dot-product attention",
    "dropout that one kind of attention ignores",
    attention="sdpa",
)
def dropout_acts_in_training(stack: Any, case: RowsCase, *, attention: str) -> Measure | None:
    """Check that options of dropout change logits in training mode, by the seed, and not in evaluation mode."""
    form = ModelForm(attention=attention)  # type: ignore[arg-type]
    if why := stack.with_option("").family_excludes(form):
        raise NotServed(why)
    known = stack.option_failures("trains")
    with torch.no_grad():
        plain = torch.cat(stack.with_option("").family_logits(case.rows, form))
    wrong, left_out, judged = [], [], 0
    for name in stack.trains_alone:
        if stack.option_excludes("trains", name):
            continue
        try:
            model = stack.with_option(name)
        except NotServed:
            continue
        with torch.no_grad():
            quiet = torch.cat(model.family_logits(case.rows, form))
            one, again, other = (
                torch.cat(model.drawn_logits(case.rows, seed, attention)) for seed in (1, 1, 2)
            )
        judged += 1
        found = [
            text
            for text, is_wrong in (
                ("acts in evaluation", not torch.allclose(quiet, plain, rtol=1e-4, atol=1e-4)),
                ("is ignored in training", torch.allclose(one, plain, rtol=1e-5, atol=1e-6)),
                ("draws the same with every seed", torch.equal(one, other)),
                ("draws another with the same seed", not torch.equal(one, again)),
            )
            if is_wrong
        ]
        if found and _is_known(name, known):
            left_out.append(name)
        elif found:
            wrong.append(f"{name} {', '.join(found)}")
    if judged == len(left_out):
        return None
    return Measure.count(wrong, f"of {judged} options of dropout, those that are wrong{_named(left_out)}")
