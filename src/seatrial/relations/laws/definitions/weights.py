"""R35.weights: tensors that travel, are cut, joined, rounded, merged or written are the same tensors."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.made import Seeded, seeded, without

DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
WEIGHTS = Relation(
    id="R35.weights",
    name="tensors-stay-what-they-are",
    component="definitions",
    statement="Tensors that travel, are cut over ranks and joined, rounded to int8, merged with an adapter or "
    "written to files are those of the definition.",
    catalogue="SB234 SB251 SB260 SB264 SB271 SB295 SB322 SB384",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have one type, one shape, and the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bits(one.detach().flatten()), _bits(other.detach().flatten()))


def _tensors(stream: torch.Generator) -> dict[str, Tensor]:
    """Return tensors of every type and of odd shapes, one not contiguous, one with special numbers."""
    made = {str(dtype): torch.randint(-90, 90, (3, 5), generator=stream).to(dtype) for dtype in DTYPES}
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40])
    return {
        **made,
        "transposed": torch.randn(4, 3, generator=stream).T,
        "one number": torch.tensor(2.5),
        "one byte": torch.tensor([7], dtype=torch.uint8),
        "empty": torch.empty(0, 3),
        "special": special,
        "special, half": special.to(torch.bfloat16),
        "odd bytes": torch.arange(11, dtype=torch.int8),
    }


@WEIGHTS.law(
    "tensors arrive as they are sent",
    "a type that is written as another, offsets without their padding, an empty tensor that moves the next",
    excluded=without("travel"),
)
def tensors_arrive(stack: Any, case: Seeded) -> Measure:
    """Send tensors over each way, in messages of several sizes, and compare every bit."""
    wrong = []
    for num_bytes in (1, 24, 2**20):
        given = _tensors(case.stream())
        for way, arrived in stack.definitions["travel"](given, num_bytes).items():
            wrong += [
                f"{name} by {way} in messages of {num_bytes} bytes"
                for name, tensor in given.items()
                if name not in arrived or not _same(arrived[name], tensor)
            ]
    return Measure.count(wrong, "tensors that arrive as others")


@WEIGHTS.law(
    "changes are found",
    "zeros of either sign taken for equal, the last elements of a block left out, NaN as a change",
    excluded=without("changes"),
)
def changes_are_found(stack: Any, case: Seeded) -> Measure:
    """Change few, many, the first, the last and special elements, and compare places and values bit by bit."""
    stream, wrong = case.stream(), []
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int8):
        for size in (1, 7, 8, 129, 3000):
            before = torch.randint(-90, 90, (size,), generator=stream).to(dtype)
            for share in (0.0, 0.01, 0.6, 1.0):
                now = before.clone()
                chosen = torch.rand(size, generator=stream) < share
                chosen[[0, -1]] = share > 0
                now[chosen] += 1
                if dtype.is_floating_point and size > 8:
                    before[2:5], now[2:5] = (
                        torch.tensor([0.0, math.nan, 1.0]),
                        torch.tensor([-0.0, math.nan, 1.0]),
                    )
                due = (_bits(now) != _bits(before)).nonzero().squeeze(1)
                places, values = stack.definitions["changes"](now, before)
                if places.tolist() != due.tolist() or not _same(values, now[due]):
                    wrong.append(f"{share:.0%} of {size} elements of {dtype}")
    return Measure.count(wrong, "changes that are not found, or not there")


def _bits(flat_N: Tensor) -> Tensor:
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return flat_N.view(sizes[flat_N.element_size()])


@WEIGHTS.law(
    "fingerprints distinguish tensors",
    "values compared instead of bits, a shape or a type left out",
    excluded=without("fingerprint"),
)
def fingerprints_distinguish(stack: Any, case: Seeded) -> Measure:
    """Check that equal tensors have one fingerprint, and that type, shape, every bit and the order count."""
    name = stack.definitions["fingerprint"]
    base = torch.randn(4, 6, generator=case.stream())
    last, zero = base.clone(), base.clone()
    last[-1, -1] += 1e-6
    zero[0, 0] = 0.0
    minus = zero.clone()
    minus[0, 0] = -0.0
    others = {
        "another last element": last,
        "another shape": base.view(6, 4),
        "another type": base.view(torch.int32),
        "another order": base.flip(0),
        "half": base.bfloat16(),
    }
    wrong = [what for what, other in others.items() if name(other) == name(base)]
    wrong += ["zero of another sign"] * (name(zero) == name(minus))
    wrong += ["a copy"] * (name(base.clone()) != name(base))
    wrong += ["a view of other strides"] * (name(base.T.contiguous().T) != name(base))
    return Measure.count(wrong, "tensors whose fingerprints are wrong")


@WEIGHTS.law(
    "int8 is off by half a step",
    "one scale for all rows, a range that is cut, a row of zeros",
    excluded=without("int8"),
)
def int8_is_near(stack: Any, case: Seeded) -> Measure:
    """Check that an element is off by half a step of its own row at most, and zeros and the largest not at all."""
    weight_OI = torch.randn(6, 9, generator=case.stream()) * torch.logspace(-3, 2, 6)[:, None]
    weight_OI[3] = 0.0
    values_OI = stack.definitions["int8"](weight_OI)
    step_O1 = weight_OI.abs().amax(1, keepdim=True) / 127
    off_OI = (values_OI.double() - weight_OI.double()).abs()
    largest = weight_OI.abs() == weight_OI.abs().amax(1, keepdim=True)
    found = [
        (float((off_OI / step_O1.clamp_min(1e-30)).max()) / 0.5, "an element, in half steps"),
        (
            float((off_OI[largest] / weight_OI[largest].abs().clamp_min(1e-30)).max()) / 1e-5,
            "a row's largest element",
        ),
        (math.inf if values_OI[3].any() else 0.0, "a row of zeros"),
    ]
    return Measure.largest(found, 1.0 + 1e-4, "error of int8")


@WEIGHTS.law(
    "adapters are merged",
    "a product rounded first, A and B exchanged, the scale left out",
    excluded=without("merge"),
)
def adapters_are_merged(stack: Any, case: Seeded) -> Measure:
    """Compare merged weights with W + scale B A in float64, rounded once, in float32 and bfloat16."""
    stream, found = case.stream(), []
    for dtype in (torch.float32, torch.bfloat16):
        base = torch.randn(7, 5, generator=stream).to(dtype)
        low, high = (
            torch.randn(3, 5, generator=stream).to(dtype),
            torch.randn(7, 3, generator=stream).to(dtype),
        )
        for scale in (2.0, 0.125):
            merged = stack.definitions["merge"](base, low, high, scale)
            terms = base.double(), scale * (high.double() @ low.double())
            due = terms[0] + terms[1]
            sums = terms[0].abs() + scale * (high.double().abs() @ low.double().abs())
            bound = 0.51 * torch.finfo(dtype).eps * due.abs() + 4e-7 * sums
            error = float(((merged.double() - due).abs() / bound).max())
            found.append((error if merged.dtype == dtype else math.inf, f"{dtype}, scale {scale}"))
    return Measure.largest(found, 1.0, "merged weights, in units of one rounding")


@WEIGHTS.law(
    "parts make the whole",
    "heads of another group, gate and up exchanged, padding that is kept, a part of the next rank",
    excluded=without("join"),
)
def parts_make_the_whole(stack: Any, case: Seeded) -> Measure:
    """Cut tensors over one, two and four ranks, and join them again."""
    wrong = []
    for name, tensors, ranks, parts, joined in stack.definitions["join"](case.seed):
        what = f"{name} over {ranks} ranks"
        if len(joined) != len(tensors):
            wrong.append(f"{what}: {len(joined)} of {len(tensors)} tensors")
            continue
        wrong += [
            f"{what}: tensor {number}"
            for number, (one, other) in enumerate(zip(tensors, joined, strict=True))
            if not _same(one, other)
        ]
        held = torch.cat([part.flatten() for part in parts]).sort().values
        # Every element is in a part, zeros of padding aside; one that is on all ranks is there so many times.
        times = len(held[held != 0]) // sum(int((tensor != 0).sum()) for tensor in tensors)
        due = torch.cat([tensor.flatten() for tensor in tensors] * times)
        wrong += [f"{what}: elements of its parts"] * (
            not torch.equal(held[held != 0], due[due != 0].sort().values)
        )
    return Measure.count(wrong, "tensors that are others after they were cut and joined")


@WEIGHTS.law(
    "written files are read",
    "an index of the last file alone, names without their file",
    excluded=without("write"),
)
def written_files_are_read(stack: Any, case: Seeded) -> Measure:
    """Write tensors into one file and into several, and read them and the index as Transformers does."""
    from safetensors.torch import load_file

    wrong = []
    stream = case.stream()
    given = {f"layers.{number}.weight": torch.randn(3 + number, 4, generator=stream) for number in range(5)}
    for num_bytes in (2**20, 160, 1):
        with tempfile.TemporaryDirectory() as created:
            folder = Path(created)
            stack.definitions["write"](given, folder, num_bytes)
            files = {path.name: load_file(path) for path in folder.glob("*.safetensors")}
            wrong += [
                f"{num_bytes} bytes a file: {why}" for why in _files_wrong(folder, files, given, num_bytes)
            ]
    return Measure.count(wrong, "what is wrong with written files")


def _files_wrong(
    folder: Path, files: Mapping[str, Mapping[str, Tensor]], given: Mapping[str, Tensor], num_bytes: int
) -> list[str]:
    held = {name: tensor for tensors in files.values() for name, tensor in tensors.items()}
    found = [name for name, tensor in given.items() if name not in held or not _same(held[name], tensor)]
    found += ["a tensor is in two files"] * (sum(map(len, files.values())) != len(given))
    for name, tensors in files.items():
        size = sum(tensor.nbytes for tensor in tensors.values())
        found += [f"{name} has {size} bytes"] * (size > num_bytes and len(tensors) > 1)
    path = folder / "model.safetensors.index.json"
    if path.exists() != (len(files) > 1):
        return [*found, f"{len(files)} files and {'an' if path.exists() else 'no'} index"]
    if path.exists():
        index = json.loads(path.read_text(encoding="utf-8"))
        total = sum(tensor.nbytes for tensor in given.values())
        found += [f"a size of {index['metadata']['total_size']} for {total}"] * (
            index["metadata"]["total_size"] != total
        )
        places = {name: file for file, tensors in files.items() for name in tensors}
        found += ["an index of other places"] * (index["weight_map"] != places)
        wanted = {
            f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)
        }
        found += [f"files {sorted(files)}"] * (set(files) != wanted)
    return found


@WEIGHTS.law(
    "an engine's weights are read back",
    "a layer that is joined in another order, rows of padding, a packed form that is read as it is",
    excluded=without("read back"),
)
def weights_are_read_back(stack: Any, case: Seeded) -> Measure:
    """Compare the tensors that an engine of another library is read to compute with, bit by bit."""
    read = list(stack.definitions["read back"](case.seed))
    wrong = [name for name, due, found in read if not _same(due, found.to(due.dtype))]
    return Measure.count(wrong if read else ["nothing is read"], "tensors that are read as others")
