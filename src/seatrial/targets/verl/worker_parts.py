"""verl's parts of workers: MLPs in tiles, fused heads, generation by Transformers, shards and optimizers."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.worker_parts import END, PAD, SAMPLED, VALIDATED
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, release
from seatrial.targets.verl.adapted import Adapted, found
from seatrial.targets.verl.places import in_float32, one_process
from seatrial.targets.verl.worker_calls import WORKERS, logged_rates, settings_of_models
from seatrial.targets.verl.workers import actor_settings, source_of, worker_class

TILED, HF_ROLLOUT = "verl.models.transformers.tiled_mlp", "verl.workers.rollout.hf_rollout"
ACTOR, CRITIC = "verl.workers.actor.dp_actor", "verl.workers.critic.dp_critic"
DRAWN = 400
"""Random masks, of which each bound is reached but in one of 1e18 draws."""


class VerlWorkerParts(KnowsFailures, Adapted):
    """Functions of the models, of the engines, of the workers before them and of the rollout by Transformers."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the critic logs the rate of the next step (verl#2259)",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.5"),
        ).of("R31.worker_parts/rates that are logged"),
        KnownFailure(
            "values get the mask of other rows where micro-batches hold so many tokens",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.3"),
        ).of("R31.worker_parts/values of a worker's rows"),
    )

    def __init__(self) -> None:
        """Find those that the installed release has."""
        super().__init__(ADAPTED, _found)


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    return worker_class(module, name) if module in (ACTOR, CRITIC, WORKERS) else found(place)


def _rows_of_workers(worker: Any, proto: Any, compute: str, which: int) -> Callable[..., Any]:
    """Return what gives one of the columns that a worker computes: its forward pass looks up rows by their ids."""
    takes_entropy = "calculate_entropy" in inspect.signature(getattr(worker, compute)).parameters
    if which and not takes_entropy:
        raise Gone(f"{compute} of verl {release('verl')} gives no entropies")
    options = {"calculate_entropy": True} if takes_entropy else {}

    def computed(values: Tensor, sizes: Sequence[tuple[int, int]], most: int | None) -> list[Tensor]:
        one_process()
        P, T = (max(lengths) for lengths in zip(*sizes, strict=True))
        shown = torch.tensor(
            [[0] * (P - prompt) + [1] * (prompt + answer) + [0] * (T - answer) for prompt, answer in sizes]
        )
        places = torch.arange(len(sizes))[:, None].expand_as(shown).clone()

        def forward(micro_batch: Mapping[str, Tensor], *_: Any, **__: Any) -> Any:
            own = values[micro_batch["input_ids"][:, 0]]
            if compute == "compute_values":
                return own
            in_dictionary = 'outputs["log_probs"]' in source_of(worker)
            return {"log_probs": own, "entropys": own} if in_dictionary else (own, own)

        config = actor_settings(len(sizes), model={"use_remove_padding": False})
        made = worker(config, torch.nn.Linear(1, 1), None)
        made._forward_micro_batch = forward
        batch = proto.from_dict(
            tensors={
                "responses": places[:, P:].clone(),
                "input_ids": places,
                "attention_mask": shown,
                "position_ids": (shown.cumsum(1) - 1).clamp(min=0),
                "response_mask": shown[:, P:].clone(),
            },
            meta_info={
                "micro_batch_size": 2,
                "use_dynamic_bsz": most is not None,
                "max_token_len": most,
                "temperature": 1.0,
                "pad_token_id": 0,
            },
        )
        with in_float32():
            found = getattr(made, compute)(batch, **options)
        columns = list(found.values()) if isinstance(found, dict) else found
        column = columns[which] if isinstance(columns, (list, tuple)) else columns
        return [row[:answer] for row, (_, answer) in zip(column, sizes, strict=True)]

    return computed


