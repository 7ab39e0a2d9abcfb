"""R18 of the command line: options take effect, unknown ones are refused, failures are reported."""

from __future__ import annotations

from typing import Any

from seatrial.relations.law import Measure, NoCase, Relation

REFUSED: tuple[tuple[str, ...], ...] = (
    ("policy.no_such_option=1",),
    ("policy.optimizer.lr=fast",),
    ("policy.max_grad_norm=.inf",),
    ("grpo.seed=true",),
    ("loss_fn.kind=ppo_clp",),
    ("--no-such-flag",),
    ("--no-such-flag", "5"),
    ("--no-such-flag=5",),
)
"""Unknown options and flags, values of another type, a number that is not finite, a misspelled name of a loss."""
IN_ORDER = ("policy.optimizer.lr=0.5", "grpo.seed=11", "policy.optimizer.lr=0.25", "grpo.max_num_steps=7")
EFFECTIVE = {"policy.optimizer.lr": 0.25, "grpo.seed": 11, "grpo.max_num_steps": 7}
DIVERGES = ("policy.optimizer.lr=1e12",)


COMMAND = Relation(
    id="R18.command",
    name="command-applies-its-options",
    component="command",
    statement="A command applies every option (the last one wins), refuses unknown ones, and reports how it ended.",
    catalogue="SB020 SB122 SB188 SB225 SB226",
    cost="CPU, half a minute",
    cases=lambda stack, seed, tidy: NoCase(),
    seeded=False,
)

DEFAULTS = Relation(
    id="R18.defaults",
    name="defaults-are-documented",
    component="defaults",
    statement="An option that is not set has its documented default.",
    catalogue="SB020 SB147 SB188",
    cost="CPU, milliseconds",
    cases=lambda stack, seed, tidy: NoCase(),
    seeded=False,
)


@COMMAND.law("wrong options are refused", "a schema that takes any key, converts types, or guesses names")
def wrong_options_are_refused(stack: Any, case: Any) -> Measure:
    """Check that a wrong option ends the command with one message and a status other than 0."""
    taken = []
    for words in REFUSED:
        ended = stack.effective_options(words)
        if ended.status == 0 or "Traceback" in ended.output:
            taken.append(f"{' '.join(words)}: status {ended.status}")
    return Measure.count(taken, "wrong configurations that are not refused with one message")


@COMMAND.law("the last override counts", "overrides read in reverse, one of them dropped")
def last_override_counts(stack: Any, case: Any) -> Measure:
    """Check that each override takes effect, and of two of one option the last."""
    ended = stack.effective_options(IN_ORDER)
    wrong = [
        f"{name}={ended.options.get(name)}"
        for name, value in EFFECTIVE.items()
        if ended.options.get(name) != value
    ]
    wrong += [f"status {ended.status}"] * (ended.status != 0)
    return Measure.count(wrong, "overrides without effect")


@COMMAND.law("a failure is reported", "an exit status that is not passed on")
def failure_is_reported(stack: Any, case: Any) -> Measure:
    """Check that a run that diverges exits with a status other than 0."""
    ended = stack.run_command(DIVERGES)
    return Measure(
        error=ended.status == 0,
        bound=0,
        what=f"a run that cannot continue exits with status {ended.status} (1: 0)",
    )


@COMMAND.law(
    "a failure of a rank is reported", "options that do not reach the ranks, a rank's status that is ignored"
)
def failure_of_a_rank_is_reported(stack: Any, case: Any) -> Measure:
    """Check that options reach every process of a run, and that a failure in one of them fails the run."""
    ended = stack.run_command(("cluster.num_processes=2", *DIVERGES))
    return Measure(
        error=ended.status == 0,
        bound=0,
        what=f"a run of two processes that cannot continue exits with status {ended.status} (1: 0)",
    )


@COMMAND.law(
    "a success is reported", "output of the process that trains lost, the first process not the first rank"
)
def success_is_reported(stack: Any, case: Any) -> Measure:
    """Check that a run of three steps prints something, in two processes no less than in one."""
    runs = {words: stack.run_command(words) for words in ((), ("cluster.num_processes=2",))}
    lines = [len([line for line in ended.output.splitlines() if line.strip()]) for ended in runs.values()]
    wrong = [f"{words}: status {ended.status}" for words, ended in runs.items() if ended.status != 0]
    if not 0 < lines[0] <= lines[1]:
        wrong.append(f"one process prints {lines[0]} lines, two print {lines[1]}")
    return Measure.count(wrong, "runs of three steps that fail, or print nothing")


@DEFAULTS.law("documented values", "a default that changed unnoticed, a library's default")
def defaults_are_documented(stack: Any, case: Any) -> Measure:
    """Compare each default with the documented one."""
    documented, found = stack.documented_defaults(), stack.effective_defaults()
    wrong = [
        f"{name} is {found.get(name)!r}, documented {value!r}"
        for name, value in documented.items()
        if _plain(found.get(name)) != _plain(value)
    ]
    return Measure.count(wrong, "defaults that are not as documented")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value
