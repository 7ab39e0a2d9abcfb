"""What a trainer hands to the caller's function of metrics, as sequences with their logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.trainers import PredictedSequence
from seatrial.relations.not_served import NotServed
from seatrial.targets.trl.made_rows import MadeRows
from seatrial.targets.trl.named import parameters_of
from seatrial.targets.trl.served import IGNORED


class Predictions:
    """Keeps what evaluations predict."""

    def __init__(self, rows: MadeRows) -> None:
        """Begin with nothing."""
        self._rows = rows
        self._found: list[PredictedSequence] = []

    def arguments(self, trainer_class: Any) -> dict[str, Any]:
        """Return the arguments of a trainer that hand predictions to this object.

        Where the caller may change logits before they are gathered, they are halved there, and doubled here.

        Raises:
            NotServed: the trainer takes no function of metrics.
        """
        takes = parameters_of(trainer_class)
        if "compute_metrics" not in takes:
            raise NotServed("the trainer takes no compute_metrics")
        if "preprocess_logits_for_metrics" not in takes:
            return {"compute_metrics": lambda given: self._keep(given, 1.0)}
        return {
            "compute_metrics": lambda given: self._keep(given, 2.0),
            "preprocess_logits_for_metrics": lambda logits, labels: _first(logits) / 2,
        }

    def taken(self) -> list[PredictedSequence]:
        """Return what has been predicted since the last call."""
        found, self._found = self._found, []
        return found

    def _keep(self, given: Any, factor: float) -> dict[str, float]:
        predictions = torch.as_tensor(_first(given.predictions)).double() * factor
        if predictions.ndim < 3 and bool(predictions.any()):
            raise NotServed("this release passes numbers of each row or batch, and no logits")
        if predictions.ndim == 3 and given.label_ids is not None:
            labels = torch.as_tensor(_first(given.label_ids))
            self._found += [self._sequence(*row) for row in zip(predictions, labels, strict=True)]
        return {}

    def _sequence(self, logits_TV: Tensor, labels_T: Tensor) -> PredictedSequence:
        """Return a row of logits with its ids; labels are ids, or those of what trains alone."""
        shown = (labels_T != IGNORED) & (labels_T != self._rows.pad_id)
        known = labels_T[shown].tolist()
        ids = next(
            (one for one in map(list, self._rows.sequences) if known and one[-len(known) :] == known), known
        )
        places = range(len(ids) - len(known), len(ids))
        return PredictedSequence(ids=tuple(ids), places=tuple(places), logits=logits_TV[shown])


def _first(given: Any) -> Any:
    """Return the logits where outputs hold more than them."""
    return given[0] if isinstance(given, tuple | list) else given
