"""R21: what a run exports is what it trained, and loads as the model that it began from; the best is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.run.resume import BACKENDS, ResumeCase, by, resuming
from seatrial.relations.runs import BASE

WRITTEN_ANEW = ("transformers_version", "dtype", "torch_dtype", "_name_or_path", "tokenizer_class")
"""What a library says of itself, or of what it writes; Transformers 5 names the class of a fast tokenizer otherwise."""


def exported_is_trained(stack: Any, case: ResumeCase) -> Measure:
    """The exported names and bits are those of the recorded final weights of the same run."""
    import torch

    left = case.run(stack)
    options = {**BASE, **getattr(stack, "options", {}), **case.options}
    final = stack.short_run(options, seed=case.seed).final_weights
    wrong = [
        name
        for name in left.exported
        if name not in final or not torch.equal(left.exported[name], final[name])
    ]
    logits = (
        [stack.next_token_logits(weights, (5, 9, 2)) for weights in (left.exported, final)]
        if not wrong
        else []
    )
    if logits and not torch.equal(*logits):
        wrong.append("logits")
    error = float(len(wrong)) if left.exported else math.inf
    return Measure(
        error=error, bound=0, what=f"exported tensors that are not the trained ones ({wrong[:3] or 'none'})"
    )


def nothing_beside_is_lost(stack: Any, case: ResumeCase) -> Measure:
    """Configuration, defaults of generation and tokenizer are those of the model that training began from."""
    left = case.run(stack)
    wrong = [
        place
        for name, began in left.initial_files.items()
        for place in _changed(name, began, left.exported_files.get(name))
    ]
    return Measure(
        error=float(len(wrong)) if left.initial_files else math.inf,
        bound=0,
        what=f"what the exported directory lacks or has otherwise ({wrong[:3] or 'nothing'})",
    )


def _changed(name: str, began: Any, left: Any) -> list[str]:
    """Return what of a file is missing or other; keys that were added are not."""
    if isinstance(began, Mapping) and isinstance(left, Mapping):
        return [
            f"{name}: {key}"
            for key, value in began.items()
            if key not in WRITTEN_ANEW and (key not in left or left[key] != value)
        ]
    return [] if began == left else [name]


def best_by_validation(stack: Any, case: ResumeCase) -> Measure:
    """Beside the latest, the checkpoint is kept that the logged validation says is the best, however it is ranked."""
    wrong, values = [], {}
    for higher in (True, False):
        options = {**case.options, "checkpointing.higher_is_better": higher}
        left = replace(case, options=options).run(stack)
        values = dict(left.log.get("validation/reward", ()))
        ranked = [values[step] if higher else -values[step] for step in sorted(values) if step]
        best = [step for step in sorted(values) if step][ranked.index(max(ranked))] if ranked else None
        if best is None or best not in left.kept_steps:
            wrong.append(f"{list(left.kept_steps)} are kept, and {best} is the best of {values}")
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"rankings by validation whose best is not there ({(wrong or ['none'])[0]})",
    )


RELATIONS = (
    Relation(
        id="R21.export",
        name="export-is-the-trained-model",
        component="resume",
        statement="What is exported has the names and the bits of the trained weights, scores as they do, and lacks "
        "nothing that the model came with.",
        catalogue=("SB251", "SB295", "SB299", "SB305", "SB314", "SB397"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="weights",
                make=resuming(1, 2),
                measure=exported_is_trained,
                suspects="a cast, a tied head saved twice, a model that is not the live one",
            ),
            *(
                Law(
                    name="files beside the weights" + (f", by {backend}" if backend else ""),
                    make=resuming(1, 1, **(by(backend) if backend else {})),
                    measure=nothing_beside_is_lost,
                    suspects="defaults of generation that are not copied, the tokenizer of another model",
                    seeded=False,
                )
                for backend in (None, *BACKENDS)
            ),
        ),
    ),
    Relation(
        id="R21.kept",
        name="the-best-are-kept-by-what-is-logged",
        component="resume",
        statement="Checkpoints are ranked by the metric that is named, as the log has it.",
        catalogue=("SB374", "SB391"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="the best by validation",
                make=resuming(
                    1,
                    4,
                    checkpointing__keep_top_k=1,
                    checkpointing__metric_name="val:reward",
                    grpo__val_period=1,
                    policy__optimizer__lr=0.05,
                ),
                measure=best_by_validation,
                suspects="a name that nothing is logged by, the metric of another step, a rank that is turned round",
                seeded=False,
            ),
        ),
    ),
)
