"""DP11: the buffer between producers and the trainer serves each group once."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from seatrial.relations.benches.flow import FlowBench, flow_law
from seatrial.relations.law import Relation


def _buffer(bench: FlowBench, **words: Any) -> Any:
    chosen = {"groups_per_step": 2, "group_size": bench.case.group_size, "capacity": 6, "max_age": 1, **words}
    return bench.stack.replay_buffer(**chosen)


BUFFER = Relation(
    id="DP11.buffer",
    name="the-buffer-serves-each-group-once",
    component="rollout_flow",
    statement="Groups are served whole, in order, within the window, with the rows that were put; none is lost.",
    catalogue="SB282",
    cost="CPU, milliseconds",
)


@flow_law(BUFFER, "in order, with their rows", "a field that changes on its way")
def served_in_order(bench: FlowBench) -> None:
    buffer = _buffer(bench)
    for versions in ([0, 0], [0], [1, 1], [1]):
        buffer.put(versions)
    taken = [list(buffer.take(current)) for current in (0, 1)]
    bench.equal(taken, [[(0, 0), (1, 0)], [(2, 0), (3, 1)]], "groups, step by step")
    bench.equal(buffer.size(), 2, "groups that wait")
    size = bench.case.group_size
    rows = Counter(number for number, _, _ in buffer.rows())
    bench.equal(rows, dict.fromkeys(range(4), size), "rows of each group")
    changed = [number for number, put, trained in buffer.rows() if put != trained]
    bench.equal(changed, [], "groups with rows that are not those that were put")
    bench.equal(list(buffer.left()), [4, 5], "groups that nobody took")
    bench.equal(buffer.size(), 0, "groups that wait after the end")


@flow_law(BUFFER, "the window is inclusive", "an age too many, a drop that is not told")
def window(bench: FlowBench) -> None:
    """A group as old as allowed is trained on, an older one is dropped once, and never trained on."""
    age = 1 + bench.case.seed % 2
    buffer = _buffer(bench, max_age=age)
    buffer.put([0, 1, 2, 2, 3])
    bench.equal(list(buffer.take(1 + age)), [(1, 1), (2, 2)], "groups of the window")
    bench.equal(dict(buffer.dropped()), {0: "stale"}, "groups dropped")
    bench.equal(list(buffer.take(2 + age)), [(3, 2), (4, 3)], "groups of the next window")
    buffer.put([3, 3])
    try:
        buffer.take(9)
        bench.wrong.append("a step of too old groups was taken")
    except TimeoutError:
        pass
    bench.equal(
        (dict(buffer.dropped()), buffer.size()),
        ({0: "stale", 5: "stale", 6: "stale"}, 0),
        "groups dropped, and left",
    )


@flow_law(BUFFER, "no more than there is room for", "half a put that stays, numbers that skip")
def room(bench: FlowBench) -> None:
    """Beyond its room a put is refused whole; the numbers go on as if it had not been."""
    buffer = _buffer(bench, capacity=3)
    buffer.put([0, 0])
    bench.refused("two groups where there is room for one", lambda: buffer.put([0, 0]))
    bench.equal(buffer.size(), 2, "groups after a put that was refused")
    buffer.put([0])
    bench.refused("a group where there is no room", lambda: buffer.put([0]))
    bench.equal([number for number, _ in buffer.take(0)], [0, 1], "groups of a full buffer")
    buffer.put([0, 0])
    bench.equal([number for number, _ in buffer.take(0)], [2, 3], "groups after there was room")
    bench.equal(list(buffer.left()), [4], "groups that nobody took")


@flow_law(BUFFER, "a restored buffer goes on", "numbers that begin anew, groups that come twice")
def restored(bench: FlowBench) -> None:
    """A buffer that takes another's place serves the same groups, with the same rows, and goes on with the numbers."""
    buffer = _buffer(bench)
    buffer.put([0, 0, 1, 1, 1])
    buffer.take(0)
    state = buffer.state()
    bench.equal(buffer.size(), 3, "groups after the state was taken")
    other = _buffer(bench)
    other.restore(state)
    bench.equal(other.size(), 3, "groups of the other")
    bench.equal(list(other.take(1)), [(2, 1), (3, 1)], "groups that it serves first")
    other.put([1])
    bench.equal(list(other.take(2)), [(4, 1), (5, 1)], "groups that it serves then")
    changed = [number for number, put, trained in other.rows() if put != trained]
    bench.equal(changed, [], "groups with rows that are not those that were put")
    numbers = [number for number, _ in _emptied(bench).take(9)]
    bench.equal(numbers, [4, 5], "numbers after a state in which nothing waited")
    twice, early = dict(state["buffer"]), dict(state["buffer"])
    twice["groups"] = [*twice["groups"], twice["groups"][0]]
    early["next_number"] = 2
    for what, bad in {"a group twice": twice, "a group that was never put": early, "nothing": {}}.items():
        bench.refused(f"the state of {what}", partial(_buffer(bench).restore, {**state, "buffer": bad}))


def _emptied(bench: FlowBench) -> Any:
    """Return a buffer that took the place of one all of whose groups were trained on, with two more."""
    buffer, other = _buffer(bench), _buffer(bench)
    buffer.put([8, 8, 8, 8])
    for _ in range(2):
        buffer.take(8)
    other.restore(buffer.state())
    other.put([9, 9])
    return other
