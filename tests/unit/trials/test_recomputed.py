"""What trials compute again from the rows of a real step, and that each kind of damage to a row or a scalar is seen."""

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.errors import BlockedError
from seatrial.evidence.ledger.laws.rewards import _unjudged
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.runlog import Series
from seatrial.evidence.weights import stored_tensors
from seatrial.launch import Launched
from seatrial.targets.base import JobRequest, TrainingJob
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.console import console_is_the_log
from seatrial.trials.sensors.decoder import Decoder, why_not
from seatrial.trials.sensors.draws import Draws
from seatrial.trials.sensors.exported import files_are_exported
from seatrial.trials.sensors.filters import rows_are_filtered
from seatrial.trials.sensors.first_step import _support, drawn_as_configured
from seatrial.trials.sensors.held_out import validations_hold
from seatrial.trials.sensors.later_steps import later_scores, later_updates
from seatrial.trials.sensors.optimizer import updates_are_adamws
from seatrial.trials.sensors.options import options_of
from seatrial.trials.sensors.paths import by_step
from seatrial.trials.sensors.record import record_is_whole
from seatrial.trials.sensors.run_record import record_is_true
from seatrial.trials.sensors.scalars import scalars_follow
from seatrial.trials.sensors.times import _wrong_parts, _wrong_seconds, times_and_parts
from seatrial.trials.sensors.updates import first_update

WORDS = (
    "grpo.max_num_steps=2",
    "policy.optimizer.weight_decay=0.1",
    "policy.scheduler.name=linear",
    "policy.sequence_packing.enabled=true",
    "loss_fn.entropy_coefficient=0.05",
    "policy.generation.top_p=0.8",
    "policy.generation.temperature=0.5",
    "grpo.overlong_filtering=true",
)
"""Two steps, saved, with most of what is computed again: packs, a bonus, a filter of sampling and one of rows."""
CHECKS = (
    scalars_follow,
    rows_are_filtered,
    drawn_as_configured,
    first_update,
    later_scores,
    later_updates,
    updates_are_adamws,
    record_is_whole,
    record_is_true,
    console_is_the_log,
    validations_hold,
    files_are_exported,
)


def launched(job: TrainingJob) -> Launched:
    """Return how the run ended."""
    return Launched(
        argv=tuple(job.argv),
        returncode=0,
        seconds=120.0,
        timed_out=False,
        log_path=job.ledger_dir.parent / "run.log",
        num_stragglers=0,
    )


SYNCED = "timing/validation/prepare_for_generation/total"


class Changed(RunEvidence):
    """A run of which a test changes rows, scalars or its record."""

    def __init__(self, job: TrainingJob, rows: Sequence[LedgerRow], scalars: dict[str, float]) -> None:
        """Replace the rows, and the value of each named scalar."""
        super().__init__(job, launched(job), [])
        self.__dict__["ledger"] = rows
        self._scalars = scalars

    def series(self, tag: str) -> Series | None:
        """Return a logged series, changed where the test says so."""
        found = super().series(tag)
        if found is None or tag not in self._scalars:
            return found
        return replace(found, values=np.full(len(found), self._scalars[tag]))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    """Run two steps of the smoke on a peaked model."""
    return trained(tmp_path_factory.mktemp("run"), WORDS)


