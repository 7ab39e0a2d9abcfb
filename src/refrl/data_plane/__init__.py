"""The data plane: rows of rollouts on their way from producers to trainers."""

from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.column_io import kv_first_write, read_columns, shard_meta_for_dp, write_columns
from refrl.data_plane.errors import (
    DataLostError,
    DataPlaneError,
    FieldNotProducedError,
    LeaseExpiredError,
    PartitionFullError,
    StoreUnavailableError,
    UnknownPartitionError,
    UnknownSampleError,
    UnknownTaskError,
)
from refrl.data_plane.factory import build_data_plane_client, data_plane_processes, opened_data_plane
from refrl.data_plane.filters import (
    BaseRolloutFilter,
    LengthFilter,
    StalenessFilter,
    WholeGroups,
    ZeroVarianceFilter,
)
from refrl.data_plane.flow import Consumed, ConsumePlan, RankBatch, consume
from refrl.data_plane.metadata import KVBatchMeta
from refrl.data_plane.records import PartitionStatus

__all__ = [
    "BaseRolloutFilter",
    "ConsumePlan",
    "Consumed",
    "DataLostError",
    "DataPlaneClient",
    "DataPlaneError",
    "FieldNotProducedError",
    "KVBatchMeta",
    "LeaseExpiredError",
    "LengthFilter",
    "PartitionFullError",
    "PartitionStatus",
    "RankBatch",
    "StalenessFilter",
    "StoreUnavailableError",
    "UnknownPartitionError",
    "UnknownSampleError",
    "UnknownTaskError",
    "WholeGroups",
    "ZeroVarianceFilter",
    "build_data_plane_client",
    "consume",
    "data_plane_processes",
    "kv_first_write",
    "opened_data_plane",
    "read_columns",
    "shard_meta_for_dp",
    "write_columns",
]
