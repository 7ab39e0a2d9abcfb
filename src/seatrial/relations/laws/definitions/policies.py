"""R35.policies: a policy of any backend scores, learns, resumes and exports as the model and AdamW are defined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.made import Seeded, seeded, without
from seatrial.relations.laws.run.updates import AdamW
from seatrial.relations.oracles.options import learning_rate
from seatrial.relations.oracles.policies import ROWS, PlainModel, draft_update, share_of_loss
from seatrial.relations.oracles.runs import norm_of

GLOBAL_BATCH = 3
UPDATES: Sequence[Sequence[int]] = ((0, 1, 2), (3, 4)) * 2
NUM_UPDATES = 5
OPTIONS: Mapping[str, Any] = {
    "train_global_batch_size": GLOBAL_BATCH,
    "train_micro_batch_size": 2,
    "logprob_batch_size": 3,
    "max_total_sequence_length": 16,
    "max_grad_norm": 1.5,
    "optimizer.lr": 0.01,
    "optimizer.weight_decay": 0.1,
    "optimizer.betas": (0.8, 0.9),
    "optimizer.eps": 1e-3,
    "scheduler.name": "linear",
    "scheduler.warmup_steps": 2,
    "generation.temperature": 0.7,
}
ADAPTERS: Mapping[str, Any] = {
    "lora_cfg.enabled": True,
    "lora_cfg.dim": 3,
    "lora_cfg.alpha": 6.0,
    "lora_cfg.exclude_modules": ("k_proj", "model.layers.0.mlp.up_proj"),
}
PACKED: Mapping[str, Any] = {"sequence_packing.enabled": True}
BFLOAT16: Mapping[str, Any] = {"precision": "bfloat16"}
FORMS: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "hf": (
        ("plain", {"logprob_chunk_size": 3}),
        ("tied", {"dynamic_batching.enabled": True, "activation_checkpointing": True}),
        ("plain", {**ADAPTERS, **PACKED}),
        ("plain", {**ADAPTERS, **BFLOAT16}),
        ("experts", {"router_aux_loss_coef": 0.3}),
        ("drafts", {"draft.enabled": True}),
    ),
    "dtensor": (
        ("plain", PACKED),
        ("tied", {**BFLOAT16, "activation_checkpointing": True}),
        ("plain", ADAPTERS),
        ("experts", {"router_aux_loss_coef": 0.3}),
    ),
    "megatron": (
        ("plain", PACKED),
        ("tied", {**BFLOAT16, "activation_checkpointing": True}),
        ("plain", {**ADAPTERS, **BFLOAT16}),
        ("plain", {**ADAPTERS, **PACKED}),
        ("experts", {}),
    ),
}
"""By backend: models and further options."""
SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "hf": {},
    "dtensor": {"dtensor_cfg.enabled": True},
    "megatron": {"megatron_cfg.enabled": True},
}
EXACT, ROUNDED = 2e-5, 0.08
"""Relative errors of float32 and of bfloat16, by the norm of a tensor."""

POLICIES = Relation(
    id="R35.policies",
    name="policies-are-the-model-under-adamw",
    component="definitions",
    statement="A policy of any backend, with adapters or without, scores as Transformers' model does, takes AdamW's "
    "steps on the gradient of the whole update, leaves its reference alone, and resumes and exports what it trained.",
    catalogue="SB056 SB098 SB218 SB221 SB222 SB228 SB233 SB295 SB313 SB316 SB340 SB345",
    cost="CPU, seconds",
    cases=seeded,
    seeded=False,
)


def _differs(found: Tensor, right: Tensor, bound: float) -> bool:
    """Return whether a tensor is further from another than a share of its norm."""
    if found.shape != right.shape:
        return True
    error, size = (float(one.norm()) for one in (found.double() - right.double(), right.double()))
    return not error <= bound * size + 1e-9


def _unequal(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[str]:
    """Return the names that only one has, or whose tensors differ in a bit."""
    return [
        name
        for name in sorted(found.keys() | right.keys())
        if name not in found or name not in right or not torch.equal(found[name], right[name])
    ]


def _missed(found: Mapping[str, Tensor], right: Mapping[str, Tensor], bound: float) -> list[str]:
    """Return the names that only one has, or whose tensors are not close."""
    return [
        name
        for name in sorted(found.keys() | right.keys())
        if name not in found or name not in right or _differs(found[name], right[name], bound)
    ]


def mistakes(stack: Any, backend: str, model: str, more: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a policy."""
    options = {**OPTIONS, **SWITCHES[backend], **more}
    run = stack.definitions["learned"](model, options, ROWS, share_of_loss)
    has_adapters, is_rounded = "lora_cfg.enabled" in more, "precision" in more
    plain = PlainModel(
        run.folder, options["generation.temperature"], 2.0, options.get("router_aux_loss_coef", 0.0)
    )
    bound = ROUNDED if is_rounded else EXACT
    yield from _of_facts(run, backend, plain)
    yield from _of_first(run, plain, has_adapters)
    yield from _of_updates(stack, run, plain, options, bound)
    yield from _of_scores(run, plain, bound, is_rounded)
    yield from _of_weights(run, plain, has_adapters, is_rounded, bound)
    yield from _of_files(run, has_adapters, options)
    if "draft.enabled" in more:
        yield from _of_drafts(stack, run, plain, options)


