"""Small functions of Accelerate; see `contracts.functions.Functions`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, release

PLACES: Mapping[str, tuple[str, str]] = {
    "send": ("accelerate.utils.operations", "send_to_device"),
    "batch size": ("accelerate.utils.operations", "find_batch_size"),
    "slice": ("accelerate.utils.operations", "slice_tensors"),
    "concatenate": ("accelerate.utils.operations", "concatenate"),
    "as lists": ("accelerate.utils.operations", "listify"),
    "structure": ("accelerate.utils.operations", "get_data_structure"),
    "merge dictionaries": ("accelerate.utils.other", "merge_dicts"),
    "bytes of text": ("accelerate.utils.modeling", "convert_file_size_to_int"),
    "bytes of dtype": ("accelerate.utils.modeling", "dtype_byte_size"),
    "truth of text": ("accelerate.utils.environment", "str_to_bool"),
    "variables": ("accelerate.utils", "patch_environment"),
    "attribute": ("accelerate.utils.other", "recursive_getattr"),
    "unwrap": ("accelerate.utils.other", "extract_model_from_parallel"),
    "save": ("accelerate.utils.other", "save"),
    "module sizes": ("accelerate.utils.modeling", "compute_module_sizes"),
    "buffer sizes": ("accelerate.utils.modeling", "compute_module_total_buffer_size"),
    "largest layer": ("accelerate.utils.modeling", "get_max_layer_size"),
    "device map": ("accelerate.utils.modeling", "infer_auto_device_map"),
    "balanced memory": ("accelerate.utils.modeling", "get_balanced_memory"),
    "shorten map": ("accelerate.utils.modeling", "clean_device_map"),
    "tied": ("accelerate.utils.modeling", "find_tied_parameters"),
    "set tensor": ("accelerate.utils.modeling", "set_module_tensor_to_device"),
    "offload": ("accelerate.utils.offload", "offload_weight"),
    "read offloaded": ("accelerate.utils.offload", "load_offloaded_weight"),
    "in autocast": ("accelerate.utils", "AutocastKwargs"),
    "storage dtype": ("accelerate.big_modeling", "attach_layerwise_casting_hooks"),
}
"""Accelerate's function by the contract's name."""


def _structure(function: Callable[..., Any]) -> Callable[..., Any]:
    from accelerate.utils.operations import initialize_tensors

    return lambda values: initialize_tensors(function(values))


def _save(function: Callable[..., Any]) -> Callable[..., Any]:
    def save(state: Any, path: str, safe: bool) -> None:
        new_accelerator()  # it checks which process writes
        function(state, path, safe_serialization=safe)

    return save


def _balanced(function: Callable[..., Any]) -> Callable[..., Any]:
    def balanced(model: Any, memory: Mapping[Any, int]) -> Any:
        try:
            return function(model, max_memory=memory)
        except RuntimeError as error:
            if "accelerator device" not in str(error):
                raise
            raise NotServed("this release looks for an accelerator, also where memory is given") from error

    return balanced


def _in_autocast(handler: Callable[..., Any]) -> Callable[..., Any]:
    def called(precision: str, own: bool | None, given: bool | None, function: Callable[[], Any]) -> Any:
        handlers = [] if own is None else [handler(enabled=own)]
        accelerator = new_accelerator(mixed_precision=precision, kwargs_handlers=handlers)
        with accelerator.autocast(*([] if given is None else [handler(enabled=given)])):
            return function()

    return called


FITTED: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "send": lambda function: lambda values, device, skipped: function(values, device, skip_keys=skipped),
    "concatenate": lambda function: lambda values, dimension: function(values, dim=dimension),
    "structure": _structure,
    "in autocast": _in_autocast,
    "variables": lambda function: lambda variables: function(**variables),
    "save": _save,
    "module sizes": lambda function: (
        lambda model, dtype, special: function(model, dtype=dtype, special_dtypes=special)
    ),
    "device map": lambda function: (
        lambda model, memory, whole, dtype: function(
            model, max_memory=memory, no_split_module_classes=whole, dtype=dtype
        )
    ),
    "balanced memory": _balanced,
    "set tensor": lambda function: (
        lambda model, name, device, value, dtype: function(model, name, device, value=value, dtype=dtype)
    ),
    "offload": lambda function: lambda value, name, folder: function(value, name, folder, index={})[name],
    "storage dtype": lambda function: (
        lambda model, storage, compute, skipped: function(
            model, storage, compute, skip_modules_pattern=skipped
        )
    ),
}
"""How those are called whose arguments are others than the contract's."""


class Functions(KnowsFailures):
    """Those that the installed release has."""

    def __init__(self) -> None:
        """Find them."""
        self.functions = {}
        for name, (module, attribute) in PLACES.items():
            function = getattr(importlib.import_module(module), attribute, None)
            if inspect.isroutine(function) or inspect.isclass(function):
                self.functions[name] = FITTED[name](function) if name in FITTED else function
        if not self.functions:
            raise Gone(f"accelerate {release('accelerate')} has none of these functions")