@pytest.fixture(scope="module")
def job_of_two_updates(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    """Run one step of two updates, whose second clips ratios."""
    words = ("grpo.max_num_steps=1", "policy.train_global_batch_size=8", "policy.optimizer.weight_decay=0.1")
    return trained(tmp_path_factory.mktemp("two"), (*words, "loss_fn.ratio_clip_max=0.01"))


def trained(folder: Path, words: Sequence[str]) -> TrainingJob:
    """Make a model and train it."""
    make_model(TinyModelSpec(initializer_range=0.2, hidden_size=32, intermediate_size=48), folder / "model")
    request = JobRequest(
        recipe="grpo-smoke", model=folder / "model", directory=folder, seed=0, words=tuple(words)
    )
    made = ReferenceTarget().job(request)
    ended = subprocess.run(
        made.argv, env={**os.environ, **made.environment}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    launched(made).log_path.write_text(ended.stdout)
    return made


def rows_of(job: TrainingJob) -> list[LedgerRow]:
    """Return the rows of the run."""
    return list(RunEvidence(job, None, []).ledger)  # type: ignore[arg-type]


def test_a_sound_step_passes(job: TrainingJob) -> None:
    """Nothing is wrong, and each rests on values."""
    for check in CHECKS:
        wrong, seen, number = check(Changed(job, rows_of(job), {}))
        assert (wrong, number > 0) == ([], True), (check, seen)


def test_the_second_update_of_a_step_starts_where_the_first_ended(job_of_two_updates: TrainingJob) -> None:
    """Its ratios are off 1, some beyond the clip; what is logged of both updates follows from the rows."""
    job, rows = job_of_two_updates, rows_of(job_of_two_updates)
    wrong, seen, number = first_update(Changed(job, rows, {}))
    assert (wrong, number) == ([], 16), seen
    assert "probs_ratio_clamped_max 1.01" in seen
    for tag in ("loss", "grad_norm", "probs_ratio_min", "probs_ratio_max", "probs_ratio_clamped_max"):
        wrong, _, _ = first_update(Changed(job, rows, {f"train/{tag}": 1.0}))
        assert any(f"train/{tag} is" in one for one in wrong), tag


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (("loss_fn", "ratio_clip_max"), 0.2),
        (("policy", "optimizer"), {"betas": [0.9, 0.95], "eps": 1e-8, "lr": 2e-3, "weight_decay": 0.1}),
    ],
)
def test_options_of_the_first_update_show_in_the_second(
    job_of_two_updates: TrainingJob, option: tuple[str, str], value: object
) -> None:
    """Another clip or rate gives other ratios, another loss or another gradient."""
    job, (section, name) = job_of_two_updates, option
    configuration = {**job.configuration, section: {**job.configuration[section], name: value}}
    wrong, _, _ = first_update(Changed(replace(job, configuration=configuration), rows_of(job), {}))
    assert wrong


@pytest.mark.parametrize(
    ("tag", "factor", "check"),
    [
        ("train/loss", 1.001, first_update),
        ("train/grad_norm", 0.9995, first_update),
        ("train/entropy", 1.0001, first_update),
        ("train/loss", 1.001, scalars_follow),
        ("train/lr", 1.01, scalars_follow),
        ("train/kl_penalty", math.nan, scalars_follow),
        ("train/mean_prompt_length", 1.01, scalars_follow),
        ("train/approx_entropy", 1.001, scalars_follow),
        ("train/js_divergence_error", math.nan, scalars_follow),
        ("train/probs_ratio_clamped_max", 1.01, scalars_follow),
        ("train/baseline_reward/pct_mixed", 1.01, scalars_follow),
        ("performance/generation_tokens_per_sec", 1.01, scalars_follow),
        ("performance/tokens_per_sec", 1.01, scalars_follow),
        ("timing/train/total_step_time", 0.5, scalars_follow),
        ("train/num_overlong_filtered", 2.0, rows_are_filtered),
        ("train/grad_norm", 0.1, updates_are_adamws),
    ],
)
def test_another_value_of_a_scalar_is_seen(
    job: TrainingJob, tag: str, factor: float, check: Callable[[RunEvidence], tuple[list[str], str, int]]
) -> None:
    """It is named."""
    series = RunEvidence(job, None, []).series(tag)  # type: ignore[arg-type]
    assert series is not None
    wrong, _, _ = check(Changed(job, rows_of(job), {tag: float(series.values[0]) * factor}))
    assert any(tag in text for text in wrong), wrong


