"""Generates the generated pages of the documentation: `python -m seatrial.cli.docs docs`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from seatrial.catalogue import SEEN, bugs, kinds
from seatrial.cli import COMMANDS
from seatrial.faults import claims
from seatrial.faults import page as faults
from seatrial.files import write_text
from seatrial.relations.registry import own_relations
from seatrial.vocabulary import Metric, metrics, stacks

_GENERATED = "This page is generated: `make docs`."
FACTS_BEGIN, FACTS_END = "<!-- facts: begin (make docs) -->", "<!-- facts: end -->"


def pages(docs: Path) -> dict[str, str]:
    """Return the text of every generated page by its file name.

    Args:
        docs: folder of the pages; README.md and `tests`, with the corpus of false passes, are next to it.
    """
    from seatrial.targets.reference.manual import configuration_page
    from seatrial.targets.transformers import architectures

    return {
        "evidence/architectures.md": architectures.page(_GENERATED),
        "evidence/commands.md": commands_page(),
        "evidence/configuration.md": configuration_page(_GENERATED),
        "evidence/vocabulary.md": vocabulary_page(),
        "evidence/relations.md": relations_page(),
        "evidence/catalogue.md": catalogue_page(),
        "evidence/rules_table.md": rules_page(),
        "evidence/faults.md": faults.page(),
        "evidence/claims.md": claims.page(),
        "evidence/false_passes.md": false_passes_page(docs.resolve().parent),
        "../README.md": with_facts((docs.resolve().parent / "README.md").read_text(encoding="utf-8")),
    }


def commands_page() -> str:
    """Return every command of both programs with its arguments."""
    from seatrial.targets.reference.manual import command_parsers

    lines = [
        "# Commands",
        "",
        f"{_GENERATED} `COMMAND --help` prints the same. Options may come before or after the other arguments of a",
        "command, except for what follows a `--`. Exit codes: 0 Pass, 1 Fail, 2 wrong usage, 3 Blocked, 5 nothing ran,",
        "130 interrupted ([verdicts](../extend/verdicts.md)).",
    ]
    lines += _program("seatrial", _own_parsers())
    lines += _program("refrl", command_parsers())
    return "\n".join(lines) + "\n"


def _own_parsers() -> dict[str, argparse.ArgumentParser]:
    parsers = {}
    for name, summary in COMMANDS.items():
        parsers[name] = argparse.ArgumentParser(prog=f"seatrial {name}", description=summary)
        importlib.import_module(f"seatrial.cli.{name}").add_arguments(parsers[name])
    return parsers


def _program(program: str, parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield from ("", f"## {program}", "", "| command | does |", "|---|---|")
    for name, parser in parsers.items():
        yield f"| [`{program} {name}`](#{program}-{name}) | {_cell(parser.description or '')} |"
    for parser in parsers.values():
        yield from _command(parser)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the heading and the table of a command, then those of the commands inside it."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    yield from ("", f"### {parser.prog}", "", f"{_sentence(parser.description or '')}")
    shown = [
        action for action in parser._actions if action not in inner and "--help" not in action.option_strings
    ]
    if shown:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (f"| {_name(action)} | {_cell(_help(parser, action))} |" for action in shown)
    for action in inner:
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, held in action.choices.items():
            held.description = held.description or summaries.get(name)
            yield from _command(held)


def _name(action: argparse.Action) -> str:
    """Return an argument as it is written on the command line."""
    if action.nargs == 0:
        value = ""
    elif action.metavar is None and action.choices is not None:
        value = " or ".join(map(str, action.choices))
    else:
        value = (
            action.metavar
            if isinstance(action.metavar, str)
            else (action.metavar or (action.dest.upper(),))[0]
        )
    many = " ..." if action.nargs in ("*", "+", argparse.REMAINDER) else ""
    option = ", ".join(action.option_strings)
    text = f"{option} {value}".strip() + many
    return f"`{text}` (required)" if action.required and option else f"`{text}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _sentence(text: str) -> str:
    whole = " ".join(text.split())
    return whole[:1].upper() + whole[1:] + ("" if whole.endswith(".") else ".")


def with_facts(readme: str) -> str:
    """Return the README with the table of what there is, counted in the code."""
    from seatrial.evidence.ledger.laws import LAWS
    from seatrial.evidence.read import all_readers
    from seatrial.faults.mutate import all_mutants
    from seatrial.faults.plant import all_plants
    from seatrial.relations.registry import own_relations
    from seatrial.rules.engine import own_rules
    from seatrial.targets import target_names
    from seatrial.trials.plan import all_trials

    relations = own_relations()
    num_laws = sum(len(relation.laws) for relation in relations)
    levels: dict[int, int] = {}
    for trial in all_trials():
        levels[trial.level] = levels.get(trial.level, 0) + 1
    facts = {
        "Relations": f"{len(relations)} with {num_laws} laws on {len({one.component for one in relations})} components",
        "Rules": f"{len(own_rules())}",
        "Laws of a run's rows": f"{len(LAWS)}",
        "Trials": ", ".join(f"{number} of level {level}" for level, number in sorted(levels.items())),
        "Targets": ", ".join(f"`{name}`" for name in target_names()),
        "Log formats": ", ".join(reader.NAME for reader in all_readers()),
        "Planted faults": f"{len(all_plants())} in the wiring of a run, {len(all_mutants())} of one line",
    }
    before, _, rest = readme.partition(FACTS_BEGIN)
    after = rest.partition(FACTS_END)[2]
    rows = "\n".join(f"| {name} | {fact} |" for name, fact in facts.items())
    return f"{before}{FACTS_BEGIN}\n| what | how many |\n|---|---|\n{rows}\n{FACTS_END}{after}"


def rules_page() -> str:
    """Return every rule with its inputs, meaning and remedy."""
    from seatrial.rules.engine import own_rules

    lines = [
        "# Table of rules",
        "",
        f"Every rule of `seatrial watch`. {_GENERATED} How often they are right: [rules](rules.md). Thresholds and",
        "their sources: `seatrial watch --rules`. Metrics are canonical names of the [vocabulary](vocabulary.md).",
        "",
        "| rule | family | fires when | needs | usual cause | what to do |",
        "|---|---|---|---|---|---|",
    ]
    for rule in own_rules():
        needs = ", ".join(f"`{name}`" for name in rule.needs) or "any metric"
        cells = (rule.statement, needs, rule.meaning, rule.remedy)
        lines.append(f"| `{rule.id}` | {rule.family} | {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def vocabulary_page() -> str:
    """Return the canonical metrics, and the tags of each stack."""
    lines = [
        "# Vocabulary",
        "",
        f"Canonical names of what stacks log. {_GENERATED} Tags that no table lists keep their own names.",
        "A check may name a metric by its canonical name, or by that of another stack: `grad_norm`,",
        "`train/grad_norm` and `actor/grad_norm` work on a log of TRL, NeMo RL or verl, and the verdict names the tag",
        "that was read. Hugging Face trainers write `train/x` and `eval/x` to TensorBoard, `x` and `eval_x` to state",
        "files and consoles: the first form is listed, and both are found.",
        "",
        "| name | unit | range | better | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{metric.name}` | {metric.unit} | {_range(metric)} | {metric.better or '-'} | {_cell(metric.meaning)} |"
        for metric in metrics().values()
    ]
    for stack in stacks().values():
        lines += ["", f"## {stack.name}", "", f"Source: {stack.source}.", "", "| tag | name |", "|---|---|"]
        held = [*stack.tags.items(), *stack.also.items(), *stack.families.items()]
        lines += [
            f"| `{tag}` | `{name}` |" for name in metrics() for tag, held_name in held if held_name == name
        ]
    return "\n".join(lines) + "\n"


def relations_page() -> str:
    """Return every relation with its laws."""
    lines = [
        "# Relations",
        "",
        f"Laws that the components of an RL post-training stack satisfy. {_GENERATED} `seatrial relations` checks a "
        "stack against them. SBnnn are ids of the [catalogue of known bugs](catalogue.md).",
        "",
        "| id | component | statement | catalogue |",
        "|---|---|---|---|",
    ]
    relations = own_relations()
    lines += [
        f"| [{relation.id}](#{relation.id.lower().replace('.', '')}) | {relation.component} | "
        f"{_cell(relation.statement)} | {', '.join(relation.catalogue) or '-'} |"
        for relation in relations
    ]
    for relation in relations:
        lines += [
            "",
            f"## {relation.id}",
            "",
            f"{relation.name}: {relation.statement} Cost: {relation.cost}.",
            "",
            "| law | when it is broken, usually |",
            "|---|---|",
        ]
        lines += [f"| {_cell(law.name)} | {_cell(law.suspects)} |" for law in relation.laws]
    return "\n".join(lines) + "\n"


def catalogue_page() -> str:
    """Return every known bug by its kind, with the relations that detect it."""
    relations = own_relations()
    lines = [
        "# Catalogue of known bugs",
        "",
        f"Bugs of public projects that gave no error: training continued and did something else. {_GENERATED}",
        "Messages and tables name them SBnnn; `seatrial explain SB069` prints one of them in the terminal. *Shows* is",
        "where a bug can be seen: "
        + "; ".join(f"`{word}`: {meaning}" for word, meaning in SEEN.items())
        + ".",
    ]
    for name, kind in kinds().items():
        lines += ["", f"## {kind.title}", "", f"Cause: {kind.cause}", "", f"What to do: {kind.do}", ""]
        lines += ["| id | seen in | what went wrong | shows | relations |", "|---|---|---|---|---|"]
        for bug_id, bug in bugs().items():
            if bug.kind == name:
                detect = ", ".join(relation.id for relation in relations if bug_id in relation.catalogue)
                lines.append(
                    f"| {bug_id} | {_cell(bug.stack)}: {_cell(bug.source)} | {_cell(bug.what)} | `{bug.seen}` | "
                    f"{detect or '-'} |"
                )
    return "\n".join(lines) + "\n"


def false_passes_page(root: Path) -> str:
    """Return the corpus of false passes as its own module draws it."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    page: str = importlib.import_module("tests.false_passes.corpus").page()
    return page


def _range(metric: Metric) -> str:
    if metric.low is None and metric.high is None:
        return "any"
    low = "" if metric.low is None else f"{metric.low:g}"
    return f"{low} to {metric.high:g}" if metric.high is not None else f"{low} or more"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def main() -> None:
    """Write the pages into the folder that is named."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("usage: python -m seatrial.cli.docs FOLDER")
    docs = Path(sys.argv[1])
    for name, text in pages(docs).items():
        write_text(docs / name, text)
        print(docs / name)


if __name__ == "__main__":
    main()
