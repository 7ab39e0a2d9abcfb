"""Low-rank products that tasks mix (Poly), or that prototypes of experts choose for each token (Arrow)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.adapter_parts import Use
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.generated import generated
from seatrial.targets.peft.parts.shared import drawn, greedy, logits_of, redraw, reloaded, with_added

IDS_BS = ((5, 9, 7, 30), (8, 4, 21, 3), (13, 3, 40, 17))
TASKS = (2, 0, 1)
"""The task of each row."""
RANK, SKILLS = 3, 3
LAYERS = ["q_proj", "down_proj"]
NEW_IDS = 3


def _plain() -> Any:
    return base("linear", torch.float32).eval()


def _ids() -> Tensor:
    return torch.tensor(IDS_BS)


def _poly(splits: int, seed: int, **options: Any) -> Any:
    import peft

    config = peft.PolyConfig(
        task_type="CAUSAL_LM",
        r=RANK,
        n_tasks=3,
        n_skills=SKILLS,
        n_splits=splits,
        target_modules=LAYERS,
        **options,
    )
    model = peft.get_peft_model(_plain(), config)
    redraw(model, "poly_", seed)
    return model.eval()


def _poly_right(model: Any, ids_BS: Tensor, tasks_B: Tensor) -> Tensor:
    """Return logits by Ponti et al. (2022), equation 1, and Caccia et al. (2022) for splits of the inputs."""

    def adds(layer: Any) -> Callable[[Tensor], Tensor]:
        low, high = layer.poly_lora_A["default"].detach(), layer.poly_lora_B["default"].detach()
        splits = low.shape[0]
        shares = layer.poly_router["default"].module_logits.detach()[tasks_B].sigmoid()
        shares_BQK = shares.view(len(tasks_B), splits, SKILLS)
        shares_BQK = shares_BQK / shares_BQK.sum(-1, keepdim=True)

        def add(x_BSD: Tensor) -> Tensor:
            rows = []
            for x_SD, shares_QK in zip(x_BSD, shares_BQK, strict=True):
                parts = x_SD.chunk(splits, dim=-1)
                inner_SR = sum(
                    shares_QK[q, k] * parts[q] @ low[q, k] for q in range(splits) for k in range(SKILLS)
                )
                outer = [
                    sum((shares_QK[q, k] * inner_SR @ high[q, k] for k in range(SKILLS)), torch.zeros(()))
                    for q in range(splits)
                ]
                rows.append(torch.cat(outer, dim=-1) / RANK)
            return torch.stack(rows)

        return add

    layers = {
        name: one for name, one in model.base_model.model.named_modules() if hasattr(one, "poly_lora_A")
    }
    return with_added(_plain(), ids_BS, {name: adds(layer) for name, layer in layers.items()})


def by_tasks(seed: int) -> Sequence[Use]:
    """Return uses of Poly."""

    def outputs(splits: int) -> tuple[Any, Any]:
        model, tasks_B = _poly(splits, seed), torch.tensor(TASKS)
        return logits_of(model, _ids(), task_ids=tasks_B), _poly_right(model, _ids(), tasks_B)

    def again() -> tuple[Any, Any]:
        model = _poly(2, seed)
        logits_of(model, _ids(), task_ids=torch.tensor([0, 1, 2]))
        tasks_B = torch.tensor([1, 1, 1])
        return logits_of(model, _ids(), task_ids=tasks_B), _poly_right(model, _ids(), tasks_B)

    def loaded() -> tuple[Any, Any]:
        model, tasks_B = _poly(2, seed), torch.tensor(TASKS)
        right = _poly_right(model, _ids(), tasks_B)
        return logits_of(reloaded(model, _plain()), _ids(), task_ids=tasks_B), right

    def disabled() -> tuple[Any, Any]:
        model, tasks_B = _poly(1, seed), torch.tensor(TASKS)
        with model.disable_adapter():
            off = logits_of(model, _ids(), task_ids=tasks_B)
        after = logits_of(model, _ids(), task_ids=tasks_B)
        return [off, after], [logits_of(_plain(), _ids()), _poly_right(model, _ids(), tasks_B)]

    def made() -> tuple[Any, Any]:
        model, tasks_B = _poly(2, seed), torch.tensor(TASKS)
        ids_BS = _ids()
        logits_BNV, _ = generated(model, ids_BS, torch.ones_like(ids_BS), NEW_IDS, task_ids=tasks_B)
        return logits_BNV, greedy(model, ids_BS, NEW_IDS, task_ids=tasks_B)

    def begins() -> tuple[Any, Any]:
        import peft

        model = peft.get_peft_model(
            _plain(), peft.PolyConfig(task_type="CAUSAL_LM", r=2, n_tasks=3, target_modules=LAYERS)
        )
        found = logits_of(model, _ids(), task_ids=torch.tensor(TASKS))
        return found, logits_of(_plain(), _ids())

    def second() -> tuple[Any, Any]:
        model = _poly(1, seed)
        right = _poly_right(model, _ids(), torch.tensor(TASKS))
        model.add_adapter("second", _poly(2, seed).peft_config["default"])
        found = [logits_of(model, _ids(), task_ids=torch.tensor(TASKS))]
        model.set_adapter("second")
        logits_of(model, _ids(), task_ids=torch.tensor(TASKS))
        model.set_adapter("default")
        return [*found, logits_of(model, _ids(), task_ids=torch.tensor(TASKS))], [right, right]

    uses: list[Use] = [(f"{splits} splits", lambda splits=splits: outputs(splits)) for splits in (1, 2, 4)]  # type: ignore[misc]
    return [
        *uses,
        ("other tasks in a second pass", again),
        ("saved and loaded", loaded),
        ("disabled, and then not", disabled),
        ("generated", made),
        ("before training", begins),
        ("next to a second adapter", second),
    ]


def _expert(seed: int, alpha: int, folder: Path) -> str:
    """Save an adapter whose changes each have one large direction; return its folder."""
    import peft

    config = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=alpha, target_modules=LAYERS)
    model = peft.get_peft_model(_plain(), config)
    redraw(model, "lora_", seed, 0.05)
    with torch.no_grad():
        for number, (name, value) in enumerate(model.named_parameters()):
            if "lora_" in name:
                value.select(0 if "lora_A" in name else 1, 1).add_(
                    drawn(seed + 100 + number, value.shape[1] if "lora_A" in name else value.shape[0])
                )
    model.save_pretrained(str(folder))
    return str(folder)


ALPHAS = (6, 3, 9, 4, 5)


def _arrow(seed: int, general: int, **options: Any) -> tuple[Any, list[str]]:
    create = find_name("peft", ["peft:create_arrow_model", "peft.tuners.lora:create_arrow_model"])
    config = find_name("peft", ["peft:ArrowConfig"])
    folder = Path(new_folder())
    paths = [_expert(seed + 20 * n, alpha, folder / f"task{n}") for n, alpha in enumerate(ALPHAS[:4])]
    others = [_expert(seed + 500 + n, 6, folder / f"general{n}") for n in range(general)]
    model = create(
        base_model=_plain(),
        task_specific_adapter_paths=paths[:3],
        general_adapter_paths=others,
        arrow_config=config(use_gks=bool(general), rng_seed=3, **options),
    )
    return model, [*paths, *others]


def _factors(path: str) -> dict[str, tuple[Tensor, Tensor]]:
    from safetensors.torch import load_file

    tensors = load_file(f"{path}/adapter_model.safetensors")
    names = {name.rpartition(".lora_")[0] for name in tensors}
    return {
        name.removeprefix("base_model.model."): (
            tensors[f"{name}.lora_A.weight"],
            tensors[f"{name}.lora_B.weight"],
        )
        for name in sorted(names)
    }


def _arrow_right(paths: Sequence[str], general: Sequence[str], top: int, temperature: float) -> Tensor:
    """Return logits by Ostapenko et al. (2024), and with general knowledge subtracted by its authors' definition."""
    experts, others = [_factors(path) for path in paths], [_factors(path) for path in general]

    def adds(layer: str) -> Callable[[Tensor], Tensor]:
        lows, highs = ([own[layer][part] for own in experts] for part in (0, 1))
        if others:
            lows = [one - torch.stack([own[layer][0] for own in others]).mean(0) for one in lows]
            highs = [one - torch.stack([own[layer][1] for own in others]).mean(0) for one in highs]
        directions = torch.stack(
            [
                torch.linalg.svd(high.double() @ low.double()).Vh[0]
                for low, high in zip(lows, highs, strict=True)
            ]
        ).float()

        def add(x_BSD: Tensor) -> Tensor:
            near_BSE = (x_BSD @ directions.T).abs()
            least = near_BSE.topk(top, dim=-1).values[..., -1:]
            shares_BSE = (near_BSE / temperature).masked_fill(near_BSE < least, -torch.inf).softmax(-1)
            return sum(
                (
                    shares_BSE[..., n, None] * (alpha / RANK) * (x_BSD @ low.T @ high.T)
                    for n, (low, high, alpha) in enumerate(zip(lows, highs, ALPHAS, strict=False))
                ),
                torch.zeros(()),
            )

        return add

    return with_added(_plain(), _ids(), {layer: adds(layer) for layer in experts[0]})


