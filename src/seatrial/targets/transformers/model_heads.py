"""Transformers' models with heads for rows, tokens, spans, masked ids, choices and targets, one adapter a family."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.model_heads import CLASSES, HeadForm, HeadKind
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.transformers.families import saved_and_loaded
from seatrial.targets.transformers.family_options import draw_by_names
from seatrial.targets.transformers.generators import LARGEST
from seatrial.targets.transformers.head_table import FAILURES, FAMILIES, NO_HEADS, SINCE
from seatrial.targets.transformers.small_models import (
    END,
    PAD,
    START,
    VOCABULARY,
    fresh_model,
    model_class,
    small_config,
)

AUTO = "transformers.models.auto.modeling_auto"
MAPPINGS: Mapping[HeadKind, str] = {
    "row classes": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "row numbers": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "row labels": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token classes": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "spans": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "masked ids": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "choices": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "targets": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
LABELS: Mapping[str, int] = {"row numbers": 1, "spans": 2}
SMALL: Mapping[str, int] = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
"""Sizes by further names that a configuration may have."""
OF_ROWS = ("row classes", "row numbers", "row labels", "choices")
IGNORED = -100


def head_names(kind: HeadKind) -> Mapping[str, str]:
    """Return the classes of a kind of head by the type of the configuration, of the installed release."""
    names: Mapping[str, Any] = getattr(__import__(AUTO, fromlist=["x"]), MAPPINGS[kind], {})
    return {family: name if isinstance(name, str) else name[0] for family, name in names.items()}


def families_with_heads() -> list[str]:
    """Return the types of configurations that have a head of any kind in the installed release."""
    return sorted({family for kind in MAPPINGS for family in head_names(kind)})


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Return rows padded on the right, [B, S]."""
    S = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (S - len(row))] for row in rows])


