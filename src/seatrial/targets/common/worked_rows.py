"""A row of the tables of worked examples of an installed stack, and how it becomes an example."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.relations.laws.functions.worked import mistake
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import misfit_of
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.rank_worker import adapter_package
from seatrial.targets.common.target import Gone, find_name, release


class Row(NamedTuple):
    """A function, calls of it, and what they give by its documentation."""

    subject: str
    """Of `contracts.worked.SUBJECTS`."""
    place: str
    """`module:name`; several, separated by blanks, where releases have moved it."""
    name: str
    """What is tried, in a few words."""
    call: Callable[[Any], Any]
    """Takes the function."""
    right: Any
    since: str = "0"
    """The first release of the stack that gives this; earlier ones documented another result, or none."""
    known: KnownFailure | None = None
    """What is known to be wrong with it, in which releases."""

    @property
    def function(self) -> str:
        """The public name."""
        return self.place.rpartition(":")[2]


def called(package: str, row: Row) -> Any:
    """Call a row's function, and leave the environment and torch's default dtype as they were.

    Raises:
        NotServed: the release does not have it, is older than the result, takes other arguments or reads more of them
            than the example has, or a package or a model of the Hub that it needs is missing.
    """
    if before(package, row.since)(None):
        raise NotServed(f"{package} {release(package)} documents another result: this one is of {row.since}")
    # A model that cannot be made leaves another type, and options of a run the precision of every run after it.
    dtype, variables = torch.get_default_dtype(), dict(os.environ)
    try:
        return row.call(find_name(package, row.place.split()))
    except (Gone, ImportError, OSError) as error:
        raise NotServed(str(error)) from error
    except RuntimeError as error:
        if "Failed to import" not in str(error):
            raise
        raise NotServed(str(error)) from error
    except (AttributeError, TypeError) as error:
        misfit = misfit_of(error, adapter_package(__name__))
        if misfit is None and isinstance(getattr(error, "obj", None), SimpleNamespace):
            misfit = str(error)  # of a stand-in that an example gives
        if misfit is None:
            raise
        raise NotServed(f"the call does not fit this release: {misfit}") from error
    finally:
        torch.set_default_dtype(dtype)
        os.environ.clear()
        os.environ.update(variables)


def examples(package: str, rows: Iterable[Row], subject: str) -> list[WorkedExample]:
    """Return the worked examples of a subject."""
    return [_example(package, row) for row in rows if row.subject == subject]


def _example(package: str, row: Row) -> WorkedExample:
    example = WorkedExample(
        name=f"{row.function}, {row.name}", call=partial(called, package, row), right=row.right
    )
    known = row.known
    if known is None or not known.releases(None):
        return example

    def call() -> Any:
        """Return the right result, or say that the wrong one is known."""
        if mistake(example) is not None:
            raise NotServed(f"broken as expected: {known}")
        return example.call()

    return WorkedExample(name=example.name, call=call, right=row.right)


class Worked(KnowsFailures):
    """An adapter of a table of worked examples; see `contracts.worked`."""

    thorough = True
    package: ClassVar[str]
    worked_rows: ClassVar[Sequence[Row]]

    @property
    def worked_subjects(self) -> frozenset[str]:
        """Those of the rows."""
        return frozenset(row.subject for row in self.worked_rows)

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        """Return the examples of a subject."""
        return examples(self.package, self.worked_rows, subject)


def unlike(found: Sequence[Any], right: Sequence[Any], what: str = "", tolerance: float = 1e-6) -> list[str]:
    """Return where two lists of numbers differ by more than a tolerance, relative to the larger of 1 and the right one.

    NaN differs from everything, and so does a list of another length.
    """
    if len(found) != len(right):
        return [f"{what}: {len(found)} numbers, {len(right)} are due"]
    return [
        f"{what}[{place}]: {one}, {due} is due"
        for place, (one, due) in enumerate(zip(found, right, strict=True))
        if not abs(float(one) - float(due)) <= tolerance * max(1.0, abs(float(due)))
    ]
