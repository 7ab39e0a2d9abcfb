"""TRL's trial runs as jobs: what they declare, and the prompts and rewards that they are made of; TRL is not needed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.ledger.laws.rewards import REWARDS, answer_of
from seatrial.targets.base import JobRequest
from seatrial.targets.common.questions import NUM_HELD_OUT, SCORES, answers, questions
from seatrial.targets.trl.recipes import RECIPES
from seatrial.targets.trl.runs import OWN_CHECKS, UNLOGGED, making_job, model_of, training_job


def request_for(recipe: str, folder: Path, **fields: object) -> JobRequest:
    """A trial's request."""
    return JobRequest(recipe=recipe, model=folder / "model", directory=folder, seed=3, **fields)


def test_a_smoke_declares_its_rows(tmp_path: Path) -> None:
    """What the ledger's laws go by is what the command runs."""
    recipe = RECIPES["grpo-smoke"]
    job = training_job(request_for("grpo-smoke", tmp_path))
    assert (job.num_steps, job.num_rows_per_step) == (recipe.num_steps, recipe.num_rows)
    assert recipe.num_rows % recipe.num_generations == 0
    assert job.verifier == recipe.verifier
    assert job.advantage is not None
    assert job.has_reference
    assert job.unlogged == UNLOGGED
    assert job.own_checks == OWN_CHECKS
    assert job.argv[1:4] == ("-m", "seatrial.targets.trl.training", "grpo-smoke")
    assert job.environment["TENSORBOARD_LOGGING_DIR"] == str(job.log_dir)


def test_the_first_of_several_runs_has_a_loop_of_its_own(tmp_path: Path) -> None:
    """The split is the trial's; the trainer's seed is the run's."""
    words = [training_job(request_for("grpo-learning", tmp_path, number=number)).argv for number in (0, 1)]
    seeds = [(argv[argv.index("--seed") + 1], argv[argv.index("--data-seed") + 1]) for argv in words]
    assert seeds == [("3000", "3"), ("3001", "3")]


def test_options_reach_grpo_and_not_the_warm_up(tmp_path: Path) -> None:
    given = ("learning_rate=0.1", "model=elsewhere")
    grpo = training_job(request_for("grpo-smoke", tmp_path, overrides=given)).argv
    warm = training_job(request_for("sft-warmup", tmp_path, overrides=given)).argv
    assert grpo[-1] == "learning_rate=0.1"
    assert not {*given} & {*warm}


def test_a_recipe_that_trl_has_no_run_for_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run of TRL for refit-delta"):
        training_job(request_for("refit-delta", tmp_path))


def _config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def _weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text("")


@pytest.mark.parametrize(
    ("made", "words"), [((), "holds no model"), ((_config, _weights), "holds no tokenizer.json")]
)
def test_a_given_model_is_looked_at(
    tmp_path: Path, made: tuple[Callable[[Path], None], ...], words: str
) -> None:
    for make in made:
        make(tmp_path)
    with pytest.raises(BlockedError, match=words):
        model_of([f"model={tmp_path}"])


def test_a_whole_given_model_is_taken(tmp_path: Path) -> None:
    _config(tmp_path)
    _weights(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert model_of(["learning_rate=1", f"model={tmp_path}"]) == tmp_path.resolve()
    assert model_of(["learning_rate=1"]) is None


def test_a_model_is_made_by_a_command(tmp_path: Path) -> None:
    words = ("-m", "seatrial.targets.common.tiny", "--output", str(tmp_path), "--seed", "7")
    assert making_job(tmp_path, 7).argv[1:] == words


def test_splits_share_no_prompt() -> None:
    """Held-out prompts are held out, and the same for every run of a trial."""
    trained, held_out = questions(5)
    assert not {one.prompt for one in trained} & {one.prompt for one in held_out}
    assert len(held_out) == NUM_HELD_OUT
    assert questions(5) == (trained, held_out)
    assert questions(6) != (trained, held_out)


@pytest.mark.parametrize("completion", ["cba", "cb", "", "cbaxyz", " cba ", "abc", "\ufffdba"])
@pytest.mark.parametrize("rule", SCORES)
def test_rewards_are_what_the_ledgers_law_recomputes(rule: str, completion: str) -> None:
    """The law's rules were written apart from these."""
    assert SCORES[rule](completion, "cba") == pytest.approx(REWARDS[rule](completion, "cba"), abs=1e-12)


def test_answers_are_worked_out_from_the_words() -> None:
    trained, _ = questions(0)
    assert answers([one.prompt for one in trained]) == [one.answer for one in trained]
    assert [answer_of(one.prompt) for one in trained] == [one.answer for one in trained]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_split_into_groups_and_is_scored_by_a_known_rule(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.num_rows % recipe.num_generations == 0
    assert recipe.verifier in SCORES
    assert all(1 <= step <= recipe.num_steps for step in recipe.kept_steps)
    assert recipe.trainer in ("GRPO", "SFT")
