"""Worked examples of Transformers' trainer: logged rates, the tokens at which saved models stop, and evaluations."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.tiny import TURN_END, tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import CPU_OPTIONS, freeze_imports, new_folder, resuming
from seatrial.targets.common.worked_rows import Row, Worked, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.small import train
from seatrial.targets.transformers.worked.aligned import ALIGNED_ROWS
from seatrial.targets.transformers.worked.arguments import ARGUMENT_ROWS
from seatrial.targets.transformers.worked.arrays import ARRAY_ROWS
from seatrial.targets.transformers.worked.beams import BEAM_ROWS
from seatrial.targets.transformers.worked.boxes import BOX_ROWS
from seatrial.targets.transformers.worked.calls import CALL_ROWS
from seatrial.targets.transformers.worked.calls_collators import COLLATOR_CALL_ROWS
from seatrial.targets.transformers.worked.calls_films import FILM_CALL_ROWS
from seatrial.targets.transformers.worked.calls_options import OPTION_CALL_ROWS
from seatrial.targets.transformers.worked.calls_pictures import PICTURE_CALL_ROWS
from seatrial.targets.transformers.worked.calls_runs import RUN_CALL_ROWS
from seatrial.targets.transformers.worked.calls_sounds import SOUND_CALL_ROWS
from seatrial.targets.transformers.worked.calls_specials import SPECIAL_CALL_ROWS
from seatrial.targets.transformers.worked.calls_tokens import TOKEN_CALL_ROWS
from seatrial.targets.transformers.worked.calls_training import TRAINING_CALL_ROWS
from seatrial.targets.transformers.worked.changed_resumes import CHANGED_ROWS
from seatrial.targets.transformers.worked.chats import CHAT_ROWS
from seatrial.targets.transformers.worked.collators import COLLATOR_ROWS
from seatrial.targets.transformers.worked.continued import CONTINUED_ROWS
from seatrial.targets.transformers.worked.debugged import DEBUGGED_ROWS
from seatrial.targets.transformers.worked.earlier import EARLIER_ROWS
from seatrial.targets.transformers.worked.evaluated import EVALUATED_ROWS
from seatrial.targets.transformers.worked.flow import FLOW_ROWS
from seatrial.targets.transformers.worked.followed_rates import FOLLOWED_ROWS
from seatrial.targets.transformers.worked.generation import GENERATION_ROWS
from seatrial.targets.transformers.worked.kept_runs import KEPT_ROWS
from seatrial.targets.transformers.worked.losses import LOSS_ROWS
from seatrial.targets.transformers.worked.optimizers import OPTIMIZER_ROWS
from seatrial.targets.transformers.worked.paired import PAIRED_ROWS
from seatrial.targets.transformers.worked.parts import PART_ROWS
from seatrial.targets.transformers.worked.predictions import PREDICTION_ROWS
from seatrial.targets.transformers.worked.repeated import REPEATED_ROWS
from seatrial.targets.transformers.worked.reports import REPORT_ROWS
from seatrial.targets.transformers.worked.resumes import RESUME_ROWS
from seatrial.targets.transformers.worked.rows import DATA_ROWS
from seatrial.targets.transformers.worked.runs import RUN_ROWS
from seatrial.targets.transformers.worked.schedules import SCHEDULE_ROWS
from seatrial.targets.transformers.worked.searches import SEARCH_ROWS
from seatrial.targets.transformers.worked.setups import SETUP_ROWS
from seatrial.targets.transformers.worked.surroundings import SURROUNDING_ROWS
from seatrial.targets.transformers.worked.tools import TOOL_ROWS
from seatrial.targets.transformers.worked.trackers import TRACKER_ROWS
from seatrial.targets.transformers.worked.translations import TRANSLATION_ROWS
from seatrial.targets.transformers.worked.trials import TRIAL_ROWS
from seatrial.targets.transformers.worked.two_processes import PROCESS_ROWS
from seatrial.targets.transformers.worked.updates import UPDATE_ROWS
from seatrial.targets.transformers.worked.uploads import UPLOAD_ROWS
from seatrial.targets.transformers.worked.worker_draws import WORKER_ROWS

SCHEDULES: Sequence[Mapping[str, Any]] = (
    {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3},
    {"lr_scheduler_type": "linear"},
    {"lr_scheduler_type": "linear", "warmup_steps": 2},
    {"lr_scheduler_type": "cosine", "gradient_accumulation_steps": 2},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
    {"lr_scheduler_type": "polynomial", "logging_steps": 3},
)
"""Schedules whose rate changes, with options of a run."""
STOPS: Sequence[Mapping[str, str]] = (
    {"eos_token": "a"},
    {"pad_token": "b"},
    {"bos_token": "c"},
    {"eos_token": "a", "pad_token": "a", "bos_token": "c"},
)
"""Tokens of a tokenizer that are others than those of the model that is trained."""
IDS = (40, 41, 42, 43)
NUM_STEPS = 8


def _logged_rates(trainer_class: Any) -> list[str]:
    """Return where the logged rate of a step is not the one with which the optimizer took it."""
    wrong = []
    for options in SCHEDULES:
        found = train(
            {"learning_rate": 0.01, "max_steps": NUM_STEPS, "per_device_train_batch_size": 1, **options},
            num_examples=NUM_STEPS,
        )
        history = [entry for entry in found.trainer.state.log_history if "learning_rate" in entry]
        due = [
            found.rates[step] for step in sorted(found.rates) if step % options.get("logging_steps", 1) == 0
        ]
        wrong += unlike([entry["learning_rate"] for entry in history], due, str(dict(options)))
    return wrong


def _arguments(**options: Any) -> Any:
    import transformers

    freeze_imports()
    made: Any = transformers.TrainingArguments
    return made(output_dir=new_folder(), **{**CPU_OPTIONS, **options})


def _saved_tokens(trainer_class: Any) -> list[str]:
    """Return which tokens of the tokenizer a model does not have that was trained with it and saved."""
    return [
        fault
        for tokens in STOPS
        for in_list in (False, True)
        for fault in _unsaved(trainer_class, tokens, in_list)
    ]


def _unsaved(trainer_class: Any, tokens: Mapping[str, str], in_list: bool) -> Iterator[str]:
    import transformers

    loaded: Any = transformers.AutoModelForCausalLM
    model, tokenizer = tiny_model(tiny_tokenizer(), 0), tiny_tokenizer()
    if in_list:
        model.generation_config.eos_token_id = [model.config.eos_token_id]
    for name, token in tokens.items():
        setattr(tokenizer, name, token)
    args = _arguments(per_device_train_batch_size=1, save_strategy="steps", save_steps=1)
    rows = [{"input_ids": list(IDS), "labels": list(IDS)}] * 2
    trainer = trainer_class(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    final = new_folder()
    trainer.save_model(final)
    for what, folder in (
        ("the saved model", final),
        ("a checkpoint", str(Path(args.output_dir) / "checkpoint-1")),
    ):
        saved = loaded.from_pretrained(folder)
        for name, token in tokens.items():
            due = tokenizer.convert_tokens_to_ids(token)
            for where, of in (("configuration", saved.config), ("generation", saved.generation_config)):
                found = getattr(of, f"{name}_id")
                if due not in (found if isinstance(found, list) else [found]):
                    yield f"{what}, {dict(tokens)}, {where}: {name} {found}, {due} is due"
        stops = saved.generation_config.eos_token_id
        old = tiny_tokenizer().convert_tokens_to_ids(TURN_END)
        if in_list and old not in (stops if isinstance(stops, list) else [stops]):
            yield f"{what}, {dict(tokens)}: generation no longer stops at {old}, where it did"


def _span_model() -> Any:
    import transformers

    made: Any = transformers.Qwen2ForQuestionAnswering
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return made(tiny_scorer(0).config)


MODELS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "a language model": (lambda: tiny_model(tiny_tokenizer(), 0), {"labels": list(IDS)}),
    "a scorer": (lambda: tiny_scorer(0), {"labels": 0.5}),
    "a model of spans": (_span_model, {"start_positions": 1, "end_positions": 2}),
}
"""Models, and the labels of their rows."""


def _evaluations(trainer_class: Any) -> list[str]:
    """Return where an evaluation of a model with a new adapter, which changes nothing, is not that of the model."""
    from peft import LoraConfig, PeftMixedModel, get_peft_model

    wrong = []
    for what, (make, labels) in MODELS.items():
        config: Any = LoraConfig(r=2, target_modules=["q_proj"])
        rows = [{"input_ids": list(IDS), **labels}] * 4
        plain = _evaluated(trainer_class, make(), rows)
        wrapped = {
            "LoRA": get_peft_model(make(), copy.deepcopy(config)),
            "LoRA, mixed": PeftMixedModel(make(), copy.deepcopy(config)),
        }
        for form, model in wrapped.items():
            found = _evaluated(trainer_class, model, rows)
            wrong += [
                f"{what} under {form}, {name}: {found.get(name)}, {value} is due"
                for name, value in plain.items()
                if name not in found or abs(found[name] - value) > 1e-5
            ]
    return wrong


def _evaluated(trainer_class: Any, model: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the loss of an evaluation, a metric of its labels, and the number of labels of predictions."""

    def metrics(found: Any) -> dict[str, float]:
        return {"labels": float(_total(found.label_ids))}

    args = _arguments(per_device_eval_batch_size=2)
    trainer = trainer_class(model=model, args=args, eval_dataset=list(rows), compute_metrics=metrics)
    found = trainer.evaluate()
    kept = {name: float(found[name]) for name in ("eval_loss", "eval_labels") if name in found}
    predicted = trainer.predict(list(rows)).label_ids
    return kept if predicted is None else {**kept, "labels of predictions": float(_total(predicted))}


