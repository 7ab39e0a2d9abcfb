"""Worked examples of models in further states: adapters after a resume, layers that are wrapped, saved heads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from refrl.checkpointing.layout import INFO, read_checkpoint, whole_checkpoints
from refrl.config import LoraConfig
from refrl.models import loading
from refrl.policy import activations
from refrl.policy.draft import DraftHead, DraftTraining, load_draft, make_draft
from refrl.policy.hf import HFPolicy
from refrl.policy.lora import Adapters, LoraLinear, stream_of
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.checkpoints import checkpointer, in_folder
from seatrial.targets.reference.worked.made import example, refused

MODEL = cast(PreTrainedModel, SimpleNamespace())


class _Two(nn.Module):
    """A model of two adapted layers and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        lora = LoraConfig(enabled=True, dim=1, alpha=2)
        self.lora = {name: _adapted(name, lora) for name in ("one", "two")}
        for name, layer in self.lora.items():
            self.add_module(name, layer)
        self.register_buffer("late", torch.ones(1))
        self.adapters = Adapters(cast(PreTrainedModel, self), self.lora, lora)

    def shift(self, value: float) -> None:
        """Set both adapters so that merged weights are the base's and 4 * value more."""
        for layer in self.lora.values():
            nn.init.constant_(layer.lora_A.weight, value)
            nn.init.constant_(layer.lora_B.weight, 2.0)


def _adapted(name: str, config: LoraConfig) -> LoraLinear:
    base = nn.Linear(2, 1)
    nn.init.ones_(base.weight)
    nn.init.zeros_(base.bias)
    return LoraLinear(base, dim=config.dim, alpha=config.alpha, stream=stream_of(name, config))


def _weights_of(model: _Two) -> dict[str, float]:
    return {name: float(weight.flatten()[0].detach()) for name, weight in model.adapters.named_weights()}


def _merged_at(event: str) -> Any:
    """Return the merged weights before and after adapters change and something happens, and whether they are the same
    tensors."""
    model = _Two()
    model.shift(0.0)
    before = {name: weight.data_ptr() for name, weight in model.adapters.named_weights()}
    policy: Any = HFPolicy.__new__(HFPolicy)
    quiet = SimpleNamespace(resume=lambda number: None, step=lambda: None, weights=[])
    optimizer = SimpleNamespace(step=lambda: (0.5, 0.25), weights=[], num_updates_done=0)
    for name, value in {"_adapters": model.adapters, "_auxiliary": quiet, "_optimizer": optimizer}.items():
        object.__setattr__(policy, name, value)
    policy._data = SimpleNamespace(check_agreement=lambda norm, weights: None)
    model.shift(0.5)
    if event == "resume":
        with patch.object(HFPolicy, "state_facts", lambda self: {"frozen": 1}):
            policy.load_state_facts({"frozen": 1, "num_updates_done": 3})
    elif event == "step":
        policy.step()
    after = {name: weight.data_ptr() for name, weight in model.adapters.named_weights()}
    return _weights_of(model), before == after, optimizer.num_updates_done


def of_models() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_adapters()
    yield from _of_compiled()
    yield from _of_loaded()
    yield from _of_drafts()
    yield from _of_checkpoints()


def _of_adapters() -> Iterator[WorkedExample]:
    buffer = {"late": 1.0}
    due = {
        f"{name}.{part}": value for name in ("one", "two") for part, value in (("weight", 3.0), ("bias", 0.0))
    }
    for event, number in (("resume", 3), ("step", 0)):
        yield example(f"merged weights after a {event}", (due | buffer, True, number), _merged_at, event)
    names = {"weights": 4, "base": 5}

    def counted() -> Any:
        model = _Two()
        base = [name for name, _ in model.adapters.base_weights()]
        return {"weights": len(model.adapters.weights()), "base": len(base)}, sorted(base)

    yield example("adapters and what they change", (names, sorted([*due, "late"])), counted)

    def turned_off() -> Any:
        model = _Two()
        model.shift(0.5)
        found = []
        for fails in (False, True):
            with contextlib.suppress(ValueError), model.adapters.off():
                found.append([float(layer(torch.ones(2))) for layer in model.lora.values()])
                if fails:
                    raise ValueError
            found.append([float(layer(torch.ones(2))) for layer in model.lora.values()])
        return found

    yield example("adapters that are off within a block", [[2.0, 2.0], [6.0, 6.0]] * 2, turned_off)


