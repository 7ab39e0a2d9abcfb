"""R30.tracked: what a loop logs reaches the client of a tracker: names, values, steps, settings, images, tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.relations.contracts.trackers import TrackedPlan
from seatrial.relations.law import Measure, Relation

COLUMNS, ROWS = ["prompt", "reward"], [["a", 0.5], ["b", 0.25]]
"""Of every table."""
STEPS = (0, 1, 7, 12)


def plan(**options: Any) -> Callable[[Any, int, bool], TrackedPlan]:
    """Return a function that makes the plan with these options."""

    def made(stack: Any, seed: int, tidy: bool) -> TrackedPlan:
        return TrackedPlan(seed=seed, **options)

    return made


NUMBERS = tuple(
    ({"loss": 0.5 / (step + 1), "count": 3 + step, "eval_reward": -1.25 * step, "train/kl": 0.0}, step)
    for step in STEPS
)
"""Values of both types and signs, one that is zero, names with a prefix and with a slash."""


def _without(claim: str) -> Callable[[Any], str | None]:
    """Return a law's `excluded`: the declaration of a tracker that does not do this."""
    return lambda stack: None if getattr(stack, claim) else f"{claim}=False"


TRACKED = Relation(
    id="R30.tracked",
    name="logged-values-reach-the-tracker",
    component="tracker",
    statement="Every number that a loop logs reaches the client of its tracker, with its name and its step; so do "
    "settings, images and tables.",
    cost="CPU, milliseconds",
    cases=plan(logged=NUMBERS),
    seeded=False,
)


@TRACKED.law("numbers at their steps", "a step that is dropped, 0 taken for no step, a name that is cut")
@TRACKED.law(
    "numbers of one step, logged twice",
    "a step that moves on with every call",
    cases=plan(logged=(({"loss": 0.5}, 3), ({"reward": 1.5}, 3), ({"loss": 0.25}, 4))),
)
def numbers_have_their_steps(stack: Any, case: TrackedPlan) -> Measure:
    """Compare names, values and steps that the client got with those that were logged."""
    due = sorted((name, value, step) for values, step in case.logged for name, value in values.items())
    given = sorted(stack.tracked(case).values, key=repr)
    wrong = [f"{one} is missing" for one in due if one not in given]
    wrong += [f"{one} was not logged" for one in given if one not in due]
    if len(given) > len(due):
        wrong.append(f"{len(given)} values, due {len(due)}")
    return Measure.count(wrong, "values that differ from those logged")


@TRACKED.law(
    "numbers without a step",
    "values that wait for a step, a step of None that raises",
    cases=plan(logged=(({"loss": 0.5}, None), ({"loss": 0.25, "reward": 2}, None))),
)
def numbers_need_no_step(stack: Any, case: TrackedPlan) -> Measure:
    """Compare names and values; a step is none, or the client's own count."""
    due = [(name, value) for values, _ in case.logged for name, value in values.items()]
    found = stack.tracked(case)
    given = [(name, value) for name, value, _ in found.values]
    wrong = [f"{given}, due {due}"] if given != due else []
    steps = {step for _, _, step in found.values}
    if not stack.counts_steps and steps != {None}:
        wrong.append(f"steps {steps} where the loop names none")
    return Measure.count(wrong, "values without a step that differ from those logged")


@TRACKED.law(
    "texts and groups",
    "a text that takes the place of a number, numbers of a group that are left out",
    cases=plan(logged=(({"loss": 0.5, "note": "warm", "group": {"a": 1.0, "b": 2}}, 4),)),
)
def texts_do_not_disturb(stack: Any, case: TrackedPlan) -> Measure:
    """Check that numbers next to texts and groups arrive, and texts and groups where the tracker takes them."""
    given = list(stack.tracked(case).values)
    due: list[tuple[str, Any, int]] = [("loss", 0.5, 4)]
    if not stack.drops_texts:
        due += [("a", 1.0, 4), ("b", 2, 4)]
    # Some services keep the name of a group in those of its numbers.
    found = [(name.removeprefix("group/"), value, step) for name, value, step in given]
    wrong = [f"{one} is missing among {given}" for one in due if one not in found]
    if not stack.drops_texts and not any(name == "note" and value == "warm" for name, value, _ in given):
        wrong.append(f"the text is missing among {given}")
    return Measure.count(wrong, "values next to texts and groups that do not arrive")


