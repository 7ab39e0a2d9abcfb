"""One law, with one seed, in a process in which a fault may be planted."""

from dataclasses import dataclass, replace


def sentence_of(relation: str, law: str) -> str:
    """Return how refrl breaks a law; empty if it holds."""
    from seatrial.relations.engine import first_violation
    from seatrial.relations.registry import select
    from seatrial.targets.reference.components import ReferenceComponents

    (found,) = select([relation])
    alone = replace(found, laws=[one for one in found.laws if one.name == law])
    assert alone.laws, f"{relation} has no law {law!r}"
    violation = first_violation(alone, ReferenceComponents(), seeds=[0])
    return "" if violation is None else violation.sentence()


@dataclass(frozen=True)
class Edit:
    """A fault of this test alone: a `seatrial.faults.planting.Change`."""

    id: str
    module: str
    old: str
    new: str
