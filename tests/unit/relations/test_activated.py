"""R31.activated: an adapter that ids activate holds, and each fault breaks its law."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.utilities.activated import ACTIVATED, INVOKED, Activated
from seatrial.verdict import Outcome

WIDTH, VOCAB, LAYERS = 8, 16, ("one", "two")


def drawn(*shape: int, seed: int) -> Tensor:
    """Return random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(ids_BS: Tensor, mask_BS: Tensor, added: Mapping[str, Callable[[Tensor], Tensor]]) -> Tensor:
    """Return the logits of two layers, each of which sees the mean of what comes before."""
    hidden_BSD = drawn(VOCAB, WIDTH, seed=1)[ids_BS]
    for number, name in enumerate(LAYERS):
        kept_BS1 = mask_BS[..., None].float()
        mean_BSD = (hidden_BSD * kept_BS1).cumsum(1) / kept_BS1.cumsum(1).clamp(min=1)
        made_BSD = mean_BSD @ drawn(WIDTH, WIDTH, seed=2 + number)
        hidden_BSD = (made_BSD + (added[name](mean_BSD) if name in added else 0)).tanh()
    return hidden_BSD @ drawn(WIDTH, VOCAB, seed=9)


def start(row: Sequence[int], invoked: Sequence[int] | None, first: bool) -> int:
    """Return where an adapter begins, by a search from the end; or from the beginning, which is a fault."""
    if invoked is None:
        return 0
    text, part = "".join(map(chr, row)), "".join(map(chr, invoked))
    found = text.find(part) if first else text.rfind(part)
    return len(row) if found < 0 else found


def made(fault: str = "") -> Activated:
    """Return it, row by row, with a fault in what a law is about."""
    factors = {
        name: {
            layer: (drawn(2, WIDTH, seed=10 * n + m), drawn(WIDTH, 2, seed=90 + 10 * n + m), 1.5)
            for m, layer in enumerate(LAYERS)
        }
        for n, name in enumerate(INVOKED)
    }

    def row(
        ids_S: Tensor, mask_S: Tensor, name: str | None, own: Any, known: int | None, first: bool
    ) -> Tensor:
        if name is None:
            return plain(ids_S[None], mask_S[None], {})
        place = start(ids_S.tolist()[:known], INVOKED[name], first)
        if known is not None and place >= known:
            place = len(ids_S)
        active_S1 = (torch.arange(len(ids_S)) >= place)[:, None]
        return plain(
            ids_S[None],
            mask_S[None],
            {
                layer: lambda x, f=f: active_S1 * (x @ f[0].T @ f[1].T * f[2])
                for layer, f in own[name].items()
            },
        )

    def outputs(
        ids_BS: Tensor,
        mask_BS: Tensor,
        names: Sequence[str | None] | None,
        own: Any = factors,
        known: int | None = None,
    ) -> Tensor:
        given = names or ["first"] * len(ids_BS)
        if fault == "a batch of several adapters" and names:
            given = ["first"] * len(ids_BS)
        first = fault == "outputs" or (fault == "padded rows" and not mask_BS.all())
        if first:
            mask_BS = mask_BS.roll(1)
        return torch.cat([row(*one, own, known, first) for one in zip(ids_BS, mask_BS, given, strict=True)])

    def generated(ids_BS: Tensor, mask_BS: Tensor, number: int, cache: bool) -> tuple[Tensor, Tensor]:
        known, logits = ids_BS.shape[1], []
        for _ in range(number):
            logits.append(outputs(ids_BS, torch.ones_like(ids_BS), None, known=known)[:, -1])
            ids_BS = torch.cat([ids_BS, logits[-1].argmax(-1, keepdim=True)], dim=1)
        wrong = fault == ("generated" if cache else "generated without a cache")
        return torch.stack(logits, dim=1) + wrong, ids_BS

    def gradients(ids_BS: Tensor, weights_BSV: Tensor, again: bool) -> dict[str, Any]:
        own = {
            layer: tuple(one.clone().requires_grad_() for one in f[:2]) + f[2:]
            for layer, f in factors["first"].items()
        }
        (outputs(ids_BS, torch.ones_like(ids_BS), None, {"first": own}) * weights_BSV).sum().backward()
        wrong = fault == ("gradients, activations computed again" if again else "gradients")
        return {layer: (None if wrong else f[0].grad, f[1].grad) for layer, f in own.items()}

    return Activated(
        outputs=outputs,
        plain=plain,
        factors=factors,
        generated=generated,
        gradients=gradients,
        disabled=lambda ids, mask: (
            outputs(ids, mask, None) if fault == "disabled, and then not" else plain(ids, mask, {})
        ),
        loaded=lambda: (
            lambda ids, mask: outputs(
                ids, mask, ["always"] * len(ids) if fault == "saved and loaded" else None
            )
        ),
    )


class Stack:
    """A stack that has nothing but this."""

    def __init__(self, fault: str = "") -> None:
        """Make it with a fault in one law's subject."""
        self.utilities: Mapping[str, Any] = {"activated adapters": lambda: made(fault)}


def test_a_plain_one_holds() -> None:
    verdict = run_relation(ACTIVATED, Stack(), seeds=[0, 1])
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize("law", [law.name for law in ACTIVATED.laws])
def test_each_law_breaks(law: str) -> None:
    verdict = run_relation(ACTIVATED, Stack(law), seeds=[0])
    assert verdict.outcome is Outcome.FAIL
    assert f"law '{law}' broken" in verdict.reason