def _first_trained(rows: Sequence[LedgerRow]) -> int:
    return next(place for place, row in enumerate(rows) if any(row.loss_mask or ()))


def _shifted(column: str) -> Callable[[LedgerRow], LedgerRow]:
    def shift(row: LedgerRow) -> LedgerRow:
        changed: dict[str, Any] = {column: tuple(value - 0.01 for value in getattr(row, column))}
        return replace(row, **changed)

    return shift


def _unlikely(row: LedgerRow) -> LedgerRow:
    """Return the row with a first token that is never left by top-p: the least likely one is taken in the test."""
    ids = list(row.token_ids or ())
    ids[row.prompt_length or 0] = 0 if ids[row.prompt_length or 0] else 1
    return replace(row, token_ids=tuple(ids))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (_shifted("prev_logprobs"), drawn_as_configured),
        (_shifted("generation_logprobs"), drawn_as_configured),
        (_shifted("reference_logprobs"), drawn_as_configured),
        (
            lambda row: replace(row, kept_support_sizes=tuple(n + 3 for n in row.kept_support_sizes or ())),
            drawn_as_configured,
        ),
        (_unlikely, drawn_as_configured),
        (lambda row: replace(row, loss_mask=(0,) * len(row.loss_mask or ())), rows_are_filtered),
        (lambda row: replace(row, advantage=(row.advantage or 0.0) + 0.5), first_update),
    ],
    ids=["trainer", "sampler", "reference", "support", "token", "masked", "advantage"],
)
def test_another_row_is_seen(
    job: TrainingJob,
    change: Callable[[LedgerRow], LedgerRow],
    check: Callable[[RunEvidence], tuple[list[str], str, int]],
) -> None:
    """One row of the step is changed."""
    rows = rows_of(job)
    place = _first_trained(rows)
    rows[place] = change(rows[place])
    wrong, _, _ = check(Changed(job, rows, {}))
    assert wrong


@pytest.mark.parametrize("token", [10**6, -1])
def test_a_token_that_the_model_does_not_have_blocks_the_check(job: TrainingJob, token: int) -> None:
    """It is no crash of the trial; a law of the ledger fails the row."""
    rows = rows_of(job)
    place = _first_trained(rows)
    rows[place] = replace(rows[place], token_ids=(token, *(rows[place].token_ids or ())[1:]))
    with pytest.raises(BlockedError, match="holds a token outside of the model's"):
        drawn_as_configured(Changed(job, rows, {}))


def _changed(rows: Sequence[LedgerRow], change: Callable[[float], float], *columns: str) -> list[LedgerRow]:
    """Return rows whose log-probabilities in some columns are others."""
    more = [{name: tuple(map(change, getattr(row, name) or ())) for name in columns} for row in rows]
    return [replace(row, **of) for row, of in zip(rows, more, strict=True)]


def test_rounded_log_probabilities_are_seen(job: TrainingJob) -> None:
    """Those of bfloat16, though the bounds of a model in bfloat16 are wider than the rounding."""

    def rounded(value: float) -> float:
        return float(torch.tensor(value).bfloat16())

    assert any("prev_logprobs are rounded to bfloat16" in text for text in wrong_of(job, rounded))


def wrong_of(job: TrainingJob, change: Callable[[float], float]) -> list[str]:
    """Return what is wrong with the trainer's log-probabilities where the policy computes in bfloat16."""
    configuration = json.loads(json.dumps(job.configuration))
    configuration["policy"]["precision"] = "bfloat16"
    coarse = replace(job, configuration=configuration, precision="bfloat16")
    return drawn_as_configured(Changed(coarse, _changed(rows_of(job), change, "prev_logprobs"), {}))[0]


def test_a_reference_that_is_another_model_is_seen(job: TrainingJob) -> None:
    """By less than the bounds of bfloat16."""
    assert wrong_of(job, float) == []
    assert any("policy and reference are" in text for text in wrong_of(job, lambda value: value - 2e-3))


