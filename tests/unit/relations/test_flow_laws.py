"""The laws of the flow of rollouts hold of refrl over six seeds, and a fault in each part breaks those about it."""

from collections.abc import Callable
from typing import Any

import pytest

from refrl.algorithms.schedule import Schedule
from refrl.data_plane import column_io, columns, filters, flow
from refrl.data_plane.control import ControlState, Journal
from refrl.data_plane.factory import LocalControl
from refrl.data_plane.filters import WholeGroups, ZeroVarianceFilter
from refrl.data_plane.metadata import KVBatchMeta
from refrl.data_plane.partition import Partition
from refrl.rollout import columns as rollout_columns
from refrl.rollout import replay
from seatrial.relations.engine import first_violation
from seatrial.relations.law import Relation
from seatrial.relations.registry import of_components, select
from seatrial.targets.reference.data_plane.flow import ReferenceFlow

RELATIONS = {relation.id: relation for relation in of_components(select([]), ["rollout_flow"])}
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=RELATIONS)
def test_refrl_holds_over_six_seeds(relation: Relation) -> None:
    assert first_violation(relation, ReferenceFlow(), seeds=range(6)) is None
    assert first_violation(relation, ReferenceFlow(), tidy=True) is None


def groups_are_cut(patch: pytest.MonkeyPatch) -> None:
    real = Partition.ready
    patch.setattr(Partition, "ready", lambda self, *words: real(self, *words)[:-1])


def nothing_is_full(patch: pytest.MonkeyPatch) -> None:
    real = Partition.check

    def check(self: Partition, samples: Any, *words: Any) -> None:
        object.__setattr__(self.spec, "num_samples", 10**9)
        real(self, samples, *words)

    patch.setattr(Partition, "check", check)


def renewal_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlState, "renew", lambda self, lease_id, samples: None)


def acknowledgements_are_not_written(patch: pytest.MonkeyPatch) -> None:
    real = Journal.log

    def log(self: Journal, operation: str, words: Any) -> None:
        if operation != "acknowledge":
            real(self, operation, words)

    patch.setattr(Journal, "log", log)


def moves_are_not_written(patch: pytest.MonkeyPatch) -> None:
    real = Journal.log
    patch.setattr(
        Journal, "log", lambda self, name, words: None if name == "move" else real(self, name, words)
    )


def tags_stay_behind(patch: pytest.MonkeyPatch) -> None:
    real = KVBatchMeta.subset

    def subset(self: KVBatchMeta, indices: Any) -> KVBatchMeta:
        found = real(self, indices)
        if self.tags:
            object.__setattr__(found, "tags", [dict(tags) for tags in self.tags[: found.size]])
        return found

    patch.setattr(KVBatchMeta, "subset", subset)


def padding_is_zero(patch: pytest.MonkeyPatch) -> None:
    real = columns.pad
    patch.setattr(column_io, "pad", lambda value, fill, width: real(value, 0, width))


def lengths_are_those_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    real = column_io.jagged
    patch.setattr(column_io, "jagged", lambda batch, lens: real(batch, [max(lens)] * len(lens)))


def groups_are_cut_by_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WholeGroups, "keeps", lambda self, meta, **state: self._of_samples.keeps(meta, **state))


def spread_is_of_the_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ZeroVarianceFilter, "keeps", lambda self, meta, **state: [True] * meta.size)


def infinite_rewards_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(filters, "_finite", lambda value: value)


def the_window_is_exclusive(patch: pytest.MonkeyPatch) -> None:
    real = Schedule.is_fresh
    patch.setattr(
        Schedule, "is_fresh", lambda self, version, now: version == now or real(self, version - 1, now)
    )


def each_filter_sees_the_claim(patch: pytest.MonkeyPatch) -> None:
    def apply(meta: Any, chosen: Any, **state: Any) -> Any:
        parts = [(one.name, one(meta, **state)) for one in chosen]
        kept = parts[-1][1][0] if parts else meta
        return kept, [(name, out) for name, (_, out) in parts]

    patch.setattr(flow, "apply_filters", apply)


def the_rest_is_kept(patch: pytest.MonkeyPatch) -> None:
    real = LocalControl.call

    def call(self: LocalControl, operation: str, *words: Any, **options: Any) -> Any:
        return None if operation == "release" else real(self, operation, *words, **options)

    patch.setattr(LocalControl, "call", call)


def numbers_begin_anew(patch: pytest.MonkeyPatch) -> None:
    real = replay.ReplayBuffer.restore

    def restore(self: replay.ReplayBuffer, state: Any) -> None:
        real(self, state)
        self.next_number -= 1

    patch.setattr(replay.ReplayBuffer, "restore", restore)


def rewards_are_rounded(patch: pytest.MonkeyPatch) -> None:
    def to_columns(rollouts: Any) -> Any:
        made: dict[str, Any] = rollout_columns.to_columns(rollouts)
        return {**made, "rewards": made["rewards"].float().double()}

    patch.setattr(replay, "to_columns", to_columns)


FAULTS: dict[Plant, tuple[str, ...]] = {
    groups_are_cut: ("DP5.partitions",),
    nothing_is_full: ("DP5.partitions", "DP11.buffer"),
    renewal_is_forgotten: ("DP5.partitions",),
    acknowledgements_are_not_written: ("DP6.restart",),
    moves_are_not_written: ("DP6.restart",),
    tags_stay_behind: ("DP7.metas", "DP9.filters"),
    padding_is_zero: ("DP8.columns",),
    lengths_are_those_of_the_batch: ("DP8.columns",),
    groups_are_cut_by_length: ("DP9.filters",),
    spread_is_of_the_claim: ("DP9.filters",),
    infinite_rewards_pass: ("DP9.filters",),
    the_window_is_exclusive: ("DP9.filters", "DP11.buffer"),
    each_filter_sees_the_claim: ("DP10.steps",),
    the_rest_is_kept: ("DP10.steps",),
    numbers_begin_anew: ("DP11.buffer",),
    rewards_are_rounded: ("DP11.buffer",),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_breaks_the_laws_about_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    whole = {name for name in FAULTS[plant] if first_violation(RELATIONS[name], ReferenceFlow(), seeds=[0])}
    assert whole == set(FAULTS[plant])
