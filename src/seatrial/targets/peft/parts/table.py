"""Adapters of parts of PEFT, one a subject of `relations.laws.utilities.adapter_parts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.laws.utilities.adapter_parts import NAME, PARTS, Use
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone
from seatrial.targets.peft import known
from seatrial.targets.peft.parts import attention, context, patterns, places, routed, tasks

USES: Mapping[str, Callable[[int], Sequence[Use]]] = {
    "tasks": tasks.tasks,
    "tasks, answers in texts": tasks.answers,
    "patterns": patterns.patterns,
    "patterns of unlike keys": patterns.unlike_patterns,
    "patterns of whole names": patterns.whole_names,
    "tokens of a context": context.context,
    "tokens of a second context": context.second_context,
    "generated after prompts of rows": context.generated_after,
    "prompts of several tasks": context.several_tasks,
    "prompts in attention": attention.in_attention,
    "places of files": places.places,
    "routed by tasks": routed.by_tasks,
    "routed by prototypes": routed.by_prototypes,
}
"""Uses of a subject by the seed of what is drawn."""
NAMES: Mapping[str, Sequence[str]] = {
    "tasks": ["tasks", "tasks, answers in texts"],
    "option-patterns": ["patterns", "patterns of unlike keys", "patterns of whole names"],
    "cpt": ["tokens of a context", "tokens of a second context"],
    "multitask-prompts": ["prompts of several tasks", "generated after prompts of rows"],
    "adaption-prompt": ["prompts in attention"],
    "versions-of-files": ["places of files"],
    "poly": ["routed by tasks"],
    "arrow": ["routed by prototypes"],
}
"""Subjects by the name of the adapter."""
KNOWN: Mapping[str, KnownFailure] = {
    "tasks, answers in texts": KnownFailure(
        "token types and positions are arguments of PeftModelForQuestionAnswering that it does not pass on",
        finding="PEFT: token types of question answering",
    ),
    "tokens of a second context": KnownFailure(
        "the loss of CPT has the options of the adapter `default`, and changes the caller's kinds of tokens",
        finding="PEFT: the loss of CPT",
    ),
    "generated after prompts of rows": known.GENERATED,
    "prompts in attention": KnownFailure(
        "an adaption prompt that is added is in use at once",
        finding="PEFT: versions of adapters in older releases",
        releases=before("peft", "0.21"),
    ),
    "places of files": KnownFailure(
        "AutoPeftModel loads the newest weights of an adapter where another version is named",
        finding="PEFT: versions of adapters in older releases",
        releases=before("peft", "0.21"),
    ),
    "patterns": KnownFailure(
        "the pattern of ranks of OFT is not read",
        finding="PEFT: expressions in patterns",
        releases=before("peft", "0.15"),
    ),
    "patterns of unlike keys": KnownFailure(
        "LoHa and LoKr look for alphas under the key of the ranks alone",
        finding="PEFT: expressions in patterns",
        releases=before("peft", "0.15"),
    ),
    "patterns of whole names": KnownFailure(
        "C3A and FourierFT look for expressions after a dot, which the whole name of a layer does not begin with",
        finding="PEFT: expressions in patterns",
    ),
}
"""What is wrong with a subject in the installed release."""


def _served(call: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
    """Return the call, which raises NotServed where the release has no such name or option."""

    def served() -> tuple[Any, Any]:
        try:
            return call()
        except Gone as gone:
            raise NotServed(str(gone)) from gone

    return served


def _part(subjects: Sequence[str]) -> type[Any]:
    def uses(asked: str, seed: int) -> Sequence[Use]:
        return [(what, _served(call)) for what, call in USES[asked](seed)]

    return type(
        "Part",
        (KnowsFailures,),
        {
            "__doc__": f"Uses of PEFT: {', '.join(subjects)}.",
            "thorough": True,
            "part_subjects": tuple(subjects),
            "known_failures": [KNOWN[name].of(f"{PARTS.id}/{name}") for name in subjects if name in KNOWN],
            "utilities": {NAME: uses},
            "__module__": __name__,
        },
    )


ADAPTERS: dict[str, type[Any]] = {name: _part(subjects) for name, subjects in NAMES.items()}
