"""One law, with one seed, in a process in which a fault may be planted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


def sentence_of(relation: str, law: str) -> str:
    """Return how refrl breaks a law; empty if it holds."""
    (sentence,) = sentences_of([(relation, law)])
    return sentence


def sentences_of(laws: Sequence[tuple[str, str]]) -> list[str]:
    """Return how refrl breaks each of the laws, which are named after their relation; empty where it holds."""
    return list(_sentences_of(laws))


def _sentences_of(laws: Sequence[tuple[str, str]]) -> Iterator[str]:
    from seatrial.relations.engine import first_violation
    from seatrial.relations.registry import select
    from seatrial.relations.runs import sharing_runs
    from seatrial.targets.reference.components import ReferenceComponents

    stack = ReferenceComponents()
    with sharing_runs():
        for relation, law in laws:
            (found,) = select([relation])
            alone = replace(found, laws=[one for one in found.laws if one.name == law])
            assert alone.laws, f"{relation} has no law {law!r}"
            violation = first_violation(alone, stack, seeds=[0])
            yield "" if violation is None else violation.sentence()


def printed_by(kind: str) -> str:
    """Return what a program that prints 1 does in a kind of sandbox, or why it does not run."""
    from refrl.rewards.sandbox import run_python
    from refrl.rewards.verifiers import VerifierError

    try:
        return run_python("print(1)", kind=kind).stdout  # type: ignore[arg-type]
    except VerifierError as error:
        return str(error)


@dataclass(frozen=True)
class Edit:
    """A fault of this test alone: a `seatrial.faults.planting.Change`."""

    id: str
    module: str
    old: str
    new: str