def _tiled(patch: Any, forward: Any) -> Callable[..., Any]:
    def tiled(
        inputs: Sequence[Tensor], weights: Mapping[str, Tensor], outer: Sequence[Tensor], tiles: int
    ) -> dict[str, list[Tensor]]:
        class Mlp(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.act_fn = torch.nn.SiLU()
                for name, value in weights.items():
                    layer = torch.nn.Linear(value.shape[1], value.shape[0], bias=False)
                    layer.weight.data = value.clone()
                    self.add_module(f"{name}_proj", layer)

        patch(Mlp, forward, tiles)
        module = Mlp()
        given = [one.clone().requires_grad_() for one in inputs]
        outputs = []
        for one, weight in zip(given, outer, strict=True):
            output = module(one)
            (output * weight).sum().backward()
            outputs.append(output.detach())
        layers = (getattr(module, f"{name}_proj").weight.grad for name in ("gate", "up", "down"))
        return {"outputs": outputs, "inputs": [one.grad for one in given], "weights": list(layers)}

    return tiled


def _head(forward: Any) -> Callable[..., Any]:
    takes = inspect.signature(forward).parameters

    def head(
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        labels: Tensor | None,
        shifted: Tensor | None,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        if shifted is not None and "shift_labels" not in takes:
            raise NotServed(f"verl {release('verl')} shifts labels itself")

        class Outputs(tuple[Tensor, ...]):
            past_key_values = hidden_states = attentions = None

        model = SimpleNamespace(
            config=SimpleNamespace(output_attentions=False, output_hidden_states=False, use_return_dict=True),
            model=lambda **_: Outputs((hidden,)),
            lm_head=SimpleNamespace(weight=weight),
        )
        more = {} if shifted is None else {"shift_labels": shifted}
        found = forward(
            model, input_ids=ids, labels=labels, temperature=temperature, return_dict=True, **more
        )
        return found.log_probs, found.entropy

    return head


def _generated(rollout_class: Any, proto: Any) -> Callable[..., Any]:
    left = getattr(rollout_class, "__abstractmethods__", ())
    concrete = type("Rollout", (rollout_class,), dict.fromkeys(left, lambda *_: None))
    validates = "val_kwargs" in inspect.getsource(rollout_class)

    def generated(
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        longest: int,
        facts: Mapping[str, Any],
    ) -> dict[str, Any]:
        from omegaconf import OmegaConf

        if facts.get("validate") and not validates:
            raise NotServed(f"the rollout of verl {release('verl')} has no options of validation")
        width, asked = max(map(len, prompts)), []
        rows = [[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])

        class Model(torch.nn.Module):
            def generate(self, input_ids: Tensor, **options: Any) -> Any:
                asked.append(options)
                length = max(map(len, answers))
                filled = [list(one) + [PAD] * (length - len(one)) for one in answers]
                return SimpleNamespace(sequences=torch.cat([input_ids, torch.tensor(filled)], -1))

        config = OmegaConf.create(
            {**SAMPLED, "do_sample": True, "n": 1, "response_length": longest, "val_kwargs": VALIDATED}
        )
        batch = proto.from_dict(
            tensors={
                "input_ids": torch.tensor(rows),
                "attention_mask": mask,
                "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
            },
            meta_info={"eos_token_id": END, "pad_token_id": PAD, **facts},
        )
        device = SimpleNamespace(empty_cache=lambda: None)
        with mock.patch(f"{HF_ROLLOUT}.get_torch_device", lambda: device, create=True):
            rollout: Any = object.__new__(concrete)  # its base class takes what generation does not use
            rollout.config, rollout.module = config, Model()
            found = rollout.generate_sequences(batch).batch
        (options,) = asked
        sampling = options["generation_config"]
        sampled = bool(options.get("do_sample", sampling.do_sample))
        own = ("temperature", "top_p", "top_k") if sampled else ()
        columns = ("prompts", "responses", "input_ids", "attention_mask", "position_ids")
        return {
            **{name: found[name].tolist() for name in columns},
            "options": {"do_sample": sampled, **{name: getattr(sampling, name) for name in own}},
            "ends": [options[name] for name in ("max_new_tokens", "eos_token_id", "pad_token_id")],
        }

    return generated


def _flat_places(translate: Any, block: Any) -> Callable[..., Any]:
    return lambda places, local, offset, full: translate(places, block(local, offset, full))


def _optimizer(build: Any, config_class: Any) -> Callable[..., Any]:
    def optimized(
        name: str, options: Mapping[str, Any], weights: Tensor, gradients: Sequence[Tensor]
    ) -> list[Tensor]:
        more = {"betas": options["betas"]} if "betas" in options else {}
        config = config_class(
            optimizer=name,
            lr=options["lr"],
            weight_decay=options["weight_decay"],
            override_optimizer_config=dict(options["override"]) if "override" in options else None,
            **more,
        )
        parameter, found = torch.nn.Parameter(weights.clone()), []
        optimizer = build([parameter], config)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
            found.append(parameter.detach().clone())
        return found

    return optimized


def _masks(create: Any) -> Callable[..., Any]:
    def masks(size: int, most: float, left: float, least: float) -> dict[str, Any]:
        import numpy

        numpy.random.seed(0)
        rows = create(torch.zeros(DRAWN, size), most, left, least)
        starts = (torch.nn.functional.pad(rows, (1, 0)).diff(dim=-1) == 1).sum(-1)
        lengths = rows.sum(-1)
        return {
            "blocks": int(starts.max()) if bool((starts == starts[0]).all()) else starts.tolist(),
            "shortest": int(lengths.min()),
            "longest": int(lengths.max()),
            "padding": int((rows.cumsum(-1) == 0).sum(-1).max()),
        }

    return masks


def _size(measure: Any) -> Callable[..., Any]:
    def size(shapes: Sequence[Sequence[int]], scale: str) -> tuple[float, str]:
        model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(*shape)) for shape in shapes)
        number, unit = measure(model, scale)
        return float(number), unit

    return size


