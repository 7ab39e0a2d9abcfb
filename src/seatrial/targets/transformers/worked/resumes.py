"""Worked examples of runs of Transformers' trainer that resume, evaluate, have adapters, noise or fewer activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder, resuming
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments, line, numbered


def _noisy(activate: Any) -> list[Any]:
    """Return whether embeddings add noise in training, with an adapter and without, and none afterwards."""
    import transformers.integrations.neftune as neftune
    from peft import LoraConfig, get_peft_model

    found: list[Any] = []
    config: Any = LoraConfig(r=2, target_modules=["q_proj"])
    for model in (tiny_model(tiny_tokenizer(), 0), get_peft_model(tiny_model(tiny_tokenizer(), 0), config)):
        layer, ids = model.get_input_embeddings(), torch.tensor([[3, 4, 5, 6]])
        handle = activate(model, 2.0)
        states = []
        for mode in (True, False):
            layer.train(mode)
            states.append(torch.equal(layer(ids), layer.weight[ids]))
        layer.train()
        bound = (
            float((layer(ids) - layer.weight[ids]).abs().max()) <= 2.0 / (4 * layer.weight.shape[1]) ** 0.5
        )
        neftune.deactivate_neftune(model, handle)
        found.append(
            [states, bound, torch.equal(layer(ids), layer.weight[ids]), hasattr(layer, "neftune_noise_alpha")]
        )
    return found


def _undisturbed(trainer_class: Any) -> list[str]:
    """Return where weights of a run with evaluations, logs and saves are not those of one without."""
    ends = []
    for more in (
        {},
        {
            "eval_strategy": "steps",
            "eval_steps": 1,
            "save_strategy": "steps",
            "save_steps": 1,
            "eval_on_start": True,
        },
    ):
        model = Line()
        args = arguments(per_device_train_batch_size=2, num_train_epochs=2, **more)
        trainer = trainer_class(model=model, args=args, train_dataset=numbered(), eval_dataset=numbered(3))
        trainer.train()
        ends.append([float(model.slope.detach()), float(model.bias.detach())])
    return unlike(ends[1], ends[0], "weights", 1e-6)


def _resumable(trainer_class: Any) -> list[Any]:
    """Return the first and last steps of runs from the last checkpoint, from one, and from none."""
    found: list[Any] = []
    folder = new_folder()
    options: dict[str, Any] = {
        "output_dir": folder,
        "save_strategy": "steps",
        "save_steps": 2,
        "per_device_train_batch_size": 2,
    }
    line(trainer_class, max_steps=4, **options).train()
    for given in (True, str(Path(folder) / "checkpoint-2"), False, None):
        trainer = line(trainer_class, max_steps=6, **{**options, "save_strategy": "no"})
        steps: list[int] = []
        step = trainer.training_step

        def noted(
            *given: Any, trainer: Any = trainer, steps: list[int] = steps, step: Any = step, **more: Any
        ) -> Any:
            steps.append(trainer.state.global_step)
            return step(*given, **more)

        trainer.training_step = noted
        with resuming():
            trainer.train(resume_from_checkpoint=given)
        found.append([steps[0], steps[-1]])
    try:
        line(trainer_class).train(resume_from_checkpoint=True)
    except ValueError as error:
        found.append("No valid checkpoint found" in str(error))
    return found


def _adapted(options: Mapping[str, Any], trainer_class: Any) -> list[str]:
    """Return where a run of an adapter that is resumed, or ends with its best step, has other weights."""
    from peft import LoraConfig, get_peft_model

    config: Any = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    rows = [{"input_ids": [40 + row, 41, 42], "labels": [40 + row, 41, 42]} for row in range(4)]
    folder = new_folder()

    def run(steps: int, checkpoint: str | None, **more: Any) -> tuple[dict[int, Tensor], Tensor, Any]:
        import transformers

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: Any = get_peft_model(tiny_model(tiny_tokenizer(), 0), config)
        if options.get("second"):
            model.add_adapter("other", LoraConfig(r=2, target_modules=["v_proj"]))
        kept: dict[int, Tensor] = {}

        def weights() -> Tensor:
            return torch.cat(
                [
                    value.detach().flatten()
                    for name, value in model.named_parameters()
                    if "lora" in name and "default" in name
                ]
            )

        class Noting(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                kept[state.global_step] = weights()

        args = arguments(
            output_dir=folder, per_device_train_batch_size=1, max_steps=steps, learning_rate=0.05,
                save_strategy="steps", save_steps=1, **more
        )  # fmt: skip
        trainer = trainer_class(
            model=model, args=args, train_dataset=rows, eval_dataset=rows, callbacks=[Noting()]
        )
        values = iter([3.0, 1.0, 2.0, 2.5])
        if more:
            evaluate = trainer._evaluate

            def scored(*given: Any, **named: Any) -> Any:
                return {**evaluate(*given, **named), "eval_score": next(values)}

            trainer._evaluate = scored
        with resuming():
            trainer.train(resume_from_checkpoint=checkpoint)
        return kept, weights(), trainer

    if options.get("best"):
        best = {
            "eval_strategy": "steps",
            "eval_steps": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": "score",
        }
        kept, found, _ = run(4, None, greater_is_better=False, **best)
        return unlike(found.tolist(), kept[2].tolist(), "weights of the best step", 1e-6)[:3]
    whole, _, _ = run(4, None)
    with_rest, found, _ = run(4, str(Path(folder) / "checkpoint-2"))
    names = sorted(one.name for one in (Path(folder) / "checkpoint-2").iterdir())
    wrong = (
        []
        if "adapter_model.safetensors" in names and "model.safetensors" not in names
        else [f"files {names}"]
    )
    wrong += [] if sorted(with_rest) == [3, 4] else [f"steps {sorted(with_rest)}"]
    return wrong + unlike(found.tolist(), whole[4].tolist(), "weights of a resumed run", 1e-5)[:3]


def _emptied(trainer_class: Any) -> list[int]:
    """Return how often a run of five steps empties the cache of its device, after each number of steps."""
    import transformers.trainer

    found = []
    for steps in (None, 1, 2, 3):
        calls: list[int] = []
        name = "clear_device_cache"
        if not hasattr(transformers.trainer, name):
            raise NotServed(f"this release has no {name}")
        with patch.object(transformers.trainer, name, lambda *given, calls=calls, **more: calls.append(1)):
            line(trainer_class, max_steps=5, torch_empty_cache_steps=steps).train()
        found.append(len(calls))
    return found


def _checkpointed(trainer_class: Any) -> list[Any]:
    """Return whether a model computes activations again in training, by the option, with its arguments."""
    seen: list[Any] = []
    for option, kwargs in product((True, False), ({"use_reentrant": False}, None)):
        model = tiny_model(tiny_tokenizer(), 0)
        enable = model.gradient_checkpointing_enable

        def noted(*given: Any, enable: Any = enable, **more: Any) -> Any:
            seen.append(
                more.get(
                    "activation_checkpointing_kwargs",
                    more.get("gradient_checkpointing_kwargs", given[0] if given else None),
                )
            )
            return enable(*given, **more)

        model.gradient_checkpointing_enable = noted
        args = arguments(gradient_checkpointing=option, gradient_checkpointing_kwargs=kwargs, max_steps=1)
        trainer_class(
            model=model, args=args, train_dataset=[{"input_ids": [40, 41], "labels": [40, 41]}] * 2
        ).train()
        names = ("is_activation_checkpointing", "is_gradient_checkpointing")
        seen.append(next(getattr(model, name) for name in names if hasattr(type(model), name)))
    return seen


PLACE, NEXT = "transformers:Trainer", "resumed next to another"
OTHER = KnownFailure(
    "a checkpoint's default adapter, next to another one, is not loaded",
    finding="Transformers: small functions of later releases",
    releases=before("transformers", "5.23"),
)
# Sources: the documentation of Trainer and TrainingArguments.
RESUME_ROWS: Sequence[Row] = (
    Row(
        "calls", "transformers.integrations.neftune:activate_neftune", "embeddings with noise", _noisy,
        [[[False, True], True, True, False]] * 2, since="5",
    ),
    Row("steps", PLACE, "evaluations that change nothing", _undisturbed, [], since="4.57"),
    Row("checkpoints", PLACE, "from which checkpoint it continues", _resumable, [[4, 5], [2, 5], [0, 5], [0, 5],
        True], since="4.57"),
    *(
        Row("checkpoints", PLACE, f"an adapter, {what}", partial(_adapted, options), [], since="4.57",
            known=OTHER if what == NEXT else None)
        for what, options in (
            ("resumed", {}), (NEXT, {"second": True}), ("its best step", {"best": True}),
            ("its best step next to another", {"best": True, "second": True}),
        )
    ),
    Row("steps", PLACE, "a cache that is emptied", _emptied, [0, 5, 3, 2], since="5"),
    Row(
        "steps", PLACE, "activations that are computed again", _checkpointed,
        [{"use_reentrant": False}, True, None, True, False, False], since="5.20",
    ),
)  # fmt: skip
