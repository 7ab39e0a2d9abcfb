"""R18 of what a person says: the command obeys its words, refuses what it does not know, and says when it failed."""

from __future__ import annotations

from typing import Any

from seatrial.relations.law import Law, Measure, NoCase, Relation

REFUSED: tuple[tuple[str, ...], ...] = (
    ("policy.no_such_option=1",),
    ("policy.optimizer.lr=fast",),
    ("policy.max_grad_norm=.inf",),
    ("grpo.seed=true",),
    ("loss_fn.kind=ppo_clp",),
)
"""A name that no schema has, values of another type, a number that is not finite, a name of a part with a slip."""
IN_ORDER = ("policy.optimizer.lr=0.5", "grpo.seed=11", "policy.optimizer.lr=0.25", "grpo.max_num_steps=7")
IN_FORCE = {"policy.optimizer.lr": 0.25, "grpo.seed": 11, "grpo.max_num_steps": 7}
DIVERGES = ("policy.optimizer.lr=1e12",)


def _none(stack: Any, seed: int, tidy: bool) -> NoCase:
    return NoCase()


def _refuses(stack: Any, case: Any) -> Measure:
    taken = []
    for words in REFUSED:
        ended = stack.effective_options(words)
        if ended.status == 0 or "Traceback" in ended.output:
            taken.append(f"{' '.join(words)}: status {ended.status}")
    return Measure(
        error=float(len(taken)),
        bound=0,
        what=f"configurations that are wrong and not refused in one message ({(taken or ['none'])[0]})",
    )


def _last_word_counts(stack: Any, case: Any) -> Measure:
    ended = stack.effective_options(IN_ORDER)
    wrong = [
        f"{name}={ended.options.get(name)}"
        for name, value in IN_FORCE.items()
        if ended.options.get(name) != value
    ]
    return Measure(
        error=float(len(wrong) + (ended.status != 0)),
        bound=0,
        what=f"words without their effect, status {ended.status} ({(wrong or ['none'])[0]})",
    )


def _failure_is_told(stack: Any, case: Any) -> Measure:
    ended = stack.run_command(DIVERGES)
    return Measure(
        error=float(ended.status == 0),
        bound=0,
        what=f"a run that cannot go on ends with status {ended.status} (1: 0)",
    )


def _failure_of_a_rank_is_told(stack: Any, case: Any) -> Measure:
    """Every word reaches the processes of a run, the last one too, and what ends one of them ends the run."""
    ended = stack.run_command(("cluster.num_processes=2", *DIVERGES))
    return Measure(
        error=float(ended.status == 0),
        bound=0,
        what=f"a run of two processes that cannot go on ends with status {ended.status} (1: 0)",
    )


def _success_is_told(stack: Any, case: Any) -> Measure:
    """A run of three steps says something, and in two processes no less than in one."""
    runs = {words: stack.run_command(words) for words in ((), ("cluster.num_processes=2",))}
    lines = [len([line for line in ended.output.splitlines() if line.strip()]) for ended in runs.values()]
    wrong = [f"{words}: status {ended.status}" for words, ended in runs.items() if ended.status != 0]
    if not 0 < lines[0] <= lines[1]:
        wrong.append(f"one process says {lines[0]} lines, two say {lines[1]}")
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"runs of three steps that do not end well, or do not say what they did ({(wrong or ['none'])[0]})",
    )


def _defaults(stack: Any, case: Any) -> Measure:
    documented, found = stack.documented_defaults(), stack.defaults_in_force()
    wrong = [
        f"{name} is {found.get(name)!r}, documented {value!r}"
        for name, value in documented.items()
        if _plain(found.get(name)) != _plain(value)
    ]
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"defaults that are not as documented ({'; '.join(wrong[:5]) or 'none'})",
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _law(name: str, measure: Any, suspects: str) -> Law:
    return Law(name=name, make=_none, measure=measure, suspects=suspects, seeded=False)


RELATIONS = (
    Relation(
        id="R18.command",
        name="command-obeys-its-words",
        component="command",
        statement="A command takes every word, the last of two that differ, refuses the unknown, tells how it ended.",
        catalogue=("SB020", "SB122", "SB188", "SB225", "SB226"),
        cost="CPU, half a minute",
        laws=(
            _law(
                "wrong words are refused",
                _refuses,
                "a schema that takes any key, converts types, or guesses names",
            ),
            _law("the last word counts", _last_word_counts, "words read in reverse, one of them dropped"),
            _law("a failure is told", _failure_is_told, "an exit status that is not handed on"),
            _law(
                "a failure of a rank is told",
                _failure_of_a_rank_is_told,
                "words that stay with the launcher, a rank's status that is not looked at",
            ),
            _law(
                "a success is told",
                _success_is_told,
                "output of the process that trains lost, the first process not the first rank",
            ),
        ),
    ),
    Relation(
        id="R18.defaults",
        name="defaults-are-documented",
        component="defaults",
        statement="What a configuration leaves out has the value that the manual says.",
        catalogue=("SB020", "SB147", "SB188"),
        cost="CPU, milliseconds",
        laws=(_law("documented values", _defaults, "a default that changed unnoticed, a library's default"),),
    ),
)
