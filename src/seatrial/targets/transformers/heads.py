"""`transformers.Trainer` on tiny models with other heads than a causal language model's."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.supervised import (
    EpochsPlan,
    Evaluated,
    EvaluatedPlan,
    SupervisedSpec,
    SupervisedUpdate,
)
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnownFailure, before, between, since
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.trainers import batch_options, configuration, run_of_rows, step_of_rows
from seatrial.targets.transformers.steps import TrainerSteps

VOCABULARY, WIDTH, PAD, CLASSES, IGNORED = 40, 16, 0, 3, -100
LENGTHS = (6, 6, 6, 6, 3, 4, 9, 8)
"""Tokens of each example; the first half has equal ones, and two neighbours of the other half unlike sums."""
ONE, TWO = (f"R1.supervised/micro-batches of {one}" for one in ("one example", "two examples"))
UNEQUAL = "R12.supervised/loss and gradient, micro-batches of unequal numbers of items"
NOT_DIVIDED = KnownFailure(
    "means of micro-batches are added, not averaged: the model takes a count of items that its loss ignores",
    finding="Transformers: losses of heads that ignore the count of items",
)
UNEVEN = "R12.epochs/loss and gradient, a smaller last micro-batch"
EPOCHS = tuple(
    f"R12.epochs/loss and gradient, {what}"
    for what in ("three micro-batches an update", "four micro-batches an update", "a number of updates")
)
COUNT_IGNORED = (ONE, TWO, *EPOCHS, UNEVEN)
"""Laws that a head breaks whose loss ignores the count of items."""
ALL_IGNORED = (*COUNT_IGNORED, UNEQUAL)
"""The same of a head with unequal numbers of items."""
MEANS_OF_MEANS = KnownFailure(
    "means of micro-batches are averaged, however many labels each has",
    finding="Transformers: means of micro-batches",
    releases=between("transformers", "4.48.3", "5"),
).of(UNEQUAL, *EPOCHS, UNEVEN)
MEANS_OF_BATCHES = KnownFailure(
    "the loss of an evaluation is the mean of the batches' means, each weighted by its rows",
    finding="TRL: the evaluation loss of several batches",
).of("R23.supervised/loss, several batches", "R23.supervised/loss alone")
MEANS_OF_ROWS = replace(MEANS_OF_MEANS, laws=(UNEVEN,))
"""Of heads with one item a row."""
SMOOTHED_ADDED = KnownFailure(
    "smoothed losses are means of micro-batches that are added, not averaged",
    finding="Transformers: label smoothing and accumulation",
    releases=before("transformers", "5.15"),
).of(*ALL_IGNORED)


def not_divided(since_release: str, *laws: str) -> tuple[KnownFailure, ...]:
    """Return the failure of releases from one on, and of those before 4.48.3."""
    return tuple(
        replace(NOT_DIVIDED, releases=releases).of(*laws)
        for releases in (since("transformers", since_release), before("transformers", "4.48.3"))
    )


def example_ids(example: int) -> list[int]:
    """Return the ids of an example."""
    return [
        1 + (7 * example + 3 * place * place + place) % (VOCABULARY - 1) for place in range(LENGTHS[example])
    ]


class Head(TrainerSteps):
    """A model on the adapter's own examples; see `contracts.SupervisedStep`."""

    supervised_spec = SupervisedSpec()
    model_name: ClassVar[str]
    config_name: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    """Of the model's configuration, beyond a tiny one's."""
    training: ClassVar[Mapping[str, Any]] = {}
    """Of `TrainingArguments`."""

    def __init__(self) -> None:
        """Find the model and its configuration."""
        import transformers

        for name in (self.model_name, self.config_name):
            if not hasattr(transformers, name):
                raise Gone(f"transformers {release('transformers')} has no {name}")
        self.model_class = getattr(transformers, self.model_name)
        self.config_class = getattr(transformers, self.config_name)

    @cached_property
    def _model(self) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.model_class(self.config_class(**self.options)).float()
        with torch.no_grad():
            for value in model.parameters():
                if value.dim() > 1:
                    value.mul_(4.0)
        return model

    def supervised_model(self) -> Any:
        return self._model

    def row(self, example: int) -> dict[str, Any]:
        """Return an example as the data set has it: ids and labels."""
        raise NotImplementedError

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        row = self.row(example)
        labels = row["labels"]
        logits_1SV = model(input_ids=torch.tensor([row["input_ids"]])).logits
        if isinstance(labels, int):
            return logits_1SV, [labels]
        kept = [place for place, label in enumerate(labels) if label != IGNORED]
        return logits_1SV[0, kept], [labels[place] for place in kept]

    def supervised_step(self, micro_batches: Sequence[Sequence[int]]) -> StepResult:
        import transformers

        return step_of_rows(
            transformers.Trainer,
            self.supervised_model(),
            [self.row(example) for part in micro_batches for example in part],
            args=configuration(
                transformers.TrainingArguments, {**batch_options(micro_batches), **self.training}
            ),
            data_collator=self.collate,
            **self.trainer_options(),
        )

    def supervised_run(self, plan: EpochsPlan) -> Sequence[SupervisedUpdate]:
        import transformers

        length = {"num_train_epochs": plan.num_epochs} if plan.num_steps is None else {}
        return run_of_rows(
            transformers.Trainer,
            self.supervised_model(),
            [self.row(example) for example in range(plan.num_examples)],
            args=configuration(
                transformers.TrainingArguments,
                {
                    "per_device_train_batch_size": plan.batch_size,
                    "gradient_accumulation_steps": plan.num_micro_batches,
                    "remove_unused_columns": False,
                    "max_steps": -1 if plan.num_steps is None else plan.num_steps,
                    "seed": plan.seed,
                    **length,
                    **self.training,
                },
            ),
            data_collator=self.collate,
            **self.trainer_options(),
        )

    gives_items: ClassVar[bool] = True

    def supervised_evaluation(self, plan: EvaluatedPlan) -> Evaluated:
        import transformers
        from datasets import Dataset

        given: list[Any] = []

        def metric(found: Any) -> dict[str, float]:
            given.append(found)
            return {"rows": float(len(found.label_ids))}

        trainer_class: Any = transformers.Trainer
        trainer = trainer_class(
            model=copy.deepcopy(self.supervised_model()),
            args=configuration(
                transformers.TrainingArguments,
                {
                    "per_device_eval_batch_size": plan.batch_size,
                    "eval_accumulation_steps": plan.in_parts,
                    "prediction_loss_only": plan.loss_alone,
                    **self.training,
                },
            ),
            eval_dataset=Dataset.from_list([self.row(example) for example in range(plan.num_examples)]),
            data_collator=self.collate,
            compute_metrics=metric if self.gives_items else None,
            **self.trainer_options(),
        )
        loss = float(trainer.evaluate()["eval_loss"])
        if not given:
            return Evaluated(loss, (), ())
        outputs, targets = torch.from_numpy(given[-1].predictions), torch.from_numpy(given[-1].label_ids)
        if self.supervised_spec.items == "rows":
            whole = [one.tolist() for one in targets]
            answers = [[one] if isinstance(one, list) or self.is_class else [[one]] for one in whole]
            return Evaluated(loss, list(outputs[:, None]), answers)
        kept = [row != IGNORED for row in targets]
        return Evaluated(
            loss,
            [row[own] for row, own in zip(outputs, kept, strict=True)],
            [row[own].tolist() for row, own in zip(targets, kept, strict=True)],
        )

    @property
    def is_class(self) -> bool:
        """Whether a target is the number of a class."""
        return self.supervised_spec.loss == "classes"

    def trainer_options(self) -> dict[str, Any]:
        """Return further arguments of the trainer."""
        return {}

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Pad on the right."""
        S = max(len(row["input_ids"]) for row in rows)

        def padded(name: str, fill: int, width: int) -> Tensor:
            return torch.tensor([[*row[name], *[fill] * (width - len(row[name]))] for row in rows])

        real = [[1] * len(row["input_ids"]) + [0] * (S - len(row["input_ids"])) for row in rows]
        found = {"input_ids": padded("input_ids", PAD, S), "attention_mask": torch.tensor(real)}
        if isinstance(rows[0]["labels"], int):
            return {**found, "labels": torch.tensor([row["labels"] for row in rows])}
        return {**found, "labels": padded("labels", IGNORED, max(len(row["labels"]) for row in rows))}


QUIET_BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": CLASSES}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": WIDTH,
    **QUIET_BERT,
}
QWEN = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": WIDTH,
    "pad_token_id": PAD,
}


class RowClasses(Head):
    """An encoder that classifies rows."""

    supervised_spec = SupervisedSpec(items="rows")
    model_name, config_name = "BertForSequenceClassification", "BertConfig"
    options: ClassVar[Mapping[str, Any]] = BERT
    known_failures: ClassVar[Sequence[KnownFailure]] = (*not_divided("5", *COUNT_IGNORED), MEANS_OF_ROWS)

    def row(self, example: int) -> dict[str, Any]:
        return {"input_ids": example_ids(example), "labels": example % CLASSES}


class DecoderRowClasses(RowClasses):
    """A decoder that classifies rows by their last token."""

    model_name, config_name = "Qwen2ForSequenceClassification", "Qwen2Config"
    options: ClassVar[Mapping[str, Any]] = {**QWEN, "num_labels": CLASSES}
    known_failures = (
        *not_divided("4.54", *COUNT_IGNORED),
        replace(MEANS_OF_ROWS, releases=between("transformers", "4.48.3", "4.54")),
    )


class TokenClasses(Head):
    """An encoder that classifies tokens, the first of each row left out."""

    model_name, config_name, options = "BertForTokenClassification", "BertConfig", BERT
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        *not_divided("5", *ALL_IGNORED),
        MEANS_OF_MEANS,
        MEANS_OF_BATCHES,
    )

    def row(self, example: int) -> dict[str, Any]:
        ids = example_ids(example)
        return {"input_ids": ids, "labels": [IGNORED, *((token + example) % CLASSES for token in ids[1:])]}


class MaskedTokens(Head):
    """An encoder that predicts masked tokens: every third."""

    model_name, config_name, options = "BertForMaskedLM", "BertConfig", BERT
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        *not_divided("5", *ALL_IGNORED),
        MEANS_OF_MEANS,
        MEANS_OF_BATCHES,
    )

    def row(self, example: int) -> dict[str, Any]:
        ids = example_ids(example)
        masked = [place % 3 == 1 for place in range(len(ids))]
        return {
            "input_ids": [3 if hidden else token for token, hidden in zip(ids, masked, strict=True)],
            "labels": [token if hidden else IGNORED for token, hidden in zip(ids, masked, strict=True)],
        }


class EncoderDecoder(Head):
    """An encoder and a decoder with labels of unequal lengths."""

    gives_items = False
    model_name, config_name = "T5ForConditionalGeneration", "T5Config"
    options: ClassVar[Mapping[str, Any]] = {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "d_kv": 8,
        "d_ff": WIDTH,
        "num_layers": 1,
        "num_heads": 2,
        "dropout_rate": 0.0,
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
    }
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        *not_divided("5", *ALL_IGNORED),
        MEANS_OF_MEANS,
        MEANS_OF_BATCHES,
    )

    def row(self, example: int) -> dict[str, Any]:
        return {
            "input_ids": example_ids(example),
            "labels": example_ids(example)[: LENGTHS[example] - 1][::-1],
        }

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        row = self.row(example)
        decoder_ids = torch.tensor([[PAD, *row["labels"][:-1]]])
        logits_1SV = model(input_ids=torch.tensor([row["input_ids"]]), decoder_input_ids=decoder_ids).logits
        return logits_1SV[0], row["labels"]


class Smoothed(Head):
    """A causal language model with smoothed labels."""

    gives_items = False
    supervised_spec = SupervisedSpec(smoothing=0.2)
    model_name, config_name = "Qwen2ForCausalLM", "Qwen2Config"
    options: ClassVar[Mapping[str, Any]] = QWEN
    training: ClassVar[Mapping[str, Any]] = {"label_smoothing_factor": 0.2}
    known_failures: ClassVar[Sequence[KnownFailure]] = (SMOOTHED_ADDED, MEANS_OF_BATCHES)

    def row(self, example: int) -> dict[str, Any]:
        ids = example_ids(example)
        return {"input_ids": ids, "labels": [IGNORED, *ids[1:]]}

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        ids = example_ids(example)
        logits_NV: Tensor = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        return logits_NV, ids[1:]


class LanguageModel(Smoothed):
    """A causal language model with its own loss; the first label of a row trains nothing and is left out."""

    supervised_spec = SupervisedSpec()
    training: ClassVar[Mapping[str, Any]] = {}
    known_failures: ClassVar[Sequence[KnownFailure]] = (MEANS_OF_BATCHES,)


class OwnLoss(LanguageModel):
    """A causal language model with a `compute_loss_func` that divides by the count it is given."""

    def trainer_options(self) -> dict[str, Any]:
        return {"compute_loss_func": _summed_loss}


def _summed_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    logits_NV = outputs["logits"][:, :-1].flatten(0, 1)
    labels_N = labels[:, 1:].flatten()
    total = torch.nn.functional.cross_entropy(logits_NV, labels_N, ignore_index=IGNORED, reduction="sum")
    # Evaluations before 5 give no count.
    count = (labels_N != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / count


ADAPTERS: dict[str, type[Any]] = {
    "row-classes": RowClasses,
    "decoder-row-classes": DecoderRowClasses,
    "token-classes": TokenClasses,
    "masked-tokens": MaskedTokens,
    "encoder-decoder": EncoderDecoder,
    "causal-lm-epochs": LanguageModel,
    "causal-lm-smoothed": Smoothed,
    "causal-lm-own-loss": OwnLoss,
}