def _total(labels: Any) -> float:
    return sum(map(_total, labels)) if isinstance(labels, tuple) else float(labels.sum())


NUM_ROWS = 12
SEEDS: Sequence[Mapping[str, int]] = (
    {"seed": 1},
    {"seed": 2},
    {"seed": 1, "data_seed": 5},
    {"seed": 1, "data_seed": 6},
)


def _order(trainer_class: Any, kind: str, options: Mapping[str, Any]) -> list[list[int]]:
    """Return the numbers of rows that a loader gives, in two epochs."""
    rows = [{"number": row, "labels": 0.0, "input_ids": [0] * (1 + row % 5)} for row in range(NUM_ROWS)]
    args = _arguments(per_device_train_batch_size=2, per_device_eval_batch_size=2, **options)
    trainer = trainer_class(model=Line(), args=args, train_dataset=rows, eval_dataset=rows)
    loader = getattr(trainer, f"get_{kind}_dataloader")()
    return [[int(one) for batch in loader for one in batch["number"]] for _ in range(2)]


GROUPED = {"train_sampling_strategy": "group_by_length"}


def _orders(table: Sequence[tuple[str, Mapping[str, str]]], trainer_class: Any) -> list[str]:
    """Return where rows are not in the order of their seed: of the data where it is given, else of the run."""
    wrong = []
    for kind, more in table:
        what = f"{kind}, {dict(more)}"
        orders = [_order(trainer_class, kind, {**more, **seeds}) for seeds in SEEDS]
        if any(sorted(epoch) != list(range(NUM_ROWS)) for one in orders for epoch in one):
            wrong.append(f"{what}: not every row once")
        if any(one[0] == list(range(NUM_ROWS)) for one in orders):
            wrong.append(f"{what}: rows in the order of the data set")
        if len({str(one[0]) for one in orders}) != len(orders):
            wrong.append(f"{what}: another seed gives the same order")
        if kind == "train" and any(one[0] == one[1] for one in orders):
            wrong.append(f"{what}: both epochs have the same order")
        for seeds, due in zip(SEEDS, orders, strict=True):
            again = {**seeds, "seed": 3} if "data_seed" in seeds else seeds
            if _order(trainer_class, kind, {**more, **again})[0] != due[0]:
                wrong.append(f"{what}: {dict(again)} gives another order than {dict(seeds)}")
    if _order(trainer_class, "eval", {}) != [list(range(NUM_ROWS))] * 2:
        wrong.append("an evaluation is not in the order of the data set")
    return wrong


