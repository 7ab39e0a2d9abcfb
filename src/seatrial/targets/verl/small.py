"""verl's small functions on tensors, lengths and metrics, whichever release is installed; see `contracts.utilities`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.adapted import adapted_functions, check_tensors, found_without
from seatrial.targets.verl.algorithms import MULTIPLIED
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.rewards import objects
from seatrial.targets.verl.step_metrics import rewards_with_kl

FUNCTIONAL = "verl.utils.torch_functional"
BALANCING = "verl.utils.seqlen_balancing"
METRICS = "verl.trainer.ppo.metric_utils"
PADDING = "verl.workers.utils.padding"
PLAIN: Mapping[str, tuple[str, ...]] = {
    "masked sum": (f"{FUNCTIONAL}:masked_sum",),
    "masked mean": (f"{FUNCTIONAL}:masked_mean",),
    "masked variance": (f"{FUNCTIONAL}:masked_var",),
    "squared probabilities": (f"{FUNCTIONAL}:calculate_sum_pi_squared_from_logits",),
    "answer mask": (f"{FUNCTIONAL}:get_response_mask",),
    "pad lists": (f"{FUNCTIONAL}:pad_2d_list_to_length",),
    "pad on a side": (f"{FUNCTIONAL}:pad_sequence_to_length",),
    "without padding": (f"{FUNCTIONAL}:remove_pad_token",),
    "ends of rows": (f"{FUNCTIONAL}:get_unpad_data",),
    "positions": ("verl.utils.model:compute_position_id_with_mask",),
    "balanced parts": (f"{BALANCING}:get_seqlen_balanced_partitions",),
    "greedy parts": (f"{BALANCING}:greedy_partition",),
    "parts of groups": (f"{BALANCING}:get_group_balanced_partitions",),
    "inverse order": (f"{BALANCING}:get_reverse_idx",),
    "columns of rows": (
        "verl.utils.py_functional:list_of_dict_to_dict_of_list",
        "verl.protocol:list_of_dict_to_dict_of_list",
    ),
}
"""Those that take what the contract says, with their places."""

OLDER = "verl: small functions of older releases"
NAN = "under a mask, NaN in the padding"
KNOWN = (
    KnownFailure(
        "labels that are fractions are cut to whole numbers, so that different groups become one",
        finding="verl: groups whose labels are fractions",
    ).of("R31.statistics/labels of groups that are fractions"),
    replace(MULTIPLIED, releases=before("verl", "0.5")).of(
        *(f"R31.statistics/{name} {NAN}" for name in ("sum", "mean", "variance", "whitening"))
    ),
    KnownFailure(
        "the variance of a group is a difference of sums of squares, which cancels",
        finding=OLDER,
        releases=before("verl", "0.8"),
    ).of("R31.statistics/mean and deviation of each group"),
    KnownFailure(
        "lists of one length become an array of two dimensions",
        finding=OLDER,
        releases=before("verl", "0.6"),
    ).of("R31.statistics/rows of a data set made a batch"),
    KnownFailure(
        "values, advantages and returns of tokens that do not train are in the means",
        finding=OLDER,
        releases=before("verl", "0.5"),
    ).of("R31.step_metrics/metrics of a step"),
    KnownFailure(
        "rewards of answers without a token are in the means",
        finding=OLDER,
        releases=before("verl", "0.6"),
    ).of("R31.step_metrics/metrics of a step, an answer without a token"),
)


class VerlSmallFunctions(KnowsFailures):
    """Functions of `torch_functional`, `seqlen_balancing`, `metric_utils` and the batches of its workers."""

    known_failures: ClassVar[Sequence[KnownFailure]] = KNOWN

    def __init__(self) -> None:
        """Find those that the installed release has.

        Raises:
            Gone: there are none.
        """
        made: dict[str, Callable[..., Any]] = {}
        for name, places in PLAIN.items():
            with contextlib.suppress(Gone):
                made[name] = find_name("verl", places)
        made |= adapted_functions(ADAPTED, _found)
        if not made:
            raise Gone(f"verl {release('verl')} has none of {', '.join(PLAIN)}")
        self.utilities: Mapping[str, Callable[..., Any]] = made


def _found(place: str) -> Any:
    """Return what is at `module:name`; modules of the trainer import what their functions do not use."""
    return found_without(place, ("verl.trainer", "verl.utils.dataset"), (*UNUSED, "openai", "qwen_vl_utils"))


def _fitted(fit: Any) -> Callable[..., Any]:
    source = inspect.getsource(fit)

    def fitted(ids: Tensor, mask: Tensor, length: int, pad: int, left: bool, cut: str) -> Any:
        if f'"{cut}"' not in source and f"'{cut}'" not in source:
            raise NotServed(f"postprocess_data of verl {release('verl')} cuts no {cut}")
        return fit(ids, mask, length, pad, left, cut)

    return fitted


def _whitening(whiten: Any) -> Callable[..., Any]:
    return lambda values, mask, shifted: whiten(values, mask, shift_mean=shifted)[mask.bool()]


def _collated(collate: Any) -> Callable[..., Any]:
    """Return the columns of a batch; a column that is no tensor has one dimension, of objects."""

    def collated(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        found = collate([dict(row) for row in rows])
        return {name: one if isinstance(one, Tensor) else _objects_of(one) for name, one in found.items()}

    return collated


def _objects_of(values: Any) -> list[Any]:
    """Return a column's objects; of an array of several dimensions its shape, as it has none."""
    return list(values) if values.ndim == 1 else [f"an array of shape {values.shape}"]


