"""Draw the pages of the documentation that are generated: `python -m seatrial.cli.docs docs`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from seatrial.cli.commands_page import commands_page
from seatrial.faults import page as faults
from seatrial.files import write_text
from seatrial.vocabulary import Metric, metrics, stacks

_GENERATED = "This page is generated: `make docs`."


def pages(docs: Path) -> dict[str, str]:
    """Return the text of every generated page by its file name.

    Args:
        docs: folder of the pages; the corpus of false passes is read from `tests` beside it.
    """
    from seatrial.targets.reference.manual import configuration_page

    return {
        "evidence/commands.md": commands_page(_GENERATED),
        "evidence/configuration.md": configuration_page(_GENERATED),
        "evidence/vocabulary.md": vocabulary_page(),
        "evidence/relations.md": relations_page(),
        "evidence/faults.md": faults.page(),
        "evidence/false_passes.md": false_passes_page(docs.resolve().parent),
    }


def vocabulary_page() -> str:
    """Return the canonical metrics, and the tags of each stack."""
    lines = [
        "# Vocabulary",
        "",
        f"Canonical names of what stacks log. {_GENERATED} Tags that no table lists keep their own names.",
        "A check may ask for a metric by its canonical name, or by the name that another stack gives it:",
        "`grad_norm`, `train/grad_norm` and `actor/grad_norm` judge a log of TRL, NeMo RL or verl alike, and the",
        "verdict says which tag was read. Hugging Face trainers write `train/x` and `eval/x` to TensorBoard, `x` and",
        "`eval_x` to state files and",
        "consoles: the first form is listed, and both are found.",
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
    from seatrial.relations.registry import own_relations

    lines = [
        "# Relations",
        "",
        f"Laws that the components of an RL post-training stack obey. {_GENERATED} `seatrial relations` holds a "
        "stack to them; the ids are those of the catalogue of known bugs.",
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
    return " ".join(text.replace("|", "\\|").split())


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
