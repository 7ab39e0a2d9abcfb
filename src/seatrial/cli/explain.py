"""`seatrial explain ID`: what an id in a message means, the usual cause, and what to do."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from seatrial.catalogue import SEEN, bugs, kinds
from seatrial.errors import UsageError
from seatrial.verdict import EXIT_PASS

if TYPE_CHECKING:
    from seatrial.faults.mutate import Mutant
    from seatrial.relations.law import Law, Relation
    from seatrial.rules.rule import Rule

Facts = Iterator[tuple[str, str]]
"""Label and text of each line."""
_LABEL_WIDTH = 13
_MAX_WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial explain`."""
    parser.add_argument(
        "ids",
        nargs="+",
        metavar="ID",
        help="a known bug (SB069), a relation (R12.loss; R12 lists all of that number), one law "
        "('R12.loss/LAW', or the name alone), a rule (gradient-zero), or a planted fault",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what each id means.

    Raises:
        UsageError: an id is unknown; the nearest ones are named.
    """
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    pages = [page for name in arguments.ids for page in explain(name)]
    for number, (title, facts) in enumerate(pages):
        print(f"{'' if number == 0 else chr(10)}{title}")
        for label, text in facts:
            first = f"  {label:<{max(_LABEL_WIDTH, len(label) + 2)}}"
            indent = " " * len(first)
            print(textwrap.fill(text, width, initial_indent=first, subsequent_indent=indent))
    return EXIT_PASS


def explain(name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return a title and labelled lines for each thing that an id names.

    Raises:
        UsageError: nothing has this id.
    """
    from seatrial.faults.mutate import all_mutants
    from seatrial.relations.registry import all_relations
    from seatrial.rules.engine import all_rules

    relations, rules, mutants = all_relations(), all_rules(), all_mutants()
    # `SB69` is `SB069`.
    bug_id = re.sub(r"^SB(\d+)$", lambda found: f"SB{int(found[1]):03}", name.upper())
    if bug_id in bugs():
        kind = kinds()[bugs()[bug_id].kind]
        return [(f"{bug_id}: known bug ({kind.title})", list(_bug(bug_id, relations, rules, mutants)))]
    relation_id, slash, law_name = name.partition("/")
    chosen = [item for item in relations if relation_id in (item.id, item.id.partition(".")[0], item.name)]
    if slash:
        laws = [(item, law) for item in chosen for law in item.laws if law.name == law_name]
        if laws:
            return [(f"{item.key(law)}: law", list(_law(item, law))) for item, law in laws]
        known_laws = [item.key(law) for item in chosen for law in item.laws]
        if known_laws:
            raise UsageError(f"{relation_id} has no law {law_name!r}; {_nearest(name, known_laws)}")
    elif chosen:
        whole = [item for item in chosen if name in (item.id, item.name)]
        pages = [(f"{item.id}: relation {item.name}", list(_relation(item))) for item in whole]
        others = [item for item in chosen if item not in whole]
        if others:
            about = [(item.id, item.statement) for item in others]
            more = ("laws", f"of one relation: seatrial explain {others[0].id}")
            pages.append((f"{name}: relations of this number", [*about, more]))
        return pages
    laws = [(item, law) for item in relations for law in item.laws if law.name == name]
    if laws:
        return [(f"{item.key(law)}: law", list(_law(item, law))) for item, law in laws]
    found = [(f"{rule.id}: rule", list(_rule(rule))) for rule in rules if rule.id == name]
    found += [(f"{fault.id}: planted fault", list(_fault(fault))) for fault in mutants if fault.id == name]
    if not found:
        known = [
            *bugs(),
            *(item.id for item in relations),
            *(item.id for item in rules),
            *(item.id for item in mutants),
        ]
        raise UsageError(
            f"nothing is called {name!r}; {_nearest(name, known)}. "
            "`seatrial relations --list`, `seatrial watch --rules` and `seatrial faults list` list the ids"
        )
    return found


def _bug(
    bug_id: str, relations: Sequence[Relation], rules: Sequence[Rule], mutants: Sequence[Mutant]
) -> Facts:
    bug = bugs()[bug_id]
    kind = kinds()[bug.kind]
    yield "what", bug.what
    yield "seen in", f"{bug.stack}: {bug.source}"
    yield "shows", SEEN[bug.seen]
    yield "cause", kind.cause
    yield "relations", _ids(relation.id for relation in relations if bug_id in relation.catalogue)
    yield "rules", _ids(rule.id for rule in rules if bug_id in rule.catalogue)
    planted = [mutant.id for mutant in mutants if bug_id in mutant.catalogue]
    if planted:
        yield "planted as", _ids(planted)
    yield "do", kind.do


def _relation(relation: Relation) -> Facts:
    yield "statement", relation.statement
    yield "about", f"{relation.component}; cost: {relation.cost}"
    for law in relation.laws:
        yield "law", f"{law.name}. Broken, usually: {law.suspects}"
    yield (
        "Fail means",
        "the stack breaks a law: the message names it, the value, the bound and the smallest input",
    )
    yield from _known_bugs(relation.catalogue)
    yield "run alone", f"seatrial relations MODULE:OBJECT --relation {relation.id}"


def _law(relation: Relation, law: Law) -> Facts:
    yield "relation", f"{relation.id}: {relation.statement}"
    yield "usually", law.suspects
    yield from _known_bugs(relation.catalogue)
    yield "run alone", f"seatrial relations MODULE:OBJECT --relation {relation.id}"


def _rule(rule: Rule) -> Facts:
    from seatrial.rules.measured import false_alarms

    yield "statement", rule.statement
    yield "usually", rule.meaning
    yield "needs", _ids(rule.needs, "any series")
    yield "figures", _ids(f"{name} {item.value:g} ({item.source})" for name, item in rule.parameters.items())
    yield "false alarms", str(false_alarms(rule.id))
    if rule.catalogue:
        yield "known bugs", _ids(rule.catalogue)
    yield "do", rule.remedy


def _fault(mutant: Mutant) -> Facts:
    yield "what", mutant.what
    yield "planted in", mutant.module
    yield "relations", _ids(mutant.relations)
    yield "known bugs", _ids(mutant.catalogue)


def _known_bugs(catalogue: Sequence[str]) -> Facts:
    """Yield the known bugs of a relation, and what to do about their most common kind."""
    if not catalogue:
        yield "do", "compare the smallest input of the message with what the stack computes for it"
        return
    yield "known bugs", f"{_ids(catalogue)}: seatrial explain {catalogue[0]}"
    (kind, _), *_ = Counter(bugs()[bug_id].kind for bug_id in catalogue).most_common(1)
    yield "do", kinds()[kind].do


def _ids(names: Iterator[str] | Sequence[str], nothing: str = "none") -> str:
    return ", ".join(names) or nothing


def _nearest(name: str, known: Sequence[str]) -> str:
    return f"nearest: {', '.join(difflib.get_close_matches(name, known, n=3, cutoff=0.0))}"
