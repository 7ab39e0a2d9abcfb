"""Contract of the flow of rollouts: the store as a run registers it, metas, filters, a consumer's step, the buffer.

Part of `seatrial.relations.contracts`, which lists every component. The store's calls are those of
`seatrial.relations.contracts.data_plane`, with further options for registering a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


class FlowStore(Protocol):
    """A store with a simulated clock, whose control writes its state to a journal."""

    def client(self) -> Any:
        """Return a client: see `PlaneClient`; also `renew`, `acknowledged`, `status`, `min_batch_size` of claims, and
        `grpo_group_size`, `enums` and `required_tags` of partitions."""
        ...

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of leases."""
        ...

    def dying_client(self) -> Any:
        """Return a client that crashes (raises) before it reads bytes, after its message to the controller."""
        ...

    def before_next_read(self, call: Callable[[], None]) -> None:
        """Call it, once, right before bytes are read the next time: what another participant may do then."""
        ...

    def restart(self) -> None:
        """Restart the control from its journal; earlier clients become invalid."""
        ...


class Buffer(Protocol):
    """Groups between producers and the trainer."""

    def put(self, versions: Sequence[int]) -> None:
        """Put a group for each version, all of them or none, under the next numbers."""
        ...

    def take(self, current_version: int) -> Sequence[tuple[int, int]]:
        """Train on the next step's groups: (number, version) of each; TimeoutError where there are not enough."""
        ...

    def dropped(self) -> Mapping[int, str]:
        """Return the reason of every group that was dropped so far, by its number."""
        ...

    def rows(self) -> Sequence[tuple[int, Any, Any]]:
        """Return (number of its group, what was put, what was trained on) of every row trained on so far."""
        ...

    def left(self) -> Sequence[int]:
        """Close the buffer and return the groups not taken."""
        ...

    def state(self) -> Any:
        """Return the buffer's state for a checkpoint."""
        ...

    def restore(self, state: Any) -> None:
        """Continue from the state of another buffer."""
        ...

    def size(self) -> int:
        """Return the groups that were put, and neither trained on nor dropped."""
        ...


@runtime_checkable
class RolloutFlow(Protocol):
    """The flow of rollouts."""

    def flow_store(self) -> FlowStore:
        """Return an empty store."""
        ...

    def configured_client(self, *, lease_s: float) -> Any:
        """Return a client of an empty store as a run configures it, whose claims hold for so many seconds."""
        ...

    def observed_client(self) -> tuple[Any, Callable[[], Mapping[str, tuple[int, int, int, int]]]]:
        """Return a client of an empty store, and a function that counts (calls, errors, rows, bytes) by operation."""
        ...

    def flow_meta(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        tags: Sequence[Mapping[str, Any]] | None,
        sequence_lengths: Sequence[int] | None,
    ) -> Any:
        """Return a batch meta, with NeMo RL's transforms: subset, slice, concat, drop, with_fields, stamp_tags."""
        ...

    def flow_filter(self, kind: str, bound: int | None = None) -> Callable[..., tuple[Any, Any]]:
        """Return (meta, **state) -> (keep, drop): `stale` and `too long` with an inclusive bound, `zero variance`."""
        ...

    def first_write(
        self,
        client: Any,
        batch: Mapping[str, Any],
        sample_ids: Sequence[str],
        partition_id: str,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> Any:
        """Put a padded batch as a rollout does: rows cut to their `input_lengths`, which are stamped as tags."""
        ...

    def read_back(
        self, client: Any, meta: Any, fields: Sequence[str], pad_values: Mapping[str, float]
    ) -> Mapping[str, Any]:
        """Return fields as rectangles, padded on the right."""
        ...

    def write_back(self, client: Any, meta: Any, fields: Mapping[str, Any]) -> None:
        """Write further padded fields of a meta's rows, cut to their lengths."""
        ...

    def shard_batches(
        self, meta: Any, ranks: int, batch_size: int | None
    ) -> tuple[Sequence[Any], Sequence[int] | None]:
        """Return each rank's share of each global batch, and each row's place in the shards laid end to end."""
        ...

    def flow_step(
        self,
        client: Any,
        partition_id: str,
        fields: Sequence[str],
        *,
        batch_size: int,
        train: Callable[[Sequence[Sequence[str]]], None],
        current_weight_version: int,
        filters: Sequence[Any] = (),
        ranks: int = 1,
        min_kept: int = 0,
    ) -> tuple[Sequence[str], Mapping[str, Sequence[str]], Sequence[str]]:
        """Claim, filter, share, train, clear; `train` gets the samples of each rank.

        Returns:
            Samples trained on, samples dropped by reason, samples given back.
        """
        ...

    def replay_buffer(self, *, groups_per_step: int, group_size: int, capacity: int, max_age: int) -> Buffer:
        """Return an empty buffer; ages are counted in versions."""
        ...
