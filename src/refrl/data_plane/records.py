"""What the shared state keeps, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from refrl.data_plane.metadata import Tags


@dataclass(frozen=True)
class NewBlock:
    """Bytes that a store has kept, and that no sample points to yet."""

    field: str
    name: str
    dtype: str
    num_bytes: int


@dataclass
class Block:
    """Bytes of one field of one put."""

    partition: str
    field: str
    samples: list[str]
    """Row by row; some may be gone."""
    num_bytes: int
    num_live: int


@dataclass(frozen=True)
class Sparse:
    """A block of which less than half is needed."""

    name: str
    partition: str
    field: str
    rows: list[int]
    """Those that are needed."""


@dataclass(frozen=True)
class Waste:
    """What a change left behind: blocks to drop, and blocks to copy the living rows out of."""

    dropped: list[str]
    sparse: list[Sparse]


@dataclass
class Lease:
    """Samples that one claimer holds."""

    partition: str
    task: str
    samples: dict[str, None]
    seconds: float
    deadline: float


@dataclass(frozen=True)
class Claim:
    """What a claim got."""

    samples: list[str]
    tags: list[Tags]


@dataclass(frozen=True)
class PartitionStatus:
    """A partition at a glance."""

    num_rows: int
    num_leased: int
    """Samples under a lease, over all consumers."""
    num_returned: int
    """How often samples were given back since the store began."""
    bytes_live: float
    """Of values that samples have."""
    bytes_held: int
    """Of blocks that are kept for them: at most twice as many once a clear has ended."""
