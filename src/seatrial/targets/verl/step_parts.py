"""verl's parts of a step that are functions of rows: unequal lengths, filling rows, sessions, tools and adapters."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, release
from seatrial.targets.verl.adapted import Adapted, found_without
from seatrial.targets.verl.estimators import UNUSED

TENSORDICTS = "verl.utils.tensordict_utils"
PADDING = "verl.workers.utils.padding"


class VerlStepParts(Adapted, KnowsFailures):
    """Functions of rows of unequal lengths, of rows that fill a batch, of sessions, tools and adapters."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "rows that fill a batch keep what the teacher says of the row that they are made of",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.9.1"),
        ).of("R31.step_parts/a row that fills a batch of distillation"),
    )

    def __init__(self) -> None:
        """Find those that the installed release has."""
        super().__init__(ADAPTED, _found)


def _found(place: str) -> Any:
    return found_without(place, ("verl.trainer",), UNUSED)


def _batch_of(rows: Sequence[Mapping[str, Tensor]], nested: Any) -> Any:
    from tensordict import TensorDict

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    made = {
        name: torch.stack(values) if values[0].ndim == 0 else nested(values)
        for name, values in columns.items()
    }
    return TensorDict(made, batch_size=[len(rows)])


def _rows_of(batch: Any) -> list[dict[str, Tensor]]:
    columns = {name: list(batch[name].unbind()) for name in batch.keys()}  # noqa: SIM118
    return [{name: values[place] for name, values in columns.items()} for place in range(len(batch))]


def _uneven(nested: Any, join: Any, divide: Any, select: Any) -> Callable[..., Any]:
    def operate(operation: str, batches: Sequence[Any], argument: Any) -> list[Any]:
        given = [_batch_of(rows, nested) for rows in batches]
        if operation == "join":
            return [_rows_of(join(given))]
        if operation == "divide":
            return [_rows_of(part) for part in divide(given[0], argument)]
        return [_rows_of(select(given[0], argument))]

    return operate


def _restored(restore: Any) -> Callable[..., Any]:
    if "is_nested" not in inspect.getsource(restore):
        raise Gone(f"verl {release('verl')} restores rows of one length alone")

    def restored(values: Sequence[Tensor], parts: Sequence[Sequence[int]]) -> list[Tensor]:
        equal = len({len(value) for value in values}) == 1
        form = (
            torch.stack(list(values))
            if equal
            else torch.nested.as_nested_tensor(list(values), layout=torch.jagged)
        )
        return list(restore(form, [list(part) for part in parts]).unbind())

    return restored


def _without_padding(cut: Any, mask_of: Any) -> Callable[..., Any]:
    def without(values: Tensor, lengths: Sequence[int]) -> Any:
        rows = torch.nested.as_nested_tensor([torch.ones(one) for one in lengths], layout=torch.jagged)
        return [row.tolist() for row in cut(values, rows).unbind()], mask_of(rows).tolist()

    return without


def _row_that_fills(construct: Any) -> Callable[..., Any]:
    own = getattr(inspect.getmodule(construct), "SYNTHETIC_PADDING_SEQ_LEN", 2)

    def filled(sample: Mapping[str, Any], end: int, length: int) -> dict[str, Any]:
        if length != own:
            raise NotServed(f"rows that fill a batch of verl {release('verl')} have {own} tokens")
        tag = {"prompt_len": 3, "response_len": 2, "seq_len": 5}
        found, tags = construct(dict(sample), dict(tag), end)
        width = len(found["input_ids"])
        due = {"is_padding": True, "prompt_len": width - 1, "response_len": 1, "seq_len": width}
        if tags != due or tag != {"prompt_len": 3, "response_len": 2, "seq_len": 5}:
            raise ValueError(f"the tag of a row that fills a batch is {tags}, {due} is right")
        return dict(found)

    return filled


def _of_sessions(compute: Any, proto: Any, estimators: Any) -> Callable[..., Any]:
    def advantages(outputs: Sequence[Any]) -> list[list[float]]:
        data = proto.from_dict(
            tensors={
                "token_level_rewards": torch.tensor([one.rewards for one in outputs]),
                "response_mask": torch.tensor([one.mask for one in outputs]),
            },
            non_tensors={"uid": numpy.array([one.prompt for one in outputs], dtype=object)},
        )
        keys = [f"{one.prompt}_{one.session}_{one.place}" for one in outputs]
        found: list[list[float]] = compute(data, keys, estimators.GRPO).batch["advantages"].tolist()
        return found

    return advantages


