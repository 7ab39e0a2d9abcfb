"""Each law of the data plane can fail: refrl's own store with one fault planted breaks the laws that are about it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from refrl.data_plane import columns, filters, metadata, partition
from refrl.data_plane.client import StoreClient
from refrl.data_plane.control import ControlState
from refrl.data_plane.partition import Partition
from refrl.data_plane.records import Waste
from seatrial.relations.benches import schedules as data_plane_schedules
from seatrial.relations.engine import first_violation
from seatrial.relations.laws.data_plane import claims as data_plane_claims
from seatrial.relations.laws.data_plane import rows as data_plane_rows
from seatrial.relations.registry import of_components, select
from seatrial.targets.reference.data_plane.local import ReferenceDataPlane

RELATIONS = of_components(select([]), ["data_plane"])
Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[set[str], Plant]] = {}


def fault(*laws: str) -> Callable[[Plant], Plant]:
    """Register a fault with the numbers of laws that must see it."""

    def register(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = (set(laws), plant)
        return plant

    return register


@fault("02", "03", "09")
def nothing_is_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "check", lambda *words: None)
    patch.setattr(metadata.KVBatchMeta, "__post_init__", lambda self: None)
    patch.setattr(StoreClient, "put_samples", _unchecked_put)


def _unchecked_put(
    self: Any, sample_ids: Any, partition_id: str, fields: Any = None, tags: Any = None
) -> None:
    encoded = {name: columns.encode(value, name) for name, value in (fields or {}).items()}
    blocks = self._store.save(encoded)
    given = None if tags is None else [*tags, *[{}] * len(sample_ids)][: len(sample_ids)]
    self._control.call("publish", partition_id, list(sample_ids), blocks, given)


@fault("04")
def a_sample_twice_is_taken(patch: pytest.MonkeyPatch) -> None:
    real = Partition.check
    patch.setattr(
        Partition, "check", lambda self, samples, *words: real(self, list(dict.fromkeys(samples)), *words)
    )


@fault("05")
def a_write_resets_the_cursor(patch: pytest.MonkeyPatch) -> None:
    real = Partition.publish

    def publish(self: Partition, samples: Any, blocks: Any, tags: Any) -> Any:
        for cursor in self.cursors.values():
            cursor.pending.update(dict.fromkeys(samples))
        return real(self, samples, blocks, tags)

    patch.setattr(Partition, "publish", publish)


@fault("06")
def tags_are_replaced_whole(patch: pytest.MonkeyPatch) -> None:
    real = Partition.publish

    def publish(self: Partition, samples: Any, blocks: Any, tags: Any) -> Any:
        for sample in samples:
            self.tags.get(sample, {}).clear()
        return real(self, samples, blocks, tags)

    patch.setattr(Partition, "publish", publish)


@fault("07")
def the_callers_tensor_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(columns, "_copied", lambda tensor: tensor)


@fault("08")
def rows_go_by_way_of_float32(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(columns, "_copied", lambda tensor: tensor.float())


@fault("15")
def one_field_is_enough(patch: pytest.MonkeyPatch) -> None:
    real = Partition.ready
    patch.setattr(Partition, "ready", lambda self, task, fields, limit: real(self, task, fields[:1], limit))


@fault("16", "48")
def claims_are_not_marked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlState, "lease", lambda *words, **named: None)


@fault("17")
def one_cursor_for_all_tasks(patch: pytest.MonkeyPatch) -> None:
    real = Partition.cursor
    patch.setattr(
        Partition,
        "cursor",
        lambda self, task: next(iter(self.cursors.values())) if real(self, task) else None,
    )


@fault("18")
def all_or_nothing(patch: pytest.MonkeyPatch) -> None:
    real = Partition.ready

    def ready(self: Partition, task: str, fields: Any, limit: int) -> list[str]:
        found = real(self, task, fields, limit)
        return found if len(found) == limit else []

    patch.setattr(Partition, "ready", ready)


@fault("21", "49")
def claims_lose_their_tags(patch: pytest.MonkeyPatch) -> None:
    real = ControlState.claim

    def claim(*words: Any, **named: Any) -> Any:
        found = real(*words, **named)
        return type(found)(found.samples, [{} for _ in found.samples])

    patch.setattr(ControlState, "claim", claim)


@fault("25", "44", "48")
def leases_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlState, "expire", lambda self: None)


@fault("44", "48")
def a_late_acknowledgement_is_taken(patch: pytest.MonkeyPatch) -> None:
    real = ControlState.acknowledge

    def acknowledge(self: ControlState, lease_id: str, samples: list[str]) -> None:
        self.expire()
        lease = self.leases.get(lease_id)
        real(
            self, lease_id, [sample for sample in samples if lease and sample in lease.samples]
        ) if lease else None

    patch.setattr(ControlState, "acknowledge", acknowledge)


@fault("46")
def a_release_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreClient, "release", lambda self, meta: None)


@fault("26", "27")
def what_is_missing_is_left_out(patch: pytest.MonkeyPatch) -> None:
    real = ControlState.locate

    def locate(self: ControlState, partition_id: str, samples: list[str], fields: list[str]) -> Any:
        places = self.partitions[partition_id].places
        found = {}
        for name in fields:
            there = [sample for sample in samples if sample in places[name]]
            found.update(real(self, partition_id, there, [name]))
        return found

    patch.setattr(ControlState, "locate", locate)


@fault("29")
def rows_come_in_the_order_of_storage(patch: pytest.MonkeyPatch) -> None:
    real = Partition.locate

    def locate(self: Partition, samples: Any, name: str) -> Any:
        found = real(self, samples, name)
        return {block: (sorted(rows), sorted(places)) for block, (rows, places) in found.items()}

    patch.setattr(Partition, "locate", locate)


@fault("31")
def drained_is_latched_on_any_task(patch: pytest.MonkeyPatch) -> None:
    def drained(self: ControlState, partition_id: str, tasks: list[str]) -> bool:
        cursors = [self.partitions[partition_id].cursor(task) for task in tasks]
        return any(not (cursor.pending or cursor.returned) for cursor in cursors) or not cursors

    patch.setattr(ControlState, "drained", drained)


@fault("35")
def a_clear_leaves_the_cursor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition.Cursor, "discard", lambda self, samples: None)


@fault("33")
def an_id_is_served_once_for_ever(patch: pytest.MonkeyPatch) -> None:
    real, seen = Partition.publish, set[str]()

    def publish(self: Partition, samples: Any, blocks: Any, tags: Any) -> Any:
        lost = real(self, samples, blocks, tags)
        for cursor in self.cursors.values():
            cursor.discard(seen & set(samples))
        seen.update(samples)
        return lost

    patch.setattr(Partition, "publish", publish)


@fault("39")
def a_partition_stays_when_cleared_whole(patch: pytest.MonkeyPatch) -> None:
    real = ControlState.clear

    def clear(self: ControlState, partition_id: str, samples: Any) -> Any:
        held = self.partitions.get(partition_id)
        return real(self, partition_id, list(held.tags) if held and samples is None else samples)

    patch.setattr(ControlState, "clear", clear)


@fault("43")
def rows_share_their_buffer(patch: pytest.MonkeyPatch) -> None:
    real = ControlState._waste
    patch.setattr(ControlState, "_waste", lambda self, lost: Waste(real(self, lost).dropped, []))


@fault("42")
def a_bool_is_a_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(filters, "_version", lambda value, what: int(value))


@fault("50")
def the_window_is_exclusive(patch: pytest.MonkeyPatch) -> None:
    def keeps(self: Any, meta: Any, current_weight_version: int) -> list[bool]:
        return [current_weight_version - tags["weight_version"] < self.max_staleness for tags in meta.tags]

    patch.setattr(filters.StalenessFilter, "keeps", keeps)


@fault("51")
def claims_share_their_tags(patch: pytest.MonkeyPatch) -> None:
    def claim(
        self: ControlState, partition_id: str, task: str, fields: Any, lease_id: str, **words: Any
    ) -> Any:
        from refrl.data_plane.records import Claim

        held = self.partitions[partition_id]
        return Claim(list(held.tags), list(held.tags.values()))

    patch.setattr(ControlState, "claim", claim)
    patch.setattr(metadata.KVBatchMeta, "__post_init__", lambda self: None)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen_by_its_laws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by as many others as it breaks."""
    laws, plant = FAULTS[name]
    plant(monkeypatch)
    monkeypatch.setattr("seatrial.relations.benches.data_plane.LEASE_S", 0.05)
    monkeypatch.setattr(data_plane_claims, "LEASE_S", 0.05)
    for module in (data_plane_claims, data_plane_rows):
        monkeypatch.setattr(module, "WAIT_S", 1.0)
    monkeypatch.setattr(data_plane_schedules, "LEASE_S", 0.05)
    broken: set[str] = set()
    for relation in RELATIONS:
        only = [law for law in relation.laws if law.name[:2] in laws]
        for law in only:
            alone = replace(relation, laws=(law,))
            if first_violation(alone, ReferenceDataPlane(), seeds=[0, 1]) is not None:
                broken.add(law.name[:2])
    assert broken == laws