FEW = {"lr": 0.1, "rank": 8, "name": "run", "on": True, "off": False, "zero": 0}


@TRACKED.law("settings", "a value of False or 0 that is left out", cases=plan(settings=FEW))
@TRACKED.law(
    "many settings",
    "a part of them that is left out, where a service takes them in parts",
    cases=plan(settings={f"option_{number}": number for number in range(250)}),
)
def settings_arrive(stack: Any, case: TrackedPlan) -> Measure:
    """Compare the settings that the client got with those that were given."""
    found = stack.tracked(case).settings
    wrong = [
        f"{name} is {found.get(name, 'missing')!r}, due {value!r}"
        for name, value in case.settings.items()
        if name not in found or found[name] != value
    ]
    wrong += [f"{name} was not given" for name in found.keys() - case.settings.keys()]
    return Measure.count(wrong, "settings that differ from those given")


@TRACKED.law(
    "what the caller gives stays",
    "what a service does not take, removed from the caller's dictionary",
    cases=plan(
        settings={"prompt": "a" * 7000, "lr": 0.1, "betas": [0.9, 0.95], "group": {"on": True}},
        logged=(({"loss": 0.5, "note": "b" * 7000, "group": {"a": 1.0}}, 3),),
    ),
)
def arguments_stay(stack: Any, case: TrackedPlan) -> Measure:
    """Compare the loop's own settings and values after the run with those before it."""
    return Measure.count(list(stack.tracked(case).changed), "settings and values of the caller that changed")


@TRACKED.law(
    "images",
    "a step that is dropped, images that are left out",
    cases=plan(images=(("shots", 2, 0), ("shots", 3, 5), ("shots", 1, None))),
    excluded=_without("draws_images"),
)
def images_arrive(stack: Any, case: TrackedPlan) -> Measure:
    """Compare names, numbers and steps of images."""
    found = list(stack.tracked(case).images)
    wrong = [f"{found}, due {list(case.images)}"] if found != list(case.images) else []
    return Measure.count(wrong, "images that differ from those logged")


@TRACKED.law(
    "tables",
    "columns that become a row, a step that is dropped",
    cases=plan(tables=(("samples", 0), ("samples", 5))),
    excluded=_without("draws_tables"),
)
def tables_arrive(stack: Any, case: TrackedPlan) -> Measure:
    """Compare names, columns, rows and steps of tables."""
    due = [(name, COLUMNS, ROWS, step) for name, step in case.tables]
    found = list(stack.tracked(case).tables)
    return Measure.count(
        [f"{found}, due {due}"] if found != due else [], "tables that differ from those logged"
    )


@TRACKED.law(
    "options of the client",
    "options of another tracker, or none",
    cases=plan(logged=NUMBERS[:1], client_options=True),
    excluded=_without("takes_options"),
)
def options_arrive(stack: Any, case: TrackedPlan) -> Measure:
    """Check that the client got the options that the loop names for it."""
    due, found = {"made": 5, "logged": 6}, dict(stack.tracked(case).options)
    return Measure.count(
        [f"{found}, due {due}"] if found != due else [], "options that the client did not get"
    )


@TRACKED.law("closed at the end", "a client that is left open, whose last values are not written")
def closed_at_the_end(stack: Any, case: TrackedPlan) -> Measure:
    """Check that the client is closed once when the training ends."""
    return Measure(
        error=float(not stack.tracked(case).ended),
        bound=0,
        what="clients that are not closed, or closed twice",
    )