def _put_back(pad: Any) -> Callable[..., Any]:
    if not hasattr(inspect.getmodule(pad), "_fallback_pad_input"):
        raise Gone(f"verl {release('verl')} pads with a package for GPUs")
    return lambda values, places, batch, length: pad(values, places, batch, length)


def _collated(collator_class: Any, modes: Any) -> Callable[..., Any]:
    def collated(rows: Sequence[Mapping[str, Tensor]], nested: bool) -> dict[str, list[Tensor]]:
        mode = modes.NO_PADDING if nested else modes.RIGHT
        with contextlib.redirect_stdout(io.StringIO()):
            found = collator_class(mode)([dict(row) for row in rows])
        return {name: list(column.unbind()) for name, column in found.items()}

    return collated


DATA = "verl.utils.dataset.dataset_utils"
ADAPTED: Mapping[str, tuple[Sequence[str], Callable[..., Callable[..., Any]]]] = {
    "MLP in tiles": ([f"{TILED}:_patch_mlp_class", f"{TILED}:_mlp_forward_fn"], _tiled),
    "fused head": (["verl.models.transformers.dense_common:forward_with_torch_backend"], _head),
    "generated rows": ([f"{HF_ROLLOUT}:HFRollout", "verl.protocol:DataProto"], _generated),
    "flat places": (
        ["verl.workers.engine.spec:translate_flat_indices", "verl.workers.engine.spec:BlockPlacement"],
        _flat_places,
    ),
    "built optimizer": (
        [
            "verl.workers.config.optimizer:build_optimizer",
            "verl.workers.config.optimizer:FSDPOptimizerConfig",
        ],
        _optimizer,
    ),
    "precision": (
        ["verl.utils.torch_dtypes:PrecisionType"],
        lambda kinds: lambda name: str(kinds.to_dtype(name)).removeprefix("torch."),
    ),
    "random masks": (["verl.utils.model:create_random_mask"], _masks),
    "size of a model": (["verl.utils.model:get_model_size"], _size),
    "values of rows": (
        [f"{CRITIC}:DataParallelPPOCritic", "verl.protocol:DataProto"],
        partial(_rows_of_workers, compute="compute_values", which=0),
    ),
    **{
        f"{what} of rows": (
            [f"{ACTOR}:DataParallelPPOActor", "verl.protocol:DataProto"],
            partial(_rows_of_workers, compute="compute_log_prob", which=which),
        )
        for which, what in enumerate(("log-probabilities", "entropies"))
    },
    **{
        name: (
            [f"{WORKERS}:ActorRolloutRefWorker", f"{WORKERS}:CriticWorker", "verl.protocol:DataProto"],
            adapt,
        )
        for name, adapt in {
            "settings of models": settings_of_models,
            "logged rate": logged_rates,
        }.items()
    },
    "put back": (["verl.utils.attention_utils:pad_input"], _put_back),
    "collated rows": ([f"{DATA}:SFTTensorCollator", f"{DATA}:DatasetPadMode"], _collated),
}
"""By the name of the contract: functions of the release, and what fits them to it."""

ADAPTERS: dict[str, type[Any]] = {"worker-parts": VerlWorkerParts}