def test_tokens_that_one_number_draws_are_seen() -> None:
    """Where distributions differ, so that the tokens are others; independent draws are not."""
    generator = np.random.default_rng(0)
    logits_TV = 0.5 * generator.standard_normal((40, 64))
    ends_TV = np.cumsum(np.exp(logits_TV) / np.exp(logits_TV).sum(1, keepdims=True), 1)
    for shared in (False, True):
        numbers_T = np.full(40, 0.6) if shared else generator.random(40)
        ids = tuple(int(np.searchsorted(ends_V, one)) for ends_V, one in zip(ends_TV, numbers_T, strict=True))
        row = LedgerRow(step=1, index=0, prompt_id=0, prompt_length=0, token_ids=ids, loss_mask=(1,) * 40)
        draws = Draws()
        for place in range(40):
            draws.see(row, place, logits_TV[place])
        assert bool(list(draws.too_many())) is shared


def test_rows_that_share_random_numbers_are_seen() -> None:
    """Over distributions that differ, so that the tokens are others; rows of their own numbers are not."""
    generator = np.random.default_rng(0)
    logits_BTV = 0.5 * generator.standard_normal((6, 8, 64))
    for shared in (False, True):
        numbers_BT = generator.random((6, 8))
        numbers_BT[5] = numbers_BT[2] if shared else numbers_BT[5]
        draws = Draws()
        for index, logits_TV in enumerate(logits_BTV):
            ends_TV = np.cumsum(np.exp(logits_TV) / np.exp(logits_TV).sum(1, keepdims=True), 1)
            pairs = zip(ends_TV, numbers_BT[index], strict=True)
            ids = tuple(int(np.searchsorted(ends_V, one)) for ends_V, one in pairs)
            row = LedgerRow(step=1, index=index, prompt_id=0, prompt_length=0, token_ids=ids)
            for place in range(8):
                draws.see(row, place, logits_TV[place])
        assert [said.split(" are")[0] for said in draws.alike()] == ["step 1 row 2 and step 1 row 5"][
            : int(shared)
        ]


def _of_step_2(job: TrainingJob, change: Callable[[LedgerRow], LedgerRow]) -> list[LedgerRow]:
    """Return the rows, those of step 2 changed."""
    return [change(row) if row.step == 2 else row for row in rows_of(job)]


@pytest.mark.parametrize("column", ["prev_logprobs", "generation_logprobs"])
def test_another_score_of_a_later_step_is_seen(job: TrainingJob, column: str) -> None:
    """It is compared with the saved weights of its step."""
    wrong, _, _ = later_scores(Changed(job, _of_step_2(job, _shifted(column)), {}))
    assert any(f"has {column}" in text for text in wrong), wrong


def test_rows_of_older_weights_are_seen(job: TrainingJob) -> None:
    """Those that say that the weights of step 1 sampled them, and were sampled by the initial ones."""
    old = _of_step_2(job, lambda row: replace(row, weight_version=0))
    assert later_scores(Changed(job, old, {}))[0]


@pytest.mark.parametrize(("segments", "is_wrong"), [(((0, 1), (1, 0)), True), (((0, 1), (1, 1)), False)])
def test_each_token_is_scored_by_the_version_that_sampled_it(
    job: TrainingJob, segments: tuple[tuple[int, int], ...], is_wrong: bool
) -> None:
    """Weights may change within a row."""
    rows = _of_step_2(job, lambda row: replace(row, version_segments=segments))
    assert bool(later_scores(Changed(job, rows, {}))[0]) == is_wrong


