"""Evaluations by the arguments of `evaluate` and `prediction_step`: sets by name, prefixes, outputs left out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.trl.worked.limits import KINDS, made_rows, places
from seatrial.targets.trl.worked.rows import Row, by_trainer
from seatrial.targets.trl.worked.seen import made_trainer, or_refused

LENGTHS: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "one": ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8)),
    "two": ((5, 1, 2), (2, 6, 9), (4, 4, 4), (7, 3, 1)),
}
OPTIONS: Mapping[str, Any] = {"per_device_eval_batch_size": 4, "eval_strategy": "steps", "eval_steps": 50}
IGNORED = ["past_key_values"]
UNTIMED = re.compile(r"runtime|per_second|epoch|time|num_tokens|memory")
FORMS = (
    "the set of the trainer",
    "the sets of the trainer",
    "a set of the trainer by its name",
    "a set that is passed",
    "sets that are passed by name",
)


def _sets(name: str) -> dict[str, Any]:
    from datasets import Dataset

    return {key: Dataset.from_list(made_rows(KINDS[name][0], lengths)) for key, lengths in LENGTHS.items()}


def _trainer(name: str, form: str) -> Any:
    """Return a trainer of the first set that evaluates both, or the second one alone."""
    sets = _sets(name)
    own = sets["two"] if form == FORMS[0] else sets
    return made_trainer(name, sets["one"], OPTIONS, arguments={"eval_dataset": own})


def _given(name: str, form: str) -> tuple[Any, ...]:
    """Return what `evaluate` is given first, of each of `FORMS`."""
    made: Mapping[str, Callable[[], tuple[Any, ...]]] = {
        FORMS[2]: lambda: ("two",),
        FORMS[3]: lambda: (_sets(name)["two"],),
        FORMS[4]: lambda: (_sets(name),),
    }
    return made.get(form, tuple)()


def figures(found: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return what an evaluation gives under a prefix, without what differs between two equal evaluations."""
    return {
        key.removeprefix(prefix): value
        for key, value in found.items()
        if key.startswith(prefix) and not UNTIMED.search(key)
    }


def differing(found: Mapping[str, float], due: Mapping[str, float], names: Iterable[str]) -> list[str]:
    """Return the figures of these names that are missing or not those that are due."""
    return [
        f"{name}: {found.get(name)}, {due.get(name)} is due"
        for name in sorted(names)
        if not abs(found.get(name, math.nan) - due.get(name, math.nan))
        <= 1e-5 * max(1.0, abs(due.get(name, 0.0)))
    ]


def _ignored(name: str, form: str, _: Any) -> list[str]:
    """Return how many steps of an evaluation are given the outputs to ignore, if a set has none that is."""
    trainer = _trainer(name, form)
    own, found = trainer.prediction_step, list[Any]()

    def kept(model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        found.append(ignore_keys)
        return own(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)

    trainer.prediction_step = kept
    trainer.evaluate(*_given(name, form), ignore_keys=IGNORED)
    due = 1 + (form in (FORMS[1], FORMS[4]))  # a trainer may show samples in a step of its own
    passed = found.count(IGNORED)
    return [] if passed >= due else [f"{passed} of {len(found)} steps were given them, {due} are due"]


def _prefixed(name: str, form: str, _: Any) -> list[str]:
    """Return the loss of an evaluation with a prefix of the caller, where it is not that with the default one."""
    trainer, given = _trainer(name, form), _given(name, form)
    due = figures(trainer.evaluate(*given), "eval_")["loss"]
    found = figures(trainer.evaluate(*given, metric_key_prefix="held"), "held_").get("loss")
    return [] if found == due else [f"{found} for {due}"]


def _by_name(name: str, _: Any) -> list[str]:
    """Return what an evaluation of one of several sets gives otherwise than that of all of them."""
    trainer = _trainer(name, FORMS[2])
    due = figures(trainer.evaluate(), "eval_two_")
    found = figures(trainer.evaluate("two"), "eval_")
    found = {key.removeprefix("two_"): value for key, value in found.items()}
    if not due:
        return ["no metric of the second set"]
    return differing(found, due, due)


def _loss_alone(name: str, _: Any) -> list[str]:
    """Return what a step of an evaluation returns but a loss without a gradient, where that is all it should."""
    trainer = _trainer(name, FORMS[0])
    batch = next(iter(trainer.get_eval_dataloader()))
    loss, *others = trainer.prediction_step(trainer.model, batch, prediction_loss_only=True)
    wrong = [f"{one}" for one in others if one is not None]
    return [*wrong, *(["a loss with its gradient"] if loss.requires_grad else [])]


def _rows_of(name: str) -> Iterator[Row]:
    def row(what: str, call: Callable[..., Any]) -> Row:
        return Row("validations", places(name), what, or_refused(call), [])

    for form in FORMS:
        yield row(f"outputs that are left out, {form}", partial(_ignored, name, form))
    for form in (FORMS[0], *FORMS[2:4]):
        yield row(f"another prefix, {form}", partial(_prefixed, name, form))
    yield row(FORMS[2], partial(_by_name, name))
    yield row("a step that returns its loss alone", partial(_loss_alone, name))


EVALUATED = by_trainer("evaluated", KINDS, _rows_of)
