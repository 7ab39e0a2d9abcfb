"""verl's worker groups: every mode of dispatch and collection, with workers that are plain functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from unittest import mock

import torch

from seatrial.relations.contracts.utilities import Batch
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.rewards import objects

DECORATOR = "verl.single_controller.base.decorator"


class VerlWorkerGroups(KnowsFailures):
    """`func_generator` with the functions of `DISPATCH_MODE_FN_REGISTRY`, and those of a mesh that is asked for."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "rows that are given by name are not padded, and the padding of their number is cut off",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.5"),
        ).of("R31.workers/rows that do not divide evenly, given by name"),
    )

    def __init__(self) -> None:
        """Find the modes.

        Raises:
            Gone: the release registers none.
        """
        self.modes = find_name("verl", [f"{DECORATOR}:DISPATCH_MODE_FN_REGISTRY"])
        self.names = find_name("verl", [f"{DECORATOR}:Dispatch"])
        self.generate = find_name("verl", ["verl.single_controller.ray.base:func_generator"])
        self.group = find_name("verl", ["verl.single_controller.base.worker_group:WorkerGroup"])
        self.proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.padding = find_name("verl", ["verl.protocol:DataProtoConfig"])
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "dispatched to workers": self.dispatched,
            "parts for workers": self.parts,
        }

    def dispatched(
        self, batch: Batch, mesh: Sequence[int], answers: Sequence[bool], options: Mapping[str, Any]
    ) -> tuple[list[list[int]], Any]:
        """Return the ids that each worker gets, and what the group gives back."""
        facts = {self.padding.auto_padding_key: True} if options.get("padded") else {}
        given = self._made(batch, str(options.get("form", "proto")), facts)
        seen: list[list[int]] = []

        def work(*arguments: Any, **named: Any) -> Any:
            if options.get("function"):
                assert arguments[0] is _function, "the function is not the first argument"
                arguments = arguments[1:]
            own, *others = [*arguments, *named.values()]
            seen.append(_ids(own))
            assert all(_ids(one) == seen[-1] for one in others), "arguments have other rows"
            return sum(seen[-1]) if options.get("metric") else own

        words = [_function] if options.get("function") else []
        named = {"data": given} if options.get("named") or options.get("both") else {}
        positional = [*words, *([] if options.get("named") else [given])]
        found = self._run(self._mode(options), mesh, answers, work, positional, named)
        if options.get("padded"):
            seen = _without_fillers(seen, mesh, len(batch.tensors["ids"]))
        if isinstance(found, list):
            return seen, [one if options.get("metric") else _ids(one) for one in found]
        return seen, _ids(found)

    def parts(self, batch: Batch, mesh: Sequence[int], form: str) -> list[tuple[Batch, dict[str, Any]]]:
        """Return what each worker of a mesh gets."""
        parts: list[tuple[Batch, dict[str, Any]]] = []

        def work(own: Any) -> Any:
            parts.append(self._read(own, batch))
            return own

        answers = [place == mesh.index(part) for place, part in enumerate(mesh)]
        self._run(self._mode({"mesh": True}), mesh, answers, work, [self._made(batch, form, batch.facts)], {})
        return parts

    def _mode(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the functions of a mode."""
        if options.get("mesh"):
            try:
                make = find_name("verl", [f"{DECORATOR}:make_nd_compute_dataproto_dispatch_fn"])
            except Gone as gone:
                raise NotServed(str(gone)) from gone
            found: Mapping[str, Any] = make("data")
            return found
        name = next(
            (own for option, own in MODES.items() if options.get(option)),
            "DP_COMPUTE_PROTO",
        )
        if not hasattr(self.names, name):
            raise NotServed(f"verl {release('verl')} has no mode {name}")
        mode: Mapping[str, Any] = self.modes[getattr(self.names, name)]
        return mode

    def _run(
        self,
        mode: Mapping[str, Any],
        mesh: Sequence[int],
        answers: Sequence[bool],
        work: Callable[..., Any],
        positional: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        group = object.__new__(self.group)
        group._workers = [None] * len(mesh)
        group._dispatch_info, group._collect_info = {}, {}
        group._query_dispatch_info = lambda name: list(mesh)
        group._query_collect_info = lambda name: list(answers)

        def execute(name: str, *arguments: Any, **own: Any) -> list[Any]:
            return [
                work(*(one[worker] for one in arguments), **{key: one[worker] for key, one in own.items()})
                for worker in range(len(mesh))
            ]

        called = self.generate(
            group, "work", mode["dispatch_fn"], partial(_collect, mode["collect_fn"]), execute, True
        )
        # Objects stay where they are: no cluster is started.
        stays = mock.patch("verl.utils.ray_utils.parallel_put", lambda values, **_: list(values))
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch("ray.get", lambda values, **_: values))
            with contextlib.suppress(AttributeError, ModuleNotFoundError):
                stack.enter_context(stays)
            return called(*positional, **named)

    def _made(self, batch: Batch, form: str, facts: Mapping[str, Any]) -> Any:
        if form == "proto":
            columns = {name: objects(values) for name, values in batch.objects.items()}
            return self.proto.from_dict(
                tensors=dict(batch.tensors), non_tensors=columns, meta_info=dict(facts)
            )
        try:
            make = find_name("verl", ["verl.utils.tensordict_utils:get_tensordict"])
            find_name("verl", ["verl.protocol:BatchData", "verl.utils.tensordict_utils:chunk_tensordict"])
        except Gone as gone:
            raise NotServed(str(gone)) from gone
        return make({**batch.tensors, **batch.objects}, dict(facts))

    def _read(self, own: Any, whole: Batch) -> tuple[Batch, dict[str, Any]]:
        if isinstance(own, self.proto):
            columns = {name: list(values) for name, values in own.non_tensor_batch.items()}
            facts = {name: own.meta_info.get(name) for name in whole.facts}
            return Batch({name: own.batch[name] for name in whole.tensors}, columns, whole.facts), facts
        get = find_name("verl", ["verl.utils.tensordict_utils:get"])
        tensors = {name: own[name] for name in whole.tensors}
        return Batch(tensors, {name: get(own, name) for name in whole.objects}, whole.facts), {
            name: get(own, name) for name in whole.facts
        }


def _collect(collect: Callable[..., Any], group: Any, output: Any) -> Any:
    return collect(group, output)


def _function() -> None:
    """Stand for a function that workers run on their rows."""


def _without_fillers(seen: Sequence[list[int]], mesh: Sequence[int], num_rows: int) -> list[list[int]]:
    """Return the ids of each worker that are rows of the batch: what fills the last parts comes after all rows."""
    sizes = [len(part) for part in seen]
    return [
        part[: max(0, num_rows - sum(sizes[: mesh.index(number)]))]
        for part, number in zip(seen, mesh, strict=True)
    ]


def _ids(batch: Any) -> list[int]:
    tensors = getattr(batch, "batch", batch)
    ids: torch.Tensor = tensors["ids"]
    return [int(row[0]) for row in ids]


MODES: Mapping[str, str] = {
    "all": "ONE_TO_ALL",
    "function": "DP_COMPUTE_PROTO_WITH_FUNC",
    "metric": "DP_COMPUTE_METRIC",
}
"""verl's name of the mode of an option."""
COVERED = frozenset({*MODES.values(), "DP_COMPUTE_PROTO"})
ADAPTERS: dict[str, type[Any]] = {"worker-groups": VerlWorkerGroups}