def _of_facts(run: Any, backend: str, plain: PlainModel) -> Iterator[str]:
    config = json.loads((run.folder / "config.json").read_text(encoding="utf-8"))
    due = {
        "vocab_size": config["vocab_size"],
        "max_positions": config["max_position_embeddings"],
        "training": False,
        "backend": backend,
        "processes": 1,
        "num_trained": run.facts["num_trained"] if backend == "megatron" else len(run.trained),
    }
    yield from (f"{name}={run.facts[name]}" for name, value in due.items() if run.facts[name] != value)
    yield from [f"versions {list(run.versions)}"] * (list(run.versions) != [0, 2, 4])


def _of_first(run: Any, plain: PlainModel, has_adapters: bool) -> Iterator[str]:
    """Yield what is wrong with what is trained: all weights of the files, or adapters that have no effect yet."""
    if has_adapters:
        high = {name: weight for name, weight in run.trained.items() if ".lora_B." in name}
        yield from (f"first {name}" for name, weight in high.items() if bool(weight.any()))
        layers = {name.rpartition(".lora_")[0] for name in run.trained}
        matrices = {
            name.removesuffix(".weight") for name, weight in plain.weights.items() if weight.ndim == 2
        }
        due = {
            layer
            for layer in matrices
            if "proj" in layer and not layer.endswith("k_proj") and layer != "model.layers.0.mlp.up_proj"
        }
        yield from [f"adapters in {sorted(layers ^ due)[:2]}"] * (layers != due)
        return
    served = {name: weight.to(run.trained[name].dtype) for name, weight in plain.weights.items()}
    yield from (f"first {name}" for name in _unequal(run.trained, served))


def _of_updates(
    stack: Any, run: Any, plain: PlainModel, options: Mapping[str, Any], bound: float
) -> Iterator[str]:
    flat = {f"policy.{name}": value for name, value in options.items()}
    optimizer, before = AdamW(flat, facts_of(stack).decays), run.trained
    loss, right = plain.gradients(before, range(len(ROWS)))
    metrics, gradients, cleared = run.parts
    yield from (f"gradient of {name} in given micro-batches" for name in _missed(gradients, right, bound))
    yield from [f"loss {metrics['loss']} in given micro-batches"] * (
        abs(metrics["loss"] - loss) > bound * max(1.0, abs(loss))
    )
    yield from (f"gradient of {name} that was given up" for name, one in cleared.items() if bool(one.any()))
    losses, norms, rates = [], [], []
    for number, (rows, update) in enumerate(zip(UPDATES, run.updates, strict=True), 1):
        where = f"in update {number}"
        yield from [f"rows {update.micro_batches} {where}"] * (
            (update.first_row, update.num_rows) != (rows[0], len(rows))
            or sorted(row for part in update.micro_batches for row in part) != list(rows)
        )
        loss, right = plain.gradients(before, rows)
        yield from (f"gradient of {name} {where}" for name in _missed(update.gradients, right, bound))
        norm, due = norm_of(update.gradients), learning_rate(flat, number, NUM_UPDATES)
        yield from [f"norm {update.grad_norm} {where}"] * (abs(update.grad_norm / norm - 1) > 1e-4)
        yield from [f"rate {update.learning_rate} {where}"] * (abs(update.learning_rate / due - 1) > 1e-6)
        after = {name: update.weights[name] for name in run.trained}
        stepped = optimizer.step(before, update.gradients, due)
        for name, weight in stepped.items():
            error = (after[name].double() - weight).abs().max()
            # A weight in bfloat16 is rounded from a float32 copy, which the step is taken of.
            rounding = 2**-7 * float(weight.abs().max()) if after[name].dtype == torch.bfloat16 else 0.0
            yield from [f"{name} after update {number}"] * (not float(error) <= 1e-3 * due + 1e-6 + rounding)
        before = after
        losses.append(loss)
        norms.append(update.grad_norm)
        rates.append(update.learning_rate)
    for number, metrics in enumerate(run.metrics):
        own = slice(2 * number, 2 * number + 2)
        for name, values, within in (
            ("loss", losses, bound),
            ("grad_norm", norms, 1e-6),
            ("lr", rates, 1e-9),
        ):
            mean = sum(values[own]) / 2
            yield from [f"{name} {metrics[name]} of pass {number + 1}"] * (
                abs(metrics[name] - mean) > within * max(1.0, abs(mean))
            )


def _of_scores(run: Any, plain: PlainModel, bound: float, is_rounded: bool) -> Iterator[str]:
    last = {name: run.updates[-1].weights[name] for name in run.trained}
    for name, found, trained in (("first", run.scores[0], run.trained), ("last", run.scores[1], last)):
        right = plain.all_scores(trained)
        masked = right == 0
        yield from [f"{name} scores"] * _differs(found, right, bound)
        yield from [f"{name} scores of tokens that were not sampled"] * bool(found[masked].any())
    yield from ["first scores of the reference"] * _differs(run.references[0], plain.all_scores({}), bound)
    yield from ["the reference after training"] * (not torch.equal(*run.references))
    yield from ["scores that an update keeps"] * (
        not torch.allclose(run.scored[0], run.scored[1], atol=0.1 if is_rounded else 1e-5)
    )


