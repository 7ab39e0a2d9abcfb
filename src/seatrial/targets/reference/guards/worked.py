"""Checks that functions of refrl, in the process of a run that used them, give results that were worked out by hand.

What a run logs shows the cases that it meets. Edges, refusals, and options that it does not set are executed, too, and
leave no trace: the worked examples of the relations (`worked/`) ask for them in the same process, after the last step.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence

from refrl.config import GRPORunConfig
from seatrial.guards import Guards
from seatrial.relations.contracts.worked import SUBJECTS
from seatrial.relations.laws.functions.worked import mistake
from seatrial.relations.not_served import NotServed
from seatrial.targets.reference.guards.base import RunConfig, check
from seatrial.targets.reference.worked.examples import ReferenceExamples

WORKED = "worked examples"
ELSEWHERE = (
    *(
        "changes",
        "commands",
        "links",
        "megatron",
        "models",
        "processes",
        "programs",
        "samplers",
        "sandboxes",
        "sessions",
    ),
    *("asynchronous", "broadcasts", "engines", "pools", "shares", "transfers"),
)
"""Subjects that a plain run leaves out: whole commands and runs, which take most of the seconds, and what other runs
use."""


def subjects_of(config: RunConfig) -> Sequence[str]:
    """Return the subjects of what sets a run apart from a plain one; of a plain run, the others."""
    own: list[str] = []
    policy = config.policy
    if policy.backend != "hf":
        own += ["ranks", "shares", *(["megatron"] if policy.backend == "megatron" else [])]
    if policy.lora_cfg.enabled:
        own += ["models", "returns"]
    if policy.generation.placement != "inline":
        own += ["broadcasts", "engines", "links", "transfers"]
    if policy.generation.block_tokens:
        own += ["samplers"]
    if not isinstance(config, GRPORunConfig):
        own += ["chats", "parts", "starts", "validations"]
    elif config.grpo.async_grpo.enabled:
        own += ["asynchronous", "building", "clients", "collecting", "leases", "pools"]
    return own or [subject for subject in SUBJECTS if subject not in ELSEWHERE]


def check_worked(config: RunConfig, guards: Guards) -> None:
    """Call the functions of each subject on its examples; what they print is not the run's."""
    wrong: list[str] = []
    number = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for subject in subjects_of(config):
            for example in ReferenceExamples().worked_examples(subject):
                with contextlib.suppress(NotServed, ImportError):
                    if (said := mistake(example)) is not None:
                        wrong.append(said)
                    number += 1
    check(guards, WORKED, wrong, number=number)
