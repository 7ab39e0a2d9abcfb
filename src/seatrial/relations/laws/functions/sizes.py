"""R32.sizes: sizes of modules are those of their tensors, and a device map is within the memory that it is made for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.functions.values import DTYPES, Seeded, seeded, without

SIZES = Relation(
    id="R32.sizes",
    name="placed-modules-fit",
    component="functions",
    statement="Sizes of modules are the bytes of their tensors; a device map has every tensor once, within the memory, "
    "and tensors that are set, offloaded or kept in another dtype are the same.",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


class Block(nn.Module):
    """A block that may not be split, since it adds what its first layer is given."""

    def __init__(self, width: int) -> None:
        """Make two layers and a buffer."""
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D]."""
        made_BD: Tensor = x_BD + self.down(torch.tanh(self.up(x_BD))) * self.scale
        return made_BD


class Net(nn.Module):
    """Blocks of unequal width between an embedding and a head, which may share their weight."""

    def __init__(self, tied: bool = False) -> None:
        """Make it."""
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList([Block(8) for _ in range(4)])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.gain = nn.Parameter(torch.ones(3))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids_BS: Tensor) -> Tensor:
        """Return [B, S, V]."""
        x_BSD = self.embed(ids_BS)
        for block in self.blocks:
            x_BSD = block(x_BSD)
        made_BSV: Tensor = self.head(self.norm(x_BSD))
        return made_BSV


def _made(case: Seeded, *, tied: bool = False) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        return Net(tied).eval()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name; of one with two names the first."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _bytes(tensor: Tensor, dtype: torch.dtype | None = None) -> int:
    size = tensor.element_size()
    if dtype is not None and tensor.is_floating_point():
        size = min(size, dtype.itemsize)
    return tensor.numel() * size


def _within(name: str, module: str) -> bool:
    return not module or name == module or name.startswith(f"{module}.")


@SIZES.law(
    "of modules", "a dtype that is ignored, a buffer that is left out", excluded=without("module sizes")
)
@SIZES.law(
    "of modules in half precision",
    "integers in half precision",
    excluded=without("module sizes"),
    dtype=torch.float16,
)
@SIZES.law(
    "of modules with a dtype of their own",
    "the dtype of the rest",
    excluded=without("module sizes"),
    dtype=torch.float16,
    special={"blocks.1.up.weight": torch.float32, "norm.weight": torch.float64},
)
def sizes_are_those_of_tensors(
    stack: Any,
    case: Seeded,
    dtype: torch.dtype | None = None,
    special: Mapping[str, torch.dtype] | None = None,
) -> Measure:
    """Compare the bytes of every module and tensor with the sums of their tensors'."""
    model = _made(case)
    found = stack.functions["module sizes"](model, dtype, special)
    own = {
        name: value.numel() * special[name].itemsize if special and name in special else _bytes(value, dtype)
        for name, value in _tensors(model).items()
    }
    due = {
        module: sum(size for name, size in own.items() if _within(name, module))
        for module in {
            "",
            *(".".join(name.split(".")[:end]) for name in own for end in range(1, name.count(".") + 2)),
        }
    }
    wrong = [
        f"{module or 'all'}: {found.get(module)}, due {size}"
        for module, size in due.items()
        if found.get(module) != size
    ]
    wrong += [f"{module} is no module" for module in found if module not in due]
    return Measure.count(wrong, "sizes of modules")


@SIZES.law("of buffers", "parameters that count, or buffers that do not", excluded=without("buffer sizes"))
def buffers_have_their_size(stack: Any, case: Seeded) -> Measure:
    """Compare the bytes of all buffers with the sum."""
    model = _made(case)
    found, due = stack.functions["buffer sizes"](model), sum(_bytes(value) for value in model.buffers())
    return Measure(error=abs(found - due), bound=0, what=f"bytes of buffers {found}, due {due}")


@SIZES.law("of the largest layer", "a layer that is split all the same", excluded=without("largest layer"))
def largest_layer_is_largest(stack: Any, case: Seeded) -> Measure:
    """Compare the largest layer with that of plain sums, with blocks that are split and that are not."""
    model, wrong = _made(case), []
    names = _tensors(model)
    sizes = dict.fromkeys(("", *dict(model.named_modules()), *names), 0)
    for module in sizes:
        sizes[module] = sum(_bytes(value) for name, value in names.items() if _within(name, module))
    for whole in ([], ["Block"]):
        found, layers = stack.functions["largest layer"](list(model.named_children()), sizes, whole)
        due = max(
            sizes[name]
            for name in (["blocks.0", "embed", "head"] if whole else ["blocks.0.up", "embed", "head"])
        )
        if found != due:
            wrong.append(f"{found} of {layers}, due {due}, not split: {whole}")
    return Measure.count(wrong, "sizes of the largest layer")


