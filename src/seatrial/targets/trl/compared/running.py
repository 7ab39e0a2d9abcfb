"""A run of a trainer, and what is observed of it through hooks of the accelerator and the optimizers."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from seatrial.relations.contracts.compared import ComparedPlan, ComparedRun, ComparedStep, DefinedStep
from seatrial.targets.common.trainers import new_folder, resuming
from seatrial.targets.trl.compared.keeping import OWN_SETTINGS, unlike
from seatrial.targets.trl.compared.rows import prompt_of

UNTIMED = re.compile(
    r"time|per_second|runtime|epoch|learning_rate|flos|eps$|profiling|^step$|^perf/|_s$|tok_s"
)

NAMED = "held_out"
"""Name of the held-out rows in a mapping of evaluated sets."""
IN_PROCESSES = "module."
"""Of names of a model that averages gradients over processes, which PPO keeps in its place."""


class MakesTrainers(Protocol):
    """An adapter as a run needs it; see `adapter.Compared`."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        ...

    def arguments(self, plan: ComparedPlan) -> Any:
        """Return the trainer's configuration."""
        ...

    def datasets(self, plan: ComparedPlan) -> tuple[Any, Any]:
        """Return the data set of training and the held-out one."""
        ...

    def trainer(self, plan: ComparedPlan, arguments: Any, sets: tuple[Any, Any], tokenizer: Any) -> Any:
        """Return the trainer of a new model."""
        ...

    def given_folder(self, plan: ComparedPlan) -> Path:
        """Return a folder with the model and the tokenizer as they are given."""
        ...

    def defined_step(
        self, plan: ComparedPlan, arguments: Any, policies: Sequence[Mapping[str, Tensor]]
    ) -> DefinedStep | None:
        """Return the last step that began with these policies' tensors as it is defined; None without a definition."""
        ...