class FamilyHeads(KnowsFailures):
    """A family's heads; see `contracts.ModelHeads`."""

    vocab_size, end_id = VOCABULARY, END
    thorough = True
    family: ClassVar[str]

    def __init__(self) -> None:
        """Find the family in the installed release."""
        mapping = find_name("transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"])
        if self.family not in mapping or not self.head_kinds:
            raise Gone(f"transformers {release('transformers')} has no {self.family} with a head")
        if Version(release("transformers")) < Version(SINCE.get(self.family, "0")):
            raise Gone(f"{self.family} of transformers {release('transformers')} takes whole blocks alone")
        self._config_class = mapping[self.family]

    @cached_property
    def head_kinds(self) -> Sequence[HeadKind]:
        left_out = NO_HEADS.get(self.family, ())
        if self.family in head_names("targets"):
            left_out = (*left_out, "masked ids")  # ids of its decoder are made of labels
        return [kind for kind in MAPPINGS if self.family in head_names(kind) and kind not in left_out]

    @cached_property
    def _models(self) -> dict[tuple[HeadKind, str], Any]:
        return {}

    def _fresh(self, kind: HeadKind, attention: str) -> Any:
        """Return a model with fresh weights."""
        config = small_config(self._config_class)
        config.num_labels = LABELS.get(kind, CLASSES)
        config.tie_word_embeddings = getattr(self._config_class(), "tie_word_embeddings", True)
        if config.is_encoder_decoder:
            config.decoder_start_token_id = START
        if kind == "row labels":
            config.problem_type = "multi_label_classification"
        for name, value in {**SMALL, **FAMILIES[self.family]}.items():
            if hasattr(config, name):
                setattr(config, name, value)
        found = model_class(head_names(kind)[self.family])
        return fresh_model(found, config, LARGEST, attention)

    def _draw(self, model: Any) -> None:
        draw_by_names(model)

    def _model(self, kind: HeadKind, attention: str) -> Any:
        if (kind, attention) not in self._models:
            model = self._fresh(kind, attention)
            self._draw(model)
            self._models[kind, attention] = model.eval()
        return self._models[kind, attention]

    def head_excludes(self, kind: HeadKind, form: HeadForm) -> str | None:
        model = self._model(kind, "eager")
        if form.attention == "sdpa" and not getattr(model, "_supports_sdpa", False):
            return "no scaled dot-product attention"
        takes = inspect.signature(model.forward).parameters
        if form.embedded and ("inputs_embeds" not in takes or kind == "choices"):
            return "no inputs_embeds"
        if form.embedded and model.config.is_encoder_decoder and kind != "targets":
            return "ids of the decoder are made of those of the encoder"
        if form.as_tuple and "return_dict" not in takes and not _returns_tuples(model):
            return "no return_dict"
        return None

    def _inputs(self, kind: HeadKind, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        if kind == "choices":
            rows = [one for row in rows for one in (row, row[::-1])]
        inputs = {
            "input_ids": padded(rows, PAD),
            "attention_mask": padded([[1] * len(row) for row in rows], 0),
        }
        if kind == "choices":
            inputs = {name: value.view(len(rows) // 2, 2, -1) for name, value in inputs.items()}
        return inputs

    def head_outputs(self, kind: HeadKind, rows: Sequence[Sequence[int]], form: HeadForm) -> list[Tensor]:
        model = self._model(kind, form.attention)
        if form.reloaded:
            model = saved_and_loaded(model)
        if form.again:
            model = copy.deepcopy(model)
            with torch.no_grad():
                model.train()(**self._given(kind, [[*row, *row] for row in rows], HeadForm(), model))
                model.eval()(**self._given(kind, [row[2:] for row in rows], HeadForm(), model))
        batches = [rows] if form.together else [[row] for row in rows]
        return [one for batch in batches for one in self._called(kind, batch, form, model)]

    def _given(
        self, kind: HeadKind, rows: Sequence[Sequence[int]], form: HeadForm, model: Any
    ) -> dict[str, Any]:
        given: dict[str, Any] = self._inputs(kind, rows)
        if kind == "targets":
            given["decoder_input_ids"] = padded([[START, *row[::-1][:-1]] for row in rows], PAD)
        if form.embedded:
            given["inputs_embeds"] = model.get_input_embeddings()(given.pop("input_ids"))
        if form.asked:
            given |= {"output_hidden_states": True, "output_attentions": True}
        if form.as_tuple:
            given["return_dict"] = False
        return given

    def _called(
        self, kind: HeadKind, rows: Sequence[Sequence[int]], form: HeadForm, model: Any
    ) -> list[Tensor]:
        found = model(**self._given(kind, rows, form, model))
        if kind == "spans":
            sides = found[:2] if form.as_tuple else (found.start_logits, found.end_logits)
            logits = torch.stack(tuple(sides), dim=-1)
        else:
            logits = found[0] if form.as_tuple else found.logits
        if kind in OF_ROWS:
            return list(logits[:, None])
        return [one[: len(row)] for one, row in zip(logits, rows, strict=True)]

    def _batch(
        self, kind: HeadKind, rows: Sequence[Sequence[int]], labels: Sequence[Any]
    ) -> dict[str, Tensor]:
        batch = self._inputs(kind, rows)
        if kind == "spans":
            starts, ends = zip(*labels, strict=True)
            return {**batch, "start_positions": torch.tensor(starts), "end_positions": torch.tensor(ends)}
        if kind == "targets":
            batch["decoder_input_ids"] = padded([[START, *row[::-1][:-1]] for row in rows], PAD)
        whole = kind in OF_ROWS
        return {**batch, "labels": torch.tensor(labels) if whole else padded(labels, IGNORED)}

    def head_loss(self, kind: HeadKind, rows: Sequence[Sequence[int]], labels: Sequence[Any]) -> float:
        with torch.no_grad():
            return float(self._model(kind, "eager")(**self._batch(kind, rows, labels)).loss)

    def head_changes(self, kind: HeadKind, rows: Sequence[Sequence[int]], labels: Sequence[Any]) -> list[str]:
        batch = self._batch(kind, rows, labels)
        before = {name: value.clone() for name, value in batch.items()}
        model = copy.deepcopy(self._model(kind, "eager")).train()
        model(**batch).loss.backward()
        return [name for name, value in batch.items() if not torch.equal(value, before[name])]

    def head_failures(self, law: str) -> Mapping[str, str]:
        return {
            kind: known.finding
            for known in FAILURES
            if self.family in known.families and law in known.laws and known.releases(self)
            for kind in known.kinds
        }


def _returns_tuples(model: Any) -> bool:
    """Return whether a decorator of the forward pass takes `return_dict`."""
    return hasattr(type(model).forward, "__wrapped__")


def _adapter(family: str) -> type[FamilyHeads]:
    return type(
        f"Heads_{family}", (FamilyHeads,), {"__doc__": f"Heads of the family {family}.", "family": family}
    )


ADAPTERS: dict[str, type[Any]] = {f"heads-{family}": _adapter(family) for family in FAMILIES}
