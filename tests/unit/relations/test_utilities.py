"""R31: plain functions hold, and each fault that people make breaks its law."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.relations.defined_utilities import DEFINED
from tests.unit.relations.plain_peers import PEERS
from tests.unit.relations.plain_templates import MADE
from tests.unit.relations.plain_utilities import PLAIN, Plain, pad, repeated_order

from seatrial.relations.contracts.utilities import UTILITIES
from seatrial.relations.engine import first_violation, run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = (
    "R31.numbers",
    "R31.rows",
    "R31.orders",
    "R31.records",
    "R31.rewards",
    "R31.chats",
    "R31.sources",
)


@pytest.mark.parametrize("name", RELATIONS)
def test_plain_functions_hold(name: str) -> None:
    """On three seeds, every law."""
    (relation,) = select([name])
    verdict = run_relation(relation, Plain(), seeds=[0, 1, 2])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws}


def test_every_function_of_the_contract_is_tried() -> None:
    """Elsewhere: asynchronous rollouts (tests/peers/test_trl_faults.py), test_mixtures.py, test_activated.py, ..."""
    elsewhere = {"asynchronous rollouts", "asynchronous options", "packed rollouts", "mixed adapters"}
    elsewhere |= {"asynchronous environments", "activated adapters", "own adapters", "parts of adapters"}
    assert {*PLAIN, *DEFINED, *MADE, *PEERS} == set(UTILITIES) - elsewhere


def in_bfloat16(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities as differences in the logits' type."""
    return logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)


def summed_in_type(logits: torch.Tensor) -> torch.Tensor:
    """Return entropies as logsumexp less the mean logit, which cancels."""
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)


