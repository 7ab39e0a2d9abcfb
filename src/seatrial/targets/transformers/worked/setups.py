"""Worked examples of what Transformers' trainer makes of a model: labels, counts, losses and loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.tiny import tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments, line, numbered

SMALL: Mapping[str, Any] = {
    "vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


class Counted(nn.Module):
    """A loss that is a sum by a count where one is given, and else a mean."""

    def __init__(self) -> None:
        """Make its weight, and the configuration that trainers look for."""
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.tensor(0.0)), list[Any]()

    def loss_of(self, labels: Tensor, count: Any) -> dict[str, Tensor]:
        """Return the loss of labels: each adds itself times the weight."""
        self.seen.append(None if count is None else float(count))
        kept = labels[labels != -100].float()
        total = (self.weight * kept).sum()
        return {"loss": total / (len(kept) if count is None else count), "logits": labels.float()}


class Taking(Counted):
    """Takes any arguments."""

    def forward(self, labels: Tensor, **more: Any) -> dict[str, Tensor]:
        """Return the loss."""
        return self.loss_of(labels, more.get("num_items_in_batch"))


class Refusing(Counted):
    """Takes labels only."""

    def forward(self, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        return self.loss_of(labels, None)


class Denying(Taking):
    """Takes any arguments, and says that it takes no count."""

    accepts_loss_kwargs = False


class Naming(Counted):
    """Takes the count by its name, and says that it does."""

    accepts_loss_kwargs = True

    def forward(self, labels: Tensor, num_items_in_batch: Any = None) -> dict[str, Tensor]:
        """Return the loss."""
        return self.loss_of(labels, num_items_in_batch)


def _scaled(trainer_class: Any) -> list[str]:
    """Return where a step of micro-batches of unequal counts is not by all labels, or by the mean of their means."""
    rows = [
        {"labels": [1, 2, 3]},
        {"labels": [7, -100, -100]},
        {"labels": [-100, 5, 5]},
        {"labels": [4, 4, 4]},
    ]
    by_all = (1 + 2 + 3 + 7 + 5 + 5 + 4 + 4 + 4) / 9
    by_means = (13 / 4 + 22 / 5) / 2
    wrong = []
    for model_class, due, count in (
        (Taking, by_all, 9.0), (Refusing, by_means, None), (Denying, by_means, None), (Naming, by_all, 9.0),
    ):  # fmt: skip
        model = model_class()
        args = arguments(
            optim="sgd", learning_rate=1.0, max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            lr_scheduler_type="constant", max_grad_norm=0.0, remove_unused_columns=False,
        )  # fmt: skip

        class InOrder(trainer_class):  # type: ignore[misc]
            def _get_train_sampler(self, *given: Any) -> Any:
                return torch.utils.data.SequentialSampler(given[0] if given else self.train_dataset)

        InOrder(model=model, args=args, train_dataset=rows).train()
        wrong += unlike([-float(model.weight.detach())], [due], model_class.__name__, 1e-5)
        wrong += [] if model.seen == [count] * 2 else [f"{model_class.__name__} is given counts {model.seen}"]
    return wrong


def _said(trainer_class: Any) -> list[str]:
    """Return where an own loss is not scaled as a trainer says that it is."""
    wrong = []
    for scaled in (True, False):

        class Own(trainer_class):  # type: ignore[misc]
            loss_is_scaled_for_ga = scaled

            def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> Any:
                return model.weight * inputs["labels"].float().sum()

        model = Taking()
        args = arguments(
            optim="sgd", learning_rate=1.0, max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=4,
            lr_scheduler_type="constant", max_grad_norm=0.0, remove_unused_columns=False,
        )  # fmt: skip
        Own(model=model, args=args, train_dataset=[{"labels": [number]} for number in (1, 2, 3, 4)]).train()
        wrong += unlike([-float(model.weight.detach())], [10.0 if scaled else 2.5], f"{scaled=}", 1e-5)
    return wrong


def _heads() -> dict[str, Any]:
    import transformers

    made: Any = transformers
    config = made.BertConfig(**SMALL, num_labels=3)
    t5 = made.T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return {
        "causal": tiny_model(tiny_tokenizer(), 0), "masked": made.BertForMaskedLM(config),
            "spans": made.BertForQuestionAnswering(config),
        "translated": made.T5ForConditionalGeneration(t5), "scored": tiny_scorer(0),
    }  # fmt: skip


def _named(trainer_class: Any) -> dict[str, list[str]]:
    """Return names of labels by model, with an adapter and without."""
    from peft import LoraConfig, get_peft_model

    found = {
        name: list(trainer_class(model=model, args=arguments()).label_names)
        for name, model in _heads().items()
    }
    config: Any = LoraConfig(r=2, target_modules=["query"])
    adapted = get_peft_model(_heads()["spans"], config)
    found["spans with an adapter"] = list(trainer_class(model=adapted, args=arguments()).label_names)
    found["given"] = list(trainer_class(model=Line(), args=arguments(label_names=["a"])).label_names)
    return found


def _shifts(trainer_class: Any) -> dict[str, Any]:
    """Return counts of labels by model: causal losses leave out the first of each row."""
    from peft import LoraConfig, get_peft_model

    batch = {"labels": torch.tensor([[1, 2, 3], [4, -100, 5]])}
    found = {}
    config: Any = LoraConfig(r=2, target_modules=["q_proj"])
    heads = {name: model for name, model in _heads().items() if name in ("causal", "translated")}
    heads["causal with an adapter"] = get_peft_model(_heads()["causal"], config)
    for name, model in heads.items():
        trainer = trainer_class(model=model, args=arguments())
        count = trainer._get_num_items_in_batch([batch, batch], torch.device("cpu"))
        found[name] = None if count is None else float(count)
    return found


def _defaults(trainer_class: Any) -> list[Any]:
    """Return the collators of trainers with a tokenizer, with another class and without, and smoothers of labels."""

    class Other:
        model_input_names = ("ids",)

    found: list[Any] = []
    for given in ({"processing_class": tiny_tokenizer()}, {"processing_class": Other()}, {}):
        made = trainer_class(model=Line(), args=arguments(), **given).data_collator
        found.append(getattr(made, "__name__", type(made).__name__))
    model: Any = Line()
    for kind, factor in (("multi_label_classification", 0.1), ("regression", 0.1), ("regression", 0.0)):
        model.config = SimpleNamespace(problem_type=kind, to_dict=dict, to_json_string=str)
        smoother = trainer_class(model=model, args=arguments(label_smoothing_factor=factor)).label_smoother
        found.append(None if smoother is None else smoother.epsilon)
    return found


UNFIT: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("no model", {}, "requires either a `model` or `model_init`"),
    ("a model and a function that makes one", {"model": Line, "model_init": lambda: Line}, "not both"),
)


def _unfit(given: Mapping[str, Any], trainer_class: Any) -> Any:
    return trainer_class(args=arguments(), **{name: value() for name, value in given.items()})


def _cached(trainer_class: Any) -> list[bool]:
    """Return whether models use a cache: that of the option, in training and afterwards."""
    found = []
    for option in (True, False):
        model = tiny_model(tiny_tokenizer(), 0)
        model.config.use_cache = not option
        trainer_class(model=model, args=arguments(use_cache=option))
        found.append(model.config.use_cache)
    return found


LOADED: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = (
    ({}, {"num_workers": 0, "batch_size": 8, "drop_last": False}),
    (
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3},
        {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": False},
    ),
    ({"dataloader_num_workers": 1, "dataloader_persistent_workers": True}, {"persistent_workers": True}),
    (
        {"dataloader_drop_last": True, "per_device_train_batch_size": 3, "per_device_eval_batch_size": 3},
        {"drop_last": True, "batch_size": 3},
    ),
)


def _loaded(trainer_class: Any) -> list[str]:
    """Return where loaders of training and evaluations do not have the options of the run."""
    wrong = []
    for options, due in LOADED:
        trainer = line(trainer_class, **options)
        trainer.eval_dataset = numbered()
        for kind in ("train", "eval"):
            loader = getattr(trainer, f"get_{kind}_dataloader")()
            found = {
                name: getattr(loader.batch_sampler if name in ("batch_size", "drop_last") else loader, name)
                for name in due
            }
            wrong += [] if found == dict(due) else [f"{kind} with {dict(options)}: {found}"]
            if (loader.worker_init_fn is not None) != (kind == "train"):
                wrong.append(f"{kind} with {dict(options)}: seeds of workers {loader.worker_init_fn}")
    return wrong


def _by_name(trainer_class: Any) -> list[Any]:
    """Return the rows of loaders of several sets by name, and whether loaders whose workers stay are kept apart."""
    trainer = trainer_class(
        model=Line(), args=arguments(dataloader_num_workers=1, dataloader_persistent_workers=True),
        eval_dataset={"one": numbered(2), "two": numbered(3, 5)},
    )  # fmt: skip
    found = [len(trainer.get_eval_dataloader(name).dataset) for name in ("one", "two", "one")]
    given = len(trainer.get_eval_dataloader(numbered(6)).dataset)
    return [found, given, trainer.get_eval_dataloader("one") is trainer.get_eval_dataloader("one")]


def _accumulated(trainer_class: Any) -> list[Any]:
    """Return the micro-batches of a step that options of Accelerate ask for, and whether two numbers are refused."""
    own: dict[str, Any] = {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 3}}}
    trainer = line(trainer_class, per_device_train_batch_size=1, num_train_epochs=1, **own)
    trainer.train()
    refused = False
    try:
        line(trainer_class, gradient_accumulation_steps=2, **own)
    except ValueError:
        refused = True
    return [trainer.args.gradient_accumulation_steps, trainer.state.global_step, refused]


def _switched(trainer_class: Any) -> list[str]:
    """Return the modes of an optimizer that has modes, in steps of training and in evaluations."""
    seen: list[str] = []

    class Modes(torch.optim.SGD):
        def train(self) -> None:
            seen.append("train")

        def eval(self) -> None:
            seen.append("eval")

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append("step")

    model = Line()
    trainer = trainer_class(
        model=model, args=arguments(max_steps=2, eval_strategy="steps", eval_steps=1), train_dataset=numbered(),
            eval_dataset=numbered(),
        optimizers=(Modes(model.parameters(), lr=0.1), None),
    )  # fmt: skip
    trainer.train()
    return [name for place, name in enumerate(seen) if place == 0 or seen[place - 1] != name]


PLACE = "transformers:Trainer"
# Sources: the documentation of Trainer and TrainingArguments.
SETUP_ROWS: Sequence[Row] = (
    Row("steps", PLACE, "losses by a count, and by means", _scaled, [], since="4.57"),
    Row("steps", PLACE, "an own loss that is scaled, or not", _said, [], since="5.24"),
    Row(
        "starts", PLACE, "names of labels", _named,
        {
            "causal": ["labels"], "masked": ["labels"], "spans": ["start_positions", "end_positions"],
                "translated": ["labels"],
            "scored": ["labels"], "spans with an adapter": ["start_positions", "end_positions"], "given": ["a"],
        },
        since="4.57",
    ),
    Row("counts", PLACE, "labels of each model", _shifts, {"causal": 6.0, "translated": 10.0,
        "causal with an adapter": 6.0}, since="5.20"),
    Row(
        "starts", PLACE, "collators and smoothers", _defaults,
        ["DataCollatorWithPadding", "default_data_collator", "default_data_collator", None, 0.1, None], since="5.8",
    ),
    *(Row("combinations", PLACE, what, partial(_unfit, given), Refused(words), since="5.8") for what, given,
        words in UNFIT),
    Row("starts", PLACE, "models with a cache", _cached, [True, False], since="5"),
    Row("batches", PLACE, "options of loaders", _loaded, [], since="4.57"),
    Row("batches", PLACE, "loaders of sets by name", _by_name, [[2, 3, 2], 6, True], since="4.57"),
    Row("steps", PLACE, "micro-batches by Accelerate's options", _accumulated, [3, 3, True], since="4.57"),
    Row(
        "steps", PLACE, "modes of an optimizer", _switched,
        ["train", "step", "eval", "train", "step", "eval"], since="4.57",
    ),
)  # fmt: skip
