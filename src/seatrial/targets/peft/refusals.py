"""Adapters that PEFT cannot make as its options say, and those next to them; see `contracts.refusals`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.refusals import Trial
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.peft.bases import base

INVOKED = 5
"""The id that invokes an activated adapter."""
IDS_BS = ((7, INVOKED, 9, 11), (3, 4, INVOKED, 8))
FIRST: Mapping[str, Mapping[str, Any]] = {
    "LoraConfig": {"r": 4},
    "LoHaConfig": {"r": 4},
    "LoKrConfig": {"r": 4},
    "OFTConfig": {"r": 0, "oft_block_size": 8},
    "IA3Config": {"feedforward_modules": []},
}
"""Types with options besides their layers."""
VARIANTS: Mapping[str, Callable[[Any], Any]] = {
    "use_dora": lambda peft: True,
    "alora_invocation_tokens": lambda peft: [INVOKED],
    "use_bdlora": lambda peft: peft.BdLoraConfig(target_modules_bd_a=["q_proj"], nblocks=2),
    "init_lora_weights": lambda peft: "mica",
}
"""Variants of LoRA by the option that turns one on."""


class PeftRefusals(KnowsFailures):
    """Layers that no name matches, in first and second adapters, and two variants of LoRA at once."""

    thorough = True

    def trials(self) -> Sequence[Trial]:
        return [*_unmatched(), *_paired()]


def _unmatched() -> Iterator[Trial]:
    """Yield adapters on layers that are there, and on layers that are not, added first and second."""
    import peft

    for kind, options in FIRST.items():

        def made(targets: str, kind: str = kind, options: Mapping[str, Any] = options) -> Any:
            config: Any = getattr(peft, kind)
            return config(target_modules=[targets], **options)

        def first(targets: str, made: Callable[[str], Any] = made) -> Any:
            return peft.get_peft_model(base("linear", torch.float32), made(targets))

        def second(targets: str, made: Callable[[str], Any] = made, first: Any = first) -> None:
            first("q_proj").add_adapter("second", made(targets))

        for what, call in (("the only adapter", first), ("a second adapter", second)):
            for targets, says in (("v_proj", None), ("vproj", "")):
                yield Trial(
                    what=f"{kind}: {what} on {targets}",
                    call=lambda call=call, targets=targets: call(targets),  # type: ignore[misc]
                    says=says,
                )


def _paired() -> Iterator[Trial]:
    """Yield each variant of LoRA, which is accepted, and two at once, of which none may be dropped without a word."""
    import peft

    known = {item.name for item in dataclasses.fields(peft.LoraConfig)}
    alone: dict[str, Mapping[str, Any]] = {}
    for name, value in VARIANTS.items():
        if name not in known:
            continue
        try:
            options = {name: value(peft)}
            _digest(options)
        except (AttributeError, TypeError, ValueError, KeyError):  # a release without this variant
            continue
        alone[name] = options
        yield Trial(what=f"LoRA with {name}", call=lambda options=options: _digest(options), says=None)  # type: ignore[misc]
    for one, other in itertools.combinations(alone, 2):
        yield Trial(
            what=f"LoRA with {one} and {other}, one of which is dropped",
            call=lambda one=one, other=other: _refuse_both(alone[one], alone[other]),  # type: ignore[misc]
            says="",
        )


def _refuse_both(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Make an adapter of two variants, and raise where neither of them alone is the same.

    Raises:
        ValueError: both have an effect, or PEFT refuses them.
    """
    found = _digest({**one, **other})
    for single in (one, other):
        names, logits = _digest(single)
        if found[0] == names and torch.equal(found[1], logits):
            return
    raise ValueError("both have an effect")


def _digest(options: Mapping[str, Any]) -> tuple[list[tuple[str, tuple[int, ...]]], torch.Tensor]:
    """Return what trains of an adapter, and logits with weights that depend on names and shapes alone."""
    import peft

    config: Any = peft.LoraConfig
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = peft.get_peft_model(
            base("linear", torch.float32),
            config(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", **options),
        )
    model.eval()
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    with torch.no_grad():
        for name, value in trained:
            generator = torch.Generator().manual_seed(len(name) + value.numel())
            value.add_(torch.randn(value.shape, generator=generator) * 0.3)
        ids_BS = torch.tensor(IDS_BS)
        logits = model(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), use_cache=False).logits
    return [(name, tuple(value.shape)) for name, value in trained], logits


ADAPTERS: dict[str, type[Any]] = {"refusals": PeftRefusals}
