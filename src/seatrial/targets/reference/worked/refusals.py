"""Worked examples of refusals: what functions must not take, with the words that name it, and what is just taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import Batch, make_batch
from refrl.algorithms.filters import groups_with_spread
from refrl.algorithms.losses.base import Surrogate, TokenInputs
from refrl.algorithms.losses.policy import policy_loss
from refrl.algorithms.losses.preference import dpo_loss
from refrl.algorithms.packing import assign_packs
from refrl.algorithms.schedule import Schedule
from refrl.config.algorithms import AdvantageConfig, LossConfig
from refrl.data_plane.factory import local_client
from refrl.data_plane.filters import BaseRolloutFilter
from refrl.data_plane.flow import ConsumePlan
from refrl.data_plane.metadata import KVBatchMeta
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.parts.custom import Scaled, Weighed
from seatrial.targets.reference.worked import data_edges, small_calls, small_edges, small_records
from seatrial.targets.reference.worked.made import PAD, batch, example, refused, sample
from seatrial.targets.reference.worked.refused_files import of_files, of_names

CUSTOM = "seatrial.targets.reference.worked.refusals"


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_rows()
    yield from _of_losses()
    yield from _of_stores()
    yield from of_files()
    yield from of_names()
    yield from small_edges.examples()
    yield from data_edges.examples()
    yield from small_records.examples()
    yield from small_calls.examples()


def _made(**options: Any) -> Batch:
    return make_batch([sample([1], [2, 3], **options)], pad_token_id=PAD)


class Few(Scaled):
    """An advantage estimator that leaves out the last row."""

    def advantages(self, rewards: Tensor, index_B: Tensor) -> Tensor:
        """See `AdvantageEstimator`."""
        return super().advantages(rewards, index_B)[:-1]


class Endless(Scaled):
    """An advantage estimator that divides by zero."""

    def advantages(self, rewards: Tensor, index_B: Tensor) -> Tensor:
        """See `AdvantageEstimator`."""
        return super().advantages(rewards, index_B) / 0


class OfOneRow(Weighed):
    """A loss that has the values of one row alone."""

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        whole = super().surrogate(inputs)
        return Surrogate(whole.loss_BT[:1], whole.ratio_BT, whole.clamped_ratio_BT)


SEEN: list[TokenInputs] = []


class Looking(Weighed):
    """A loss that keeps what it is given."""

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        SEEN[:] = [inputs]
        return super().surrogate(inputs)


class OfRows(Weighed):
    """A loss that has one value a row."""

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        whole = super().surrogate(inputs)
        return Surrogate(whole.loss_BT.sum(1), whole.ratio_BT, whole.clamped_ratio_BT)


def _of_rows() -> Iterator[WorkedExample]:
    of_one: Mapping[str, Mapping[str, Any]] = {
        "kept ids of 0 places for 2 tokens": {"kept_ids": ()},
        "kept ids of 1 places for 2 tokens": {"kept_ids": ((2,),)},
        "kept ids of 3 places for 2 tokens": {"kept_ids": ((2,), (3,), (4,))},
        "token 1: id 3 is not among the 1 ids": {"kept_ids": ((2,), (4,))},
        "token 0: id 2 is not among the 0 ids": {"kept_ids": ((), (3,))},
        "completion_mask needs 2 entries": {"completion_mask": ()},
        "reward is nan": {"reward": float("nan")},
        "reward is -inf": {"reward": float("-inf")},
    }
    for words, options in of_one.items():
        yield refused(words, f"a row: {words}", _made, **options)
    for num in (1, 3):
        bad = replace(sample([1], [2, 3]), sampling_logprobs=(-0.5,) * num)
        words = f"row 0: {num} log-probabilities for 2 tokens"
        yield refused(words, f"a row: {words}", make_batch, [bad], pad_token_id=PAD)
    yield example("kept ids of a tool's words", 1, lambda: len(_made(**TOOL).input_ids_BS))
    yield refused(
        "padding_side is 'top'",
        "padding on top",
        make_batch,
        [sample([1], [2])],
        pad_token_id=PAD,
        padding_side="top",
    )
    for name, values in {"nan": [float("nan"), 1.0], "inf": [float("inf"), 1.0]}.items():
        rewards = torch.tensor(values)
        yield refused(
            "rows [0] are not finite", f"spread of {name}", groups_with_spread, rewards, torch.zeros(2).long()
        )
    yield refused("at least one row", "packs of nothing", assign_packs, [], 4)
    yield refused(
        "row 1 has 5 tokens, more than a pack of 4", "a row longer than a pack", assign_packs, [4, 5], 4
    )
    yield example("a row as long as a pack", [[0], [1]], assign_packs, [4, 4], 4)
    schedule = Schedule(1, 1, None, 1)
    yield refused("weight version 3, trainer at 2", "a sample of weights to come", schedule.is_fresh, 3, 2)
    yield example(
        "a sample of these weights",
        [True, True, False],
        lambda: [schedule.is_fresh(one, 3) for one in (3, 2, 1)],
    )
    for kind, words in {"Few": "of shape (1,)", "Endless": "some that are not finite"}.items():
        config = AdvantageConfig.model_validate({"estimator": f"{CUSTOM}:{kind}"})
        yield refused(
            words,
            f"advantages: {kind}",
            compute_advantages,
            torch.tensor([1.0, 0.0]),
            torch.zeros(2).long(),
            config,
        )


TOOL: Mapping[str, Any] = {"completion_mask": (1, 0), "kept_ids": ((2,), ())}


def _loss(config: Mapping[str, Any], width: int = 3, **changed: Any) -> Any:
    """Return the loss of three rows of up to three tokens."""
    made = batch()
    made.advantages_B = torch.tensor([1.0, 0.5, -1.0])
    made.old_logprobs_BT = made.ref_logprobs_BT = made.sampling_logprobs_BT.clone()
    for name, value in changed.items():
        setattr(made, name, value)
    now_BT = torch.zeros(3, width)
    return policy_loss(
        now_BT, made, LossConfig.model_validate(config), global_valid_tokens=5.0, global_valid_seqs=3.0
    )


def _inputs() -> list[bool]:
    """Return whether a loss gets each of its inputs, with zeros where nothing was sampled."""
    made = batch()
    _loss({"kind": f"{CUSTOM}:Looking"}, old_logprobs_BT=torch.full((3, 3), -3.0))
    (seen,) = SEEN
    due = (torch.zeros(3, 3), -3.0 * made.mask_BT, made.sampling_logprobs_BT * made.mask_BT,
           torch.tensor([[1.0], [0.5], [-1.0]]), made.mask_BT)  # fmt: skip
    return [torch.equal(own, right) for own, right in zip(seen, due, strict=True)]


def _of_losses() -> Iterator[WorkedExample]:
    with_kl = {"reference_policy_kl_penalty": 0.1}
    cases: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "log-probabilities (3, 2), old (3, 3)": ({}, {"width": 2}),
        "old (3, 2)": ({}, {"old_logprobs_BT": torch.zeros(3, 2)}),
        "sampling (3, 1)": ({}, {"sampling_logprobs_BT": torch.zeros(3, 1)}),
        "and mask (3, 4)": ({}, {"mask_BT": torch.ones(3, 4)}),
        "advantages (2,) must be one per row, (3,)": ({}, {"advantages_B": torch.zeros(2)}),
        "advantages (3, 3) must be one per row": ({}, {"advantages_B": torch.zeros(3, 3)}),
        "needs batch.advantages_B: compute advantages first": ({}, {"advantages_B": None}),
        "needs batch.old_logprobs_BT: score the batch before the first update": (
            {},
            {"old_logprobs_BT": None},
        ),
        "needs batch.ref_logprobs_BT: reference_policy_kl_penalty=0 does without": (
            with_kl,
            {"ref_logprobs_BT": None},
        ),
        "needs entropy_BT: compute_logprobs returns it": ({"entropy_coefficient": 0.1}, {}),
        "gave a loss of shape (3,)": ({"kind": f"{CUSTOM}:OfRows"}, {}),
        "gave a loss of shape (1, 3)": ({"kind": f"{CUSTOM}:OfOneRow"}, {}),
        "ratio_clip_c has no effect with loss_fn.kind=cispo": ({"kind": "cispo", "ratio_clip_c": 3.0}, {}),
    }
    for words, (config, changed) in cases.items():
        yield refused(words, f"a loss: {words}", _loss, config, **changed)
    yield example("what a loss may look at", [True] * 5, _inputs)
    pair = [torch.zeros(1)] * 4
    for beta, smoothing in ((0.0, 0.0), (-0.1, 0.0), (float("nan"), 0.0), (0.1, 0.5), (0.1, -0.1)):
        yield refused(
            "must be positive and label_smoothing",
            f"pairs of beta={beta}, smoothing={smoothing}",
            dpo_loss,
            *pair,
            beta=beta,
            global_num_pairs=1,
            label_smoothing=smoothing,
        )
    for name in ("advantage.scale", "advantage.options"):
        section = {"estimator": f"{CUSTOM}:Few"} if name.endswith("scale") else {}
        given = {**section, name.rpartition(".")[2]: "group" if section else {"a": 1}}
        yield refused(
            f"grpo.{name} has no effect", f"no effect: {name}", AdvantageConfig.model_validate, given
        )


class OneJudgement(BaseRolloutFilter):
    """A filter that judges the first sample alone."""

    name = "one"

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """See `BaseRolloutFilter`."""
        return [True]


def _store(**options: Any) -> Any:
    """Return a client of a store with a partition `p` that has two rows, a and b, of the field x."""
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["x", "y"], 3, ["train"], **options)
    tags = [{"state": "new"}] * 2 if options else None
    client.put_samples(["a", "b"], "p", {"x": torch.zeros(2)}, tags)
    return client


def _put(names: str, field: str, values: Tensor, tags: Any = None, **options: Any) -> Any:
    return _store(**options).put_samples(list(names), "p", {field: values}, tags)


def _call(name: str, *words: Any, **options: Any) -> Any:
    return getattr(_store(), name)(*words, **options)


def _released(name: str) -> Any:
    return getattr(_store(), name)(KVBatchMeta(partition_id="p", sample_ids=["a"]))


def _of_stores() -> Iterator[WorkedExample]:
    one, two = torch.zeros(1), torch.zeros(2)
    tagged = {"required_tags": ["state"], "enums": {"state": ["new", "old"]}}
    puts: Mapping[str, tuple[Any, ...]] = {
        "field 'x' has 2 rows for 1 samples": ("c", "x", two),
        "field 'x' has 1 rows for 0 samples": ("", "x", one),
        "samples c come twice in one put": ("cc", "x", two),
        "field 'z' is not registered; known: x, y": ("c", "z", one),
        "field 'x' holds float32 and cannot take int64": ("c", "x", one.long()),
        "more than the 3 that the partition was registered for": ("cd", "x", two),
    }
    for words, given in puts.items():
        yield refused(words, f"a put: {words}", _put, *given)
    for words, tags in {
        "samples c lack the tag 'state'": None,
        "samples c lack the tag 'state', which": [{"other": 1}],
        "tag 'state' has ['lost']; allowed: new, old": [{"state": "lost"}],
    }.items():
        yield refused(words, f"a put with tags {tags}", _put, "c", "x", one, tags, **tagged)
    yield example(
        "a put with an allowed tag",
        ["c"],
        lambda: _put("c", "x", one, [{"state": "old"}], **tagged).sample_ids,
    )
    yield example("a field of an earlier row", ["a"], lambda: _put("a", "y", one, None).sample_ids)
    for least, most in ((0, 1), (2, 1), (-1, 1), (0, 0)):
        words = f"min_batch_size={least} and batch_size={most}"
        yield refused(
            words,
            f"a claim: {words}",
            _call,
            "claim_meta",
            "p",
            "train",
            ["x"],
            most,
            min_batch_size=least,
            blocking=False,
        )
    calls: Mapping[str, tuple[Any, ...]] = {
        "no partition 'q' is registered; known: p": ("status", "q"),
        "is registered as": ("register_partition", "p", ["x"], 3, ["train"]),
        "the partition has no field 'z'; known: x, y": ("get_samples", ["a"], "p", ["z"]),
        "samples c are not there": ("get_samples", ["a", "c"], "p", ["x"]),
        "'y' is not produced yet for samples a, b": ("get_samples", ["a", "b"], "p", ["y"]),
        "name the fields that must be there": ("claim_meta", "p", "train", [], 1),
        "no field 'w'": ("claim_meta", "p", "train", ["x", "w"], 1),
        "fewer than 1 samples ready for 'train' in 0 s": ("claim_meta", "p", "train", ["y"], 1),
        "neither select_fields nor the meta": ("get_data", KVBatchMeta(partition_id="p", sample_ids=["a"])),
    }
    for words, (name, *arguments) in calls.items():
        wait = {"timeout_s": 0.0} if name == "claim_meta" else {}
        yield refused(words, f"a call: {words}", _call, name, *arguments, **wait)
    for name in ("renew", "acknowledge", "release"):
        yield refused("the meta has no lease", f"without a lease: {name}", _released, name)
    same = partial(_call, "register_partition", "p", ["x", "y"], 3, ["train"])
    yield example("a partition registered again", None, same)
    yield example("nothing is read of no samples", {}, partial(_call, "get_samples", [], "p", ["x"]))
    meta = KVBatchMeta(partition_id="p", sample_ids=["a", "b"])
    yield refused(
        "filter one: 1 judgements of 2 samples", "a filter that judges too few", OneJudgement(), meta
    )
    plan = partial(ConsumePlan, partition_id="p", task_name="train", fields=["x"], batch_size=4)
    for least in (0, 4):
        yield example(
            f"a plan that keeps {least} of 4", least, lambda least=least: plan(min_kept=least).min_kept
        )
    yield refused("min_kept=5 of claims of 4", "a plan that keeps 5 of 4", plan, min_kept=5)
