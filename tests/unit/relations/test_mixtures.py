"""R31.mixtures: a plain mixture of adapters holds, and each fault breaks its law."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.utilities.mixtures import MIXTURES, VOCAB, Mixed, Mixing
from seatrial.verdict import Outcome

WIDTH, NAMES = 8, ("first", "second")


def drawn(*shape: int, seed: int) -> Tensor:
    """Return random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(ids_BS: Tensor, added: Mapping[str, Callable[[Tensor], Tensor]]) -> tuple[Tensor, Tensor]:
    """Return logits and hidden state of two layers."""
    hidden_BSD = drawn(VOCAB, WIDTH, seed=1)[ids_BS]
    for number, name in enumerate(NAMES):
        made_BSD = hidden_BSD @ drawn(WIDTH, WIDTH, seed=2 + number)
        hidden_BSD = (made_BSD + (added[name](hidden_BSD) if name in added else 0)).tanh()
    return hidden_BSD @ drawn(WIDTH, VOCAB, seed=9), hidden_BSD


def mixed(options: Mixing, *, fault: str = "") -> Mixed:
    """Return a mixture, loop by loop, with a fault in what a law is about."""
    sizes = [WIDTH] * options.depth + [3 * (len(NAMES) if options.by_layer else 1)]
    classifier = [
        (drawn(out, size, seed=20 + size + out), drawn(out, seed=30 + out)) for size, out in pairwise(sizes)
    ]
    factors = {
        name: [(drawn(2, WIDTH, seed=40 + n), drawn(WIDTH, 2, seed=50 + n), 1.0 + n) for n in range(3)]
        for name in NAMES
    }
    last: list[Tensor] = []

    def weights(ids_BS: Tensor) -> Tensor:
        hidden = plain(ids_BS, {})[1]
        for number, (weight, bias) in enumerate(classifier):
            hidden = torch.nn.functional.linear(hidden if number == 0 else hidden.clamp(min=0), weight, bias)
        found = hidden.reshape(*ids_BS.shape, -1, 3)
        if options.softmax:
            found = torch.softmax(found / options.temperature, 1 if fault == "outputs" else -1)
        return found.repeat(1, 1, 1 if options.by_layer else len(NAMES), 1)

    def outputs(ids_BS: Tensor) -> Tensor:
        last[:] = [weights(ids_BS)]

        def adds(number: int, name: str) -> Callable[[Tensor], Tensor]:
            chosen = last[0][:, :, number].clone()
            if options.largest is not None:
                left = chosen.argsort(-1)[..., : -options.largest]
                chosen = chosen.scatter(-1, left, -torch.inf if options.softmax_of_largest else 0.0)
            if options.softmax_of_largest:
                chosen = chosen.softmax(-1)
            return lambda x: sum(
                (
                    chosen[..., n : n + 1] * (options.factor * scale) * (x @ a.T @ b.T)
                    for n, (a, b, scale) in enumerate(factors[name])
                ),
                torch.zeros(()),
            )

        return plain(ids_BS, {name: adds(number, name) for number, name in enumerate(NAMES)})[0]

    def generated(ids_BS: Tensor, number: int) -> tuple[Tensor, Tensor]:
        logits = []
        for _ in range(number):
            logits.append(outputs(ids_BS)[:, -1])
            ids_BS = torch.cat([ids_BS, logits[-1].argmax(-1, keepdim=True)], dim=1)
        return torch.stack(logits, dim=1) + (fault == "generated"), ids_BS

    def other() -> Mixed:
        if fault == "saved and loaded":
            classifier[0] = (-classifier[0][0], classifier[0][1])
        return mixed(options)._replace(outputs=outputs)

    return Mixed(
        outputs=outputs,
        plain=plain,
        classifier=list(classifier),
        factors=factors,
        weights=lambda: None if fault == "weights that are given" else last[0],
        generated=generated,
        disabled=lambda ids: outputs(ids) if fault == "disabled, and then not" else plain(ids, {})[0],
        loaded=other,
        trains=frozenset(
            ["classifier", *(["adapters"] if options.adapters_train or fault == "what trains" else [])]
        ),
    )


class Stack:
    """A stack that has nothing but this."""

    def __init__(self, fault: str = "") -> None:
        """Make it with a fault in one law's subject."""
        self.utilities: Mapping[str, Any] = {"mixed adapters": lambda options: mixed(options, fault=fault)}


def test_a_plain_mixture_holds() -> None:
    verdict = run_relation(MIXTURES, Stack(), seeds=[0, 1])
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize("law", [law.name for law in MIXTURES.laws])
def test_each_law_breaks(law: str) -> None:
    verdict = run_relation(MIXTURES, Stack(law), seeds=[0])
    assert verdict.outcome is Outcome.FAIL
    assert f"law '{law}' broken" in verdict.reason
