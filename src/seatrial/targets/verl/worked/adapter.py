"""Worked examples of verl's batches, parts, losses and tools, and of the requests that its trainer sends to workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.steps import batch_of_rows, of_rows
from seatrial.targets.verl.worked.modules import MODULES
from seatrial.targets.verl.worked.requests import reference_requests, request_of

ROWS_OF_BATCH = 7


@contextmanager
def _padding(proto: Any, everywhere: bool) -> Iterator[None]:
    """Set the option for all batches in a block."""
    config = import_without(proto.__module__, UNUSED).DataProtoConfig
    before = config.auto_padding
    config.auto_padding = everywhere
    try:
        yield
    finally:
        config.auto_padding = before


def _batch(proto: Any, rows: int, **options: Any) -> Any:
    names = numpy.array([f"row {row}" for row in range(rows)], dtype=object)
    return proto.from_dict(tensors={"ids": torch.arange(rows)}, non_tensors={"names": names}, **options)


def _uneven(proto: Any) -> Mapping[tuple[bool, bool], Any]:
    """Return the rows of uneven chunks, by the option of the batch and the one of all batches."""
    found: dict[tuple[bool, bool], Any] = {}
    for own in (False, True):
        for everywhere in (False, True):
            with _padding(proto, everywhere):
                try:
                    chunks = _batch(proto, ROWS_OF_BATCH, auto_padding=own).chunk(3)
                except AssertionError:
                    found[own, everywhere] = "refused"
                    continue
            found[own, everywhere] = [
                [f"row {row}" for row in one.batch["ids"].tolist()] == one.non_tensor_batch["names"].tolist()
                for one in chunks
            ]
    return found


def _columns_of_lists(proto: Any) -> list[Any]:
    batch = proto.from_dict(tensors={"ids": torch.arange(4)}, non_tensors={"names": ["a", "b", "c", "d"]})
    return [part.non_tensor_batch["names"].tolist() for part in batch.chunk(2)]


def _without_tensors(proto: Any) -> list[Any]:
    batch = proto.from_dict(tensors={}, non_tensors={"names": numpy.array(list("abcd"), dtype=object)})
    return [part.non_tensor_batch["names"].tolist() for part in batch.chunk(2)]


def _dynamic(prepare: Any) -> dict[str, Any]:
    """Return the number of parts of eight rows of four tokens, by the options; parts of two rows fit."""
    proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
    batch = proto.from_dict(
        tensors={
            "input_ids": torch.arange(8)[:, None].repeat(1, 4),
            "attention_mask": torch.ones(8, 4).long(),
        },
        non_tensors={"names": numpy.array([f"row {row}" for row in range(8)], dtype=object)},
    )
    found: dict[str, Any] = {}
    for name, options in (
        ("none", {}),
        ("divided by 3", {"num_batches_divided_by": 3}),
        ("at least 5", {"min_num_micro_batch": 5}),
    ):
        parts, order = prepare(batch, 8, **options)
        aligned = all(
            [f"row {row}" for row in part.batch["input_ids"][:, 0].tolist()]
            == part.non_tensor_batch["names"].tolist()
            for part in parts
        )
        found[name] = (len(parts), aligned, sorted(row for part in order for row in part))
    return found


def _fixed(prepare: Any) -> list[list[int]]:
    """Return the sizes of parts of eight rows, by rows of a part and rows of a group that stays together."""
    import tensordict

    found = []
    for rows, group in ((1, 1), (2, 1), (1, 4), (2, 2)):
        data = tensordict.TensorDict({"ids": torch.arange(8)}, batch_size=8)
        data.set_non_tensor("use_dynamic_bsz", False)
        data.set_non_tensor("micro_batch_size_per_gpu", rows)
        data.set_non_tensor("force_group_size", group)
        found.append([len(part) for part in prepare(data)[0]])
    return found


def _load(accumulator_class: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the beginnings of the names of metrics with another prefix, and what is left after they are taken."""
    accumulator = accumulator_class({"num_experts": 4})
    accumulator.update(torch.tensor([[[[0], [1]], [[2], [1]]]]), torch.ones(1, 2))
    names = accumulator.pop_metrics(prefix="evaluation")
    return sorted({name.partition("/")[0] for name in names}), accumulator.pop_metrics()