class _Layer(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * inputs


def _layered() -> Any:
    model: Any = nn.Sequential(_Layer(), nn.Identity(), _Layer())
    return model


def _of_compiled() -> Iterator[WorkedExample]:
    def compiled() -> Any:
        model, calls = _layered(), []

        def make(function: Any, **options: Any) -> Any:
            def call(*words: Any) -> Any:
                calls.append(options)
                return function(*words)

            return call

        with patch.object(torch, "compile", make):
            activations.compile_layers(model)
        return float(model(torch.tensor(3.0))), calls

    yield example("layers that are compiled", (81.0, [{"dynamic": True}] * 2), compiled)
    for option, call in (
        ("compile_layers", activations.compile_layers),
        ("activation_checkpointing", lambda model: activations.checkpointed_forward(_run, model)),
    ):
        yield refused(
            f"policy.{option}: Sequential has no layers", f"no layers: {option}", call, nn.Sequential()
        )
    for fails in (False, True):
        yield example(
            f"layers whose inputs are kept, error: {fails}",
            ([2, 2] if not fails else [], 108.0 if not fails else 0.0, []),
            _kept,
            fails,
        )


def _run(model: Any, batch: Any) -> Any:
    return (model(batch),) * 2


def _kept(fails: bool) -> Any:
    """Return how often each layer ran forward for one gradient, the gradient, and layers that are still changed."""
    model, inputs = _layered(), torch.tensor(3.0, requires_grad=True)
    counts: dict[int, int] = {}

    def run(model: Any, batch: Any) -> Any:
        if fails:
            raise ValueError
        return _run(model, batch)

    def forward(self: _Layer, given: Tensor) -> Tensor:
        counts[id(self)] = counts.get(id(self), 0) + 1
        return given * given

    wrapped = activations.checkpointed_forward(run, model)
    with patch.object(_Layer, "forward", forward), contextlib.suppress(ValueError):
        cast(Any, wrapped(model, cast(Any, inputs))[0]).backward()
    changed = [layer for layer in model if "forward" in vars(layer)]
    return sorted(counts.values()), 0.0 if inputs.grad is None else float(inputs.grad), changed


class _Positions(nn.Module):
    """A model whose class freezes one of its weights."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)
        self.free = nn.Parameter(torch.ones(1))


def _of_loaded() -> Iterator[WorkedExample]:
    def frozen() -> Any:
        model: Any = _Positions(None).requires_grad_(True)
        loading._freeze_as_made(model)
        loading._freeze_as_made(model)
        return {name: weight.requires_grad for name, weight in model.named_parameters()}, float(model.fixed)

    yield example("what a model's class freezes", ({"fixed": False, "free": True}, 1.0), frozen)

    def unwritten() -> Any:
        head = nn.Linear(1, 3, bias=False)
        nn.init.ones_(head.weight)
        loading._never_write(cast(Any, SimpleNamespace(get_output_embeddings=lambda: head)), 1)
        chances = head(torch.tensor([[2.0], [0.0]])).softmax(-1)
        return chances.tolist(), bool(head(torch.ones(1, 1)).isfinite().all())

    yield example("a token that is never written", ([[0.5, 0.0, 0.5]] * 2, True), unwritten)


def _draft(
    folder: Path, *, width: int = 4, cap: float | None = None, bias: bool = False, named: str = ""
) -> Any:
    """Write a head of width 4 and make its training for a model; return what its state is named."""
    head = DraftHead(4, 6)
    optimizer = SimpleNamespace(
        weights=[], state_tensors=lambda: {"moment": torch.ones(1)}, num_updates_done=0
    )
    written = DraftTraining(head, MODEL, cast(Any, optimizer), temperature=1.0, read=lambda weight: weight)
    written.write(folder)
    read = load_draft(folder / "draft")
    same = all(torch.equal(one, read.state_dict()[name]) for name, one in head.state_dict().items())
    facts = SimpleNamespace(hidden_size=width, final_logit_softcapping=cap)
    model: Any = SimpleNamespace(
        device=torch.device("cpu"),
        config=SimpleNamespace(get_text_config=lambda: facts),
        get_output_embeddings=lambda: nn.Linear(width, 5, bias=bias),
    )
    own = {"draft.model_name": named} if named else {}
    config = policy_configuration({"model_name": str(folder), "draft.enabled": True, **own})
    made: Any = make_draft(config, model, num_updates=3, temperature=0.5, read=lambda weight: weight)
    made.resume(2)
    names = sorted({name.rpartition(".")[0] for name in written.state_tensors()})
    return same, made._temperature, made._optimizer.num_updates_done, len(made.weights), names


def _of_drafts() -> Iterator[WorkedExample]:
    parts = ("down_proj", "embed_proj", "final_norm", "hidden_proj", "norm", "optimizer", "up_proj")
    yield example(
        "a draft head that is saved", (True, 0.5, 2, 6, [f"draft.{one}" for one in parts]), in_folder(_draft)
    )
    for words, options in (
        ("more than a matrix", {"cap": 30.0}),
        ("more than a matrix", {"bias": True}),
        ("has width 4, the model 8", {"width": 8}),
        ("there is no draft head in elsewhere", {"named": "elsewhere"}),
    ):
        yield refused(words, f"a draft head: {options}", in_folder(_draft), **options)


def _reason(folder: Path, change: str) -> Any:
    """Return why a checkpoint that is changed is not complete, without the folder; None where it is."""
    checkpointer(folder).save(2, None)
    (directory,) = (one.directory for one in whole_checkpoints(folder))
    info = directory / INFO
    file = next(directory.rglob("*.safetensors"))
    if change == "gone":
        info.unlink()
    elif change == "file":
        file.unlink()
    elif change == "short":
        file.write_bytes(b"abc")
    elif change:
        info.write_text(change, encoding="utf-8")
    found = read_checkpoint(directory)
    return found if isinstance(found, str) else None


def _of_checkpoints() -> Iterator[WorkedExample]:
    for change, reason in {"": None, "gone": f"it has no {INFO}"}.items():
        yield example(f"why a checkpoint is incomplete: {change!r}", reason, in_folder(_reason), change)
    for change, start in {
        "file": " is missing",
        "short": " has 3 bytes of ",
        "{}": f"{INFO}: Field required",
        "[": f"{INFO}: Invalid JSON",
    }.items():
        yield example(f"why a checkpoint is incomplete: {change!r}", True, _says, change, start)


def _says(change: str, words: str) -> bool:
    return words in str(in_folder(_reason)(change))
