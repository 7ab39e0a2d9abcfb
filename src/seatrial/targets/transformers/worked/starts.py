"""Fresh models: mean and spread of each parameter of a family on record, over layers and seeds, and types of weights.

`python -m seatrial.targets.transformers.worked.starts` prints what the installed release gives, as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.families import CausalFamily, families_of_release
from seatrial.targets.transformers.family_table import FAMILIES

RECORD = Path(__file__).with_name("recorded_starts.json")
SEEDS = (0, 1, 2)
SMALL: Mapping[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
NOISE = 7.0
"""Allowed distance of a mean or a spread, in standard errors of a normal distribution."""
ROUNDED = 1e-4
"""What a recorded number may be off, relative to its size."""

Start = tuple[float, float]
"""Mean and standard deviation of a parameter's values."""


@cache
def record() -> Mapping[str, tuple[str, Mapping[str, Start]]]:
    """Return by family the oldest release with these starts, and each parameter's."""
    found: Mapping[str, tuple[str, Mapping[str, Start]]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def starts_of(family: str) -> dict[str, tuple[int, Start]]:
    """Return how many values a family draws for each parameter, and its start; those of all layers and experts are one.

    Raises:
        Gone: the release has no such family.
    """
    import transformers

    one = type("OfStarts", (CausalFamily,), {"family": family})()
    auto: Any = transformers.AutoModelForCausalLM
    values: dict[str, list[torch.Tensor]] = {}
    for seed in SEEDS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = auto.from_config(one._config(), attn_implementation="eager")
        for name, value in model.named_parameters():
            values.setdefault(re.sub(r"\.\d+(?=\.|$)", ".*", name), []).append(
                value.detach().double().flatten()
            )
    found = {name: torch.cat(drawn) for name, drawn in values.items()}
    return {
        name: (drawn.numel(), (float(drawn.mean()), float(drawn.std(correction=0))))
        for name, drawn in found.items()
    }


def _unlike(family: str, function: Any) -> list[str]:
    """Return the parameters that start elsewhere than on record, of those that the release calls so."""
    found, (_, due) = starts_of(family), record()[family]
    common = [name for name in due if name in found]
    if 2 * len(common) < len(due):
        raise NotServed(f"most parameters of {family} have other names in this release")
    wrong = []
    for name in common:
        (count, (mean, spread)), (due_mean, due_spread) = found[name], due[name]
        error = NOISE * due_spread / count**0.5 + ROUNDED * max(abs(due_mean), due_spread, ROUNDED)
        if not abs(mean - due_mean) <= error or not abs(spread - due_spread) <= error:
            wrong.append(f"{name}: {mean:.4g} +- {spread:.4g}, right is {due_mean:.4g} +- {due_spread:.4g}")
    return wrong


def _types(model_class: Any) -> list[list[str]]:
    """Return the type of the weights of a fresh model and that of its configuration, by the type that is given."""
    import transformers

    found = []
    for given in ({"dtype": torch.bfloat16}, {"dtype": "float16"}, {}):
        config = transformers.LlamaConfig(**SMALL, dtype="float32")
        model = model_class.from_config(config, **given)
        found.append([str(model.dtype), str(model.config.dtype)])
    return found


PLACE = "transformers:AutoModelForCausalLM"
# Source: what release 5.24 draws; the release that a record begins with draws the same.
START_ROWS: Sequence[Row] = (
    *(
        Row("models", PLACE, f"starting values of {family}", partial(_unlike, family), [], since=since)
        for family, (since, _) in record().items()
    ),
    Row(
        "models",
        PLACE,
        "types of a fresh model",
        _types,
        [[f"torch.{name}"] * 2 for name in ("bfloat16", "float16", "float32")],
        since="5.12.1",
    ),
)


class OfStarts(Worked):
    """Fresh models of families; see `contracts.worked`."""

    package = "transformers"
    worked_rows = START_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-starts": OfStarts}


def main() -> None:
    """Print the starts of all families of the installed release."""
    found = {}
    for family in sorted(set(families_of_release()) & set(FAMILIES)):
        try:
            found[family] = starts_of(family)
        except Exception as error:  # noqa: BLE001  not on record then
            print(family, repr(error)[:200], flush=True)
    lines = [
        f"{json.dumps(family)}: "
        + json.dumps(
            [
                release("transformers"),
                {name: [float(f"{one:.5g}") for one in start] for name, (_, start) in own.items()},
            ]
        )
        for family, own in found.items()
    ]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
