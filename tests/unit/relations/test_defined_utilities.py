"""R31 of functions with a definition: those that equal it hold, and each fault that people make breaks its law."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.relations.defined_asynchronous import ASYNCHRONOUS_FAULTS, ASYNCHRONOUS_RELATIONS
from tests.unit.relations.defined_parts import PART_FAULTS, PART_RELATIONS
from tests.unit.relations.defined_rollouts import ROLLOUT_FAULTS, ROLLOUT_RELATIONS
from tests.unit.relations.defined_utilities import DEFINED, Defined, operate, validation

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.utilities.batches import RIGHT
from seatrial.relations.laws.utilities.plain import difference
from seatrial.relations.not_served import NotServed
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = (
    "R31.statistics",
    "R31.sequences",
    "R31.partitions",
    "R31.step_metrics",
    "R31.step_parts",
    "R31.batches",
    "R31.calls",
    "R31.files",
    "R31.turns",
    "R31.work",
    "R31.repeated",
    *ROLLOUT_RELATIONS,
    *ASYNCHRONOUS_RELATIONS,
    *PART_RELATIONS,
)


@pytest.mark.parametrize("name", RELATIONS)
def test_definitions_hold(name: str) -> None:
    """On two seeds, every law."""
    (relation,) = select([name])
    verdict = run_relation(relation, Defined(), seeds=[0, 1])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws}


def wrapped(name: str, change: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """Return a function whose result is changed."""
    return name, lambda *arguments: change(DEFINED[name](*arguments))


def multiplied(values: torch.Tensor, mask: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return a sum under a mask that multiplies."""
    return (values.double() * mask).sum(*[one for one in _ if isinstance(one, int) and one is not True])