def _value_loss(compute: Any) -> list[float]:
    """Return the loss over that of one rank, by the number of ranks."""
    config_class = find_name("verl", ["verl.workers.config:CriticConfig"])
    has_model = any(item.name == "model_config" for item in dataclasses.fields(config_class))
    config = config_class(
        **({"model_config": SimpleNamespace()} if has_model else {}),
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        cliprange_value=0.2,
        loss_agg_mode="token-mean",
    )
    mask_BT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    values_BT = torch.tensor([[0.3, -0.2, 0.5], [0.7, 0.0, 0.0]])
    losses = []
    for ranks in (1, 2, 4):
        data = batch_of_rows(
            mask_BT,
            {"values": values_BT, "returns": values_BT + 1},
            dp_size=ranks,
            batch_num_tokens=8,
            global_batch_size=4,
        )
        losses.append(float(compute(config, {"values": of_rows(values_BT)}, data)[0]))
    return [round(loss / losses[0], 5) for loss in losses]


def _cut(request_class: Any) -> list[list[list[int]]]:
    """Return answers, their masks, positions and loss masks, by the lengths of a model and of an answer."""
    found = []
    for whole, answer in ((9, 9), (5, 9), (9, 2)):
        request = SimpleNamespace(max_model_len=whole, max_response_len=answer)
        for place, name in enumerate(("ids", "attention_mask", "position_ids", "loss_mask")):
            name = "input_ids" if name == "ids" else name
            setattr(request, name, torch.arange(7)[None] + 10 * place)
        for name in ("ids", "attention_mask", "position_ids", "loss_mask"):
            setattr(request, f"prompt_{name}", torch.zeros(1, 3))
        request_class.truncate_output_ids(request, None)
        found.append(
            [
                getattr(request, f"response_{name}")[0].tolist()
                for name in ("ids", "attention_mask", "position_ids", "loss_mask")
            ]
        )
    return found


def _answers(first: int, last: int) -> list[list[int]]:
    return [[place + 10 * kind for place in range(first, last)] for kind in range(4)]


def _carried(compute: Any) -> list[float]:
    """Return discounted returns of a row, one token of which the environment wrote."""
    rewards_BT = torch.tensor([[0.0, 0.0, 0.0, 8.0]])
    mask_BT = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    _, returns_BT = compute(rewards_BT, mask_BT, config=SimpleNamespace(gamma=0.5, get=lambda *_: 0.5))
    found: list[float] = returns_BT[0].tolist()
    return found


def _registered(register: Any) -> list[str]:
    """Return what comes of a tool that is registered again, and of another one of its name."""

    def seatrial_tool(text: str) -> str:
        """Return the text.

        Args:
            text: any.
        """
        return text

    def other(text: str) -> str:
        """Return nothing.

        Args:
            text: any.
        """
        return ""

    found = []
    for tool in (seatrial_tool, seatrial_tool, other):
        try:
            register(name="seatrial_tool")(tool)
            found.append("taken")
        except ValueError:
            found.append("refused")
    return found


def _teachers(config_class: Any) -> dict[tuple[str, bool], str]:
    """Return which losses of distillation are taken, with and without a policy gradient."""
    found = {}
    for mode in ("k1", "k3", "forward_kl_topk"):
        for gradient in (False, True):
            try:
                config_class(loss_mode=mode, use_policy_gradient=gradient)
                found[mode, gradient] = "taken"
            except ValueError:
                found[mode, gradient] = "refused"
    return found


