"""R31.servers: requests are shared among inference servers, and a rollouter requests as many rows as it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import Plain, add_laws, relation_of

SERVERS = relation_of(
    "servers",
    "requests-go-to-the-servers-that-are-there",
    "A new conversation goes to a server with the fewest requests, a known one to its own; prompts come in order.",
)
Operation = tuple[str, Any]


def _operations(case: Numbers) -> list[Operation]:
    """Return requests of several conversations, ends of requests, and servers that leave and come."""
    generator = case.generator()
    found: list[Operation] = []
    for number in range(40):
        draw = int(torch.randint(0, 10, (), generator=generator))
        found.append(("release", draw) if draw < 4 else ("acquire", f"conversation {draw + number // 4}"))
        if number == 14:
            found.append(("remove", "b"))
        if number == 26:
            found.append(("add", "d"))
    return found


@SERVERS.law(
    "requests of conversations",
    "a conversation that changes its server, a busy server chosen, a server that has left, requests that never end",
    excluded=without("shared requests"),
)
def requests_go_to_the_least_busy_server(stack: Any, case: Numbers) -> Measure:
    """Follow requests, and check each server that is chosen; `release` ends the oldest request of a server in turn."""
    operations, wrong = _operations(case), []
    given: Sequence[tuple[str, str]] = stack.utilities["shared requests"](("a", "b", "c"), operations)
    busy, own = dict.fromkeys("abc", 0), dict[str, str]()
    for place, (name, value) in enumerate(given):
        if name == "acquired":
            conversation = operations[place][1]
            known = own.get(conversation)
            if known in busy:
                if value != known:
                    wrong.append(f"{conversation} goes to {value}, and went to {known}")
            elif value not in busy or busy[value] > min(busy.values()):
                wrong.append(f"{conversation} goes to {value}: {busy}")
            own[conversation] = value
            busy[value] = busy.get(value, 0) + 1
        elif name == "released" and value in busy:
            busy[value] = max(busy[value] - 1, 0)
        elif name == "removed":
            busy.pop(value)
        elif name == "added":
            busy[value] = 0
    return Measure.count(wrong, "requests at the wrong server")


def _limits(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a rollouter, and whether it pauses for each number of rows that wait and that are old."""
    longest = int(plan["rows"] * (plan["staleness"] + 1) * plan["steps of a sync"])
    return {
        "rows at once": longest,
        "steps": plan["all rows"] // (plan["rows"] * plan["steps of a sync"]),
        "pauses": [waiting >= longest or old >= longest for waiting, old in plan["counts"]],
        "after a sync": [waiting + active for waiting, active in plan["counts"]],
    }


def _limit_cases(case: Numbers) -> list[tuple[Any, ...]]:
    found = []
    for rows, staleness, steps in ((4, 0.0, 1), (4, 0.5, 2), (3, 1.0, 4)):
        longest = int(rows * (staleness + 1) * steps)
        counts = [
            (0, 0),
            (longest - 1, 0),
            (longest, 0),
            (0, longest),
            (2, longest - 1),
            (longest - 1, longest - 1),
        ]
        found.append(
            (
                {
                    "rows": rows,
                    "staleness": staleness,
                    "steps of a sync": steps,
                    "all rows": 7 * rows * steps,
                    "counts": counts,
                },
            )
        )
    return found


def _fed(prompts: Sequence[int], copies: int, all_rows: int) -> list[Any]:
    """Return the prompts of each row in order, each as often as configured, over epochs, and None at the end."""
    return [*([prompts[row % len(prompts)]] * copies for row in range(all_rows)), None]


SERVER_FUNCTIONS = (
    Plain(
        name="limits of a rollouter",
        law="limits of a rollouter",
        suspects="one row more than allowed, the steps of a sync left out, old rows that are counted on",
        cases=_limit_cases,
        right=_limits,
    ),
    Plain(
        name="fed prompts",
        law="prompts that a rollouter requests",
        suspects="a prompt left out or twice at the end of an epoch, one prompt more than configured, other copies",
        cases=lambda case: [((11, 12, 13), 2, 7), ((11, 12), 3, 2), ((11,), 1, 3)],
        right=_fed,
    ),
)
add_laws(SERVERS, SERVER_FUNCTIONS)