MAPS = "a tensor without a device, a module that is split, more than the memory, tied tensors apart"
CAPACITIES = (1200, 2500, 4000, 6000, 100_000)
"""Bytes of the first device; the model has about 6000."""


@SIZES.law("device maps", MAPS, excluded=without("device map"))
@SIZES.law("device maps, blocks not split", MAPS, excluded=without("device map"), whole=("Block",))
@SIZES.law("device maps, tied", MAPS, excluded=without("device map"), whole=("Block",), tied=True)
@SIZES.law(
    "device maps, half precision", MAPS, excluded=without("device map"), whole=("Block",), dtype=torch.float16
)
@SIZES.law("device maps, tied and split", MAPS, excluded=without("device map"), tied=True)
def maps_fit(
    stack: Any,
    case: Seeded,
    whole: tuple[str, ...] = (),
    tied: bool = False,
    dtype: torch.dtype | None = None,
) -> Measure:
    """Make maps for several sizes of memory: each tensor once, in the order of modules, within the memory."""
    wrong: list[str] = []
    for capacity in CAPACITIES:
        model = _made(case, tied=tied)
        memory = {0: capacity, 1: capacity, "cpu": 10**9}
        found = stack.functions["device map"](model, dict(memory), list(whole), dtype)
        wrong += [f"{capacity} bytes: {one}" for one in _faults(model, found, memory, whole, dtype)]
    return Measure.count(wrong, "faults of device maps")


def _faults(
    model: Net, found: Mapping[str, Any], memory: Mapping[Any, int], whole: tuple[str, ...], dtype: Any
) -> Iterator[str]:
    tensors, places = _tensors(model), {}
    for name in dict.fromkeys([*tensors, *model.state_dict()]):
        modules = [module for module in found if _within(name, module)]
        if len(modules) != 1:
            yield f"{name} is in {modules or 'no module'} of the map"
            return
        places[name] = found[modules[0]]
    for device, capacity in memory.items():
        used = sum(_bytes(value, dtype) for name, value in tensors.items() if places[name] == device)
        if used > capacity:
            yield f"{used} bytes on {device}"
    if sum(_bytes(value, dtype) for value in tensors.values()) * 2 < memory[0] and set(places.values()) != {
        0
    }:
        yield f"all fits on the first device, and is on {set(places.values())}"
    for number, _ in enumerate(model.blocks) if whole else ():
        if len({place for name, place in places.items() if name.startswith(f"blocks.{number}.")}) > 1:
            yield f"block {number} is split"
    if model.head.weight is model.embed.weight and places["head.weight"] != places["embed.weight"]:
        yield "the tied head is apart"


@SIZES.law("balanced memory", "one device that gets nearly all", excluded=without("balanced memory"))
def balanced_maps_use_all(stack: Any, case: Seeded) -> Measure:
    """Check that a map by balanced memory uses each of two devices for at least a fifth, and nothing else."""
    model = _made(case)
    memory = stack.functions["balanced memory"](model, {0: 10**6, 1: 10**6})
    found = stack.functions["device map"](model, memory, [], None)
    used = {0: 0, 1: 0}
    wrong = []
    for name, value in _tensors(model).items():
        device = next(place for module, place in found.items() if _within(name, module))
        if device not in used:
            wrong.append(f"{name} is on {device}")
        else:
            used[device] += _bytes(value)
    wrong += [
        f"{size} bytes on {device}, of {used}"
        for device, size in used.items()
        if 5 * size < sum(used.values())
    ]
    return Measure.count(wrong, "devices of a balanced map")


@SIZES.law("shortened maps", "a parent whose children are on two devices", excluded=without("shorten map"))
def shortened_maps_say_the_same(stack: Any, case: Seeded) -> Measure:
    """Check that a map with parents for children gives every name the same device, and has no name less to remove."""
    wrong = []
    for places in ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1)):
        names = ("a.b.c", "a.b.d", "a.e", "f")
        given = dict(zip(names, places, strict=True))
        found = stack.functions["shorten map"](dict(given))
        for name, place in given.items():
            if [one for module, one in found.items() if _within(name, module)] != [place]:
                wrong.append(f"{name} of {given} in {found}")
        if len(set(places)) == 1 and len(found) != 1:
            wrong.append(f"{found} where one entry does")
    return Measure.count(wrong, "shortened maps")


