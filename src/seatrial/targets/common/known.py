"""Known violations of a stack as data: the reason, the finding that shows it, and the affected releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from packaging.version import InvalidVersion, Version

from seatrial.relations.registry import all_relations
from seatrial.targets.common.fixed_bugs import FixedBug
from seatrial.targets.common.target import release

Releases = Callable[[Any], bool]
"""(adapter) -> whether the installed release is one of them."""


def every_release(adapter: Any) -> bool:
    """Return True."""
    return True


def since(package: str, version: str) -> Releases:
    """Return a test for the installed release of a package to be this one or later, or a tree that becomes it."""
    return _of(package, lambda found: _becomes(found) >= Version(version))


def before(package: str, version: str) -> Releases:
    """Return a test for the installed release of a package to be earlier than this one."""
    return _of(package, lambda found: _precedes(found, Version(version)))


def between(package: str, first: str, end: str) -> Releases:
    """Return a test for a package's release to be the first or later, or a tree that becomes it, and before the end."""
    return _of(package, lambda found: Version(first) <= _becomes(found) and _precedes(found, Version(end)))


def _becomes(found: Version) -> Version:
    """Return the release that a version is of: trees after 0.18.0 call themselves 0.18.1.dev0, and become 0.19."""
    if not found.is_devrelease:
        return found
    return Version(f"{found.major}.{found.minor + 1}" if found.micro else found.base_version)


def _precedes(found: Version, end: Version) -> bool:
    """Return whether a version may be without what a release brought.

    A tree that calls itself 0.7.0.dev0 is of any time since 0.6.0, and what 0.6.1 brought may have come to it later.
    """
    own = found.is_devrelease and not found.micro and end.micro > 0
    return found < end or (own and (found.major, found.minor - 1) == (end.major, end.minor))


def _of(package: str, holds: Callable[[Version], bool]) -> Releases:
    """Return a test of a package's version; False where it has none that can be compared."""

    def test(adapter: Any) -> bool:
        try:
            return holds(Version(release(package)))
        except InvalidVersion:
            return False

    return test


@dataclass(frozen=True)
class KnownFailure:
    """A known violation of a stack."""

    reason: str
    finding: str
    """The heading in docs/evidence/findings.md under which a script shows it without Seatrial."""
    releases: Releases = every_release
    laws: tuple[str, ...] = ()
    """`RELATION/law name` of each that it breaks, or a relation's id for any of its laws."""

    def __str__(self) -> str:
        """Return the reason as verdicts print it."""
        return f"{self.reason} (docs/evidence/findings.md, {self.finding})"

    def of(self, *laws: str) -> KnownFailure:
        """Return it as that of these laws."""
        return replace(self, laws=laws)


class KnowsFailures:
    """An adapter that knows what its stack breaks."""

    known_failures: ClassVar[Sequence[KnownFailure]] = ()
    excused_bugs: Sequence[FixedBug] = ()
    """Of earlier releases: an adapter that a target made is expected to see them there."""
    shown_bugs: Sequence[FixedBug] = ()
    """Of earlier releases: its laws fail there all the same."""
    failures_may_hold = True
    """A release or commit that fixes one has nothing wrong; the record of releases shows which entries are over."""

    @cached_property
    def expected_failures(self) -> Mapping[str, str]:
        """The reasons of those that the installed release breaks; see `seatrial.relations.expected`."""
        own = {law: str(known) for known in self.known_failures if known.releases(self) for law in known.laws}
        return {**_laws_of(self.excused_bugs), **own}

    @cached_property
    def known_bugs(self) -> Mapping[str, str]:
        """What explains laws that fail all the same; see `seatrial.relations.expected`."""
        return _laws_of(self.shown_bugs)


def _laws_of(bugs: Iterable[FixedBug]) -> dict[str, str]:
    """Return what bugs of the installed release break, with the bug."""
    present = [bug for bug in bugs if between(bug.target, bug.since, bug.before)(None)]
    laws = [relation.key(law) for relation in all_relations() for law in relation.laws] if present else []
    return {key: str(bug) for bug in present for key in bug.keys(laws)}