def test_another_later_update_is_seen(job: TrainingJob) -> None:
    """Of advantages that are not those of the logged loss."""
    rows = _of_step_2(job, lambda row: replace(row, advantage=(row.advantage or 0.0) + 0.5))
    assert later_updates(Changed(job, rows, {}))[0]


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("optimizer", "betas", [0.8, 0.999]),
        ("optimizer", "betas", [0.9, 0.99]),
        ("optimizer", "eps", 1e-4),
        ("optimizer", "weight_decay", 0.0),
        ("optimizer", "lr", 9e-4),
        ("scheduler", "name", "constant"),
        ("scheduler", "warmup_steps", 1),
    ],
)
def test_an_update_with_another_option_is_seen(
    job: TrainingJob, section: str, option: str, value: object
) -> None:
    """The saved moments and weights do not follow from it."""
    configuration = json.loads(json.dumps(job.configuration))
    configuration["policy"][section][option] = value
    other = replace(job, configuration=configuration)
    assert updates_are_adamws(Changed(other, rows_of(job), {}))[0]


def tokens(temperature: float, *, seed: int = 0) -> Draws:
    """Return 400 tokens, drawn at a temperature from distributions of temperature 1."""
    draws, random = Draws(are_all=True), np.random.default_rng(seed)
    for place in range(400):
        logits_V = random.normal(size=50)
        probs_V = np.exp(logits_V / temperature)
        token = int(random.choice(50, p=probs_V / probs_V.sum()))
        row = LedgerRow(step=1, index=place, prompt_id=0, prompt_length=0, token_ids=(token,), loss_mask=(1,))
        draws.see(row, 0, logits_V - np.log(np.exp(logits_V).sum()))
    return draws


def test_tokens_of_another_distribution_are_seen() -> None:
    """Of another temperature they are, and tokens of their own distributions are not, with 20 seeds."""
    assert "higher log-probability" in next(tokens(0.5).unlikely())
    assert "lower log-probability" in next(tokens(3.0).unlikely())
    assert not any(list(tokens(1.0, seed=seed).unlikely()) for seed in range(20))


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (r"step 1/2  reward \S+", "step 1/2  reward 7", "console shows reward 7"),
        (r"step 2/2.*\n", "", "lines of the steps [1]"),
        (r"step 2/2", "step 2/3", "there are 3 steps"),
        (r"accuracy \S+", "accuracy 0.750", "accuracy of 0.750"),
        (r"\(3 held", "(5 held", "counts 5"),
        (r"step 0 .*\n", "", "1 lines of validations"),
        (r"  lr \S+", "", "does not show lr"),
    ],
)
def test_another_line_of_the_console_is_seen(
    job: TrainingJob, tmp_path: Path, line: str, change: str, said: str
) -> None:
    """Each value, and each line that is missing."""
    text, number = re.subn(line, change, launched(job).log_path.read_text(), count=1)
    (tmp_path / "run.log").write_text(text)
    evidence = Changed(job, rows_of(job), {})
    evidence.launched = replace(launched(job), log_path=tmp_path / "run.log")
    wrong, _, _ = console_is_the_log(evidence)
    assert number and said in "".join(wrong), wrong


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("step", 7, "step is 7"),
        ("seed", 7, "seed is 7"),
        ("world_size", 2, "world_size is 2"),
        ("metric", 0.5, "metric is 0.5"),
        ("run_id", "other", "of another run"),
        ("policy", {"num_updates_done": 3}, "counts 3 updates"),
        ("parts", {"prompts": {"num_drawn": 3}}, "counts 3 prompts"),
        ("files", {}, "is not listed"),
        ("digests", {}, "other bytes"),
        ("config", {}, "the run has"),
    ],
)
def test_another_fact_of_a_checkpoint_is_seen(
    job: TrainingJob, tmp_path: Path, key: str, value: Any, said: str
) -> None:
    """Each that follows from the run."""
    assert job.checkpoint_dir is not None
    shutil.copytree(job.checkpoint_dir / "step_1", tmp_path / "step_1")
    path = tmp_path / "step_1" / "training_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    wrong, _, _ = record_is_true(Changed(replace(job, checkpoint_dir=tmp_path), rows_of(job), {}))
    assert said in "".join(wrong), wrong