ALIGNED = [True] * 3
WHOLE = list(range(8))
# Sources: docstrings of DataProto, prepare_dynamic_batch, truncate_output_ids and function_tool, and the notes of
# value_loss; a reference that shares the actor's weights is the actor without its adapter.
ROWS: Sequence[Row] = (
    Row(
        "rows",
        "verl.protocol:DataProto",
        "rows of uneven chunks, by the batch's own option and that of all batches",
        _uneven,
        {(False, False): "refused", (False, True): ALIGNED, (True, False): ALIGNED, (True, True): ALIGNED},
        since="0.3",
    ),
    Row(
        "rows",
        "verl.protocol:DataProto",
        "columns that are given as lists",
        _columns_of_lists,
        [["a", "b"], ["c", "d"]],
    ),
    Row(
        "rows",
        "verl.protocol:DataProto",
        "chunks of a batch without tensors",
        _without_tensors,
        [["a", "b"], ["c", "d"]],
        since="0.5",
    ),
    Row(
        "parts",
        "verl.utils.seqlen_balancing:prepare_dynamic_batch",
        "a number of parts, by its options",
        _dynamic,
        {"none": (4, True, WHOLE), "divided by 3": (6, True, WHOLE), "at least 5": (5, True, WHOLE)},
        since="0.6",
    ),
    Row(
        "parts",
        "verl.workers.engine.utils:prepare_micro_batches",
        "sizes of parts whose groups stay together",
        _fixed,
        [[1] * 8, [2] * 4, [4, 4], [4, 4]],
    ),
    Row(
        "parts",
        "verl.utils.seqlen_balancing:greedy_partition",
        "empty rows in parts of one size",
        lambda partition: sorted(len(part) for part in partition([0, 0, 0, 0], 2, equal_size=True)),
        [2, 2],
    ),
    Row(
        "rows",
        "verl.utils.groupwise:as_torch_index",
        "two labels that are words",
        lambda index: index(["b", "a", "b", "a"], device="cpu").tolist(),
        [1, 0, 1, 0],
    ),
    Row(
        "metrics",
        "verl.trainer.ppo.metric_utils:RolloutMoELoadBalanceMetricsAccumulator",
        "metrics under another name, which are taken once",
        _load,
        (["evaluation"], {}),
    ),
    Row(
        "shares",
        "verl.workers.utils.losses:value_loss",
        "a loss that ranks average, times their number",
        _value_loss,
        [1.0, 2.0, 4.0],
        since="0.9",
    ),
    Row(
        "rollouts",
        "verl.workers.rollout.schemas:AsyncRolloutRequest",
        "answers cut to the lengths of a model and of an answer",
        _cut,
        [_answers(3, 7), _answers(3, 5), _answers(3, 5)],
        since="0.8",
    ),
    Row(
        "rows",
        "verl.trainer.ppo.core_algos:compute_reinforce_plus_plus_outcome_advantage",
        "returns before a token of the environment",
        _carried,
        [2.0, 0.0, 4.0, 8.0],
        since="0.9",
    ),
    Row(
        "refusals",
        "verl.tools.function_tool:function_tool",
        "a tool again, and another one of its name",
        _registered,
        ["taken", "taken", "refused"],
    ),
    Row(
        "refusals",
        "verl.workers.config:DistillationLossConfig",
        "losses with and without a policy gradient",
        _teachers,
        {
            (mode, gradient): "refused" if (mode, gradient) == ("k1", False) else "taken"
            for mode in ("k1", "k3", "forward_kl_topk")
            for gradient in (False, True)
        },
    ),
    Row(
        "steps",
        "verl.protocol:DataProto",
        "the request for log-probabilities of the reference",
        reference_requests,
        [
            {"calculate_entropy": False, "compute_loss": False},
            {"calculate_entropy": False, "compute_loss": False, "no_lora_adapter": True},
        ],
        since="0.9",
    ),
    Row(
        "steps",
        "verl.protocol:DataProto",
        "the request for values of the critic",
        lambda proto: request_of(proto, "_compute_values"),
        {"compute_loss": False},
        since="0.9",
    ),
    Row(
        "steps",
        "verl.protocol:DataProto",
        "the request for log-probabilities of the actor",
        lambda proto: request_of(proto, "_compute_old_log_prob"),
        {"calculate_entropy": True, "compute_loss": False},
        since="0.9",
    ),
)


class OfVerl(Worked):
    """Batches, parts, losses, tools and requests of verl; see `contracts.worked`."""

    package = "verl"
    worked_rows = (*ROWS, *(row for module in MODULES for row in module.ROWS))


ADAPTERS: dict[str, type[Any]] = {"worked": OfVerl}
