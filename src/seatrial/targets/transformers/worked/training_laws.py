"""Laws of parts of training with rare options: orders of rows, edges of schedules, counts, states, losses of boxes."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row, Worked, unlike
from seatrial.targets.transformers.worked.losses import IGNORED, _durations, numbers

LENGTHS = (3, 9, 1, 7, 7, 2, 8, 4, 6, 5, 12, 1, 3)
PATHS = "transformers.trainer_pt_utils"
COLLATORS = "transformers.data.data_collator"
OPTIMIZATION, BOXES = "transformers.optimization", "transformers.loss.loss_for_object_detection"


def _grouped(size: int, mega: int | None, seed: int) -> list[int]:
    """Return rows by length in groups of some batches, the longest row of all first."""
    mega = max(1, min(len(LENGTHS) // (size * 4), 50)) if mega is None else mega
    order = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(seed)).tolist()
    groups = [order[start : start + mega * size] for start in range(0, len(order), mega * size)]
    groups = [sorted(one, key=lambda row: -LENGTHS[row]) for one in groups]
    firsts = [LENGTHS[one[0]] for one in groups]
    place = firsts.index(max(firsts))
    groups[0][0], groups[place][0] = groups[place][0], groups[0][0]
    return [row for one in groups for row in one]


def _orders(function: Any) -> list[str]:
    wrong = []
    for size, mega, kind, seed in itertools.product((1, 2, 3), (None, 1, 2, 9), (list, torch.tensor), (0, 5)):
        more = {} if mega is None else {"mega_batch_mult": mega}
        found = function(kind(LENGTHS), size, generator=torch.Generator().manual_seed(seed), **more)
        if list(found) != _grouped(size, mega, seed):
            wrong.append(f"batches of {size}, {mega} a group, lengths in a {kind.__name__}: {found}")
    return wrong


def _sampled(made: Any) -> list[str]:
    """Return where a sampler by lengths gives another order: of lengths of each form, or of rows that have them."""
    rows = [{"input_ids": [0] * length, "words": [0] * (20 - length)} for length in LENGTHS]
    wrong = []
    for size in (2, 3):
        for what, given in (
            ("a list", {"lengths": list(LENGTHS)}),
            ("a tensor", {"lengths": torch.tensor(LENGTHS)}),
            ("rows", {"dataset": rows}),
            ("rows of a name", {"dataset": rows, "model_input_name": "input_ids"}),
        ):
            found = list(made(size, **given, generator=torch.Generator().manual_seed(3)))
            wrong += [] if found == _grouped(size, None, 3) else [f"lengths in {what}: {found}"]
        turned = list(made(size, dataset=rows, model_input_name="words", generator=torch.Generator()))
        wrong += [] if LENGTHS[turned[0]] == 1 else [f"lengths of words: {turned}"]
    return wrong


class _Stream(torch.utils.data.IterableDataset[int]):
    """Rows in an order drawn from a generator of its own, which another draw moves on."""

    def __init__(self, count: int) -> None:
        self.count, self.generator = count, torch.Generator()

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.count, generator=self.generator).tolist()


def _streamed(made: Any) -> list[str]:
    """Return where processes are given other rows of a stream than their batches, in the order of an epoch."""
    wrong = []
    for count, size, parts, drops, seed, epoch in itertools.product(
        (11, 12, 2), (1, 2), (1, 3), (True, False), (0, 4), (None, 0, 2)
    ):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + (epoch or 0))).tolist()
        whole = size * parts
        first = order[: min(whole, count)]
        while not drops and len(order) % whole:
            order += first[: whole - len(order) % whole]
        order = order[: len(order) // whole * whole]
        for part in range(parts):
            one = made(
                _Stream(count),
                batch_size=size,
                drop_last=drops,
                num_processes=parts,
                process_index=part,
                seed=seed,
            )
            if epoch is not None:
                one.set_epoch(epoch)
            due = [row for place, row in enumerate(order) if place // size % parts == part]
            if list(one) != due:
                wrong.append(f"process {part} of {parts}, {count} rows, {size=}, {drops=}, {seed=}, {epoch=}")
    return wrong


def _counted(function: Any) -> list[str]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, bias=False))
    wrong = []
    for frozen, due in (((), 24), ((0,), 8), ((1,), 16), ((0, 1), 0)):
        for place, layer in enumerate(model):
            layer.requires_grad_(place not in frozen)
        found = [function(model), function(model, trainable_only=False), function(model, trainable_only=True)]
        wrong += [] if found == [24, 24, due] else [f"{frozen} frozen: {found}"]
    return wrong


def _rates(made: Callable[[Any], Any], steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule, found = made(optimizer), []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


EDGES = ((0, 1), (0, 4), (1, 4), (4, 4), (3, 2))
"""Steps of warmup, and steps in all, which the runs below pass by three."""


def _linear(function: Any) -> list[str]:
    wrong = []
    for warm, whole in EDGES:
        due = [
            2.0 * step / warm if step < warm else 2.0 * max(0.0, (whole - step) / max(1, whole - warm))
            for step in range(whole + 3)
        ]
        wrong += unlike(
            _rates(partial(function, num_warmup_steps=warm, num_training_steps=whole), whole + 3), due
        )
    return wrong


def _cosine(function: Any) -> list[str]:
    wrong = []
    for (warm, whole), cycles in itertools.product(EDGES, (None, 0.5, 1.0, 1.5)):
        more = {} if cycles is None else {"num_cycles": cycles}
        turn = 2 * math.pi * (0.5 if cycles is None else cycles)
        due = [
            2.0 * step / warm
            if step < warm
            else max(0.0, 1 + math.cos(turn * (step - warm) / max(1, whole - warm)))
            for step in range(whole + 3)
        ]
        found = _rates(partial(function, num_warmup_steps=warm, num_training_steps=whole, **more), whole + 3)
        wrong += unlike(found, due, f"{warm} of {whole}, {cycles} cycles")
    return wrong


def _roots(function: Any) -> list[str]:
    wrong = []
    for warm, scale in itertools.product((0, 1, 3), (None, 1, 7)):
        width = scale if scale is not None else warm or 10_000
        due = [
            2.0 * step / warm if step < warm else 2.0 / math.sqrt((step + width - warm) / width)
            if step + width > warm else math.nan for step in range(8)
        ]  # fmt: skip
        if any(math.isnan(one) for one in due):
            continue
        more = {} if scale is None else {"timescale": scale}
        found = _rates(partial(function, num_warmup_steps=warm, **more), 8)
        wrong += unlike(found, due, f"{warm} of warmup, {scale=}", 1e-9)
    return wrong


def _permuted(made: Any) -> list[str]:
    """Return where spans are masked that were not drawn, or an order of predictions lets a token see what follows."""
    tokenizer, wrong = tiny_tokenizer(), []
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    size, mask = 12, tokenizer.mask_token_id
    rows = torch.tensor([[5 + (place * 3 + row) % 11 for place in range(size)] for row in range(3)])
    for share, longest, seed in itertools.product((1 / 6, 1 / 3, 1 / 2), (1, 3, 5), (0, 1, 2)):
        torch.manual_seed(seed)
        found = made(tokenizer, plm_probability=share, max_span_length=longest)(
            [{"input_ids": one} for one in rows]
        )
        torch.manual_seed(seed)
        drawn = torch.zeros_like(rows, dtype=torch.bool)
        for row in drawn:
            begin = 0
            while begin < size:
                span = int(torch.randint(1, longest + 1, (1,)))
                width = int(span / share)
                first = begin + int(torch.randint(width - span + 1, (1,)))
                row[first : first + span] = True
                begin += width
        what = f"{share=:.2f}, {longest=}, {seed=}"
        special = {*tokenizer.all_special_ids}
        drawn &= torch.tensor([[one not in special for one in row] for row in rows.tolist()])
        for name, due in (
            ("input_ids", rows.masked_fill(drawn, mask)),
            ("labels", rows.masked_fill(~drawn, IGNORED)),
        ):
            wrong += [] if torch.equal(found[name], due) else [f"{what}: {name}"]
        eye = torch.eye(size)[None].expand(3, -1, -1)
        wrong += [] if torch.equal(found["target_mapping"], eye) else [f"{what}: targets"]
        unseen = torch.zeros(3, size, size)
        for row in range(3):
            order = torch.randperm(size // 2).tolist()
            when = [*order, *(size // 2 + place for place in order)]
            known = [one if drawn[row, place] else -1 for place, one in enumerate(when)]
            for one, other in itertools.product(range(size), repeat=2):
                unseen[row, one, other] = float(bool(drawn[row, other]) and known[one] <= known[other])
        wrong += [] if torch.equal(found["perm_mask"], unseen) else [f"{what}: order of predictions"]
    return wrong


def _words(made: Any) -> list[str]:
    """Return where masked words are not those of which a token was drawn: of arrays and tensors, by special tokens."""
    words = np.array([[-1, 1, 1, 2, 3, 3, -1, -1], [-1, 1, 2, 2, 2, -1, 3, -1], [1, 2, 3, 4, 4, 5, 6, 6]])
    wrong, kinds = [], (np.array, torch.tensor, list)
    kind: Any
    for seed, kind in itertools.product(range(12), kinds):
        drawn = numbers(3, 8, seed=seed) > 0.4
        due = [
            [own != -1 and any(one == own and hit for one, hit in zip(row, hits, strict=True)) for own in row]
            for row, hits in zip(words.tolist(), drawn.tolist(), strict=True)
        ]
        found = made._whole_word_mask(words, kind(drawn.tolist()))
        wrong += [] if found.tolist() == due else [f"{kind.__name__} {seed}: {found.tolist()}"]
    return wrong


METRICS = (5.0, 4.0, 4.5, 4.6, 4.7, 3.0, 3.1, 3.2, 3.3, 2.0, 1.5, 1.0, 1.2, 1.4, 1.1, 1.6)


def _continued(made: Any) -> list[str]:
    """Return with which options rates by metrics change where their state is saved and read between two steps."""
    wrong = []
    for smooth, patience, cooldown, warmup, start, mode in itertools.product(
        (True, False), (0, 2), (0, 1), (0, 2), (0, 5), ("rel", "abs")
    ):
        options = {
            "smooth": smooth, "patience": patience, "cooldown": cooldown, "warmup": warmup, "reset_start": start,
            "threshold_mode": mode, "window_size": 3, "min_lr": 0.01, "max_lr": 3.0, "factor": 0.5,
        }  # fmt: skip
        runs = []
        for cut in (None, 1, 4, 7, 12):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            schedule, found = made(optimizer, **options), []
            for place, metric in enumerate(METRICS):
                if place == cut:
                    state = schedule.state_dict()
                    schedule = made(
                        optimizer, **{**options, "patience": 9, "factor": 0.9, "smooth": not smooth}
                    )
                    schedule.load_state_dict(state)
                schedule.step(metric)
                found.append(float(optimizer.param_groups[0]["lr"]))
            runs.append(found)
        wrong += [f"{options}: another rate after a break" for one in runs[1:] if one != runs[0]][:1]
    return wrong


def _areas(function: Any) -> list[str]:
    """Return of which types of numbers areas of boxes are others; those of whole numbers must not overflow."""
    boxes, wrong = [[0, 0, 20, 30], [10, 5, 100, 90], [3, 3, 3, 9]], []
    for kind in (
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.int8,
        torch.float32,
        torch.float64,
    ):
        found = [float(one) for one in function(torch.tensor(boxes, dtype=kind))]
        wrong += unlike(found, [600.0, 7650.0, 0.0], str(kind))
    return wrong


def _quality(made: Any) -> list[str]:
    """Return where classes of boxes are not weighed by their overlaps, of which some are none at all."""
    boxes = torch.tensor([[[0.2, 0.2, 0.2, 0.2], [0.5, 0.5, 0.4, 0.4], [0.8, 0.8, 0.1, 0.1]]])
    right = torch.tensor([[0.25, 0.2, 0.2, 0.2], [0.1, 0.9, 0.1, 0.1], [0.8, 0.8, 0.1, 0.1]])
    overlaps, classes, wrong = (0.6, 0.0, 1.0), (1, 0, 2), []
    for alpha, scale in itertools.product((0.25, 0.5), (1.0, 12.0)):
        logits = numbers(1, 3, 3, seed=2, scale=scale)
        probabilities = logits[0].double().sigmoid()
        due = 0.0
        for query, (overlap, own) in enumerate(zip(overlaps, classes, strict=True)):
            for place in range(3):
                one = float(probabilities[query, place])
                if place == own:
                    weight = max(0.01, one**alpha * overlap ** (1 - alpha))
                    due -= weight * math.log(one) + (1 - weight) * math.log1p(-one)
                else:
                    due -= one**2 * math.log1p(-one)
        loss = made(SimpleNamespace(), 3, alpha, ["labels"], 1)
        labels = [{"class_labels": torch.tensor(classes), "boxes": right}]
        pairs = [(torch.arange(3), torch.arange(3))]
        found = loss.loss_labels({"logits": logits, "pred_boxes": boxes}, labels, pairs, 2.0)
        wrong += unlike([float(found["loss_ce"])], [due / 2], f"{alpha=}, logits of {scale}", 1e-4)
    return wrong


def _whole_numbers(loss: Any) -> list[str]:
    """Return where whole numbers of a head of one number are not taken for numbers."""
    given, wrong = numbers(4, 1, scale=3.0), []
    for kind, column in itertools.product((torch.float32, torch.float64), (False, True)):
        right = torch.tensor([2.0, 0.0, 1.0, 5.0]).to(kind)
        right = right[:, None] if column else right
        due = float(((given.double().flatten() - right.double().flatten()) ** 2).mean())
        for whole in (False, True):
            labels = right.long() if whole else right
            config = SimpleNamespace(num_labels=1, problem_type=None)
            found = loss(labels, given, config)
            wrong += unlike([float(found)], [due], f"{labels.dtype}, {column=}", 1e-5)
    return wrong


def _small_start(made: Any) -> list[str]:
    torch.manual_seed(0)
    layer = made(300, 200)
    wrong = unlike([float(layer.weight.std()), float(layer.bias.abs().max())], [0.02, 0.0], "weights", 5e-4)
    rows: Tensor = numbers(2, 3, 200)
    with torch.no_grad():
        layer.bias += numbers(300)
        due = rows.double() @ layer.weight.double() + layer.bias.double()
        return wrong + unlike(layer(rows).flatten().tolist(), due.flatten().tolist(), "rows", 1e-5)


def _printed(made: Any) -> list[str]:
    """Return which logs a callback prints: those of the first process of a machine, without the count of operations."""
    wrong = []
    for first in (True, False):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            made().on_log(
                None, SimpleNamespace(is_local_process_zero=first), None, logs={"loss": 1.5, "total_flos": 7}
            )
        text = printed.getvalue()
        wrong += [] if ("1.5" in text) is first and "total_flos" not in text else [f"{first=}: {text!r}"]
    return wrong


# Sources: the documentation of each class, the formulas of its schedules, and the paper on LW-DETR.
TRAINING_LAW_ROWS: Sequence[Row] = (
    Row("batches", f"{PATHS}:get_length_grouped_indices", "lengths of each form", _orders, []),
    Row("batches", f"{PATHS}:LengthGroupedSampler", "lengths of each form and of rows", _sampled, []),
    Row("batches", f"{PATHS}:IterableDatasetShard", "streams that draw, by epochs and seeds", _streamed, []),
    Row("models", f"{PATHS}:get_model_param_count", "of frozen layers", _counted, []),
    Row("formulas", f"{OPTIMIZATION}:get_linear_schedule_with_warmup", "edges", _linear, []),
    Row("formulas", f"{OPTIMIZATION}:get_cosine_schedule_with_warmup", "edges and cycles", _cosine, []),
    Row("formulas", f"{OPTIMIZATION}:get_inverse_sqrt_schedule", "no warmup, and scales", _roots, []),
    Row("formulas", f"{OPTIMIZATION}:GreedyLR", "saved and read between two steps", _continued, []),
    Row("formulas", f"{BOXES}:box_area", "numbers of each type", _areas, []),
    Row("formulas", "transformers.loss.loss_lw_detr:LwDetrImageLoss", "boxes without overlap", _quality, []),
    Row("formulas", "transformers.loss.loss_utils:ForSequenceClassificationLoss", "whole numbers", _whole_numbers, []),
    Row("formulas", "transformers.loss.loss_tdt:ParakeetForTDTLoss", "of tokens with durations", _durations, []),
    Row("models", "transformers.pytorch_utils:Conv1D", "its start and its rows", _small_start, []),
    Row("metrics", "transformers.trainer_callback:PrinterCallback", "logs of the first process", _printed, []),
    Row("batches", f"{COLLATORS}:DataCollatorForPermutationLanguageModeling", "spans and orders", _permuted, []),
    Row("batches", f"{COLLATORS}:DataCollatorForLanguageModeling", "whole words", _words, [], since="5"),
)  # fmt: skip


class OfTraining(Worked):
    """What parts of training give with rare options; see `contracts.worked`."""

    package = "transformers"
    thorough = True
    worked_rows = TRAINING_LAW_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-training": OfTraining}
