"""Worked examples of files that hold both halves of a tie, with equal and with other values, for pairs of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs
from seatrial.targets.transformers.worked.pairs_damaged import write_files
from seatrial.targets.transformers.worked.pairs_models import KINDS, ties, unlike_tensors
from seatrial.targets.transformers.worked.weights import LATER, folder, saved, tensors

TABLE: Table = {
    "kind": {name: name for name in (
        "tied Llama", "T5", "Bart", "Bert", "GPT-2", "Qwen3 with experts", "two Berts")},
    "values": {"equal values": 0.0, "other values": 1.0, "values that hardly differ": 1e-3},
    "files": {"one file": 1, "three files": 3, "files of torch": 0},
    "type": {"as they are": {}, "bfloat16": {"dtype": torch.bfloat16}, "float64": {"dtype": torch.float64},
             "float32": {"dtype": torch.float32}},
    "device": {"": {}, "a device map": {"device_map": "cpu"}, "low memory": {"low_cpu_mem_usage": True}},
    "read": {"by its class": False, "by an Auto class": True},
    "twice": {"": False, "twice": True},
}  # fmt: skip


def _numbers(model: Any) -> int:
    """Return how many numbers a model trains."""
    return sum(value.numel() for value in model.parameters())


def _trained(model: Any, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights after a step of descent on the sum of its squared logits."""
    dtype = next(value.dtype for value in model.parameters())
    given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model(**given).logits.float().square().mean().backward()
    optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _both(case: Mapping[str, Any], model_base: Any) -> list[str]:
    """Return where a tie, its weights, their number and a step of training are not those of the saved model."""
    kind = KINDS[case["kind"]]
    model = kind.model()
    groups = [sorted(names) for names in ties(model)]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    pairs = [
        (names, name) for names in groups for name in names if "head" in name or "decoder.weight" in name
    ]
    if case["values"]:
        if not pairs:
            raise NotServed("none of its tied weights is a head")
        for _, name in pairs:
            state[name] = state[name] * (1.0 + case["values"])
    path = saved(model)
    written = tensors(path)
    # Names of files, where they differ from those of the model, are left; both halves of each tie are added.
    files = {**written, **{name: state[name].clone() for names in groups for name in names}}
    write_files(files, path, case["files"])
    given = {**case["type"], **case["device"]}
    reader = of_name(kind.auto) if case["read"] else kind.cls
    read, said = reader.from_pretrained(path, output_loading_info=True, **given)
    if case["twice"]:
        read.save_pretrained(again := folder())
        read = reader.from_pretrained(again, dtype=next(value.dtype for value in read.parameters()))
    wrong = [f"missing: {sorted(said['missing_keys'])[:2]}"] if said["missing_keys"] else []
    due = {
        name: value.to(given["dtype"]) if given.get("dtype") and value.is_floating_point() else value
        for name, value in state.items()
    }
    wrong += unlike_tensors(read.state_dict(), due, "read")
    apart = {name for _, name in pairs} if case["values"] else set()
    right = {frozenset({*names} - apart) for names in groups}
    right = {names for names in right if len(names) > 1}
    if ties(read) != right:
        wrong.append(
            f"ties: {[sorted(names) for names in ties(read)]}, {[sorted(names) for names in right]} are due"
        )
    numbers = _numbers(model) + sum(state[name].numel() for name in apart)
    if _numbers(read) != numbers:
        wrong.append(f"{_numbers(read)} numbers are trained, {numbers} are due")
    # Experts do not run in float64.
    if (
        not wrong
        and not case["values"]
        and next(value.dtype for value in read.parameters()) is not torch.float64
    ):
        own = kind.model().to(next(value.dtype for value in read.parameters()))
        after, best = (_trained(one, kind.inputs()) for one in (read, own))
        wrong += [f"after a step: {name}" for name, value in after.items()
                  if not torch.allclose(value.double(), best[name].double(), atol=1e-5, rtol=1e-2)][:2]  # fmt: skip
    return wrong[:3]


APART = KnownFailure(
    "halves of a tie that files both hold are trained apart", finding=LATER,
    releases=between("transformers", "5", "5.4"),
)  # fmt: skip


def _table() -> Iterator[Row]:
    for name, case in cases_of_pairs(TABLE):
        # Earlier releases tie the head with any files.
        yield Row("files", "transformers:PreTrainedModel", f"both halves of a tie: {name}", partial(_both, case), [],
                  since="5.8" if case["values"] else "4.57", known=None if case["values"] else APART)  # fmt: skip


# Source: the documentation of from_pretrained and of tie_word_embeddings.
PAIRED_TIED_ROWS: Sequence[Row] = tuple(_table())
