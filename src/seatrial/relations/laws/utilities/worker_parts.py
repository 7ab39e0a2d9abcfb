"""R31.worker_parts: parts of a worker that change no result: tiles of an MLP, a fused head, shards, generated rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

WORKER_PARTS = relation_of(
    "worker_parts",
    "parts-of-a-worker-are-their-definitions",
    "An MLP in tiles, a fused head, generated rows, shards and optimizers are what they are without these parts.",
)
BOUND = 32 * FLOAT32
"""Products of some tens of float32 values, added up over micro-batches, against float64."""
END, PAD = 2, 0


def tiled_mlp(
    inputs: Sequence[Tensor], weights: Mapping[str, Tensor], outer: Sequence[Tensor], tiles: int
) -> dict[str, list[Tensor]]:
    """Return outputs and gradients of inputs by micro-batch, and gradients of weights, which micro-batches add to."""
    names = ("gate", "up", "down")
    given = [one.double().requires_grad_() for one in inputs]
    own = {name: weights[name].double().requires_grad_() for name in names}
    outputs = [
        (torch.nn.functional.silu(one @ own["gate"].T) * (one @ own["up"].T)) @ own["down"].T for one in given
    ]
    parts = [(output * weight).sum() for output, weight in zip(outputs, outer, strict=True)]
    total = torch.stack(parts).sum()
    gradients = torch.autograd.grad(total, [*given, *own.values()])
    return {
        "outputs": [one.detach() for one in outputs],
        "inputs": list(gradients[: len(given)]),
        "weights": list(gradients[len(given) :]),
    }


def _mlps(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    D, F = 5, 7
    weights = {
        "gate": torch.randn(F, D, generator=stream),
        "up": torch.randn(F, D, generator=stream),
        "down": torch.randn(D, F, generator=stream),
    }
    for tiles, shapes in (
        (4, [(1, 11), (1, 12)]),
        (3, [(2, 7)]),
        (1, [(2, 3)]),
        (2, [(3, 4), (1, 5), (2, 2)]),
    ):
        inputs = [torch.randn(*shape, D, generator=stream) for shape in shapes]
        yield inputs, weights, [torch.randn(one.shape, generator=stream) for one in inputs], tiles


def fused_head(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    labels: Tensor | None,
    shifted: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [B, S] of the token after each place, and the entropy; the last one wraps around."""
    following = torch.roll(ids if labels is None else labels, -1, -1) if shifted is None else shifted
    logprobs = (hidden.double() @ weight.double().T / temperature).log_softmax(-1)
    return logprobs.gather(-1, following[..., None])[..., 0], -(logprobs.exp() * logprobs).sum(-1)


def _heads(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    hidden, weight = torch.randn(2, 6, 5, generator=stream), torch.randn(13, 5, generator=stream)
    ids, labels, shifted = (torch.randint(13, (2, 6), generator=stream) for _ in range(3))
    for temperature in (1.0, 0.6):
        yield hidden, weight, ids, None, None, temperature
        yield hidden, weight, ids, labels, None, temperature
        yield hidden, weight, ids, labels, shifted, temperature


MODES: Sequence[Mapping[str, Any]] = (
    {},
    {"do_sample": False},
    {"temperature": 0.3, "top_p": 0.5, "top_k": 7},
    {"top_k": -1},
    {"validate": True},
    {"validate": True, "temperature": 0.3},
    {"validate": True, "do_sample": False},
)
"""Facts of a batch of prompts that say how it is sampled."""
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 0}
VALIDATED = {"temperature": 0.5, "top_p": 0.7, "top_k": 4}
"""Options of a rollout, and those of its validation."""