def _equal_labels(number: Any) -> Callable[..., Any]:
    def equal(labels: Sequence[Any]) -> Any:
        numbers = number(objects(labels), device="cpu").tolist()
        return [[one == other for other in numbers] for one in numbers]

    return equal


def _group_statistics(compute: Any) -> Callable[..., Any]:
    return lambda scores, groups: compute(scores, groups, device="cpu")


def _merged(reduce: Any) -> Callable[..., Any]:
    return lambda metrics: {name: float(value) for name, value in reduce(dict(metrics)).items()}


def _of_ranks(metric_class: Any) -> Callable[..., Any]:
    def merged(how: str, ranks: Sequence[Sequence[float]]) -> float:
        metrics = [metric_class(how) for _ in ranks]
        for metric, values in zip(metrics, ranks, strict=True):
            metric.extend(list(values))
        return float(metric_class.aggregate_dp(metrics))

    return merged


def _appended(append: Any) -> Callable[..., Any]:
    source, takes_prefix = inspect.getsource(append), "prefix" in signature(append).parameters

    def appended(steps: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for step in steps:
            if not takes_prefix and prefix:
                raise NotServed(f"append_to_dict of verl {release('verl')} takes no prefix")
            if "extend" not in source:
                raise NotServed(f"append_to_dict of verl {release('verl')} appends a list as one value")
            append(made, dict(step), **({"prefix": prefix} if takes_prefix else {}))
        return made

    return appended


def _visible(bias: Any) -> Callable[..., Any]:
    return lambda mask: bias(mask, mask.shape, torch.zeros(*mask.shape, 1)) == 0


def _nested(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def _answer_values(slice_answers: Any) -> Callable[..., Any]:
    """Return it for a nested tensor and for rows end to end, with columns of either form, which have to agree."""

    def sliced(values: Sequence[Tensor], prompts: Sequence[int], answers: Sequence[int]) -> Tensor:
        from tensordict import TensorDict

        if "indices is required" in inspect.getsource(slice_answers):
            raise NotServed(f"no_padding_2_padding of verl {release('verl')} takes what flash_attn gives")
        size, (P, T) = [len(values)], (max(prompts), max(answers))
        rows = [[torch.ones(length, dtype=torch.long) for length in own] for own in (prompts, answers)]
        masks = [
            [0] * (P - prompt) + [1] * (prompt + answer) + [0] * (T - answer)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        shown = {"attention_mask": torch.tensor(masks)}
        columns = {"prompts": _nested(rows[0]), "responses": _nested(rows[1])}
        nested = TensorDict({**columns, **shown}, batch_size=size)
        columns = {"prompts": torch.ones(*size, P), "responses": torch.ones(*size, T)}
        padded = TensorDict({**columns, **shown}, batch_size=size)
        forms = [
            slice_answers(given, batch)
            for batch in (nested, padded)
            for given in (_nested(values), torch.cat(list(values)))
        ]
        if not all(torch.equal(forms[0], one) for one in forms):
            raise ValueError("values of answers depend on the form of the batch")
        found: Tensor = forms[0]
        return found

    return sliced


def _answer_rows(slice_rows: Any) -> Callable[..., Any]:
    def sliced(values: Sequence[Tensor], prompts: Sequence[int], answers: Sequence[int]) -> list[Tensor]:
        mask = _nested([torch.ones(length) for length in answers])
        return list(slice_rows(_nested(values), mask).unbind())

    return sliced


def _flattened(flatten: Any) -> Callable[..., Any]:
    def flattened(ids: Tensor, mask: Tensor, num_answer: int) -> Any:
        found = _without_padding(flatten, ids, mask, num_answer, {})
        return tuple([row.tolist() for row in found[name].unbind()] for name in ("input_ids", "position_ids"))

    return flattened


def _flattened_columns(flatten: Any) -> Callable[..., Any]:
    if not all(
        name in inspect.getsource(flatten) for name in ("max_seq_len", "routed_experts", "teacher_ids")
    ):
        raise Gone(f"rows of verl {release('verl')} have no such columns")

    def flattened(
        ids: Tensor, mask: Tensor, num_answer: int, columns: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        found = _without_padding(flatten, ids, mask, num_answer, columns)
        widths = [int(found[name]) for name in ("max_seq_len", "max_response_len")]
        rows = {name: [row.tolist() for row in found[name].unbind()] for name in columns}
        return {"widths": widths, **rows}

    return flattened


def _without_padding(
    flatten: Any, ids: Tensor, mask: Tensor, num_answer: int, more: Mapping[str, Tensor]
) -> Any:
    from tensordict import TensorDict

    columns = {
        "input_ids": ids,
        "attention_mask": mask,
        "response_mask": mask[:, -num_answer:],
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        **more,
    }
    try:
        return flatten(TensorDict(columns, batch_size=[len(ids)]))
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("flash_attn"):
            raise
        raise NotServed(f"verl {release('verl')} flattens rows with flash_attn") from missing


def _expanded(expand: Any) -> Callable[..., Any]:
    def expanded(values: Tensor, lengths: Sequence[int]) -> list[list[float]]:
        given = expand(values, _nested([torch.zeros(length) for length in lengths]))
        return [row.tolist() for row in given.unbind()]

    return expanded


def _micro_batches(rearrange: Any) -> Callable[..., Any]:
    takes = signature(rearrange).parameters

    def divided(
        lengths: Sequence[int], limit: int, least: int | None, divisor: int | None, balanced: bool, group: int
    ) -> Any:
        from tensordict import TensorDict

        T = max(lengths)
        mask = torch.tensor([[1] * length + [0] * (T - length) for length in lengths])
        batch = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=[len(lengths)])
        options = {
            "min_num_micro_batch": least,
            "num_batches_divided_by": divisor,
            "use_dynamic_bsz_balance": balanced,
            "force_group_size": group,
        }
        unset = {"min_num_micro_batch": None, "num_batches_divided_by": None, "force_group_size": 1}
        given = {name: value for name, value in options.items() if name in takes}
        if any(options[name] != value for name, value in unset.items() if name not in takes):
            raise NotServed(f"rearrange_micro_batches of verl {release('verl')} has not all options")
        return rearrange(batch, limit, **given)[1]

    return divided


def _imbalance(log: Any) -> Callable[..., Any]:
    def measured(lengths: Sequence[int], parts: Any) -> dict[str, float]:
        found = log(list(lengths), parts, "x")
        return {name.removeprefix("x/"): float(value) for name, value in found.items()}

    return measured


def _batch(tensors: Mapping[str, Tensor], **facts: Any) -> Any:
    proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
    check_tensors(proto, tensors)
    return proto.from_dict(tensors=dict(tensors), meta_info=facts)


def _step_metrics(compute: Any) -> Callable[..., Any]:
    from seatrial.relations.laws.utilities.metrics import step_metrics

    def measured(batch: Mapping[str, Tensor], critic: bool) -> dict[str, float]:
        found = compute(_batch(batch), use_critic=critic)
        return {name: float(found[name]) for name in step_metrics(batch, critic) if name in found}

    return measured


def _validation(process: Any) -> Callable[..., Any]:
    def processed(sources: Any, prompts: Any, scores: Any, answers: Any) -> dict[str, Any]:
        takes_uids = "sample_uids" in signature(process).parameters
        name = "sample_uids" if takes_uids else "sample_inputs"
        found = process(sources, infos_dict={"score": scores, "pred": answers}, **{name: prompts})
        return {source: dict(columns["score"]) for source, columns in found.items()}

    return processed


DATA_SET = "verl.utils.dataset.rl_dataset:collate_fn"
TRAINER = "verl.trainer.ppo.ray_trainer"
ADAPTED: Mapping[str, tuple[Sequence[str], Callable[..., Callable[..., Any]]]] = {
    "masked whitening": ([f"{FUNCTIONAL}:masked_whiten"], _whitening),
    "fit to length": ([f"{FUNCTIONAL}:postprocess_data"], _fitted),
    "collated": ([DATA_SET], _collated),
    "group statistics": (["verl.utils.groupwise:group_mean_std"], _group_statistics),
    "equal labels": (["verl.utils.groupwise:as_torch_index"], _equal_labels),
    "merged metrics": (["verl.utils.metric:reduce_metrics"], _merged),
    "metric of ranks": (["verl.utils.metric:Metric"], _of_ranks),
    "appended": (["verl.utils.py_functional:append_to_dict"], _appended),
    "visible": ([f"{FUNCTIONAL}:prepare_decoder_attention_mask"], _visible),
    "answer values": ([f"{PADDING}:no_padding_2_padding"], _answer_values),
    "answer rows": ([f"{PADDING}:response_from_nested"], _answer_rows),
    "flattened": ([f"{PADDING}:left_right_2_no_padding"], _flattened),
    "flattened columns": ([f"{PADDING}:left_right_2_no_padding"], _flattened_columns),
    "expanded": ([f"{FUNCTIONAL}:expand_as_nested"], _expanded),
    "micro-batches by tokens": ([f"{BALANCING}:rearrange_micro_batches"], _micro_batches),
    "imbalance": ([f"{BALANCING}:log_seqlen_unbalance"], _imbalance),
    "step metrics": ([f"{METRICS}:compute_data_metrics"], _step_metrics),
    "timings": (
        [f"{METRICS}:compute_timing_metrics"],
        lambda compute: lambda batch, seconds: compute(_batch(batch), dict(seconds)),
    ),
    "throughput": (
        [f"{METRICS}:compute_throughout_metrics"],
        lambda compute: (
            lambda tokens, seconds, gpus: compute(
                _batch({}, global_token_num=tokens), {"step": seconds}, gpus
            )
        ),
    ),
    "validation metrics": ([f"{METRICS}:process_validation_metrics"], _validation),
    "rewards with KL": (
        [f"{TRAINER}:apply_kl_penalty", "verl.trainer.ppo.core_algos:FixedKLController"],
        rewards_with_kl,
    ),
    "answer part": (
        [f"{TRAINER}:compute_response_mask"],
        lambda mask_of: lambda batch: mask_of(_batch(batch)),
    ),
    "speculation": ([f"{TRAINER}:compute_spec_decode_metrics"], lambda compute: compute),
}
"""Those with arguments of their own: their places, and what fits them to the contract."""


ADAPTERS: dict[str, type[Any]] = {"small-functions": VerlSmallFunctions}