def at(operation: str, change: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """Return batch operations of which one gives other batches."""
    return (
        "batch operation",
        lambda name, batches, *arguments: (
            [change(one) for one in operate(name, batches, *arguments)]
            if name == operation
            else operate(name, batches, *arguments)
        ),
    )


def no_facts(batch: Any) -> Any:
    """Return a batch that has lost its facts."""
    return batch._replace(facts={})


def backwards(batch: Any) -> Any:
    """Return a batch whose objects are in another order than its tensors."""
    objects = {name: values[::-1] for name, values in batch.objects.items()}
    tensors = batch.tensors if objects else {name: values.flip(0) for name, values in batch.tensors.items()}
    return batch._replace(objects=objects, tensors=tensors)


def as_floats(batch: Any) -> Any:
    """Return a batch whose tensors have become float32."""
    return batch._replace(
        tensors={name: values.float() for name, values in batch.tensors.items()}, objects={}
    )


def overwritten(name: str, batches: Any, *arguments: Any) -> Any:
    """Return columns of two batches, the second's in place of the first's."""
    return RIGHT[name](batches, *arguments)


def without_last(parts: Any) -> Any:
    """Return parts without their last row."""
    return [*parts[:-1], parts[-1][:-1]]


def without_types(form: str, text: str, types: Any) -> Any:
    """Return calls whose arguments are read as JSON where they are."""
    before, calls = DEFINED["tool calls"](form, text, types)

    def value(one: Any) -> Any:
        return json.loads(one) if isinstance(one, str) and one[:1] in "0123456789[t" else one

    read = [(name, {key: value(one) for key, one in json.loads(given).items()}) for name, given in calls]
    return before, [(name, json.dumps(arguments)) for name, arguments in read]


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "sums under a mask": ("masked sum", lambda v, m, a: v.double().sum() if a is None else v.double().sum(a)),
    "means under a mask": (
        "masked mean",
        lambda v, m, a: v.double().mean() if a is None else v.double().mean(a),
    ),
    "variances under a mask": ("masked variance", lambda v, m, u: DEFINED["masked variance"](v, m, not u)),
    "whitened values under a mask": (
        "masked whitening",
        lambda v, m, s: DEFINED["masked whitening"](v, m, not s),
    ),
    "sum under a mask, NaN in the padding": ("masked sum", multiplied),
    "mean under a mask, NaN in the padding": ("masked mean", multiplied),
    "variance under a mask, NaN in the padding": ("masked variance", lambda v, m, u: (v * m).double().var()),
    "whitening under a mask, NaN in the padding": (
        "masked whitening",
        lambda v, m, s: (v - v.mean())[m.bool()],
    ),
    "mean and deviation of each group": (
        "group statistics",
        lambda s, g: DEFINED["group statistics"](s, g.sort().values),
    ),
    "labels of groups": (
        "equal labels",
        lambda labels: DEFINED["equal labels"]([str(one)[-1:-2:-1] * 0 for one in labels]),
    ),
    "labels of groups that are fractions": (
        "equal labels",
        lambda labels: DEFINED["equal labels"](list(map(int, labels))),
    ),
    "sums of squared probabilities": (
        "squared probabilities",
        lambda logits: logits.double().softmax(-1).sum(-1),
    ),
    "metrics merged by their names": (
        "merged metrics",
        lambda metrics: {name: sum(values) / len(values) for name, values in metrics.items()},
    ),
    "a metric over ranks and micro-batches": (
        "metric of ranks",
        lambda how, ranks: DEFINED["metric of ranks"]("sum" if how == "mean" else how, ranks),
    ),
    "values appended by name": ("appended", lambda steps, prefix: DEFINED["appended"](steps[:1], prefix)),
    "rows of a data set made a batch": ("collated", lambda rows: DEFINED["collated"](rows[::-1])),
    "columns of rows": wrapped("columns of rows", lambda columns: dict(list(columns.items())[:1])),
    "masks of answers": ("answer mask", lambda ids, ends: DEFINED["answer mask"](ids, ends).roll(1, 1)),
    "lists padded": (
        "pad lists",
        lambda rows, value, length: DEFINED["pad lists"](rows, value, (length or 0) + 9),
    ),
    "rows padded on a side": (
        "pad on a side",
        lambda r, n, v, left: DEFINED["pad on a side"](r, n, v, not left),
    ),
    "rows padded or cut to a length": (
        "fit to length",
        lambda i, m, n, p, left, cut: DEFINED["fit to length"](i, m, n, p, left, "left"),
    ),
    "ids without padding": ("without padding", lambda ids, mask: ids.tolist()),
    "where rows begin and end": ("ends of rows", lambda mask: DEFINED["ends of rows"](torch.ones_like(mask))),
    "positions under a mask": ("positions", lambda mask: torch.arange(mask.shape[1]).expand_as(mask)),
    "places that attend": ("visible", lambda mask: DEFINED["visible"](torch.ones_like(mask))),
    "values of answers out of whole rows": (
        "answer values",
        lambda v, p, a: DEFINED["answer values"](v, [one + 1 for one in p], [one - 1 for one in a]),
    ),
    "values of answers, without padding": (
        "answer rows",
        lambda v, p, a: [row[-n:] for row, n in zip(v, a, strict=True)],
    ),
    "columns of rows without padding": wrapped(
        "flattened columns", lambda found: {**found, "widths": found["widths"][::-1]}
    ),
    "rows without padding": (
        "flattened",
        lambda ids, mask, n: DEFINED["flattened"](ids, torch.ones_like(mask), n),
    ),
    "a value of each row for its tokens": ("expanded", lambda v, n: DEFINED["expanded"](v.flip(0), n)),
    "balanced parts": ("balanced parts", lambda n, k, e: [list(range(len(n)))[part::k] for part in range(k)]),
    "parts in the order of rows": wrapped("greedy parts", lambda parts: parts[::-1]),
    "micro-batches within a number of tokens": (
        "micro-batches by tokens",
        lambda n, limit, *rest: DEFINED["micro-batches by tokens"](n, 4 * limit, *rest),
    ),
    "micro-batches have each row once": wrapped("micro-batches by tokens", without_last),
    "micro-batches of a least number and of a multiple": (
        "micro-batches by tokens",
        lambda n, limit, least, divisor, *rest: DEFINED["micro-batches by tokens"](
            n, limit, least, None, *rest
        ),
    ),
    "micro-batches that keep groups together": (
        "micro-batches by tokens",
        lambda *arguments: DEFINED["micro-batches by tokens"](*arguments[:-1], 1),
    ),
    "parts that keep groups together": (
        "parts of groups",
        lambda n, groups, k: DEFINED["balanced parts"](n, k, True),
    ),
    "the inverse of an order": ("inverse order", list),
    "measures of imbalance": ("imbalance", lambda n, parts: DEFINED["imbalance"](n, parts[:-1])),
    "the number of micro-batches that are needed": ("first fit", lambda n, limit: -(-sum(n) // limit)),
    "metrics of a step": (
        "step metrics",
        lambda batch, critic: DEFINED["step metrics"](
            {**batch, "response_mask": torch.ones_like(batch["response_mask"])}, critic
        ),
    ),
    "metrics of a step, an answer without a token": (
        "step metrics",
        lambda batch, critic: {
            **DEFINED["step metrics"](batch, critic),
            "critic/score/mean": float(batch["token_level_scores"].double().sum(1).mean()),
        },
    ),
    "times of stages, by tokens": wrapped("timings", lambda found: {**found, "timing_per_token_ms/gen": 0.0}),
    "tokens a second": (
        "throughput",
        lambda tokens, seconds, gpus: DEFINED["throughput"](tokens, seconds, 1),
    ),
    "rewards less the weighted KL": (
        "rewards with KL",
        lambda b, c, kind: DEFINED["rewards with KL"](b, -c, kind),
    ),
    "the part of a mask that is the answer's": wrapped("answer part", lambda mask: mask.roll(1, 1)),
    "metrics of speculative decoding": ("speculation", lambda d, a, v: DEFINED["speculation"](a, d, v)),
    "validation metrics": (
        "validation metrics",
        lambda *columns: validation(*columns, most=lambda votes: max(score for _, score in votes)),
    ),
    "validations with answers that failed": (
        "validation of failures",
        lambda sources, prompts, values, due: DEFINED["validation of failures"](
            sources, prompts, [value or 0.0 for value in values], due
        ),
    ),
    "rows of unequal lengths": wrapped("uneven rows", lambda found: found[::-1]),
    "rows of unequal lengths in their order again": (
        "restored rows",
        lambda values, parts: [values[place] for part in parts for place in part],
    ),
    "padded rows without padding": wrapped("rows without padding", lambda found: (found[0], found[1][::-1])),
    "a row that fills a batch": (
        "row that fills",
        lambda sample, *one: {
            **DEFINED["row that fills"](sample, *one),
            "rm_scores": sample["rm_scores"][:1],
        },
    ),
    "a row that fills a batch of distillation": (
        "row that fills",
        lambda sample, *one: {
            **DEFINED["row that fills"](sample, *one),
            "teacher_ids": sample["teacher_ids"],
        },
    ),
    "advantages of sessions with several outputs": (
        "advantages of sessions",
        lambda outputs: DEFINED["advantages of sessions"](
            [one._replace(place=-one.place) for one in outputs]
        ),
    ),
    "what tools return": wrapped("returned by a tool", lambda found: (found[0], abs(found[1]), found[2])),
    "modules that an adapter names": (
        "adapted modules",
        lambda options, name: any(name.endswith(one) for one in options["target_modules"]),
    ),
    "models that a run needs": (
        "roles of options",
        lambda options: (True, *DEFINED["roles of options"](options)[1:]),
    ),
    "images of several rows": ("joined images", lambda rows, places: DEFINED["joined images"](rows, None)),
    "metrics of a step in which nothing was answered": wrapped(
        "step metrics without answers", lambda found: dict.fromkeys(found, 0.0)
    ),
    "rows of several batches": at("concat", backwards),
    "metrics and facts of several batches": at("concat", no_facts),
    "columns of two batches": at("union", no_facts),
    "columns that differ are refused": ("batch operation", overwritten),
    "columns and facts of some names": at("select", no_facts),
    "columns and facts taken out": at("pop", no_facts),
    "a renamed column": at("rename", no_facts),
    "several renamed columns": at("rename", no_facts),
    "rows at places": at("places", backwards),
    "rows of a mask": at("mask", no_facts),
    "slices": at("slice", no_facts),
    "reordered rows": at("reorder", backwards),
    "repeated rows": at("repeat", backwards),
    "rows repeated unequally": at("repeat rows", backwards),
    "equal parts": at("chunk", no_facts),
    "parts of a size": at("split", no_facts),
    "padded rows": at("pad", backwards),
    "columns unfolded": at("unfold columns", backwards),
    "iterated": at("iterate", no_facts),
    "there and back as another type": at("same", as_floats),
    "sent to another process": at("same", as_floats),
    "sent to another process as arrays": at("same", as_floats),
    "saved and loaded": at("same", as_floats),
    "folded and unfolded": at("same", backwards),
    "from one dictionary": at("same", as_floats),
    "one call": wrapped("tool calls", lambda found: (found[0], [(name, "{}") for name, _ in found[1]])),
    "several calls": wrapped("tool calls", lambda found: (found[0], found[1][:1])),
    "texts that look like numbers": ("tool calls", without_types),
    "texts that look like numbers, of formats with tags": ("tool calls", without_types),
    "calls without an end": wrapped(
        "tool calls", lambda found: (found[0].strip(), [*found[1], ("weather", "{}")])
    ),
    "text around calls": wrapped("tool calls", lambda found: (found[0][:-1], found[1])),
    "tokens of several turns": wrapped("agent episode", lambda one: one._replace(mask=[1] * len(one.mask))),
    "episodes that are cut": wrapped(
        "agent episode", lambda one: one._replace(response_ids=one.response_ids[-5:])
    ),
    "turns as the template writes them": wrapped(
        "agent episode", lambda one: one._replace(text=f"system{one.text}")
    ),
    "line breaks between turns": wrapped(
        "agent episode", lambda one: one._replace(text=one.text.replace("<|im_end|>\n", "<|im_end|>"))
    ),
    "experts of an episode": wrapped("experts of episodes", lambda one: one._replace(experts=None)),
    "what tools are made with": wrapped("arguments of tools", lambda made: [{} for _ in made]),
    "what a tool knows of the right answer": ("score of a tool", lambda right, answer: 0.0),
    "what interactions are given": wrapped(
        "arguments of interactions", lambda given: (given[0], [{} for _ in given[1]])
    ),
    "operations of a layer": wrapped("estimated work", lambda work: 1.01 * work),
    "messages of a request": wrapped("request of turns", lambda found: {**found, "trained": found["text"]}),
    "messages of a request, a tool first": wrapped(
        "request of turns", lambda found: {**found, "text": found["prompt"] + found["text"]}
    ),
    "messages of an interaction": wrapped(
        "messages of an interaction", lambda found: [[*one[:3], *one[2:]] for one in found]
    ),
    "messages of an interaction, several calls in a turn": wrapped(
        "messages of an interaction", lambda found: [one[:-1] for one in found]
    ),
    "answers of tools in the form of gpt-oss": (
        "agent episode",
        lambda a, t, s, options: DEFINED["agent episode"](a, t, s, {}),
    ),
    "limits of turns": ("agent episode", lambda a, t, s, options: DEFINED["agent episode"](a, t, s, {})),
    "texts of tools that are cut": (
        "agent episode",
        lambda a, t, s, options: DEFINED["agent episode"](a, t, s, {}),
    ),
    "calls of a turn": ("agent episode", lambda a, t, s, options: DEFINED["agent episode"](a, t, s, {})),
    "an answer without a token": wrapped(
        "agent episode",
        lambda one: one if one.mask else one._replace(response_ids=one.prompt_ids, prompt_ids=[]),
    ),
    "options of sampling": (
        "agent episode",
        lambda a, t, s, options: DEFINED["agent episode"](a, t, {}, options),
    ),
    "the checkpoint that was written last": (
        "latest checkpoint",
        lambda steps, tracked: max(steps, key=str, default=None),
    ),
    "checkpoints that are kept": (
        "kept checkpoints",
        lambda n, limit: DEFINED["kept checkpoints"](n, limit and limit + 1),
    ),
    **ROLLOUT_FAULTS,
    **ASYNCHRONOUS_FAULTS,
    **PART_FAULTS,
    "operations of a layer with a window": wrapped("estimated work", lambda work: 2 * work),
    "calls of Gemma 4": wrapped("tool calls", lambda found: (found[0], found[1][:-1])),
    "calls of Gemma 4, lines and nested values": wrapped("tool calls", lambda found: (found[0], [])),
    "arguments, and a second call": (
        "throughput",
        lambda tokens, *rest: tokens.append(1) or DEFINED["throughput"](tokens, *rest),
    ),
    "random states that are saved": wrapped("random state", lambda same: {**same, "numpy": False}),
}


@pytest.mark.parametrize("law", FAULTS)
def test_a_fault_breaks_its_law(law: str) -> None:
    """And it is that law."""
    name, faulty = FAULTS[law]
    (own,) = [one for relation in RELATIONS for one in select([relation])[0].laws if one.name == law]
    stack = Defined(name, faulty)
    assert not own.measure(stack, own.make(stack, 0, False)).holds  # type: ignore[union-attr]


def test_every_law_has_a_fault() -> None:
    """One of each."""
    assert set(FAULTS) == {law.name for name in RELATIONS for law in select([name])[0].laws}


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        ("1", 1),
        (math.nan, 1.0),
    ],
)
def test_another_form_is_infinitely_far(given: Any, right: Any) -> None:
    """Whatever the values."""
    assert difference(given, right)[0] == math.inf


def test_nan_equals_nan() -> None:
    """In tensors and in numbers."""
    assert difference([torch.tensor([math.nan]), math.nan], [torch.tensor([math.nan]), math.nan])[0] == 0


def test_a_function_that_raises_is_left_to_its_own_law() -> None:
    """A second call says nothing of it; where every function does, there is no evidence."""

    def refuses(*arguments: Any) -> Any:
        raise ValueError("not a form that this release reads")

    (own,) = [
        one
        for relation in RELATIONS
        for one in select([relation])[0].laws
        if one.name == "arguments, and a second call"
    ]
    stack = Defined("throughput", refuses)
    assert own.measure(stack, own.make(stack, 0, False)).holds  # type: ignore[union-attr]
    stack.utilities = dict.fromkeys(DEFINED, refuses)
    with pytest.raises(NotServed, match="no call gave anything"):
        own.measure(stack, own.make(stack, 0, False))