def test_a_checkpoint_that_should_be_kept_is_missed(job: TrainingJob, tmp_path: Path) -> None:
    """Where the options keep all of them."""
    assert job.checkpoint_dir is not None
    shutil.copytree(job.checkpoint_dir / "step_2", tmp_path / "step_2")
    wrong, _, _ = record_is_true(Changed(replace(job, checkpoint_dir=tmp_path), rows_of(job), {}))
    assert "checkpoints of the steps [2]" in "".join(wrong), wrong


@pytest.mark.parametrize(
    ("tag", "value", "said"),
    [
        ("timing/train/generation", -1.0, "generation is -1"),
        ("timing/train/total_step_time", 500.0, "took 100"),
        ("timing/validation/total_validation_time", 1e-9, "the validation took 1e-09"),
        ("performance/samples_per_sec", 7.0, "samples_per_sec is 7"),
        ("performance/tokens_per_sec_per_gpu", 7.0, "tokens_per_sec_per_gpu is 7"),
    ],
)
def test_other_seconds_and_rates_are_seen(job: TrainingJob, tag: str, value: float, said: str) -> None:
    """Of steps, validations and the whole run."""
    longer = {SYNCED: 0.5}  # than rounding, on any machine
    changed = {tag: value} | (longer if tag.startswith("timing/validation/") else {})
    wrong = list(times_and_parts(evidence := Changed(job, rows_of(job), changed), options_of(evidence)))
    assert said in "".join(wrong), wrong