def by_prototypes(seed: int) -> Sequence[Use]:
    """Return uses of Arrow."""

    def outputs(top: int, temperature: float, general: int) -> tuple[Any, Any]:
        model, paths = _arrow(seed, general, top_k=top, router_temperature=temperature)
        found = [logits_of(model, _ids()), logits_of(model, _ids())]
        right = _arrow_right(paths[:3], paths[4:], top, temperature)
        return found, [right, right]

    def another(general: int) -> tuple[Any, Any]:
        model, paths = _arrow(seed, general, top_k=2)
        logits_of(model, _ids())
        model.load_adapter(paths[3], "task_3")
        found = [logits_of(model, _ids()), logits_of(model, _ids())]
        right = _arrow_right(paths[:4], paths[4:], 2, 1.0)
        return found, [right, right]

    def disabled() -> tuple[Any, Any]:
        model, paths = _arrow(seed, 0, top_k=2)
        with model.disable_adapter():
            off = logits_of(model, _ids())
        right = [logits_of(_plain(), _ids()), _arrow_right(paths[:3], (), 2, 1.0)]
        return [off, logits_of(model, _ids())], right

    def one_alone() -> tuple[Any, Any]:
        import peft

        model, paths = _arrow(seed, 0, top_k=2)
        logits_of(model, _ids())
        model.set_adapter("task_1")
        right = logits_of(peft.PeftModel.from_pretrained(_plain(), paths[1]), _ids())
        return logits_of(model, _ids()), right

    def made() -> tuple[Any, Any]:
        model, _ = _arrow(seed, 0, top_k=2)
        ids_BS = _ids()
        logits_BNV, _ = generated(model, ids_BS, torch.ones_like(ids_BS), NEW_IDS)
        return logits_BNV, greedy(model, ids_BS, NEW_IDS)

    uses: list[Use] = [
        (
            f"the nearest {top} of three, temperature {temperature}, {general} general ones",
            lambda top=top, temperature=temperature, general=general: outputs(top, temperature, general),  # type: ignore[misc]
        )
        for top, temperature, general in itertools.product((1, 2, 3), (1.0, 0.3), (0, 2))
    ]
    return [
        *uses,
        ("an expert that is added", lambda: another(0)),
        ("an expert that is added, general ones subtracted", lambda: another(2)),
        ("disabled, and then not", disabled),
        ("one expert alone", one_alone),
        ("generated", made),
    ]