def _returned(normalize: Any) -> Callable[..., Any]:
    def returned(value: Any) -> tuple[str, float, dict[str, Any]]:
        response, reward, metrics = normalize(value)
        return response.text, reward, metrics

    return returned


def _adapted(targets: Any, excludes: Any) -> Callable[..., Any]:
    def adapted(options: Mapping[str, Any], name: str) -> bool:
        config = SimpleNamespace(**options)
        return bool(targets(config, name)) and not excludes(config, name)

    return adapted


def _roles(reference: Any, critic: Any, reward_model: Any) -> Callable[..., Any]:
    if not all("config" in inspect.signature(one).parameters for one in (reference, critic, reward_model)):
        raise Gone(f"verl {release('verl')} takes roles from workers, not from options")
    if '.get("use_kl_in_reward"' not in inspect.getsource(reference):
        raise Gone(f"verl {release('verl')} needs every option to be given")

    def needed(options: Mapping[str, Any]) -> tuple[bool, bool, bool]:
        from omegaconf import OmegaConf

        in_reward = {name: options[name] for name in ("use_kl_in_reward",) if name in options}
        config = OmegaConf.create(
            {
                "algorithm": {"adv_estimator": options["estimator"], **in_reward},
                "actor_rollout_ref": {"actor": {"use_kl_loss": options.get("use_kl_loss", False)}},
                "critic": {"enable": options.get("critic")},
                "reward": {"reward_model": {"enable": options.get("reward_model", False)}},
            }
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(reference(config)), bool(critic(config)), bool(reward_model(config))

    return needed


def _joined_images(join: Any) -> Callable[..., Any]:
    if "_VARLEN_MULTI_MODAL_KEYS" not in inspect.getsource(join):
        raise Gone(f"verl {release('verl')} pads no columns of images")
    padded = importlib.import_module("verl.utils.model")._VARLEN_MULTI_MODAL_KEYS
    if "input_features" not in padded:
        raise Gone(f"verl {release('verl')} pads {padded}")
    return lambda rows, places: join(list(rows), places)


def _without_answers(compute: Any, proto: Any) -> Callable[..., Any]:
    if "Response mask is all False" not in inspect.getsource(compute):
        raise Gone(f"verl {release('verl')} has no metrics of a step without an answer")
    from seatrial.relations.laws.utilities.metrics import step_metrics

    def measured(batch: Mapping[str, Tensor], critic: bool) -> dict[str, float]:
        found = compute(proto.from_dict(tensors=dict(batch)), use_critic=critic)
        return {name: float(found[name]) for name in step_metrics(batch, critic) if name in found}

    return measured


PROTO = "verl.protocol:DataProto"
ADAPTED: Mapping[str, tuple[Sequence[str], Callable[..., Callable[..., Any]]]] = {
    "uneven rows": (
        [
            f"{TENSORDICTS}:{name}"
            for name in (
                "nested_tensor_from_tensor_list",
                "concat_tensordict",
                "chunk_tensordict",
                "index_select_tensor_dict",
            )
        ],
        _uneven,
    ),
    "restored rows": (["verl.utils.seqlen_balancing:restore_dynamic_batch"], _restored),
    "rows without padding": (
        [f"{PADDING}:response_to_nested", f"{PADDING}:build_attention_mask_from_nested"],
        _without_padding,
    ),
    "row that fills": (
        ["verl.trainer.ppo.padding_utils:construct_minimal_padding_template"],
        _row_that_fills,
    ),
    "advantages of sessions": (
        [
            "verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories",
            PROTO,
            "verl.trainer.ppo.core_algos:AdvantageEstimator",
        ],
        _of_sessions,
    ),
    "returned by a tool": (["verl.tools.function_tool:normalize_function_tool_return"], _returned),
    "adapted modules": (
        ["verl.utils.model:check_target_modules", "verl.utils.model:check_exclude_modules"],
        _adapted,
    ),
    "roles of options": (
        [
            f"verl.trainer.ppo.utils:{name}"
            for name in ("need_reference_policy", "need_critic", "need_reward_model")
        ],
        _roles,
    ),
    "joined images": (["verl.utils.model:extract_multi_modal_inputs"], _joined_images),
    "step metrics without answers": (
        ["verl.trainer.ppo.metric_utils:compute_data_metrics", PROTO],
        _without_answers,
    ),
}
"""By the name of the contract: functions of the release, and what fits them to it."""

ADAPTERS: dict[str, type[Any]] = {"step-parts": VerlStepParts}
