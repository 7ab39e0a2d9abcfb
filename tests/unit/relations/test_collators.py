"""The laws of collators: plain loops obey, and each planted fault is seen by the law about it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from seatrial.relations.contracts.collators import CollatorPlan
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R15.collated"])
PAD, MASK, IGNORED = 0, 2, -100


class PlainCollators:
    """Loops over lists; a fault changes one of them."""

    pad_id, mask_id = PAD, MASK
    ordinary_ids: Sequence[int] = tuple(range(3, 90))

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def collated(self, plan: CollatorPlan) -> Mapping[str, Any]:
        rows = [dict(row) for row in plan.rows]
        return {
            "padding": self._padding,
            "token classes": self._labelled,
            "sequences": self._labelled,
            "language modeling": self._next,
            "choices": self._choices,
            "default": self._default,
            "flattening": self._flat,
            "permutation": self._permuted,
        }[plan.kind](rows, plan)

    def _pad(
        self, rows: Sequence[Sequence[int]], fill: int, plan: CollatorPlan, least: int = 0
    ) -> list[list[int]]:
        width = max([least, *map(len, rows)])
        multiple = 1 if self.fault == "no multiple" else plan.options.get("pad_to_multiple_of", 1)
        width = -(-width // multiple) * multiple
        left = plan.side == "left" and self.fault != "always right"
        return [
            [fill] * (width - len(row)) * left + list(row) + [fill] * (width - len(row)) * (not left)
            for row in rows
        ]

    def _least(self, plan: CollatorPlan) -> int:
        return 0 if self.fault == "no length" else plan.options.get("max_length", 0)

    def _padding(self, rows: list[dict[str, Any]], plan: CollatorPlan) -> dict[str, Any]:
        ids = [row["input_ids"] for row in rows]
        batch = {
            "input_ids": self._pad(ids, PAD, plan, self._least(plan)),
            "attention_mask": self._pad([[1] * len(row) for row in ids], 0, plan, self._least(plan)),
        }
        if "labels" in rows[0]:
            labels = [row["labels"] for row in rows]
            batch["labels"] = labels[::-1] if self.fault == "labels of others" else labels
        return batch

    def _labelled(self, rows: list[dict[str, Any]], plan: CollatorPlan) -> dict[str, Any]:
        batch = self._padding([{"input_ids": row["input_ids"]} for row in rows], plan)
        least = len(batch["input_ids"][0]) if plan.kind == "token classes" else self._least(plan)
        fill = IGNORED if self.fault == "one filling" else plan.options.get("label_pad_token_id", IGNORED)
        weights = [row["weight"] for row in rows if "weight" in row and self.fault != "no weights"]
        labels = self._pad([row["labels"] for row in rows], fill, plan, least)
        return {**batch, "labels": labels, "weight": weights}

    def _next(self, rows: list[dict[str, Any]], plan: CollatorPlan) -> dict[str, Any]:
        batch = self._padding(rows, plan)
        kept = PAD if self.fault == "padding trains" else IGNORED
        labels = [[token if token != PAD else kept for token in row] for row in batch["input_ids"]]
        return {**batch, "labels": labels}

    def _choices(self, rows: list[dict[str, Any]], plan: CollatorPlan) -> dict[str, Any]:
        flat = self._padding([{"input_ids": one} for row in rows for one in row["input_ids"]], plan)
        step = 2 if self.fault == "choices apart" else 3
        grouped = {
            name: [value[start : start + step] for start in range(0, len(value), step)]
            for name, value in flat.items()
        }
        return {**grouped, "labels": [row["labels"] for row in rows]}

    def _default(self, rows: list[dict[str, Any]], plan: CollatorPlan) -> dict[str, Any]:
        name = next(name for name in rows[0] if name.startswith("label"))
        batch = {"input_ids": [row["input_ids"] for row in rows]}
        labels = [np.asarray(row[name]).tolist() for row in rows]
        if self.fault == "whole numbers are cut":
            labels = [[float(one) for one in np.ravel(label)] for label in labels]
        return batch if self.fault == "no labels" else {**batch, "labels": labels}

    def _flat(self, rows: list[dict[str, Any]], plan: CollatorPlan) -> dict[str, Any]:
        ids = [row["input_ids"] for row in rows]
        labels = [row.get("labels", row["input_ids"]) for row in rows]
        separator = plan.options.get("separator_id", IGNORED)
        first = (lambda row: row[:1]) if self.fault == "borders train" else (lambda row: [separator])
        batch: dict[str, Any] = {
            "input_ids": [[token for row in ids for token in row]],
            "labels": [[token for row in labels for token in (*first(row), *row[1:])]],
        }
        if plan.options.get("return_position_ids", True):
            start = 0 if self.fault == "from zero" else plan.options.get("position_ids_start", 0)
            batch["position_ids"] = [[start + place for row in ids for place in range(len(row))]]
        if "return_seq_idx" in plan.options:
            ends = [sum(map(len, ids[:number])) for number in range(len(ids) + 1)]
            batch["seq_idx"] = [[number for number, row in enumerate(ids) for _ in row]]
            batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = (
                ends[1:] if self.fault == "no first length" else ends
            )
            batch["max_length_q"] = batch["max_length_k"] = max(map(len, ids))
        return batch

    def _permuted(self, rows: list[dict[str, Any]], plan: CollatorPlan) -> dict[str, Any]:
        share = 1 / 6 if self.fault == "one share" else plan.options.get("plm_probability", 1 / 6)
        every = round(1 / share) if share < 0.3 else 2.5
        batch: dict[str, Any] = {"input_ids": [], "labels": [], "perm_mask": []}
        for ids in self._pad([row["input_ids"] for row in rows], PAD, plan):
            real = sum(token != PAD for token in ids)
            own = sorted({int(number * every) for number in range(int(real / every))})
            batch["input_ids"].append([MASK if place in own else token for place, token in enumerate(ids)])
            batch["labels"].append([token if place in own else IGNORED for place, token in enumerate(ids)])
            late = 1 if self.fault == "targets see themselves" else 0
            batch["perm_mask"].append(
                [
                    [float(other in own and place <= other - late) for other in range(len(ids))]
                    for place in range(len(ids))
                ]
            )
        return batch


FAULTS = {
    "always right": ["padding on the left", "labels of tokens on the left", "sequences on the left"],
    "no multiple": ["padding to a multiple", "sequences to a multiple, another filling"],
    "no length": ["padding to a length", "sequences to a length"],
    "labels of others": ["one label a row"],
    "one filling": ["labels of tokens, another filling", "sequences to a multiple, another filling"],
    "padding trains": ["next ids", "next ids on the left, to a multiple", "next ids, numpy"],
    "choices apart": ["choices"],
    "no labels": ["as they are, label", "as they are, label_ids"],
    "whole numbers are cut": ["labels of type int64", "label_ids of type int64"],
    "no weights": ["a weight of each row, numpy"],
    "borders train": ["end to end", "end to end, labels"],
    "from zero": ["end to end, another first position"],
    "no first length": ["end to end, lengths and numbers"],
    "one share": ["permutations, another share"],
    "targets see themselves": ["permutations"],
}


def test_plain_loops_obey() -> None:
    """No law fails."""
    verdict = run_relation(RELATION, PlainCollators(), seeds=(0,))
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str) -> None:
    """By the laws about it."""
    verdict = run_relation(RELATION, PlainCollators(fault), seeds=(0,), shrink_seconds=0)
    assert verdict.outcome is Outcome.FAIL
    assert {*FAULTS[fault]} <= {*verdict.details["laws_broken"]}
