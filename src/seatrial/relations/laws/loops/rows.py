"""R30.rows, R30.gathered: every row is read once by one process, also after a resume, and gathered once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.loops import Epochs, GatheredAs, LoaderPlan
from seatrial.relations.law import Measure, Relation

Made = Callable[[Any, int, bool], LoaderPlan]


def plan(**options: Any) -> Made:
    """Return a function that makes the plan with these options; when tidy, rows fill all batches."""

    def made(stack: Any, seed: int, tidy: bool) -> LoaderPlan:
        given = LoaderPlan(seed=seed, **options)
        return replace(given, num_rows=3 * given.rows_of_step) if tidy and given.drawn is None else given

    return made


ROWS = Relation(
    id="R30.rows",
    name="rows-are-read-once-in-one-order",
    component="row_loader",
    statement="In each epoch every row is read by one process once, in the order of one process, except for rows that "
    "fill up the end; a resumed epoch continues where it ended.",
    cost="CPU, processes of one gloo group that are started once",
    cases=plan(),
)
GATHERED = Relation(
    id="R30.gathered",
    name="metrics-are-of-each-row-once",
    component="metric_gather",
    statement="What is gathered from an evaluation is of each row once, in their order, on every process.",
    cost="CPU, processes of one gloo group that are started once",
    cases=plan(num_epochs=1),
)


def in_order(ranks: Sequence[Epochs]) -> list[list[int]]:
    """Return the rows of each epoch as steps read them: step by step, and in each the processes in their order."""
    found = []
    for epoch in range(len(ranks[0])):
        batches = [rank[epoch] for rank in ranks]
        num_steps = max(len(one) for one in batches)
        found.append(
            [row for step in range(num_steps) for one in batches if step < len(one) for row in one[step]]
        )
    return found


LOST = "rows at the end that are dropped, a padding row for a real one, a batch that two processes read"


def _validates(stack: Any) -> str | None:
    return None if hasattr(stack, "validated_rows") else "it offers no validated_rows"


@ROWS.law(
    "rows of a validation",
    "rows in another order each time",
    cases=plan(shuffle=True, num_epochs=1),
    excluded=_validates,
)
@ROWS.law("every row of a validation once", LOST, cases=plan(num_epochs=1), excluded=_validates, sort=True)
def validations_read_all_rows(stack: Any, case: LoaderPlan, sort: bool = False) -> Measure:
    """Check that a validation reads each row once, also of batches that are not full, and that it shuffles none."""
    found, due = list(stack.validated_rows(case)), list(range(case.num_rows))
    wrong = [] if (sorted(found) if sort else found) == due else [f"{found}, {due} are right"]
    return Measure.count(wrong, "validations with other rows")


@ROWS.law("every row once", LOST)
@ROWS.law("every row once, uneven ends", LOST, cases=plan(even=False))
@ROWS.law("every row once, split batches", LOST, cases=plan(split=True, batch_size=4))
@ROWS.law(
    "every row once, split batches and uneven ends", LOST, cases=plan(split=True, batch_size=4, even=False)
)
@ROWS.law("every row once, dispatched", LOST, cases=plan(dispatch=True))
@ROWS.law("every row once, dispatched and split", LOST, cases=plan(dispatch=True, split=True, batch_size=4))
@ROWS.law("every row once, shuffled", LOST, cases=plan(shuffle=True))
@ROWS.law("every row once, fewer rows than a step", LOST, cases=plan(num_rows=3))
@ROWS.law("every row once, a sampler of part of the data", LOST, cases=plan(num_rows=20, drawn=9))
@ROWS.law("every row once, three processes", LOST, cases=plan(num_ranks=3, num_rows=13))
@ROWS.law(
    "every row once, three processes, uneven ends", LOST, cases=plan(num_ranks=3, num_rows=13, even=False)
)
@ROWS.law(
    "every row once, three processes, dispatched", LOST, cases=plan(num_ranks=3, num_rows=13, dispatch=True)
)
@ROWS.law("every row once, dispatched, uneven ends", LOST, cases=plan(dispatch=True, even=False))
@ROWS.law(
    "every row once, iterable data, dispatched and split",
    LOST,
    cases=plan(iterable=True, dispatch=True, split=True, batch_size=4),
)
@ROWS.law("every row once, iterable data", LOST, cases=plan(iterable=True))
@ROWS.law("every row once, a batch sampler", LOST, cases=plan(batched_by="batch sampler"))
@ROWS.law("every row once, a sampler of batches", LOST, cases=plan(batched_by="sampler of batches"))
@ROWS.law(
    "every row once, a shuffling sampler of batches",
    LOST,
    cases=plan(batched_by="sampler of batches", shuffle=True),
)
@ROWS.law(
    "every row once, other random numbers in each process",
    "an order that each process draws for itself",
    cases=plan(shuffle=True, shuffled_by="process", own_draws=True),
)
@ROWS.law(
    "every row once, other random numbers in each process, a generator",
    "an order that each process draws for itself",
    cases=plan(shuffle=True, own_draws=True),
)
@ROWS.law("every row once, one row", LOST, cases=plan(num_rows=1), thorough=True)
@ROWS.law(
    "every row once, one row, split batches",
    LOST,
    cases=plan(num_rows=1, split=True, batch_size=4),
    thorough=True,
)
@ROWS.law(
    "every row once, one row of iterable data", LOST, cases=plan(num_rows=1, iterable=True), thorough=True
)
@ROWS.law("every row once, a list of batches", LOST, cases=plan(batched_by="list of batches"), thorough=True)
@ROWS.law(
    "every row once, a list of batches, uneven ends",
    LOST,
    cases=plan(batched_by="list of batches", even=False, num_rows=9),
    thorough=True,
)
@ROWS.law("every row once, iterable data, uneven ends", LOST, cases=plan(iterable=True, even=False))
@ROWS.law(
    "every row once, iterable data, split batches", LOST, cases=plan(iterable=True, split=True, batch_size=4)
)
@ROWS.law("every row once, iterable data, dispatched", LOST, cases=plan(iterable=True, dispatch=True))
def every_row_once(stack: Any, case: LoaderPlan) -> Measure:
    """Check that an epoch has every row, none twice but as filling at its end, and little of that."""
    wrong = []
    for number, rows in enumerate(in_order(stack.loaded_rows(case))):
        counts = Counter(rows)
        wrong += [f"row {row} is not in epoch {number}" for row in range(case.num_drawn) if not counts[row]]
        wrong += [f"row {row} is not in the data" for row in counts if row >= case.num_drawn]
        twice = len(rows) - len(counts)
        if twice and not case.even and not case.dispatch:
            wrong.append(f"{twice} rows twice in epoch {number}")
        if twice >= case.rows_of_step:
            wrong.append(f"{twice} filling rows in epoch {number}, steps are of {case.rows_of_step}")
        if len(set(rows[: case.num_drawn])) < case.num_drawn:
            wrong.append(f"a row twice before the end of epoch {number}")
    return Measure.count(wrong, "rows that are lost or read twice")


ORDER = "a permutation of its own on each process, batches given out in another order"


@ROWS.law("order of one process", ORDER)
@ROWS.law("order of one process, split batches", ORDER, cases=plan(split=True, batch_size=4))
@ROWS.law("order of one process, dispatched", ORDER, cases=plan(dispatch=True))
@ROWS.law("order of one process, shuffled", ORDER, cases=plan(shuffle=True))
@ROWS.law(
    "order of one process, shuffled and split", ORDER, cases=plan(shuffle=True, split=True, batch_size=4)
)
@ROWS.law("order of one process, shuffled and dispatched", ORDER, cases=plan(shuffle=True, dispatch=True))
@ROWS.law("order of one process, iterable data", ORDER, cases=plan(iterable=True))
@ROWS.law("order of one process, iterable data, dispatched", ORDER, cases=plan(iterable=True, dispatch=True))
def order_of_one_process(stack: Any, case: LoaderPlan) -> Measure:
    """Compare the rows of all processes, step by step, with those of one process that reads steps alone."""
    alone = replace(case, num_ranks=1, batch_size=case.rows_of_step, split=False, dispatch=False, even=False)
    found, right = in_order(stack.loaded_rows(case)), in_order(stack.loaded_rows(alone))
    wrong = [
        f"epoch {number}: {one[:8]}, one process reads {other[:8]}"
        for number, (one, other) in enumerate(zip(found, right, strict=True))
        if one[: len(other)] != other
    ]
    return Measure.count(wrong, "epochs in another order than that of one process")


SIZES = "a process that ends a batch early, and the others wait for it; a last batch that is not filled"


@ROWS.law("batches of one size", SIZES)
@ROWS.law("batches of one size, split batches", SIZES, cases=plan(split=True, batch_size=4))
@ROWS.law("batches of one size, shuffled", SIZES, cases=plan(shuffle=True, num_rows=13))
@ROWS.law("batches of one size, the last one dropped", SIZES, cases=plan(drop_last=True))
@ROWS.law("batches of one size, iterable data", SIZES, cases=plan(iterable=True))
@ROWS.law(
    "batches of one size, iterable data, the last one dropped",
    SIZES,
    cases=plan(iterable=True, drop_last=True),
)
def batches_have_one_size(stack: Any, case: LoaderPlan) -> Measure:
    """Check that all processes have as many batches, all of one size, where ends are filled or dropped."""
    size = case.rows_of_step // case.num_ranks
    ranks = stack.loaded_rows(case)
    wrong = []
    for epoch in range(case.num_epochs):
        lengths = [len(rank[epoch]) for rank in ranks]
        due = (
            case.num_drawn // case.rows_of_step if case.drop_last else -(-case.num_drawn // case.rows_of_step)
        )
        if set(lengths) != {due}:
            wrong.append(f"{lengths} batches in epoch {epoch}, {due} are due")
        wrong += [
            f"a batch of {len(batch)} on process {number}"
            for number, rank in enumerate(ranks)
            for batch in rank[epoch]
            if len(batch) != size
        ]
    return Measure.count(wrong, "batches that are missing, or of another size")


@ROWS.law("another order in each epoch", "an epoch that the sampler is not given", cases=plan(shuffle=True))
@ROWS.law(
    "another order in each epoch, dispatched",
    "an epoch that the sampler is not given",
    cases=plan(shuffle=True, dispatch=True),
)
@ROWS.law(
    "another order in each epoch, the last rows dropped",
    "an epoch that the sampler is not given",
    cases=plan(shuffle=True, drop_last=True),
)
@ROWS.law(
    "another order in each epoch, a sampler of the caller",
    "an epoch that does not reach a sampler behind those that divide the batches",
    cases=plan(shuffle=True, shuffled_by="sampler"),
)
@ROWS.law(
    "another order in each epoch, iterable data",
    "an epoch that does not reach the data",
    cases=plan(shuffle=True, shuffled_by="sampler", iterable=True),
    thorough=True,
)
@ROWS.law(
    "another order in each epoch, iterable data, dispatched",
    "an epoch that does not reach the data",
    cases=plan(shuffle=True, shuffled_by="sampler", iterable=True, dispatch=True),
    thorough=True,
)
@ROWS.law(
    "another order in each epoch, the seed of the process",
    "a generator that restarts in each epoch",
    cases=plan(shuffle=True, shuffled_by="process"),
)
def epochs_differ(stack: Any, case: LoaderPlan) -> Measure | None:
    """Check that two epochs have other orders, and that the same seed gives the same ones again."""
    if case.num_epochs < 2:
        return None
    found, again = in_order(stack.loaded_rows(case)), in_order(stack.loaded_rows(case))
    wrong = [] if found[0] != found[1] else ["the second epoch has the order of the first"]
    wrong += [] if found == again else ["the same seed gives other orders"]
    return Measure.count(wrong, "epochs with the order of another one")


FIXED_SEED = "a generator of the library's own with a seed of its own"


@ROWS.law("another order for another seed", FIXED_SEED, cases=plan(shuffle=True))
@ROWS.law(
    "another order for another seed, the last rows dropped",
    FIXED_SEED,
    cases=plan(shuffle=True, drop_last=True),
)
@ROWS.law(
    "another order for another seed of the process",
    FIXED_SEED,
    cases=plan(shuffle=True, shuffled_by="process"),
)
@ROWS.law(
    "another order for another seed of the process, dispatched",
    FIXED_SEED,
    cases=plan(shuffle=True, shuffled_by="process", dispatch=True),
)
def seeds_differ(stack: Any, case: LoaderPlan) -> Measure:
    """Check that three other seeds do not all give the order of this one."""
    found = in_order(stack.loaded_rows(case))
    others = [in_order(stack.loaded_rows(replace(case, seed=case.seed + more))) for more in (101, 202, 303)]
    wrong = [] if any(other[0] != found[0] for other in others) else [f"four seeds read {found[0][:8]}"]
    return Measure.count(wrong, "orders that do not depend on the seed")


SKIPPED = "batches of all processes counted as those of one, an epoch that restarts, an order drawn again"


@ROWS.law("resumed epoch", SKIPPED, cases=plan(skip=1))
@ROWS.law("resumed epoch, shuffled", SKIPPED, cases=plan(skip=1, shuffle=True))
@ROWS.law(
    "resumed epoch, shuffled and split", SKIPPED, cases=plan(skip=1, shuffle=True, split=True, batch_size=4)
)
@ROWS.law("resumed epoch, dispatched", SKIPPED, cases=plan(skip=1, dispatch=True))
@ROWS.law(
    "resumed epoch, dispatched and split",
    SKIPPED,
    cases=plan(skip=1, dispatch=True, split=True, batch_size=4),
)
@ROWS.law(
    "resumed second epoch, shuffled", SKIPPED, cases=plan(skip=1, shuffle=True, first_epoch=1, num_epochs=3)
)
@ROWS.law(
    "resumed second epoch, a sampler of the caller",
    SKIPPED,
    cases=plan(skip=1, shuffle=True, shuffled_by="sampler", first_epoch=1, num_epochs=3),
)
@ROWS.law(
    "resumed second epoch, shuffled and split",
    SKIPPED,
    cases=plan(skip=1, shuffle=True, split=True, batch_size=4, first_epoch=1, num_epochs=3),
)
@ROWS.law("resumed epoch, three processes", SKIPPED, cases=plan(skip=1, num_ranks=3, num_rows=13))
@ROWS.law("resumed epoch, the last one dropped", SKIPPED, cases=plan(skip=1, drop_last=True))
@ROWS.law(
    "resumed epoch, iterable data, split batches",
    SKIPPED,
    cases=plan(skip=1, iterable=True, split=True, batch_size=4),
)
@ROWS.law(
    "resumed epoch, iterable data, dispatched", SKIPPED, cases=plan(skip=1, iterable=True, dispatch=True)
)
@ROWS.law("resumed epoch, the last rows dropped", SKIPPED, cases=plan(skip=1, shuffle=True, drop_last=True))
@ROWS.law(
    "resumed second epoch, the last rows dropped",
    SKIPPED,
    cases=plan(skip=1, shuffle=True, drop_last=True, first_epoch=1, num_epochs=3),
)
@ROWS.law(
    "resumed at the end of an epoch, the last rows dropped",
    f"{SKIPPED}, a sampler that begins again with its seed",
    cases=plan(shuffle=True, drop_last=True, first_epoch=1, num_epochs=3),
)
@ROWS.law("resumed epoch, a sampler of batches", SKIPPED, cases=plan(skip=1, batched_by="sampler of batches"))
@ROWS.law(
    "resumed epoch, a batch sampler", SKIPPED, cases=plan(skip=1, shuffle=True, batched_by="batch sampler")
)
@ROWS.law("resumed epoch, uneven ends", SKIPPED, cases=plan(skip=1, even=False))
@ROWS.law("resumed epoch, iterable data", SKIPPED, cases=plan(skip=1, iterable=True))
def resumed_epoch_continues(stack: Any, case: LoaderPlan) -> Measure:
    """Compare the rows after a resume with the rest of the unbroken run, step by step; filling rows may be others."""
    whole, found = stack.loaded_rows(replace(case, skip=0, first_epoch=0)), stack.loaded_rows(case)
    rest = [[rank[case.first_epoch][case.skip :], *rank[case.first_epoch + 1 :]] for rank in whole]
    wrong = []
    drawn = case.num_drawn - (case.num_drawn % case.rows_of_step if case.drop_last else 0)
    for number, (one, other) in enumerate(zip(in_order(found), in_order(rest), strict=True)):
        real = drawn - (0 if number else case.skip * case.rows_of_step)
        if one[:real] != other[:real] or len(one) != len(other):
            wrong.append(f"epoch {case.first_epoch + number}: {one[:8]}, due {other[:8]}")
    return Measure.count(wrong, "epochs that continue with other rows")


TWICE = "filling rows that stay, the length of the data for that of the sampler, processes joined in another order"


@GATHERED.law("tensors", TWICE)
@GATHERED.law("tensors, split batches", TWICE, cases=plan(num_epochs=1, split=True, batch_size=4))
@GATHERED.law("tensors, dispatched", TWICE, cases=plan(num_epochs=1, dispatch=True))
@GATHERED.law("tensors, rows that fill all steps", TWICE, cases=plan(num_epochs=1, num_rows=12))
@GATHERED.law("tensors, fewer rows than a step", TWICE, cases=plan(num_epochs=1, num_rows=3))
@GATHERED.law("tensors, a sampler of part of the data", TWICE, cases=plan(num_epochs=1, num_rows=20, drawn=9))
@GATHERED.law("tensors, the last batch dropped", TWICE, cases=plan(num_epochs=1, drop_last=True))
# Without a dispatcher no process knows which rows fill up the end of data without a length.
@GATHERED.law(
    "tensors, iterable data, dispatched", TWICE, cases=plan(num_epochs=1, iterable=True, dispatch=True)
)
@GATHERED.law("tensors, three processes", TWICE, cases=plan(num_epochs=1, num_ranks=3, num_rows=13))
@GATHERED.law("tensors, uneven ends, one process", TWICE, cases=plan(num_epochs=1, num_ranks=1, even=False))
@GATHERED.law(
    "tensors, in a resumed epoch",
    f"{TWICE}, rows that were left out counted as read",
    cases=plan(num_epochs=1, skip=1),
)
@GATHERED.law("dictionaries", TWICE, kind="tensors of a dictionary")
@GATHERED.law(
    "tensors of unequal widths", f"{TWICE}, rows cut to the narrowest batch", kind="tensors of unequal widths"
)
@GATHERED.law(
    "tensors of unequal widths, dispatched",
    f"{TWICE}, rows cut to the narrowest batch",
    kind="tensors of unequal widths",
    cases=plan(num_epochs=1, dispatch=True),
)
@GATHERED.law("objects", TWICE, kind="objects")
@GATHERED.law("objects, dispatched", TWICE, kind="objects", cases=plan(num_epochs=1, dispatch=True))
def each_row_is_gathered_once(stack: Any, case: LoaderPlan, kind: GatheredAs = "tensor") -> Measure:
    """Check that every process gathers the rows of the data once, in their order."""
    first, kept = case.skip * case.rows_of_step, case.num_drawn
    if case.drop_last:
        kept -= kept % case.rows_of_step
    wrong = [
        f"process {number} has {list(rows)}"
        for number, rows in enumerate(stack.gathered_rows(case, kind))
        if list(rows) != list(range(first, kept))
    ]
    return Measure.count(wrong, f"processes that do not gather the rows {first} to {kept - 1} once")
