"""R21.export, R21.kept: a run exports what it trained, as the model it began from loads; the best are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.resume import BACKENDS, ResumeCase, resuming, served_by
from seatrial.relations.runs import BASE

WRITTEN_BY_LIBRARY = ("transformers_version", "dtype", "torch_dtype", "_name_or_path", "tokenizer_class")
"""Keys that a library writes about itself; Transformers 5 gives the class of a fast tokenizer another name."""

EXPORT = Relation(
    id="R21.export",
    name="export-is-the-trained-model",
    component="resume",
    statement="An export has the names and the bits of the trained weights, the same scores, and every file that the "
    "model came with.",
    catalogue="SB251 SB295 SB299 SB305 SB314 SB397",
    cost="CPU, seconds",
)
KEPT = Relation(
    id="R21.kept",
    name="the-best-are-kept-by-what-is-logged",
    component="resume",
    statement="Checkpoints are ranked by the configured metric, as the log has it.",
    catalogue="SB374 SB391",
    cost="CPU, seconds",
)


@EXPORT.law(
    "weights", "a cast, a tied head saved twice, a model that is not the live one", cases=resuming(1, 2)
)
def exported_is_trained(stack: Any, case: ResumeCase) -> Measure:
    """Compare names, bits and scores of the export with the recorded final weights of the same run."""
    exported = case.run(stack).exported
    options = {**BASE, **getattr(stack, "options", {}), **case.options}
    final = stack.short_run(options, seed=case.seed).final_weights
    wrong = [
        name for name in exported if name not in final or not torch.equal(exported[name], final[name])
    ] or ([] if exported else ["nothing is exported"])
    if not wrong and not torch.equal(
        *(stack.next_token_logits(weights, (5, 9, 2)) for weights in (exported, final))
    ):
        wrong.append("logits")
    return Measure.count(wrong, "exported tensors that are not the trained ones")


@EXPORT.law(
    "weights of a tied model",
    "a head that is written next to its embedding, or left as it was",
    cases=resuming(1, 2, policy__model_name="tied"),
    seeded=False,
)
def tied_export_is_trained(stack: Any, case: ResumeCase) -> Measure:
    """Compare the export of a model whose head is its embedding with the trained weights, names and bits."""
    left = case.run(stack)
    options = {**BASE, **getattr(stack, "options", {}), **case.options}
    record = stack.short_run(options, seed=case.seed)
    final = {name: record.final_weights[name] for name in record.trainable}
    embedding = next((value for name, value in final.items() if name.endswith("embed_tokens.weight")), None)
    # A file may hold the head, as a copy of the embedding.
    tied = {name: embedding for name in left.exported if name.endswith("lm_head.weight")}
    right = {**{name: value for name, value in final.items() if not name.endswith("lm_head.weight")}, **tied}
    wrong = sorted(right.keys() ^ left.exported.keys())
    wrong += [
        name
        for name, value in left.exported.items()
        if right.get(name) is not None and not torch.equal(value, right[name])
    ]
    if embedding is None or not left.exported:
        wrong.append("there is no embedding, or no export")
    if left.exported_files.get("config.json", {}).get("tie_word_embeddings") is False:
        wrong.append("config.json says that the head is not tied")
    return Measure.count(wrong, "exported tensors of a tied model that are not the trained ones")


def other_files_are_exported(stack: Any, case: ResumeCase) -> Measure:
    """Compare configuration, generation defaults and tokenizer with those of the model that training began from."""
    left = case.run(stack)
    wrong = [
        place
        for name, began in left.initial_files.items()
        for place in _changed(name, began, left.exported_files.get(name))
    ]
    return Measure.count(
        wrong if left.initial_files else ["the initial model has no files"],
        "missing or changed parts of the exported directory",
    )


for _backend in (None, *BACKENDS):
    EXPORT.law(
        "files next to the weights" + (f", by {_backend}" if _backend else ""),
        "defaults of generation that are not copied, the tokenizer of another model",
        cases=resuming(1, 1, **(served_by(_backend) if _backend else {})),
        seeded=False,
    )(other_files_are_exported)


def draft_head_is_exported(stack: Any, case: ResumeCase) -> Measure:
    """Compare the exported draft head with its recorded final weights, names and bits, and the files next to it."""
    left = case.run(stack)
    exported = left.exported_draft
    options = {**BASE, **getattr(stack, "options", {}), **case.options}
    record = stack.short_run(options, seed=case.seed)
    trained = record.steps[-1].draft_weights_after
    final = {name.removeprefix("draft."): value for name, value in trained.items()}
    wrong = sorted(exported.keys() ^ final.keys())
    wrong += [name for name in exported.keys() & final.keys() if not torch.equal(exported[name], final[name])]
    wrong += [
        place
        for name, began in left.initial_files.items()
        for place in _changed(name, began, left.exported_files.get(name))
    ]
    return Measure.count(
        wrong if final else ["no draft head trained"],
        "exported tensors of a draft head that are not trained ones",
    )


for _backend in (None, "dtensor"):
    EXPORT.law(
        "a draft head" + (f", by {_backend}" if _backend else ""),
        "a head that is left out, or the one that training began with",
        cases=resuming(
            1,
            1,
            policy__model_name="drafts",
            policy__draft__enabled=True,
            **(served_by(_backend) if _backend else {}),
        ),
        seeded=False,
    )(draft_head_is_exported)


def _changed(name: str, began: Any, left: Any) -> list[str]:
    """Return the parts of a file that are missing or changed; added keys are not counted."""
    if isinstance(began, Mapping) and isinstance(left, Mapping):
        return [
            f"{name}: {key}"
            for key, value in began.items()
            if key not in WRITTEN_BY_LIBRARY and (key not in left or left[key] != value)
        ]
    return [] if began == left else [name]


@KEPT.law(
    "the best by validation",
    "a name that nothing is logged by, the metric of another step, an inverted order",
    cases=resuming(
        1,
        4,
        checkpointing__keep_top_k=1,
        checkpointing__metric_name="val:reward",
        grpo__val_period=1,
        policy__optimizer__lr=0.05,
    ),
    seeded=False,
)
def best_by_validation(stack: Any, case: ResumeCase) -> Measure:
    """Check that the checkpoint with the best logged validation is kept in addition to the latest, in both orders."""
    wrong = []
    for higher in (True, False):
        options = {**case.options, "checkpointing.higher_is_better": higher}
        left = replace(case, options=options).run(stack)
        values = {step: value for step, value in left.log.get("validation/reward", ()) if step}
        choose = max if higher else min
        best = choose(sorted(values), key=values.__getitem__) if values else None
        if best is None or best not in left.kept_steps:
            wrong.append(f"{list(left.kept_steps)} are kept, and {best} is the best of {values}")
    return Measure.count(wrong, "orders by validation whose best checkpoint is missing")
