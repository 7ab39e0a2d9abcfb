"""Accelerate's trackers, each with a stand-in for its client; see `contracts.trackers.Tracker`."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from seatrial.relations.contracts.trackers import Tracked, TrackedPlan
from seatrial.relations.laws.loops.trackers import COLUMNS, ROWS
from seatrial.targets.accelerate.clients import stand_in
from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release

MADE = {"mlflow": "description"}
"""The name of an option of the client, where it is not `option`."""


class Tracker(KnowsFailures):
    """One tracker of the installed release."""

    service: ClassVar[str]
    """Accelerate's name of it."""
    counts_steps: ClassVar[bool] = False
    drops_texts: ClassVar[bool] = False
    draws_lists: ClassVar[bool] = True
    """Whether its images are lists; else a name has one image."""

    def __init__(self) -> None:
        """Find the tracker."""
        known = find_name("accelerate", ["accelerate.tracking:LOGGER_TYPE_TO_CLASS"])
        if self.service not in known:
            raise Gone(f"accelerate {release('accelerate')} has no tracker {self.service}")
        tracker = known[self.service]
        self.draws_images = hasattr(tracker, "log_images") and self.draws_lists
        self.draws_tables = hasattr(tracker, "log_table")
        self.takes_options = any(
            one.kind is one.VAR_KEYWORD for one in inspect.signature(tracker.log).parameters.values()
        )

    def tracked(self, plan: TrackedPlan) -> Tracked:
        name = self.service
        with tempfile.TemporaryDirectory(prefix="seatrial-") as folder, stand_in(name) as record:
            accelerator = new_accelerator(project_dir=folder)
            # A stand-in needs no installed package, which the constructor looks for.
            accelerator.log_with = [name]
            made: dict[str, Any] = {MADE.get(name, "option"): 5} if plan.client_options else {}
            if name == "mlflow":
                made["logging_dir"] = folder
            settings, logged = dict(plan.settings), [(dict(values), step) for values, step in plan.logged]
            accelerator.init_trackers("project", config=settings or None, init_kwargs={name: made})
            options = {name: {"option": 6}} if plan.client_options else {}
            for values, step in logged:
                accelerator.log(values, step=step, log_kwargs=options)
            self._draw(accelerator.get_tracker(name), plan)
            accelerator.end_training()
        ended = record.num_ends == 1
        given = [
            (plan.settings, settings),
            *((one, left) for (one, _), (left, _) in zip(plan.logged, logged, strict=True)),
        ]
        changed = [
            key for before, after in given for key in before if key not in after or after[key] != before[key]
        ]
        return Tracked(
            record.values, record.settings, record.images, record.tables, record.options, ended, changed
        )

    def _draw(self, tracker: Any, plan: TrackedPlan) -> None:
        """Log images and tables."""
        for key, number, step in plan.images:
            tracker.log_images({key: np.zeros((number, 3, 2, 2), dtype=np.uint8)}, step=step)
        for key, step in plan.tables:
            tracker.log_table(key, columns=list(COLUMNS), data=[list(row) for row in ROWS], step=step)


TRACKIO_STEPS = KnownFailure(
    "the step of a value does not go to Trackio",
    finding="Accelerate: steps of Trackio",
    releases=before("accelerate", "1.14"),
).of(
    "R30.tracked/numbers at their steps",
    "R30.tracked/numbers of one step, logged twice",
    "R30.tracked/texts and groups",
)


LONG_SETTINGS = KnownFailure(
    "settings that are longer than MLflow takes are removed from the caller's dictionary",
    finding="Accelerate: long settings and MLflow",
    releases=before("accelerate", "1.14"),
).of("R30.tracked/what the caller gives stays")


def _of(service: str, **claims: Any) -> type[Tracker]:
    return type(
        f"{service.title()}Tracker", (Tracker,), {"service": service, "__module__": __name__, **claims}
    )


CLAIMS: Mapping[str, Mapping[str, Any]] = {
    "tensorboard": {},
    "wandb": {},
    "trackio": {"known_failures": (TRACKIO_STEPS,)},
    "swanlab": {},
    "comet_ml": {},
    "aim": {"draws_lists": False},
    "mlflow": {"drops_texts": True, "known_failures": (LONG_SETTINGS,)},
    "clearml": {"drops_texts": True},
    "dvclive": {"drops_texts": True, "counts_steps": True},
}
"""What each tracker claims, by Accelerate's name of it."""
TRACKERS: dict[str, type[Any]] = {f"tracker-{name}": _of(name, **claims) for name, claims in CLAIMS.items()}
