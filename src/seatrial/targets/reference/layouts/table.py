"""Writes the table of layouts: how far the raw gradient of each layout is from that of one process.

`python -m seatrial.targets.reference.layouts.table docs/evidence/parallelism.md [LAYOUT ...]` trains in every layout or
in those that are named, and replaces the table between the marks of the page.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from seatrial.files import write_text
from seatrial.relations.cases import make_rollout
from seatrial.relations.contracts.parallel import RankRecord
from seatrial.relations.measures.ranks import gradient_error, metric_error, replica_differences, tensor_error
from seatrial.relations.worst import is_worse
from seatrial.targets.reference.layouts.training import layouts, train_alone, train_in_layouts

BEGIN, END = "<!-- layouts: begin -->", "<!-- layouts: end -->"
HEADER = (
    "| layout | processes | served by | raw gradient | at | gradient norm | log-probabilities | metrics | "
    "weights after 3 updates | replicas |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def row(name: str, ranks: Sequence[RankRecord], alone: RankRecord) -> str:
    """Return the line of a layout: the largest errors over its ranks, relative, except for log-probabilities (nats)."""
    worst = (0.0, "none")
    for rank in ranks:
        found = gradient_error(rank, alone)
        if is_worse(found[0], worst[0]):
            worst = found
    norm = max(abs(rank.grad_norm - alone.grad_norm) / alone.grad_norm for rank in ranks)
    logprobs = max(float((rank.logprobs_BT - alone.logprobs_BT).abs().max()) for rank in ranks)
    metrics = max(metric_error(rank.metrics, alone.metrics)[0] for rank in ranks)
    weights = max(tensor_error(rank.weights, alone.weights)[0] for rank in ranks)
    mesh = ", ".join(f"{dimension} {size}" for dimension, size in ranks[0].mesh.items() if size > 1)
    agree = "equal" if not replica_differences(ranks) else "**differ**"
    return (
        f"| {name} | {len(ranks)}: {mesh} | {ranks[0].backend} | {worst[0]:.1e} | `{worst[1]}` | {norm:.0e} | "
        f"{logprobs:.0e} | {metrics:.0e} | {weights:.0e} | {agree} |"
    )


def measured(names: Sequence[str]) -> dict[str, str]:
    """Train in these layouts; return the line of each."""
    rows = make_rollout(3, vocab_size=259, num_prompts=3, num_generations=3).rows
    found: Mapping[str, Sequence[RankRecord]] = train_in_layouts(names, rows)
    return {name: row(name, found[name], train_alone(name, rows)) for name in names}


def main(words: Sequence[str]) -> None:
    """Replace the table of a page, or the lines of the layouts that are named."""
    page, names = Path(words[0]), words[1:]
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    known = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines() if " | " in line}
    lines = (known if names else {}) | measured(names or list(layouts()))
    ordered = "\n".join([*HEADER, *(lines[name] for name in layouts() if name in lines)])
    write_text(page, f"{before}{BEGIN}\n{ordered}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