@SIZES.law("tied parameters", "names of one parameter that are not found", excluded=without("tied"))
def tied_parameters_are_found(stack: Any, case: Seeded) -> Measure:
    """Compare groups of names with those that are one tensor."""
    plain, tied, shared = _made(case), _made(case, tied=True), _made(case)
    shared.blocks[2] = shared.blocks[0]
    wrong = []
    for model in (plain, tied, shared):
        by_tensor: dict[int, set[str]] = {}
        for name, value in model.named_parameters(remove_duplicate=False):
            by_tensor.setdefault(id(value), set()).add(name)
        due = {frozenset(names) for names in by_tensor.values() if len(names) > 1}
        found = {frozenset(group) for group in stack.functions["tied"](model)}
        if found != due:
            wrong.append(f"{sorted(map(sorted, found))}, due {sorted(map(sorted, due))}")
    return Measure.count(wrong, "groups of tied parameters")


@SIZES.law(
    "set tensors",
    "a dtype of the old tensor, a parameter that is frozen on the way",
    excluded=without("set tensor"),
)
def tensors_are_set(stack: Any, case: Seeded) -> Measure:
    """Set a parameter, a frozen one, a buffer and a tensor without memory, and compare each with its value."""
    wrong = []
    for name, dtype in (
        ("blocks.1.up.weight", None),
        ("norm.bias", None),
        ("blocks.0.scale", None),
        ("blocks.0.count", None),
        ("head.weight", torch.bfloat16),
    ):
        model = _made(case)
        model.norm.requires_grad_(False)
        old = _tensors(model)[name]
        if name == "blocks.1.up.weight":
            model.blocks[1].up.to("meta")
        value = torch.full_like(old, 3)
        stack.functions["set tensor"](model, name, "cpu", value, dtype)
        new = _tensors(model)[name]
        if not torch.equal(new.detach(), value.to(dtype or old.dtype)) or new.dtype is not (
            dtype or old.dtype
        ):
            wrong.append(f"{name}: {new.dtype}, {new.flatten()[:2].tolist()}")
        if new.requires_grad != old.requires_grad or isinstance(new, nn.Parameter) != isinstance(
            old, nn.Parameter
        ):
            wrong.append(f"{name}: requires_grad {new.requires_grad}, {type(new).__name__}")
    return Measure.count(wrong, "tensors that are set wrongly")


@SIZES.law(
    "offloaded tensors",
    "a dtype that NumPy does not have, a scalar with a dimension",
    excluded=without("offload"),
)
def offloaded_tensors_come_back(stack: Any, case: Seeded) -> Measure:
    """Write tensors of every dtype and of no dimension to files, and compare what is read."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (*DTYPES, torch.float64, torch.int8):
            for shape in ((3, 4), (5,), ()):
                value = (
                    torch.arange(24)[: max(1, torch.Size(shape).numel())].reshape(shape) % 7 + case.seed
                ).to(dtype)
                name = f"{dtype}{len(shape)}".removeprefix("torch.")
                described = stack.functions["offload"](value, name, folder)
                found = stack.functions["read offloaded"](f"{folder}/{name}.dat", described)
                if found.dtype is not dtype or found.shape != value.shape or not torch.equal(found, value):
                    wrong.append(f"{dtype}, {list(shape)}: {found.dtype}, {list(found.shape)}")
    return Measure.count(wrong, "offloaded tensors")


@SIZES.law(
    "storage dtype",
    "a layer that is to be skipped, weights that stay wide, a sum in half",
    excluded=without("storage dtype"),
)
def storage_is_narrow(stack: Any, case: Seeded) -> Measure:
    """Keep weights in bfloat16 and compute in float32: outputs are those of rounded weights, and dtypes are kept."""
    model, plain = _made(case), _made(case)
    stack.functions["storage dtype"](model, torch.bfloat16, torch.float32, ["norm"])
    with torch.no_grad():
        for name, value in plain.named_parameters():
            if isinstance(plain.get_submodule(name.rpartition(".")[0]), (nn.Linear,)):
                value.copy_(value.bfloat16().float())
    ids_BS = torch.arange(6).reshape(2, 3)
    with torch.no_grad():
        found_BSV, right_BSV = model(ids_BS), plain(ids_BS)
    wrong = [
        f"{name} is {value.dtype}"
        for name, value in model.named_parameters()
        if "up" in name or "down" in name
        if value.dtype is not torch.bfloat16
    ]
    wrong += [
        f"{name} is {value.dtype}"
        for name, value in model.named_parameters()
        if "norm" in name and value.dtype is not torch.float32
    ]
    error = float((found_BSV - right_BSV).abs().max() / right_BSV.abs().max())
    # The embedding may be kept in half precision or not.
    if not error <= 1e-2:
        wrong.append(f"outputs differ by {error}")
    return Measure.count(wrong, "dtypes and outputs of weights kept in bfloat16")
