"""A plain tracker, which satisfies the laws of trackers; a fault is one line."""

from dataclasses import dataclass

from seatrial.relations.contracts.trackers import Tracked, TrackedPlan
from seatrial.relations.laws.loops.trackers import COLUMNS, ROWS


@dataclass
class PlainTracker:
    """Keeps what it is given."""

    fault: str = ""
    counts_steps = False
    drops_texts = False
    draws_images = True
    draws_tables = True
    takes_options = True

    def tracked(self, plan: TrackedPlan) -> Tracked:
        fault = self.fault
        values = []
        for call, (logged, step) in enumerate(plan.logged):
            kept = (step or None) if fault == "0 is no step" else step
            kept = call if fault == "calls are steps" else kept
            for name, value in logged.items():
                if isinstance(value, dict):
                    values += (
                        []
                        if fault == "no groups"
                        else [(f"{name}/{key}", one, kept) for key, one in value.items()]
                    )
                else:
                    values.append((name.split("_")[-1] if fault == "cut names" else name, value, kept))
        settings = {name: value for name, value in plan.settings.items() if value or fault != "true settings"}
        if fault == "a hundred settings":
            settings = dict(list(settings.items())[:100])
        images = [(name, 1 if fault == "one image" else number, step) for name, number, step in plan.images]
        tables = [
            (name, COLUMNS, [COLUMNS, *ROWS] if fault == "columns are a row" else ROWS, step)
            for name, step in plan.tables
        ]
        options = {"made": 5, "logged": 6} if plan.client_options and fault != "no options" else {}
        changed = list(plan.settings)[:1] if fault == "long settings removed" else []
        return Tracked(values, settings, images, tables, options, fault != "open", changed)
