"""The laws of whole runs hold on a sound toy stack, and each planted fault breaks the one that is about it."""

from dataclasses import replace

import pytest
from tests.unit.relations.toy_run import ToyRun

from seatrial.relations.engine import first_violation, run_relation
from seatrial.relations.records.run import RunOption
from seatrial.relations.registry import own_relations, select
from seatrial.relations.runs import RunCache, RunCase, run, sharing_runs
from seatrial.verdict import Outcome

RUN_RELATIONS = [relation for relation in own_relations() if relation.component == "run"]
CACHE = RunCache()
SOUND = ToyRun()
DECLARED = (
    "the toy",
    "run_options has no",
    "validations_repeat",
    "other_models is empty",
    "neutral_options is empty",
    "changes_in_flight",
)
"""How the reasons begin for which a law is not asked of the toy."""


@pytest.mark.parametrize("relation", RUN_RELATIONS, ids=lambda relation: relation.id)
def test_a_sound_stack_obeys(relation) -> None:
    """Every law that the toy serves holds, and is exercised."""
    with sharing_runs(CACHE):
        verdict = run_relation(relation, SOUND)
    assert verdict.outcome in (Outcome.PASS, Outcome.SKIPPED), verdict.reason
    reasons = verdict.details["laws_not_exercised"].values()
    assert all(reason.startswith(DECLARED) for reason in reasons), verdict.reason


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("temperature ignored", "R6.run/the sampler's log-probabilities"),
        ("raw logprobs", "R6.run/the sampler's log-probabilities, filtered"),
        ("top_p ignored", "R6.run/a filter keeps its support"),
        ("no sync", "R6.run/the sampler's log-probabilities"),
        ("filter not scored", "R9.run/old log-probabilities, filtered"),
        ("reference is old", "R9.run/reference log-probabilities"),
        ("reference follows", "R9.run/the reference does not change"),
        ("no clip", "R10.run/AdamW, clipped"),
        ("rate off by one", "R24.run/learning rates, cosine"),
        ("kl inverted", "R12.run/raw gradient, clipped, with a KL"),
        ("kl rewarded", "R11.run/the KL penalty limits the policy"),
        ("advantages negated", "R17.run/a row's advantage is its own, of a group"),
        ("advantages negated", "R11.run/better rows rise"),
        ("one baseline", "R17.run/a row's advantage is its own, of a group"),
        ("one baseline", "R11.run/each prompt has its own baseline"),
        ("rewards rolled", "R17.run/a row's reward is its own"),
        ("filter on shaped rewards", "R17.run_filters/groups without spread, shaped"),
        ("local token counts", "R12.run/raw gradient, clipped, with a KL"),
        ("local token counts", "R1.run/equal in micro-batches of one row"),
        ("lost remainder", "R14.run/every epoch is a permutation"),
        ("one stream for all steps", "R26.run/no two rows share numbers"),
        ("one stream for all rows", "R26.run/copies of a prompt differ"),
        ("global stream", "R26.run/global streams are untouched"),
        ("validation draws prompts", "R23.run/training is the same with validation"),
        ("metric of the last row", "R22.run/metrics of a step"),
        ("loss of the first update", "R22.run/metrics of several updates"),
        ("length of the first row", "R22.run/lengths of a validation"),
    ],
)
def test_a_planted_fault_breaks_its_law(fault: str, law: str) -> None:
    """By name: another law that breaks as well is no proof of this one."""
    (relation,) = select([law.partition("/")[0]])
    alone = replace(relation, laws=tuple(one for one in relation.laws if relation.key(one) == law))
    with sharing_runs(CACHE):
        assert first_violation(alone, SOUND) is None
    violation = first_violation(alone, ToyRun(fault))
    assert violation is not None
    assert violation.raised is None, violation.raised


@pytest.mark.parametrize(("sampled", "is_broken"), [((1, 0), False), ((), True)])
def test_an_environments_words_have_no_log_probability_of_the_sampler(
    sampled: tuple[int, ...], is_broken: bool
) -> None:
    """A row that says which ids were sampled is held to those alone; one that does not, to all."""

    class Answered(ToyRun):
        def short_run(self, options, *, seed):
            def second_is_heard(row):
                heard = {"sampling_logprobs": (row.sampling_logprobs[0], 0.0, *row.sampling_logprobs[2:])}
                rest = sampled and (1,) * (len(row.ids) - 2)
                return replace(row, **heard, sampled=sampled + rest) if len(row.ids) > 1 else row

            record = super().short_run(options, seed=seed)
            steps = [replace(step, rows=tuple(map(second_is_heard, step.rows))) for step in record.steps]
            return replace(record, steps=tuple(steps))

    (relation,) = select(["R6.run"])
    law = relation.laws[0]
    assert law.name == "the sampler's log-probabilities"
    violation = first_violation(replace(relation, laws=(law,)), Answered())
    assert (violation is not None) is is_broken
    assert violation is None or violation.raised is None


@pytest.mark.parametrize(("sampled", "is_broken"), [((1, 0), False), ((), True)])
def test_an_environments_words_have_no_support(sampled: tuple[int, ...], is_broken: bool) -> None:
    """Nothing was kept where nothing was drawn; a row that does not say what was sampled is held to all."""

    class Answered(ToyRun):
        def short_run(self, options, *, seed):
            def second_is_heard(row):
                if row.kept_support is None or len(row.ids) < 2:
                    return row
                rest = sampled and (1,) * (len(row.ids) - 2)
                kept = (row.kept_support[0], (), *row.kept_support[2:])
                return replace(row, kept_support=kept, sampled=sampled + rest)

            record = super().short_run(options, seed=seed)
            steps = [replace(step, rows=tuple(map(second_is_heard, step.rows))) for step in record.steps]
            return replace(record, steps=tuple(steps))

    (relation,) = select(["R6.run"])
    (law,) = [law for law in relation.laws if law.name == "a filter keeps its support"]
    violation = first_violation(replace(relation, laws=(law,)), Answered())
    assert (violation is not None) is is_broken
    assert violation is None or violation.raised is None


def test_an_option_that_nothing_reads_is_seen() -> None:
    """And one that is overridden, and one that reaches what it must not."""

    class Deaf(ToyRun):
        def short_run(self, options, *, seed):
            return super().short_run({**options, "loss_fn.reduction": "token"}, seed=seed)

        def run_options(self):
            lr = RunOption(values=(0.01, 0.02), reaches=("learning_rate",), spares=("weights_after",))
            return {
                "loss_fn.reduction": super().run_options()["loss_fn.reduction"],
                "policy.optimizer.lr": lr,
            }

    (relation,) = select(["R18.run"])
    assert len(run_relation(relation, Deaf()).details["laws_broken"]) == 3


def test_an_option_must_say_what_it_reaches() -> None:
    """Evidence has a name."""
    with pytest.raises(ValueError, match="must reach"):
        RunOption(values=(1, 2), reaches=())
    with pytest.raises(ValueError, match="grads"):
        RunOption(values=(1, 2), reaches=("grads",))


def test_runs_are_shared_while_a_cache_is_in_use() -> None:
    """A repeated run is not shared; nothing is shared between stacks, or after the block."""
    stack = ToyRun()
    with sharing_runs():
        first = run(stack, {}, 0)
        assert run(stack, {}, 0) is first
        assert run(ToyRun(), {}, 0) is not first
        assert RunCase(options={}, seed=0).repeat(stack) is not first
        assert run(stack, {}, 1) is not first
    with sharing_runs():
        assert run(stack, {}, 0) is not first
