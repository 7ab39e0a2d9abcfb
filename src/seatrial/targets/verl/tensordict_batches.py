"""verl's functions of a TensorDict with texts, objects and facts; see `contracts.utilities.Batch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.contracts.utilities import Batch
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name, release

FUNCTIONS = "verl.utils.tensordict_utils"


class VerlTensorDictBatches:
    """A TensorDict made by `get_tensordict`, by each operation that the module has a function of."""

    def __init__(self) -> None:
        """Find the functions that make it and read it."""
        self.make = find_name("verl", [f"{FUNCTIONS}:get_tensordict"])
        self.get = find_name("verl", [f"{FUNCTIONS}:get"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"batch operation": self.operate}

    def operate(self, operation: str, batches: Sequence[Batch], *arguments: Any) -> list[Batch]:
        """Return the batches that an operation gives."""
        if any("metrics" in batch.facts for batch in batches):
            raise NotServed("metrics are no facts of a TensorDict")
        made = [self.make({**one.tensors, **one.objects}, dict(one.facts)) for one in batches]
        kinds = [(name, part) for one in batches for part in ("tensors", "objects", "facts")
                 for name in getattr(one, part)]  # fmt: skip
        return [self._read(one, dict(kinds)) for one in self._do(operation, made, arguments)]

    def _do(self, operation: str, made: Sequence[Any], arguments: tuple[Any, ...]) -> list[Any]:
        batch = made[0]
        if operation == "concat":
            facts = [{name: self.get(one, name) for name in one.keys()} for one in made]  # noqa: SIM118
            if facts[0].keys() != facts[-1].keys():
                raise NotServed("batches have equal columns")
            return [self._of("concat_tensordict")(list(made))]
        if operation == "union":
            return [self._of("union_tensor_dict")(*made)]
        if operation in ("select", "pop"):
            names = [name for part in arguments for name in part]
            found = self._of(f"{'get' if operation == 'select' else 'pop'}_keys")(batch, names)
            return [found] if operation == "select" else [found, batch]
        if operation in ("places", "reorder"):
            return [self._of("index_select_tensor_dict")(batch, list(arguments[0]))]
        if operation == "chunk":
            return list(self._of("chunk_tensordict")(batch, *arguments))
        if operation == "iterate":
            size, epochs = arguments
            return list(self._of("make_iterator")(batch, mini_batch_size=size, epochs=epochs))
        if operation == "same" and arguments == ("bytes",):
            return [self._of("contiguous")(batch)]
        raise NotServed(f"{FUNCTIONS} of verl {release('verl')} has no function of this")

    def _of(self, name: str) -> Any:
        import importlib

        found = getattr(importlib.import_module(FUNCTIONS), name, None)
        if found is None:
            raise NotServed(f"{FUNCTIONS} of verl {release('verl')} has no {name}")
        return found

    def _read(self, batch: Any, kinds: Mapping[str, str]) -> Batch:
        found: dict[str, dict[str, Any]] = {"tensors": {}, "objects": {}, "facts": {}}
        for name in batch.keys():  # noqa: SIM118  no mapping
            found[kinds[name]][name] = self.get(batch, name)
        return Batch(**found)


ADAPTERS: dict[str, type[Any]] = {"batches-tensordict": VerlTensorDictBatches}
