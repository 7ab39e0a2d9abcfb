"""The page of the faults, drawn from the tables and from what was measured: docs/faults.md."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from seatrial.faults.harness import harness_mutants, harness_tests
from seatrial.faults.measured import NO_THREE_HIDDEN, Seen, hidden_from_tidy, measured
from seatrial.faults.mutate import Mutant, all_mutants
from seatrial.relations.registry import all_relations

BROKEN_LINE = "broken_line.txt"
"""What `seatrial relations` said when one line was broken; a test holds it to what it says now."""

INTRODUCTION = """# Planted faults

Known bugs, planted one at a time in the reference stack, and what notices. This page is generated: `make docs`.

`seatrial faults list` lists them; `seatrial faults score --mutant ID` plants one in this process, runs the relations
that it names on every default seed, each seed alone, and again on tidy inputs. Ids SBnnn are those of a catalogue of
398 silent bugs of public projects. A mutant is one line of refrl that is replaced; nothing on disk is changed.

**Tidy inputs** are what most tests in the wild are made of: rows of equal length, nothing masked, groups side by side
and of equal size, temperature 1, a policy that has hardly moved, finite padding, one conversation of one turn, one
sync, a constant learning rate. Each relation has a tidy version; a fault that it does not see is *hidden*."""


def page() -> str:
    """Return the page."""
    parts = [
        INTRODUCTION,
        *_figures(),
        *_matrix(),
        *_broken_line(),
        *_by_relation(),
        *_mutants(),
        *_harness(),
    ]
    return "\n".join(parts) + "\n"


def _figures() -> Iterator[str]:
    mutants = all_mutants()
    bugs = {known for mutant in mutants for known in mutant.catalogue}
    hidden = {name for relation in all_relations() for name in hidden_from_tidy(relation.id)}
    twenty = [
        seen
        for mutant in mutants
        for relation, seen in measured().get(mutant.id, {}).items()
        if seen.twenty is not None
    ]
    certain = sum(seen.twenty == seen.of_twenty for seen in twenty)
    yield from (
        "",
        "| measured | |",
        "|---|---|",
        f"| mutants | {len(mutants)} |",
        f"| distinct known bugs among them | {len(bugs)} |",
        f"| seen by a relation on each default seed alone | {sum(map(_always, mutants))} |",
        f"| hidden from the tidy version of at least one relation that sees them | {len(hidden)} |",
        f"| pairs of mutant and named relation, measured on 20 seeds | {len(twenty)} |",
        f"| of these, seen on 20 of 20 | {certain} |",
    )


def _always(mutant: Mutant) -> bool:
    return any(seen.always for seen in measured().get(mutant.id, {}).values())


def _matrix() -> Iterator[str]:
    from seatrial.faults import cells

    yield from (
        "",
        "## The matrix that refrl passes",
        "",
        f"The schema allows {len(cells.advantage_configs())} advantages, {len(cells.loss_configs())} losses (kind, "
        "reduction, KL and where it goes, clip, correction, entropy) and 8 paths (padded or packed, plain or chunked, "
        f"padding on either side): {cells.num_combinations():,} combinations. A relation is held on every combination "
        "of the options that its component reads; an advantage never sees the loss, nor a loss the layout of the rows "
        f"that it is given. That makes {cells.num_verdicts():,} verdicts:",
        "`tests/unit/relations/test_reference*.py`, 89 s of processor time with all other relations, 80 s on two busy "
        "cores; at night each of 20 seeds.",
    )


def _broken_line() -> Iterator[str]:
    text = resources.files("seatrial.faults").joinpath(BROKEN_LINE).read_text(encoding="utf-8")
    yield from (
        "",
        "## What a broken line says",
        "",
        "In a copy of refrl, the token mean was made a mean of row means. "
        "`seatrial relations --target reference --relation R1.loss` printed this and exited 1:",
        "",
        "```text",
        text.rstrip(),
        "```",
    )


def _by_relation() -> Iterator[str]:
    yield from (
        "",
        "## By relation",
        "",
        "Mutants that it sees on every default seed, and those of them that its tidy version does not see.",
        "",
        "| relation | sees | hidden from tidy inputs |",
        "|---|---|---|",
    )
    for relation in all_relations():
        seen = [
            name for name, found in measured().items() if relation.id in found and found[relation.id].always
        ]
        hidden = hidden_from_tidy(relation.id)
        shown = f"{len(hidden)}: {', '.join(hidden)}" if hidden else "0"
        reason = NO_THREE_HIDDEN.get(relation.id)
        yield f"| {relation.id} | {len(seen)} | {shown}{f' ({reason})' if reason else ''} |"


def _mutants() -> Iterator[str]:
    yield from (
        "",
        "## By mutant",
        "",
        "Every relation was tried (verifiers only on their own modules). A relation in **bold** is one that the mutant "
        "names, measured on 20 seeds; * marks those from whose tidy version the fault is hidden; n/m, where it is not "
        "seen on every seed, on how many it is.",
        "",
        "| mutant | known bugs | what is wrong | seen by |",
        "|---|---|---|---|",
    )
    for mutant in all_mutants():
        seen = measured().get(mutant.id, {})
        by = ", ".join(_seen(name, found, mutant) for name, found in seen.items())
        yield f"| {mutant.id} | {' '.join(mutant.catalogue) or '-'} | {mutant.what} | {by} |"


def _seen(relation: str, found: Seen, mutant: Mutant) -> str:
    name = f"**{relation}**" if found.twenty is not None else relation
    star = "\\*" if found.hidden else ""
    few = "" if found.always else f" {found.default}/{found.of_default}"
    if found.always and found.twenty != found.of_twenty:
        few = f" {found.twenty}/{found.of_twenty}"
    return f"{name}{star}{few}"


def _harness() -> Iterator[str]:
    mutants = harness_mutants()
    yield from (
        "",
        "## The 42 mutants of another harness",
        "",
        "The rlvr-experiments project held 43 new tests for a harness that covers its trainer; they killed "
        f"{sum(mutant.killed_there for mutant in mutants)} of {len(mutants)} one-line mutants. Each has a "
        "counterpart in refrl, which is killed by each of 20 seeds.",
        "",
        "| theirs | part | killed there | ours |",
        "|---|---|---|---|",
    )
    for mutant in mutants:
        killed = "yes" if mutant.killed_there else "no"
        yield f"| {mutant.theirs} | {mutant.part} | {killed} | {mutant.ours} |"
    yield from ("", "Its 43 tests, and what holds the same here:", "", "| test | here |", "|---|---|")
    for test in harness_tests():
        here = ", ".join(f"`{name}`" if "::" in name else name for name in test.ours)
        yield f"| {test.test} | {here}{f'; {test.note}' if test.note else ''} |"