def _restored(trainer_class: Any) -> list[Any]:
    """Return the callbacks of a kind after a resume that restores them, and the steps that each has seen."""
    import transformers
    from transformers.trainer_callback import ExportableState

    class Counting(transformers.TrainerCallback, ExportableState):
        def __init__(self, name: str = "none") -> None:
            self.name, self.count = name, 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.count += 1

        def state(self) -> dict[str, Any]:
            return {"args": {"name": self.name}, "attributes": {"count": self.count}}

    rows = [{"number": row, "labels": 0.0} for row in range(4)]
    folder, checkpoint, trainer = "", None, None
    for steps in (2, 4):
        args = _arguments(
            per_device_train_batch_size=1, save_strategy="steps", save_steps=1, max_steps=steps,
            restore_callback_states_from_checkpoint=True,
        )  # fmt: skip
        trainer = trainer_class(
            model=Line(),
            args=args,
            train_dataset=rows,
            callbacks=[Counting("first" if steps == 2 else "second")],
        )
        with resuming():
            trainer.train(resume_from_checkpoint=checkpoint)
        folder = folder or args.output_dir
        checkpoint = str(Path(folder) / "checkpoint-2")
    assert trainer is not None
    kinds = [type(one).__name__ for one in trainer.callback_handler.callbacks]
    found = [one for one in trainer.callback_handler.callbacks if isinstance(one, Counting)]
    return [[[one.name, one.count] for one in found], len(kinds) - len({*kinds})]