def generated_rows(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], longest: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns of prompts, padded on the left, with answers, padded at the end, and options of sampling.

    Padding after an answer is not shown; positions continue over it.
    """
    width = max(map(len, prompts))
    rows, masks, places = [], [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        empty = width - len(prompt)
        rows.append([PAD] * empty + list(prompt) + list(answer) + [PAD] * (longest - len(answer)))
        masks.append([0] * empty + [1] * (len(prompt) + len(answer)) + [0] * (longest - len(answer)))
        places.append([0] * empty + list(range(len(prompt) + longest)))
    if not facts.get("do_sample", True):
        options: Mapping[str, Any] = {"do_sample": False}
    elif facts.get("validate"):
        options = {"do_sample": True, **VALIDATED}
    else:
        own = {name: facts[name] for name in SAMPLED if name in facts}
        options = {"do_sample": True, **SAMPLED, **own}
        options["top_k"] = max(0, options["top_k"])
    return {
        "prompts": [row[:width] for row in rows],
        "responses": [row[width:] for row in rows],
        "input_ids": rows,
        "attention_mask": masks,
        "position_ids": places,
        "options": dict(options),
        "ends": [longest, END, PAD],
    }


def _generated(case: Numbers) -> Iterable[Arguments]:
    prompts, answers = [[5, 6, 7], [8], [9, 3]], [[4, END], [6, 7, 3, END], [END]]
    for facts in MODES:
        yield prompts, answers, 6, facts
    yield prompts, [[4, 5, 6, 7], [6, 7, 3, END], [8, END]], 4, {}


def flat_places(places: Tensor, local: Sequence[int], offset: Sequence[int], full: Sequence[int]) -> Tensor:
    """Return where flat places of a block are in the whole tensor."""
    whole = torch.arange(torch.Size(full).numel()).view(*full)
    for dim, (start, size) in enumerate(zip(offset, local, strict=True)):
        whole = whole.narrow(dim, start, size)
    return whole.reshape(-1)[places]


def _blocks(case: Numbers) -> Iterable[Arguments]:
    for local, offset, full in (
        ((2, 3), (1, 2), (4, 6)),
        ((2, 6), (2, 0), (4, 6)),
        ((4, 2), (0, 4), (4, 6)),
        ((1, 2, 3), (1, 1, 0), (2, 4, 3)),
        ((5,), (3,), (9,)),
    ):
        size = torch.Size(local).numel()
        yield torch.arange(size), local, offset, full
        yield torch.randperm(size, generator=case.generator())[: size // 2], local, offset, full


OPTIMIZERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("AdamW", {"lr": 0.1, "weight_decay": 0.2, "betas": (0.7, 0.8)}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.2, "betas": (0.7, 0.8)}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.2}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.0, "betas": (0.9, 0.95), "override": {"eps": 0.3}}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.0, "override": {"momentum": 0.5}}),
)


def optimized(
    name: str, options: Mapping[str, Any], weights: Tensor, gradients: Sequence[Tensor]
) -> list[Tensor]:
    """Return the weights after each step of AdamW, Adam with the decay in its gradient, or SGD."""
    more = options.get("override", {})
    found, weight = [], weights.double().clone()
    rate, decay = options["lr"], options["weight_decay"]
    first, second, moving = torch.zeros_like(weight), torch.zeros_like(weight), torch.zeros_like(weight)
    for step, given in enumerate(gradients, 1):
        gradient = given.double()
        if name == "AdamW":
            weight = weight * (1 - rate * decay)
        else:
            gradient = gradient + decay * weight
        if name == "SGD":
            moving = more.get("momentum", 0.0) * moving + gradient
            weight = weight - rate * moving
        else:
            one, two = options["betas"]
            first, second = one * first + (1 - one) * gradient, two * second + (1 - two) * gradient**2
            root = (second / (1 - two**step)).sqrt() + more.get("eps", 1e-8)
            weight = weight - rate * (first / (1 - one**step)) / root
        found.append(weight)
    return found


def _steps(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    for name, options in OPTIMIZERS:
        weights = torch.randn(4, generator=stream)
        yield name, options, weights, [torch.randn(4, generator=stream) for _ in range(3)]


PRECISIONS: Mapping[Any, str] = {
    "fp16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp32": "float32",
    "float32": "float32",
}


def masked(size: int, most: float, left: float, least: float) -> dict[str, Any]:
    """Return what many random masks have: one block of ones, its shortest and longest, and the most padding before."""
    return {
        "blocks": 1,
        "shortest": max(1, int(size * least)),
        "longest": int(size * most),
        "padding": int(size * left),
    }


def size_of(shapes: Sequence[Sequence[int]], scale: str) -> tuple[float, str]:
    """Return the number of parameters in a unit, which is the largest below it for `auto`."""
    number = float(sum(torch.Size(shape).numel() for shape in shapes))
    units = {"B": 1e9, "M": 1e6, "K": 1e3, "": 1.0}
    unit = next(name for name, size in units.items() if number > size) if scale == "auto" else scale
    return number / units[unit], unit


def put_back(values: Tensor, places: Tensor, batch: int, length: int) -> Tensor:
    """Return rows [B, S, ...] with values at flat places, and zeros."""
    rows = values.new_zeros(batch * length, *values.shape[1:])
    for value, place in zip(values, places.tolist(), strict=True):
        rows[place] = value
    return rows.view(batch, length, *values.shape[1:])


def collated_rows(rows: Sequence[Mapping[str, Tensor]], nested: bool) -> dict[str, list[Tensor]]:
    """Return each column's rows in order."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def _collated(case: Numbers) -> Iterable[Arguments]:
    def row(length: int) -> dict[str, Tensor]:
        ids = torch.randint(1, 90, (length,), generator=case.generator())
        return {"input_ids": ids, "loss_mask": (ids > 40).long(), "position_ids": ids.expand(3, length)}

    yield [row(3), row(5), row(1)], True
    yield [row(4), row(4)], False


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "actor": {"size": 3, "tokens": 30, "dynamic": True},
    "reference": {"size": 5, "tokens": 50, "dynamic": False},
    "critic": {"size": 7, "tokens": 70, "dynamic": True},
}


