"""DP11: the replay buffer between producers and the trainer serves each group once."""

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
    statement="Groups are served whole, in order and within the staleness window, with unchanged rows; none is lost.",
    catalogue="SB282",
    cost="CPU, milliseconds",
)


@flow_law(BUFFER, "in order, with their rows", "a field modified in the buffer")
def served_in_order(bench: FlowBench) -> None:
    buffer = _buffer(bench)
    for versions in ([0, 0], [0], [1, 1], [1]):
        buffer.put(versions)
    taken = [list(buffer.take(current)) for current in (0, 1)]
    bench.equal(taken, [[(0, 0), (1, 0)], [(2, 0), (3, 1)]], "groups taken at steps 0 and 1")
    bench.equal(buffer.size(), 2, "groups in the buffer")
    size = bench.case.group_size
    rows = Counter(number for number, _, _ in buffer.rows())
    bench.equal(rows, dict.fromkeys(range(4), size), "number of rows in each group")
    changed = [number for number, put, trained in buffer.rows() if put != trained]
    bench.equal(changed, [], "groups with rows that differ from those put")
    bench.equal(list(buffer.left()), [4, 5], "groups left in the buffer")
    bench.equal(buffer.size(), 0, "groups in the buffer after it was emptied")


@flow_law(BUFFER, "the window is inclusive", "a bound off by one, a drop that is not reported")
def window_is_inclusive(bench: FlowBench) -> None:
    """A group at the maximum age is trained on; an older one is dropped once and never trained on."""
    age = 1 + bench.case.seed % 2
    buffer = _buffer(bench, max_age=age)
    buffer.put([0, 1, 2, 2, 3])
    bench.equal(list(buffer.take(1 + age)), [(1, 1), (2, 2)], "groups within the window")
    bench.equal(dict(buffer.dropped()), {0: "stale"}, "groups dropped")
    bench.equal(list(buffer.take(2 + age)), [(3, 2), (4, 3)], "groups within the next window")
    buffer.put([3, 3])
    try:
        buffer.take(9)
        bench.wrong.append("a step trained on stale groups")
    except TimeoutError:
        pass
    bench.equal(
        (dict(buffer.dropped()), buffer.size()),
        ({0: "stale", 5: "stale", 6: "stale"}, 0),
        "groups dropped, and number left",
    )


@flow_law(BUFFER, "capacity is respected", "half of a refused put kept, group numbers skipped")
def capacity_is_respected(bench: FlowBench) -> None:
    """A put over capacity is refused as a whole and uses no group numbers."""
    buffer = _buffer(bench, capacity=3)
    buffer.put([0, 0])
    bench.refused("a put of two groups with space for one", lambda: buffer.put([0, 0]))
    bench.equal(buffer.size(), 2, "groups after a refused put")
    buffer.put([0])
    bench.refused("a put into a full buffer", lambda: buffer.put([0]))
    bench.equal([number for number, _ in buffer.take(0)], [0, 1], "groups taken from a full buffer")
    buffer.put([0, 0])
    bench.equal([number for number, _ in buffer.take(0)], [2, 3], "groups put after space was freed")
    bench.equal(list(buffer.left()), [4], "groups left in the buffer")


@flow_law(BUFFER, "a restored buffer continues", "group numbers that start again at 0, groups served twice")
def restored_buffer_continues(bench: FlowBench) -> None:
    """A buffer restored from another's state serves the same groups and rows and continues the numbering."""
    buffer = _buffer(bench)
    buffer.put([0, 0, 1, 1, 1])
    buffer.take(0)
    state = buffer.state()
    bench.equal(buffer.size(), 3, "groups in the buffer after its state was read")
    other = _buffer(bench)
    other.restore(state)
    bench.equal(other.size(), 3, "groups in the restored buffer")
    bench.equal(list(other.take(1)), [(2, 1), (3, 1)], "first groups from the restored buffer")
    other.put([1])
    bench.equal(list(other.take(2)), [(4, 1), (5, 1)], "next groups from the restored buffer")
    changed = [number for number, put, trained in other.rows() if put != trained]
    bench.equal(changed, [], "groups with rows that differ from those put")
    numbers = [number for number, _ in _restored_from_empty(bench).take(9)]
    bench.equal(numbers, [4, 5], "group numbers after restoring the state of an empty buffer")
    twice, early = dict(state["buffer"]), dict(state["buffer"])
    twice["groups"] = [*twice["groups"], twice["groups"][0]]
    early["next_number"] = 2
    for what, bad in {
        "a duplicate group": twice,
        "a group number not yet assigned": early,
        "an empty state": {},
    }.items():
        bench.refused(f"a state with {what}", partial(_buffer(bench).restore, {**state, "buffer": bad}))


def _restored_from_empty(bench: FlowBench) -> Any:
    """Return a buffer restored from one whose groups were all taken, after a put of two more."""
    buffer, other = _buffer(bench), _buffer(bench)
    buffer.put([8, 8, 8, 8])
    for _ in range(2):
        buffer.take(8)
    other.restore(buffer.state())
    other.put([9, 9])
    return other