def _optimized(trainer_class: Any) -> list[list[bool]]:
    """Return whether the weights of an optimizer are those of the trainer's model, and of one that is given."""
    found = []
    for given in (None, Line()):
        trainer = trainer_class(model=Line(), args=_arguments(weight_decay=0.5))
        optimizer = trainer.create_optimizer(given)
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        model = trainer.model if given is None else given
        found.append([own == {id(one) for one in model.parameters()}, len(optimizer.param_groups) == 2])
    return found


PLACE = "transformers:Trainer"
# Sources: the documentation of Trainer (logs, processing_class, label_names), and the pages on PEFT.
ROWS: Sequence[Row] = (
    Row("steps", PLACE, "the learning rates that it logs", _logged_rates, [], since="4.57"),
    Row(
        "checkpoints",
        PLACE,
        "special tokens of the tokenizer in saved models",
        _saved_tokens,
        [],
        since="4.57",
    ),
    Row("validations", PLACE, "evaluations of models with adapters", _evaluations, [], since="4.57"),
    Row(
        "batches",
        PLACE,
        "orders of rows by seeds",
        partial(_orders, [("train", {}), ("eval", GROUPED)]),
        [],
        since="5",
    ),
    Row(
        "batches",
        PLACE,
        "orders of rows that are grouped by length",
        partial(_orders, [("train", GROUPED)]),
        [],
        since="5",
        known=KnownFailure(
            "the seed of the data is ignored",
            finding="Transformers: the seed of data that is grouped by length",
        ),
    ),
    Row("starts", PLACE, "callbacks of a resumed run", _restored, [[["first", 4]], 0], since="4.57"),
    Row("states", PLACE, "the model of an optimizer", _optimized, [[True, True], [True, True]], since="5"),
    *GENERATION_ROWS,
    *CALL_ROWS,
    *TRAINING_CALL_ROWS,
    *TOKEN_CALL_ROWS,
    *SPECIAL_CALL_ROWS,
    *SOUND_CALL_ROWS,
    *PICTURE_CALL_ROWS,
    *FILM_CALL_ROWS,
    *COLLATOR_CALL_ROWS,
    *RUN_CALL_ROWS,
    *OPTION_CALL_ROWS,
    *CONTINUED_ROWS,
    *REPEATED_ROWS,
    *BEAM_ROWS,
    *CHAT_ROWS,
    *RUN_ROWS,
    *PREDICTION_ROWS,
    *DATA_ROWS,
    *PART_ROWS,
    *LOSS_ROWS,
    *BOX_ROWS,
    *ALIGNED_ROWS,
    *ARGUMENT_ROWS,
    *ARRAY_ROWS,
    *TOOL_ROWS,
    *FLOW_ROWS,
    *TRIAL_ROWS,
    *OPTIMIZER_ROWS,
    *COLLATOR_ROWS,
    *WORKER_ROWS,
    *SETUP_ROWS,
    *RESUME_ROWS,
    *CHANGED_ROWS,
    *TRANSLATION_ROWS,
    *SCHEDULE_ROWS,
    *REPORT_ROWS,
    *UPDATE_ROWS,
    *EARLIER_ROWS,
    *TRACKER_ROWS,
    *EVALUATED_ROWS,
    *KEPT_ROWS,
    *SEARCH_ROWS,
    *FOLLOWED_ROWS,
    *PROCESS_ROWS,
    *SURROUNDING_ROWS,
    *DEBUGGED_ROWS,
    *UPLOAD_ROWS,
    *PAIRED_ROWS,
)


class OfTransformers(Worked):
    """What runs of the trainer log, save and evaluate; see `contracts.worked`."""

    package = "transformers"
    worked_rows = ROWS


ADAPTERS: dict[str, type[Any]] = {"worked": OfTransformers}
