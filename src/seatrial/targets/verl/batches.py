"""verl's `DataProto` with facts about the batch, by each operation that it has; see `contracts.utilities.Batch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch

from seatrial.relations.contracts.utilities import Batch
from seatrial.relations.laws.utilities.batches import FORMS
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.verl.adapted import check_tensors
from seatrial.targets.verl.rewards import objects

SEVERAL_NAMES = KnownFailure(
    "rename passes several names to tensordict as one nested name, which it refuses",
    finding="verl: several columns renamed at once",
).of("R31.batches/several renamed columns")

FIRST_FACTS = KnownFailure(
    "concat keeps the facts and metrics of the first batch alone",
    finding="verl: small functions of older releases",
    releases=before("verl", "0.6"),
).of("R31.batches/metrics and facts of several batches")


class VerlBatches(KnowsFailures):
    """`DataProto` made of tensors, objects and `meta_info`, and read back from them."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (SEVERAL_NAMES, FIRST_FACTS)

    def __init__(self) -> None:
        """Find the class."""
        self.proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        if "tensors must not be empty" in _source(self.proto):  # to 0.2
            self.batch_forms = FORMS[:2]
        self.utilities: Mapping[str, Callable[..., Any]] = {"batch operation": self.operate}

    def operate(self, operation: str, batches: Sequence[Batch], *arguments: Any) -> list[Batch]:
        """Return the batches that an operation gives."""
        protos = [self._made(batch) for batch in batches]
        done = self._there_and_back(protos[0], *arguments) if operation == "same" else None
        found = [done] if done is not None else self._do(operation, protos, arguments)
        return [_read(proto) for proto in found]

    def _made(self, batch: Batch) -> Any:
        columns = {name: objects(values) for name, values in batch.objects.items()}
        check_tensors(self.proto, batch.tensors)
        return self.proto.from_dict(tensors=batch.tensors, non_tensors=columns, meta_info=batch.facts)

    def _do(self, operation: str, protos: Sequence[Any], arguments: tuple[Any, ...]) -> list[Any]:
        proto = protos[0]
        if operation == "concat":
            return [self.proto.concat(list(protos))]
        if operation == "union":
            return [proto.union(protos[1])]
        if operation == "pop":
            tensors, columns, facts = arguments
            taken = proto.pop(batch_keys=tensors, non_tensor_batch_keys=columns, meta_info_keys=facts)
            return [taken, proto]
        if operation == "reorder":
            proto.reorder(torch.tensor(arguments[0]))
            return [proto]
        if operation == "pad":
            self._of("padding")(proto, *arguments)
            return [proto]
        if operation == "slice" and not hasattr(self.proto, "slice"):
            return [proto[slice(*arguments)]]
        if operation == "iterate":
            return list(proto.make_iterator(*arguments))
        if operation == "unfold columns":
            return [self._of("unfold_column_chunks")(proto, *arguments)]
        names = {"places": "select_idxs", "mask": "select_idxs", "repeat rows": "sample_level_repeat"}
        found = self._of(names.get(operation, operation))(proto, *arguments)
        return list(found) if operation in ("chunk", "split") else [found]

    def _of(self, name: str) -> Any:
        if not hasattr(self.proto, name):
            raise NotServed(f"DataProto of verl {release('verl')} has no {name}")
        return getattr(self.proto, name)

    def _there_and_back(self, proto: Any, way: str, *numbers: int) -> Any:
        """Return a batch that went another way and came back."""
        if way == "tensordict":
            return self._of("from_tensordict")(self._of("to_tensordict")(proto))
        if way == "dictionary":
            tensors = {} if proto.batch is None else dict(proto.batch.items())
            return self.proto.from_single_dict(
                {**tensors, **proto.non_tensor_batch}, meta_info=proto.meta_info
            )
        if way == "fold":
            return self._folded(proto, *numbers)
        if way == "disk":
            folder = Path(new_folder())
            proto.save_to_disk(folder / "batch")
            return self.proto.load_from_disk(folder / "batch")
        if way == "arrays" and "VERL_DATAPROTO_SERIALIZATION_METHOD" not in _source(self.proto):
            raise NotServed(f"DataProto of verl {release('verl')} has one form of bytes")
        how = {"VERL_DATAPROTO_SERIALIZATION_METHOD": "numpy"} if way == "arrays" else {}
        with mock.patch.dict(os.environ, how):
            received = object.__new__(self.proto)
            received.__setstate__(proto.__getstate__())
            return received

    def _folded(self, proto: Any, num_rows: int) -> Any:
        try:
            fold = find_name("verl", ["verl.protocol:fold_batch_dim"])
            unfold = find_name("verl", ["verl.protocol:unfold_batch_dim"])
        except Gone as gone:
            raise NotServed(str(gone)) from gone
        try:
            return unfold(fold(proto, num_rows))
        except TypeError as error:  # before 0.9 with NumPy 2.4, which took the name away
            if "newshape" not in str(error):
                raise
            raise NotServed(f"verl {release('verl')} folds with a NumPy before 2.4") from error


def _source(proto: Any) -> str:
    import inspect

    return inspect.getsource(proto)


def _read(proto: Any) -> Batch:
    tensors = {} if proto.batch is None else {name: proto.batch[name] for name in proto.batch.keys()}  # noqa: SIM118
    columns = {name: list(values) for name, values in proto.non_tensor_batch.items()}
    return Batch(tensors, columns, dict(proto.meta_info))


ADAPTERS: dict[str, type[Any]] = {"batches": VerlBatches}