def detached(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities whose normaliser has no gradient."""
    return logits.gather(-1, ids[..., None])[..., 0] - logits.detach().logsumexp(-1)


def naive_odds(chosen: torch.Tensor, rejected: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the loss with log(1 - exp(x))."""
    odds = [value - torch.log1p(-value.exp()) for value in (chosen, rejected)]
    return -beta * torch.nn.functional.logsigmoid(odds[0] - odds[1])


def cut_at_the_first(ids: torch.Tensor, stops: Any, pad_id: int) -> Any:
    """Return rows cut after the first of several stops alone."""
    return PLAIN["cut after stop"](ids, list(stops)[:1], pad_id)


def before_the_stop(ids: torch.Tensor, stops: Any, pad_id: int) -> Any:
    """Return rows cut before the stop."""
    given, mask = PLAIN["cut after stop"](ids, stops, pad_id)
    return given, mask * ~torch.isin(ids, torch.tensor(list(stops)))


def misplaced_prompt(chosen: Any, rejected: Any) -> Any:
    """Return a prompt that ends at the last common place before the shorter one's end."""
    place = 0
    for place in range(min(len(chosen), len(rejected))):
        if chosen[place] != rejected[place]:
            break
    if chosen[place - 1] == " ":
        place -= 1
    return chosen[:place], chosen[place:], rejected[place:]


FAULTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "log-probabilities, bfloat16": ("R31.numbers", "logprobs", in_bfloat16),
    "log-probabilities, float32": ("R31.numbers", "logprobs", lambda x, i: PLAIN["logprobs"](x, i * 0)),
    "gradient of log-probabilities": ("R31.numbers", "logprobs", detached),
    "log-probabilities of several ids": (
        "R31.numbers",
        "logprobs of several",
        lambda x, i: x.log_softmax(-1).topk(i.shape[-1]).values,
    ),
    "entropy, float32": ("R31.numbers", "entropy", lambda x: PLAIN["entropy"](x) / 0.6931),
    "entropy, bfloat16": ("R31.numbers", "entropy", summed_in_type),
    "deviation without NaN": ("R31.numbers", "deviation", lambda x, d: x.nan_to_num().std(d)),
    "extremes without NaN": ("R31.numbers", "minimum", lambda x: x.nan_to_num().min()),
    "odds near probabilities of one and zero": ("R31.numbers", "odds loss", naive_odds),
    "padding": ("R31.rows", "pad", lambda rows, value, side, multiple: pad(rows, value, "right", multiple)),
    "padding to a multiple": (
        "R31.rows",
        "pad",
        lambda rows, value, side, multiple: pad(rows, value, side, None),
    ),
    "padding to a length": (
        "R31.rows",
        "pad to length",
        lambda x, n, v, d: PLAIN["pad to length"](x, n, v, d)[:, :n],
    ),
    "flush left": ("R31.rows", "flush left", lambda m, x: (PLAIN["flush left"](m, x)[0], x[:, :5])),
    "flush right": ("R31.rows", "flush right", PLAIN["flush left"]),
    "split": ("R31.rows", "split", lambda c, n: PLAIN["split"](c, n)[:-1] or PLAIN["split"](c, n)),
    "shuffle": ("R31.rows", "shuffle", lambda c: {**PLAIN["shuffle"](c), "texts": c["texts"]}),
    "score at the last token": (
        "R31.rows",
        "score of answers",
        lambda ids, pad, context: (ids * torch.arange(1, 11) * (ids != pad)).sum(1).float(),
    ),
    "first True": ("R31.rows", "first true", lambda x: x.int().argmax(-1)),
    "cut after a stop": ("R31.rows", "cut after stop", before_the_stop),
    "cut after one of several stops": ("R31.rows", "cut after stop", cut_at_the_first),
    "not shuffled": (
        "R31.orders",
        "repeated order",
        lambda n, c, b, r, *more: repeated_order(n, r, b, c, *more),
    ),
    "shuffled": ("R31.orders", "repeated order", lambda *given: repeated_order(*given[:5], 3, given[6])),
    "stream": ("R31.orders", "repeated stream", lambda r, c, b, n: list(r) * c * n),
    "unpaired records": (
        "R31.records",
        "unpair",
        lambda r: [{**one, "label": True} for one in PLAIN["unpair"](r)],
    ),
    "unpaired records with further columns": (
        "R31.records",
        "unpair",
        lambda r: [{k: v for k, v in one.items() if k != "source"} for one in PLAIN["unpair"](r)],
    ),
    "prompt of a pair": ("R31.records", "extract prompt", lambda c, r: (c[:-3], c[-3:], r[len(c) - 3 :])),
    "prompt of a pair, nothing in common": ("R31.records", "extract prompt", misplaced_prompt),
    "prompt of a pair, one answer begins the other": ("R31.records", "extract prompt", misplaced_prompt),
    "prompt of a pair of conversations": (
        "R31.records",
        "extract prompt",
        lambda c, r: (c[:1], c[1:], r[1:]),
    ),
    "cut columns": (
        "R31.records",
        "cut records",
        lambda c, n: {**c, "input_ids": [row[:n] for row in c["input_ids"]]},
    ),
    "entries without None": (
        "R31.records",
        "without None",
        lambda value: [{k: v for k, v in one.items() if v} for one in value],
    ),
    "common beginning of ids": ("R31.records", "common prefix", lambda a, b: min(len(a), len(b))),
    "messages with images": (
        "R31.records",
        "messages with images",
        lambda m, i: PLAIN["messages with images"](m, list(i)[::-1]),
    ),
    "format of thought": (
        "R31.rewards",
        "think format",
        lambda texts: [float("<think>" in one) for one in texts],
    ),
    "punishment of length": (
        "R31.rewards",
        "overlong",
        lambda n, m, c: PLAIN["overlong"]([x + 1 for x in n], m, c),
    ),
    "punishment of length, a cache of no tokens": ("R31.rewards", "overlong", lambda n, m, c: [0.0] * len(n)),
    "penalty of repetition": (
        "R31.rewards",
        "repetition",
        lambda rows, n, p: PLAIN["repetition"]([sorted(row) for row in rows], n, p),
    ),
    "cosine of the length": (
        "R31.rewards",
        "cosine",
        lambda c, n, m, wrong, right: PLAIN["cosine"](c, n, m, wrong[::-1], right),
    ),
    "texts of a template": (
        "R31.chats",
        "apply template",
        lambda r, t, n: {k: v + "(" for k, v in PLAIN["apply template"](r, t, n).items() if k != "label"},
    ),
    "texts of a template with variables of a record's own": (
        "R31.chats",
        "apply template",
        lambda r, t, n: PLAIN["apply template"]({k: v for k, v in r.items() if "kwargs" not in k}, t, n),
    ),
    "tools of a template": (
        "R31.chats",
        "apply template",
        lambda r, t, n: PLAIN["apply template"](r, t, () if "prompt" in r else n),
    ),
    "turns by other names": (
        "R31.chats",
        "to messages",
        lambda r: {"messages": PLAIN["to messages"](r).get("messages", r)},
    ),
    "form of a record": (
        "R31.chats",
        "is conversational",
        lambda r: isinstance(next(iter(r.values())), list),
    ),
    "prompt of a pair, where it has none of its own": (
        "R31.chats",
        "own prompt",
        lambda r: r if "prompt" in r else PLAIN["own prompt"](r),
    ),
    "mixture": ("R31.sources", "mixture", lambda s, *more: PLAIN["mixture"](s[::-1], *more)),
    "shares of a mixture": (
        "R31.sources",
        "mixture",
        lambda s, c, f, t: {
            **PLAIN["mixture"](s, c, None, t),
            "train": [row for one, part in zip(s, f or (1, 1), strict=False) for row in one[: int(9 * part)]],
        },
    ),
    "parts of a mixture": (
        "R31.sources",
        "mixture",
        lambda s, c, f, t: {**PLAIN["mixture"](s, c, f, t), **PLAIN["mixture"](s, c, f, None)},
    ),
    "parts of a mixture in several processes": (
        "R31.sources",
        "mixture",
        lambda s, c, f, t: {
            "test": [s[0][place] for place in np.random.permutation(len(s[0]))[:4]],
            "train": [],
        },
    ),
    "options of files and command lines": (
        "R31.sources",
        "parse options",
        lambda file, line: {**PLAIN["parse options"](file, line), **file},
    ),
    "averaged weights": (
        "R31.sources",
        "averaged weights",
        lambda w, o: PLAIN["averaged weights"](w, {**o, "update_after": 0}),
    ),
}


@pytest.mark.parametrize("law", FAULTS)
def test_a_fault_breaks_its_law(law: str) -> None:
    """And it is that law."""
    name, function, faulty = FAULTS[law]
    (relation,) = select([name])
    stack = Plain(**{function.replace(" ", "_"): faulty})
    with torch.random.fork_rng(devices=[]):
        broken = {
            one.name for one in relation.laws if not one.measure(stack, one.make(stack, 0, False)).holds
        }  # type: ignore[union-attr]
    assert law in broken
    assert first_violation(relation, stack) is not None


def test_every_law_has_a_fault() -> None:
    """One of each."""
    assert set(FAULTS) == {law.name for name in RELATIONS for law in select([name])[0].laws}