def settings_of(
    role: str, options: Mapping[str, Any], temperature: float, values: Tensor
) -> tuple[Any, Tensor]:
    """Return the settings of a role's model, and the values that it gives."""
    own = options[role]
    found = {
        "micro_batch_size": own["size"],
        "max_token_len": own["tokens"],
        "use_dynamic_bsz": own["dynamic"],
    }
    return (found if role == "critic" else {**found, "temperature": temperature}), values


def _answers(values: Tensor, sizes: Sequence[tuple[int, int]], most: int | None) -> list[Tensor]:
    """Return the values of each row's answer, in any micro-batches."""
    return [row[:answer] for row, (_, answer) in zip(values, sizes, strict=True)]


def _rows_of_a_worker(case: Numbers) -> Iterable[Arguments]:
    """Rows of unequal lengths, in micro-batches of two and in those of at most so many tokens."""
    sizes = [(3, 4), (5, 7), (1, 1), (4, 6), (2, 2), (5, 1), (1, 7)]
    sizes = [(3, 4)] * 6 if case.tidy else sizes
    values = torch.randn(len(sizes), max(answer for _, answer in sizes), generator=case.generator())
    for most in (None, 12, 20, 99):
        yield values, sizes, most


WORKER_PART_FUNCTIONS = (
    Plain(
        name="MLP in tiles",
        law="an MLP in tiles",
        suspects="gradients of the last tile alone, of the last micro-batch alone, tiles along another dimension",
        cases=_mlps,
        right=tiled_mlp,
        bound=BOUND,
    ),
    Plain(
        name="fused head",
        law="a head that gives log-probabilities and entropies",
        suspects="labels shifted twice or not at all, logits without temperature",
        cases=_heads,
        right=fused_head,
        bound=BOUND,
    ),
    Plain(
        name="generated rows",
        law="rows of a rollout that generates",
        suspects="positions that start again, padding that is shown, options of validation in training",
        cases=_generated,
        right=generated_rows,
    ),
    Plain(
        name="flat places",
        law="places of a shard in the whole",
        suspects="strides of the shard, an offset along another dimension",
        cases=_blocks,
        right=flat_places,
    ),
    Plain(
        name="built optimizer",
        law="optimizers of options",
        suspects="an option that is left out, one that is not overruled",
        cases=_steps,
        right=optimized,
        bound=FLOAT32,
    ),
    Plain(
        name="precision",
        law="precisions by name",
        suspects="half precision in one of its two forms for the other",
        cases=lambda case: [(name,) for name in PRECISIONS],
        right=lambda name: PRECISIONS[name],
    ),
    Plain(
        name="random masks",
        law="masks that are drawn",
        suspects="padding within a block, a bound that is never reached",
        cases=lambda case: [(10, 0.7, 0.3, 0.0), (12, 0.5, 0.5, 0.25), (8, 1.0, 0.0, 0.5)],
        right=masked,
    ),
    Plain(
        name="size of a model",
        law="numbers of parameters",
        suspects="another unit",
        cases=lambda case: [
            (shapes, scale)
            for shapes in ([(3, 4), (4,)], [(50, 40), (7,)], [(1500, 1000), (1,)])
            for scale in ("auto", "K", "M", "B", "")
        ],
        right=size_of,
        bound=1e-12,
    ),
    Plain(
        name="put back",
        law="values put back among padding",
        suspects="rows for places, dimensions after the first two",
        cases=lambda case: [
            (torch.randn(5, *more, generator=case.generator()), torch.tensor([0, 1, 5, 6, 7]), 2, 4)
            for more in ((), (3,), (2, 3))
        ],
        right=put_back,
    ),
    *(
        Plain(
            name=f"{what} of rows",
            law=f"{what} of a worker's rows",
            suspects="rows, or the mask of rows, that are not put back in order after micro-batches by tokens",
            cases=_rows_of_a_worker,
            right=_answers,
        )
        for what in ("values", "log-probabilities", "entropies")
    ),
    Plain(
        name="settings of models",
        law="settings of actor, reference and critic",
        suspects="settings of another model, a temperature that is left out",
        cases=lambda case: [
            (role, SETTINGS, 0.75, torch.randn(3, 4, generator=case.generator())) for role in SETTINGS
        ],
        right=settings_of,
    ),
    Plain(
        name="logged rate",
        law="rates that are logged",
        suspects="the rate of the next step",
        cases=lambda case: [(role, [0.5, 0.25, 0.125]) for role in ("actor", "critic")],
        right=lambda role, rates: rates[0],
    ),
    Plain(
        name="collated rows",
        law="rows of supervised data",
        suspects="rows in another order, a column of another",
        cases=_collated,
        right=collated_rows,
    ),
)
add_laws(WORKER_PARTS, WORKER_PART_FUNCTIONS)
