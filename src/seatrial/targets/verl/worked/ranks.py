"""Worked examples of what verl's ranks get and give back, and of pools of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.worked.logged import batch_of
from seatrial.targets.verl.worked.tools import raised

ANY = "verl:DataProto"


def _group(size: int) -> Any:
    base = import_without("verl.single_controller.base.worker_group", UNUSED)
    made = object.__new__(base.WorkerGroup)
    made._workers, made._dispatch_info, made._collect_info = [None] * size, {}, {}
    return made


def _sent(of: Any) -> dict[str, Any]:
    """Return what four ranks of two groups get of a batch, and what comes back of those that collect."""
    parts = import_without("verl.single_controller.base.decorator", UNUSED)
    group, batch = _group(4), batch_of({"ids": [0, 1, 2, 3]})
    table = parts.DISPATCH_MODE_FN_REGISTRY
    modes = parts.Dispatch

    def rows(one: Any) -> Any:
        return one.batch["ids"].tolist()

    each = table[modes.DP_COMPUTE_PROTO]["dispatch_fn"](group, batch)[0][0]
    function = table[modes.DP_COMPUTE_PROTO_WITH_FUNC]["dispatch_fn"](group, _sent, batch)[0]
    pairs = parts.dispatch_nd_compute_dataproto
    own_put = import_without("verl.utils.ray_utils", UNUSED)
    put = own_put.parallel_put
    own_put.parallel_put = lambda values, max_workers=None: list(values)
    try:
        found, options = pairs([0, 0, 1, 1], 2, group, batch, more=batch)
    finally:
        own_put.parallel_put = put
    return {
        "each": [rows(one) for one in each],
        "function": [function[0][0] is _sent, [rows(one) for one in function[1]]],
        "groups": [[rows(one) for one in found[0]], [rows(one) for one in options["more"]]],
        "collected": rows(
            parts.collect_nd_compute_dataproto(
                [True, False, True, False], group, [batch[:1], batch[1:2], batch[2:3], batch]
            )
        ),
        "to all": table[modes.ONE_TO_ALL]["dispatch_fn"](group, 1, a=2),
        "as they are": table[modes.ALL_TO_ALL]["dispatch_fn"](group, 1, a=2),
        "metrics": table[modes.DP_COMPUTE_METRIC]["collect_fn"](group, [1, 2, 3, 4]),
        "refused": [
            raised(table[modes.DP_COMPUTE]["dispatch_fn"], group, [1, 2, 3]),
            raised(table[modes.DP_COMPUTE]["dispatch_fn"], group, [1, 2, 3, 4]),
            raised(table[modes.DP_COMPUTE]["collect_fn"], group, [1]),
            raised(table[modes.DIRECT_ROLLOUT_METHOD]["dispatch_fn"], group),
            raised(parts.collect_nd_compute, [True] * 4, group, [1]),
        ],
        "executed": [
            parts.get_predefined_execute_fn(one) for one in (parts.Execute.ALL, parts.Execute.RANK_ZERO)
        ],
    }


SENT: Mapping[str, Any] = {
    "each": [[0], [1], [2], [3]],
    "function": [True, [[0], [1], [2], [3]]],
    "groups": [[[0, 1], [0, 1], [2, 3], [2, 3]]] * 2,
    "collected": [0, 2],
    "to all": (([1] * 4,), {"a": [2] * 4}),
    "as they are": ((1,), {"a": 2}),
    "metrics": [1, 2, 3, 4],
    "refused": ["AssertionError", "nothing", "AssertionError", "NotImplementedError", "AssertionError"],
    "executed": [{"execute_fn_name": "execute_all"}, {"execute_fn_name": "execute_rank_zero"}],
}


def _pools(of: Any) -> list[Any]:
    """Return the sizes and ranks of a pool of nodes, its parts, and the devices of a run."""
    base = import_without("verl.single_controller.base.worker_group", UNUSED)
    ray_base = import_without("verl.single_controller.ray.base", UNUSED)
    pool = base.ResourcePool([2, 1])
    pool.add_node(3)

    class _Pool(ray_base.RayResourcePool):  # type: ignore[misc, name-defined]
        def get_placement_groups(self, **_: Any) -> Any:
            return [f"group of {self.name_prefix}"]

    whole = _Pool([4, 4], use_gpu=False, name_prefix="p", max_colocate_count=3)
    halves = ray_base.split_resource_pool(whole, 4)
    own = ray_base.split_resource_pool(whole, [1, 5, 2])
    inner = ray_base.split_resource_pool(own[1], [2, 3])
    merged = ray_base.merge_resource_pool(
        whole, _Pool([2], use_gpu=False, name_prefix="q", max_colocate_count=3)
    )
    manager = ray_base.ResourcePoolManager(resource_pool_spec={"a": [8, 8], "b": [2]}, mapping={"x": "b"})
    manager.resource_pool_dict = {"a": 1, "b": 2}

    def shown(parts: Any) -> list[Any]:
        return [[int(part.start_bundle_index), part.world_size, part.name_prefix] for part in parts]

    return [
        [pool.world_size, pool(), pool.local_world_size_list(), pool.local_rank_list()],
        shown(halves),
        shown(own),
        [part[:2] for part in shown(inner)],
        [merged.store, merged.name_prefix, merged.pgs, merged.max_colocate_count],
        [raised(ray_base.split_resource_pool, whole, size) for size in (3, [1, 2])],
        [manager.get_n_gpus(), manager.get_resource_pool("x")],
    ]


POOLS: Sequence[Any] = [
    [6, [2, 1, 3], [2, 2, 1, 3, 3, 3], [0, 1, 0, 0, 1, 2]],
    [[0, 4, "p_split_0"], [4, 4, "p_split_1"]],
    [[0, 1, "p_split_0"], [1, 5, "p_split_1"], [6, 2, "p_split_2"]],
    [[1, 2], [3, 3]],
    [[4, 4, 2], "p_q", ["group of p", "group of q"], 3],
    ["AssertionError", "AssertionError"],
    [18, 2],
]


ROWS: Sequence[Row] = (
    Row("shares", ANY, "what ranks get and give", _sent, SENT, since="0.4"),
    Row("shares", ANY, "pools of devices", _pools, POOLS, since="0.4"),
)