class Run:
    """A run and what is observed of it."""

    def __init__(self, adapter: MakesTrainers, plan: ComparedPlan) -> None:
        self.adapter, self.plan = adapter, plan
        self.steps: list[dict[str, Any]] = []
        self.backward = 0.0
        self.seen: list[str] = []
        """Texts that the policy saw since the last step."""
        self.prompts: list[str] = []
        """Of the data set's rows."""
        self.policies: list[dict[str, Tensor]] = []
        """The tensors of the policy before each step."""

    def finished(self) -> ComparedRun:
        """Run the plan and return what is left."""
        adapter, plan = self.adapter, self.plan
        arguments, sets = adapter.arguments(plan), adapter.datasets(plan)
        if plan.num_batches > 1:
            self.prompts = [prompt_of(row, adapter.tokenizer) for row in sets[0]]
        tokenizer = copy.deepcopy(adapter.tokenizer)
        own = (_containers(arguments), [_rows(one) for one in sets])
        if plan.repeats:
            adapter.trainer(plan, arguments, sets, tokenizer).train()
        trainer = adapter.trainer(plan, arguments, sets, tokenizer)
        before, fixed_before = _tensors(trainer)
        if plan.ends_after:
            self._train(trainer, stops=plan.ends_after)
            checkpoint = str(Path(arguments.output_dir) / f"checkpoint-{plan.ends_after}")
            trainer = adapter.trainer(plan, arguments, sets, tokenizer)
            self._train(trainer, checkpoint=checkpoint)
        else:
            self._train(trainer)
        if plan.evaluated_as.startswith("passed"):
            # Rows as the caller has them, which the trainer has not seen.
            rows = copy.deepcopy(sets[1])
            trainer.evaluate(
                {"other": sets[0], NAMED: rows} if plan.evaluated_as == "passed by name" else rows
            )
        after, fixed_after = _tensors(trainer)
        for number, step in enumerate(self.steps, start=1):
            step["defined"] = adapter.defined_step(plan, arguments, self.policies[:number])
        folder = Path(new_folder())
        saved, kept = _saved(trainer, folder) if plan.num_ranks == 1 else (None, {})
        return ComparedRun(
            steps=tuple(ComparedStep(**one) for one in self.steps),
            before=before,
            after=after,
            fixed_before=fixed_before,
            fixed_after=fixed_after,
            saved=saved,
            kept=kept,
            unlike=tuple(unlike(folder, adapter.given_folder(plan)))
            if plan.variation == OWN_SETTINGS
            else None,
            changed=tuple(_changes(own, arguments, sets)),
            num_steps=trainer.state.global_step,
            evaluated=tuple(_evaluated(trainer)),
        )

    def _train(self, trainer: Any, *, stops: int = 0, checkpoint: str | None = None) -> None:
        import transformers

        first = len(self.steps)
        numbered = trainer.state.global_step if checkpoint is None else self.plan.ends_after

        class Stopping(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop |= state.global_step == stops

        if stops:
            trainer.add_callback(Stopping())
        with self._observed(trainer), resuming():
            trainer.train(**({} if checkpoint is None else {"resume_from_checkpoint": checkpoint}))
        for number, step in enumerate(self.steps[first:], start=numbered + 1):
            step["logged"] = _logged(trainer, number)

    @contextmanager
    def _observed(self, trainer: Any) -> Iterator[None]:
        """Observe what is backpropagated, and the gradients of each step of an optimizer of the trainer's tensors."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        names = {
            id(value): name.removeprefix(IN_PROCESSES) for name, value in trainer.model.named_parameters()
        }
        backward = trainer.accelerator.backward

        def watched(loss: Tensor, **given: Any) -> None:
            self.backward += float(loss.detach())
            backward(loss, **given)

        def keep(optimizer: Any, *_: Any) -> None:
            found = {
                names[id(value)]: value.grad.detach().clone()
                for group in optimizer.param_groups
                for value in group["params"]
                if value.grad is not None and id(value) in names
            }
            rows = tuple(
                number for number, one in enumerate(self.prompts) if any(one in text for text in self.seen)
            )
            self.steps.append({"gradients": found, "backward": self.backward, "rows": rows, "logged": {}})
            self.seen.clear()
            self.policies.append(
                {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
            )
            self.backward = 0.0

        def see(module: Any, given: tuple[Any, ...]) -> None:
            self.seen += self.adapter.tokenizer.batch_decode(given[0])

        trainer.accelerator.backward = watched
        handles = [register_optimizer_step_pre_hook(keep)]
        if self.prompts:
            policy = getattr(trainer.model, "policy", trainer.model)  # PPO wraps it together with its values
            handles.append(policy.get_input_embeddings().register_forward_pre_hook(see))
        try:
            yield
        finally:
            for one in handles:
                one.remove()


def run_of(fields: Mapping[str, Any]) -> ComparedRun:
    """Return the run of what `dataclasses.asdict` makes of it."""
    return ComparedRun(**{**fields, "steps": tuple(ComparedStep(**one) for one in fields["steps"])})


def _logged(trainer: Any, number: int) -> dict[str, float]:
    """Return what training logged after a step."""
    found: dict[str, float] = {}
    for entry in trainer.state.log_history:
        if entry.get("step") == number and not any(name.startswith(("eval_", "train_")) for name in entry):
            found |= _scalars(entry)
    return found


def _evaluated(trainer: Any) -> Iterator[dict[str, float]]:
    for entry in trainer.state.log_history:
        if any(name.startswith("eval_") for name in entry):
            given = {name.removeprefix("eval_"): value for name, value in entry.items()}
            if not any(name.startswith("other_") for name in given):
                yield _scalars({name.removeprefix(f"{NAMED}_"): value for name, value in given.items()})


def _scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in entry.items()
        if isinstance(value, int | float) and not UNTIMED.search(name)
    }


def _tensors(trainer: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return copies of the trainable tensors, and of those that the trainer holds and should not train."""
    own = {name.removeprefix(IN_PROCESSES): value for name, value in trainer.model.named_parameters()}
    trainable = {name: value for name, value in own.items() if value.requires_grad}
    fixed = {name: value for name, value in own.items() if not value.requires_grad}
    places = {id(value) for value in trainable.values()}
    for attribute, held in vars(trainer).items():
        for number, one in enumerate(held if isinstance(held, list | tuple) else [held]):
            if isinstance(one, nn.Module):
                fixed |= {
                    f"{attribute}[{number}] {name}": value
                    for name, value in one.named_parameters()
                    if id(value) not in places
                }
    copied = [{name: value.detach().clone() for name, value in one.items()} for one in (trainable, fixed)]
    return copied[0], copied[1]


def _saved(trainer: Any, folder: Path) -> tuple[dict[str, Tensor] | None, dict[str, Tensor]]:
    """Return the tensors of what the trainer saves, read again, and those of its model."""
    from safetensors.torch import load_file

    model = getattr(trainer.model, "policy", trainer.model)
    kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
    trainer.save_model(str(folder))
    file = folder / "model.safetensors"
    return (load_file(file) if file.exists() else None), kept


def _containers(arguments: Any) -> dict[str, tuple[Any, Any]]:
    """Return the lists and dictionaries of a configuration, each with a copy."""
    return {
        name: (value, copy.deepcopy(value))
        for name, value in vars(arguments).items()
        if isinstance(value, list | dict)
    }


def _changes(
    own: tuple[Mapping[str, tuple[Any, Any]], Sequence[Any]], arguments: Any, sets: Sequence[Any]
) -> Iterator[str]:
    for name, (value, before) in own[0].items():
        if value != before:
            yield f"option {name} is {value} in place of {before}"
    for name, before, one in zip(("train_dataset", "eval_dataset"), own[1], sets, strict=True):
        if _rows(one) != before:
            yield f"rows of {name}"


def _rows(given: Any) -> Any:
    """Return the rows of a data set, or of each of a mapping."""
    if isinstance(given, Mapping):
        return {name: list(one) for name, one in given.items()}
    return list(given)