def _of_weights(
    run: Any, plain: PlainModel, has_adapters: bool, is_rounded: bool, bound: float
) -> Iterator[str]:
    shares, held, after = run.held
    names = set(plain.weights)
    yield from [f"weights {sorted(names - after.keys())[:2]} are missing"] * (not names <= after.keys())
    last = {name: run.updates[-1].weights[name] for name in run.trained}
    with torch.no_grad():
        merged = plain.merged({name: weight.double() for name, weight in last.items()})
    rounding = 2**-7 if is_rounded else 1e-6
    yield from (
        f"{name} as it is served"
        for name in names & after.keys()
        if _differs(after[name], merged[name], rounding)
    )
    if shares and not has_adapters:
        yield from (f"{name} that does not follow training" for name in _unequal(held, after))
    frozen = {name: run.reference[name].double() for name in names & run.reference.keys()}
    first = {name: weight.to(run.reference[name].dtype).double() for name, weight in plain.weights.items()}
    yield from (f"{name} of the reference" for name in _unequal(frozen, first))
    kept = {name.removeprefix("model.") for name in run.state if name.startswith("model.")}
    yield from [f"a state without {sorted(run.trained.keys() - kept)[:2]}"] * (not run.trained.keys() <= kept)
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        lost = [name for name in run.trained if f"optimizer.{name}.{kind}" not in run.state]
        yield from [f"a state without {kind} of {lost[:2]}"] * bool(lost)
    yield from (f"{name} after a resume" for name in _unequal(run.resumed, run.continued))


def _of_drafts(stack: Any, run: Any, plain: PlainModel, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a draft head that is trained with a policy."""
    from safetensors.torch import load_file

    head = {name: one.double() for name, one in load_file(run.folder / "draft" / "model.safetensors").items()}
    flat = {f"policy.{name}": value for name, value in options.items()}
    optimizer, before, losses, chances = AdamW(flat, facts_of(stack).decays), run.trained, [], []
    for number, (rows, update) in enumerate(zip(UPDATES, run.updates, strict=True), 1):
        loss, chance, gradients = draft_update(plain, before, head, rows)
        head = optimizer.step(head, gradients, learning_rate(flat, number, NUM_UPDATES))
        before = {name: update.weights[name] for name in run.trained}
        losses.append(loss)
        chances.append(chance)
    for number, metrics in enumerate(run.metrics):
        for name, values in (("draft/loss", losses), ("draft/acceptance_rate", chances)):
            mean = sum(values[2 * number : 2 * number + 2]) / 2
            yield from [f"{name} {metrics[name]} of pass {number + 1}"] * (abs(metrics[name] - mean) > 1e-4)
    kept = {name: run.state[f"draft.{name}"] for name in head if f"draft.{name}" in run.state}
    yield from (f"{name} of the draft head" for name in _missed(kept, head, 1e-4))
    written = load_file(run.exported / "draft" / "model.safetensors")
    yield from (f"{name} of the draft head in the export" for name in _unequal(written, kept))


def _of_files(run: Any, has_adapters: bool, options: Mapping[str, Any]) -> Iterator[str]:
    from transformers import AutoModelForCausalLM

    _, _, after = run.held
    written = dict(AutoModelForCausalLM.from_pretrained(run.exported, dtype="auto").named_parameters())
    served = {name: tensor for name, tensor in after.items() if name in written}
    yield from (f"{name} in the export" for name in _unequal(written, served))
    config = json.loads((run.exported / "config.json").read_text(encoding="utf-8"))
    due = options.get("precision", "float32")
    yield from [f"dtype={config.get('dtype')} in the export"] * (config.get("dtype") != due)
    yield from ["no tokenizer in the export"] * (not (run.exported / "tokenizer.json").is_file())
    last = {name: run.updates[-1].weights[name] for name in run.trained}
    if not has_adapters:
        yield from (f"{name} of the export read again" for name in _unequal(run.read, after))
        return
    yield from (f"{name} of the export read again" for name in _unequal(run.read, last))
    adapter = json.loads((run.exported / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    base = Path(adapter["base_model_name_or_path"])
    yield from [f"adapters of the base {base}"] * (base != run.folder)


for _backend in FORMS:

    @POLICIES.law(
        f"policies of {_backend}",
        "a reference that learns, an option of one backend alone, moments or masters that are not resumed, exports of "
        "other weights",
        excluded=without("learned"),
        backend=_backend,
    )
    def policies_are_the_model(stack: Any, case: Seeded, backend: str) -> Measure:
        """Train policies on made rows, and compare each figure with a plain model and AdamW."""
        wrong = [
            f"{model} with {dict(more)}: {why}"
            for model, more in FORMS[backend]
            for why in mistakes(stack, backend, model, more)
        ]
        return Measure.count(wrong, "what is wrong with trained policies")
