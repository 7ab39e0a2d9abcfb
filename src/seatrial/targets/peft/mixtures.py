"""X-LoRA: adapters that a classifier of each token mixes; see `relations.laws.utilities.mixtures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.mixtures import Mixed, Mixing
from seatrial.targets.common.known import KnownFailure, KnowsFailures, since
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.generated import generated

ADAPTERS_MIXED = (
    (4, 6, ["q_proj", "up_proj"]),
    (2, 5, ["q_proj", "up_proj"]),
    (4, 12, ["q_proj", "up_proj"]),
)
"""Rank, alpha and layers of each adapter."""


def _plain() -> Any:
    model = base("linear", torch.float32)
    model.config.use_cache = False
    return model


def _saved(folder: Path) -> dict[str, str]:
    """Return the folders of adapters with drawn factors, by PEFT's names."""
    import peft

    paths = {}
    for number, (rank, alpha, layers) in enumerate(ADAPTERS_MIXED):
        torch.manual_seed(number)
        config = peft.LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=layers, init_lora_weights=False, task_type="CAUSAL_LM"
        )
        paths[str(number)] = str(folder / str(number))
        peft.get_peft_model(_plain(), config).save_pretrained(paths[str(number)])
    return paths


def mixed(options: Mixing) -> Mixed:
    """Return a model of three adapters, mixed as the options say."""
    import peft

    find_name("peft", ["peft:XLoraConfig"])
    folder = Path(new_folder())
    with torch.random.fork_rng(devices=[]):
        config = peft.XLoraConfig(
            task_type="CAUSAL_LM",
            hidden_size=32,
            adapters=_saved(folder),
            enable_softmax=options.softmax,
            enable_softmax_topk=options.softmax_of_largest,
            layerwise_scalings=options.by_layer,
            xlora_depth=options.depth,
            xlora_size=16,
            xlora_dropout_p=0.0,
            use_trainable_adapters=options.adapters_train,
            softmax_temperature=options.temperature,
            top_k_lora=options.largest,
            global_scaling_weight=options.factor,
        )
        torch.manual_seed(5)
        model = peft.get_peft_model(_plain(), config)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "classifier" in name:
                    value.copy_(torch.randn_like(value))
    return _mixed(model, folder)


def _mixed(model: Any, folder: Path) -> Mixed:
    model.eval()
    inner = model.base_model
    layers = {
        name: layer for name, layer in inner.lora_model.model.named_modules() if hasattr(layer, "lora_A")
    }

    def outputs(ids_BS: Tensor) -> Tensor:
        with torch.no_grad():
            logits_BSV: Tensor = model(input_ids=ids_BS).logits
        return logits_BSV

    def disabled(ids_BS: Tensor) -> Tensor:
        with model.disable_adapter():
            return outputs(ids_BS)

    def loaded() -> Mixed:
        import peft

        model.save_pretrained(str(folder / "mixed"))
        return _mixed(peft.PeftModel.from_pretrained(_plain(), str(folder / "mixed")), folder)

    outputs(torch.tensor([[3, 4, 5]]))
    trains = [name for name, value in model.named_parameters() if value.requires_grad]
    linear = [layer for layer in inner.internal_xlora_classifier.layers if isinstance(layer, torch.nn.Linear)]
    return Mixed(
        outputs=outputs,
        plain=_added,
        classifier=[(layer.weight.detach(), layer.bias.detach()) for layer in linear],
        factors={
            name: [
                (layer.lora_A[key].weight.detach(), layer.lora_B[key].weight.detach(), alpha / rank)
                for key, (rank, alpha, _) in zip(layer.lora_A, ADAPTERS_MIXED, strict=True)
            ]
            for name, layer in layers.items()
        },
        weights=model.get_latest_scalings,
        generated=lambda ids_BS, number: generated(model, ids_BS, torch.ones_like(ids_BS), number),
        disabled=disabled,
        loaded=loaded,
        trains=frozenset(
            "adapters" if ".lora_A" in name or ".lora_B" in name else "classifier" for name in trains
        ),
    )


def _added(ids_BS: Tensor, added: Mapping[str, Callable[[Tensor], Tensor]]) -> tuple[Tensor, Tensor]:
    """Return logits and the last hidden state of the base, with what is added to its layers."""
    model = _plain()
    for name, add in added.items():
        model.get_submodule(name).register_forward_hook(
            lambda layer, given, made, add=add: made + add(given[0])
        )
    with torch.no_grad():
        found = model(input_ids=ids_BS, output_hidden_states=True)
    return found.logits, found.hidden_states[-1]


class Mixtures(KnowsFailures):
    """X-LoRA."""

    thorough = True
    known_failures = (
        KnownFailure(
            "a file has not those layers of the classifier whose number is the name of an adapter",
            finding="PEFT: the classifier of X-LoRA that is saved",
            releases=since("peft", "0.21"),
        ).of("R31.mixtures/saved and loaded"),
    )

    def __init__(self) -> None:
        """Find the type."""
        find_name("peft", ["peft:XLoraConfig"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"mixed adapters": mixed}


ADAPTERS: dict[str, type[Any]] = {"xlora": Mixtures}