def test_the_first_sync_is_outside_of_the_first_validation(job: TrainingJob) -> None:
    """A generator gets weights when a command starts, and the validation before the first step logs the seconds."""

    class AtTheStart(Changed):
        def series(self, tag: str) -> Series | None:
            found = super().series(tag)
            if found is None or tag != SYNCED:
                return found
            return replace(found, values=np.where(found.steps == 0, 9.0, found.values))

    at_the_start = AtTheStart(job, rows_of(job), {})
    assert by_step(at_the_start, SYNCED)[0] == 9.0
    assert list(times_and_parts(at_the_start, options_of(at_the_start))) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", 7, "seed is recorded as 7"),
        ("policy", {"name": "hf", "model": "transformers.Other"}, "recorded as transformers.Other"),
        ("versions", {"torch": "0.1"}, "torch is recorded as 0.1"),
        ("argv", ["refrl", "sft"], "command is not the one"),
        ("started_at", 12.0, "to have started at 12"),
        ("placement", {"ranks": [{}, {}]}, "2 ranks"),
    ],
)
def test_another_record_of_the_start_is_seen(
    job: TrainingJob, tmp_path: Path, key: str, value: Any, said: str
) -> None:
    """Each fact that follows from the command."""
    facts = json.loads((job.ledger_dir / "run_info.json").read_text())
    (tmp_path / "run_info.json").write_text(json.dumps({**facts, key: value}))
    wrong, _, _ = record_is_true(Changed(replace(job, ledger_dir=tmp_path), rows_of(job), {}))
    assert said in "".join(wrong), wrong


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": 9}, "not numbered"),
        ({"finish_reason": "length"}, "is length after"),
        ({"completion": "other"}, "other"),
        ({"token_ids": [257, 61, 255, 254, 258], "prompt_length": 2}, "top-p leave out"),
    ],
)
def test_another_row_of_a_validation_is_seen(
    job: TrainingJob, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    """Its place, its end, its text and what it can have drawn."""
    for step in (0, 2):
        name = f"validation_data_step{step}.jsonl"
        rows = [json.loads(line) for line in (job.ledger_dir / name).read_text().splitlines()]
        place = next(place for place, row in enumerate(rows) if row["finish_reason"] == "stop" or step)
        rows[place] = {**rows[place], **change} if step == 0 else rows[place]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    wrong, _, _ = validations_hold(Changed(replace(job, ledger_dir=tmp_path), rows_of(job), {}))
    assert said in "".join(wrong), wrong


def test_a_verifier_that_failed_gives_one_reward() -> None:
    """Rows that it could not judge have the same one."""
    rows = [
        LedgerRow(
            step=1, index=index, prompt_id=0, reward=reward, prompt="", completion="", verifier_error=True
        )
        for index, reward in enumerate((0.0, 0.0, 0.3))
    ]
    assert not list(_unjudged(rows[:2]))
    (fault,) = _unjudged(rows)
    assert "its reward is 0.3" in fault.what


@pytest.mark.parametrize(
    ("parts", "seconds", "said"),
    [
        ({"a/num_timeouts": 0.0, "a/num_errors": 4.0}, {"reward_calculation/a": 0.001}, ""),
        ({"a/num_timeouts": 4.0, "a/num_errors": 4.0}, {"reward_calculation/a": 0.001}, "time-outs in"),
        (
            {"a/num_timeouts": 2.0, "a/num_errors": 1.0},
            {"reward_calculation/a": 9.0},
            "2 time-outs and 1 errors",
        ),
        ({"a/num_timeouts": 0.0, "a/num_errors": 8.0, "a/reward": 0.0}, {}, "judged no row"),
    ],
)
def test_parts_of_a_verifier(parts: dict[str, float], seconds: dict[str, float], said: str) -> None:
    """Time-outs take time and are errors; what judged nothing has no mean."""
    found = "; ".join(_wrong_parts(parts, seconds, 1, 8))
    assert said in found
    assert bool(found) is bool(said)


def test_a_checkpoint_is_timed_in_its_step() -> None:
    """Where one is due."""
    options = {
        "checkpointing.enabled": True,
        "checkpointing.save_period": 2,
        "grpo.async_grpo.enabled": False,
    }
    assert not list(_wrong_seconds({"total_step_time": 1.0}, 1, options))
    assert "checkpointing is not logged" in "".join(_wrong_seconds({"total_step_time": 1.0}, 2, options))


def test_an_option_that_is_not_recorded_is_seen(job: TrainingJob, tmp_path: Path) -> None:
    """A default, a value, and an option that there is not."""
    facts = json.loads((job.ledger_dir / "run_info.json").read_text())
    del facts["config"]["policy"]["optimizer"]["eps"]
    facts["config"]["grpo"]["seed"] = 5
    facts["config"]["grpo"]["sede"] = 0
    (tmp_path / "run_info.json").write_text(json.dumps(facts))
    wrong, _, _ = record_is_whole(Changed(replace(job, ledger_dir=tmp_path), [], {}))
    assert [text.split()[0] for text in wrong] == ["policy.optimizer.eps", "grpo.seed", "grpo.sede"]


def test_what_no_oracle_knows_is_not_judged(job: TrainingJob) -> None:
    """A target without options, several updates of rounded weights, a model that starts from adapters."""
    rows = rows_of(job)
    for check in CHECKS:
        with pytest.raises(NotGivenError, match="configured"):
            check(Changed(replace(job, configuration={}), rows, {}))
    older = {key: value for key, value in job.configuration.items() if key != "loss_fn"}
    with pytest.raises(NotGivenError, match=r"no option loss_fn\.kind"):
        first_update(Changed(replace(job, configuration=older), rows, {}))
    policy: dict[str, Any] = dict(job.configuration["policy"])
    for changed, why in (
        ({"train_global_batch_size": 8, "precision": "bfloat16"}, "2 updates"),
        ({"lora_cfg": {**policy["lora_cfg"], "adapter_path": "there"}}, "adapters"),
    ):
        configuration = {**job.configuration, "policy": {**policy, **changed}}
        with pytest.raises(NotGivenError, match=why):
            first_update(Changed(replace(job, configuration=configuration), rows, {}))


@pytest.mark.parametrize(
    ("top_k", "top_p", "least", "most"),
    [
        (None, 1.0, 4, 4),
        (2, 1.0, 2, 2),
        (None, 0.75, 2, 2),
        (None, 0.8, 2, 3),
        (3, 0.8, 2, 2),
        (3, 0.9, 3, 3),
    ],
)
def test_the_support_of_a_distribution(top_k: int | None, top_p: float, least: int, most: int) -> None:
    """Probabilities .5, .3, .15, .05, at 0.8 on the border within rounding; top-p takes those that top-k leaves."""
    scaled_V = np.log([0.15, 0.5, 0.05, 0.3])
    options = {"policy.generation.top_k": top_k, "policy.generation.top_p": top_p}
    for token, place in ((1, 0), (3, 1), (0, 2), (2, 3)):
        found = _support(scaled_V, token, options, "float32")
        assert (found.least, found.most, found.allows) == (least, most, place < most)


@pytest.mark.parametrize(
    "spec",
    [
        TinyModelSpec(hidden_size=32, intermediate_size=48, num_layers=2),
        TinyModelSpec(hidden_size=32, intermediate_size=48, family="llama", num_heads=2, num_kv_heads=1),
        TinyModelSpec(hidden_size=32, intermediate_size=48, tie_word_embeddings=True, num_kv_heads=4),
    ],
    ids=["qwen3", "llama", "tied"],
)
def test_the_decoder_is_that_of_transformers(tmp_path: Path, spec: TinyModelSpec) -> None:
    """Logits and the gradient of each weight, the padding token among the ids."""
    make_model(replace(spec, initializer_range=0.3), tmp_path / "model")
    facts = json.loads((tmp_path / "model" / "config.json").read_text())
    assert why_not(facts, tmp_path / "model") is None
    decoder = Decoder(stored_tensors(tmp_path / "model"), facts)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float64")
    rng = np.random.default_rng(0)
    for ids in ([257, 7, 256, 90, 7], [257, 3, 200]):
        row = LedgerRow(step=1, index=0, prompt_id=0, token_ids=tuple(ids))
        logits_SV = decoder.logits(row)
        right_SV = model(input_ids=torch.tensor([ids])).logits[0]
        assert np.allclose(logits_SV, right_SV.detach().numpy(), atol=1e-5)
        gradient_SV = rng.normal(size=logits_SV.shape)
        decoder.backward(gradient_SV)
        right_SV.backward(torch.from_numpy(gradient_SV))
    norms = decoder.norms()
    for name, value in model.named_parameters():
        assert value.grad is not None
        assert math.isclose(norms[name], float(value.grad.norm()), rel_tol=1e-4), name


@pytest.mark.parametrize(
    "facts",
    [
        {"model_type": "gpt2"},
        {"model_type": "llama", "attention_bias": True},
        {"model_type": "llama", "rope_parameters": {"rope_type": "yarn"}},
        {"model_type": "qwen3", "use_sliding_window": True},
    ],
)
def test_other_models_are_left_to_transformers(facts: dict[str, Any], tmp_path: Path) -> None:
    """The reason names the trait."""
    assert why_not(facts, tmp_path)


def test_an_entropy_in_bfloat16_is_bounded_by_the_rounding_of_its_rows(job: TrainingJob) -> None:
    """A mean that is 1 % off is within the bound of a loss in bfloat16, and far from the rows' own."""
    policy = {**job.configuration["policy"], "precision": "bfloat16"}
    narrow = replace(job, configuration={**job.configuration, "policy": policy})
    series = RunEvidence(job, None, []).series("train/entropy")  # type: ignore[arg-type]
    assert series is not None
    for factor, seen in ((1.0, False), (1.01, True)):
        scalars = {"train/entropy": float(series.values[0]) * factor}
        wrong, _, _ = first_update(Changed(narrow, rows_of(job), scalars))
        assert any("train/entropy" in text for text in wrong) is seen, wrong
