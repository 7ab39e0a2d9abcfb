"""Checks carried over from scripts that call NeMo RL's checker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seatrial.checks import FindingKind
from seatrial.checks.judge import Questions, judge_log
from seatrial.checks.suites import Suite, load_suite
from seatrial.cli import main
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog, Series
from seatrial.migrate.suite_files import suite_texts
from seatrial.migrate.suites import Migration, find_scripts, migrate_script
from seatrial.verdict import Outcome, Verdict

SCRIPT = r"""#!/bin/bash
source $SCRIPT_DIR/common.env
# ===== BEGIN CONFIG =====
STEPS_PER_RUN=20
MAX_STEPS=20
NUM_RUNS=$(( (MAX_STEPS + STEPS_PER_RUN - 1) / STEPS_PER_RUN ))  # Round up
export LIMIT=${LIMIT:-1.5}
COMMON=(
    'median(data["train/gen_kl_error"]) < 1.3'
    # a note with 'quotes
    'max(data["x"]) >= 1'
)
uv run examples/run_grpo.py grpo.max_num_steps=$MAX_STEPS 2>&1 | tee $RUN_LOG
uv run tests/json_dump_tb_logs.py $LOG_DIR --output_path $JSON_METRICS
cat <<EOF
uv run tests/check_metrics.py not 'a command'
EOF
#uv run tests/check_metrics.py $JSON_METRICS 'max(data["commented"]) < 1'
if [[ $(jq 'keys | max' $JSON_METRICS) -ge $MAX_STEPS ]]; then
    uv run tests/check_metrics.py $JSON_METRICS \
        'median(data["train/token_mult_prob_error"]) < 1.1' \
        "data['train/reward']['$MAX_STEPS'] > -0.45" \
        'data["train/loss"]["'"${MAX_STEPS}"'"] < 0.3' \
        "max(data[\"train/loss\"]) < $LIMIT" \
        'min(data["train/probs_ratio_clamped_min"]) > 0.79' \
        'data["train/loss"]["30"] < 2' \
        "len(data['train/loss']) == $expected" \
        'sum(x for x in data["y"]) < 1'
fi
uv run --no-sync tests/check_metrics.py --table-width 100 "${OTHER}" "${COMMON[@]}" 'data["score"] >= 0.2'
"""


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    path = tmp_path / "grpo-tiny.sh"
    path.write_text(SCRIPT)
    return migrate_script(path)


def test_expressions_are_carried_over_with_the_variables_that_the_script_sets(migration: Migration) -> None:
    assert [call.metrics for call in migration.calls] == ["${JSON_METRICS}", "${OTHER}"]
    assert [item.check.text for item in migration.carried] == [
        'median(data["train/token_mult_prob_error"]) < 1.1',
        "data['train/reward']['20'] > -0.45",
        'data["train/loss"]["20"] < 0.3',
        'max(data["train/loss"]) < 1.5',
        'min(data["train/probs_ratio_clamped_min"]) > 0.79',
        'data["train/loss"]["30"] < 2',
        'median(data["train/gen_kl_error"]) < 1.3',
        'max(data["x"]) >= 1',
        'data["score"] >= 0.2',
    ]
    assert [item.line for item in migration.carried][:2] == [21, 22]


def test_what_is_left_behind_says_why(migration: Migration) -> None:
    unknown, comprehension = migration.left_behind
    assert unknown.text == "len(data['train/loss']) == ${expected}" and "$expected" in unknown.reason
    assert comprehension.line == 28 and "column" in comprehension.reason


def test_faults_are_told(migration: Migration) -> None:
    found = {
        item.check.text: [finding.kind for finding in item.findings]
        for item in migration.carried
        if item.findings
    }
    assert found == {
        'min(data["train/probs_ratio_clamped_min"]) > 0.79': [FindingKind.CANNOT_FAIL],
        'data["train/loss"]["30"] < 2': [FindingKind.STEP_OUT_OF_REACH],
        'max(data["x"]) >= 1': [FindingKind.ONE_STEP_DECIDES],
    }


def test_suites_are_one_per_metrics_file_and_can_be_read(migration: Migration, tmp_path: Path) -> None:
    texts = suite_texts(migration)
    assert sorted(texts) == ["grpo-tiny-2.yaml", "grpo-tiny.yaml"]
    assert "# cannot fail: " in texts["grpo-tiny.yaml"]
    (tmp_path / "suite.yaml").write_text(texts["grpo-tiny.yaml"])
    suite = load_suite(tmp_path / "suite.yaml")
    assert [item.expression for item in suite.checks] == [
        item.check.text for item in migration.calls[0].carried
    ]
    assert suite.checks[0].source == "hand-set in grpo-tiny.sh line 21"


@pytest.mark.parametrize(
    "change",
    [
        "N=3\nN=4\n",
        "N=4 # four\n",
        "N=4; if x; then M=3; fi\n",
        "if x; then N=3; else N=4; ",
        "f() {\nlocal N=3\n}\nf\nN=4\n",
        "local N=4\n",
        "export M=2 N=4\n",
        "N='4'\n",
        'K=4; N="$K"\n',
    ],
)
def test_the_value_of_a_variable_is_its_last_one(tmp_path: Path, change: str) -> None:
    path = tmp_path / "s.sh"
    path.write_text(change + "python tests/check_metrics.py f \"data['x']['$N'] < 1\"\n")
    assert [item.check.text for item in migrate_script(path).carried] == ["data['x']['4'] < 1"]


@pytest.mark.parametrize(
    "change",
    [
        "",
        "N=4\nN=$(date)\n",
        "N=4\nN=$1\n",
        "for N in 1 2; do :; done\n",
        "N=4; for N in 1 2; do :; done\n",
        "if x; then N=4; fi\n",
        "N=4; if x; then N=3; fi\n",
        "if x; then N=3; else N=4; fi\n",
        "case x in a) N=4 ;; esac\n",
        "f() {\n  N=3\n}\n",
    ],
)
def test_a_variable_that_only_the_shell_knows_leaves_the_check_behind(tmp_path: Path, change: str) -> None:
    path = tmp_path / "s.sh"
    path.write_text(change + "python tests/check_metrics.py f \"data['x']['$N'] < 1\"\n")
    migration = migrate_script(path)
    assert not migration.carried
    [left] = migration.left_behind
    assert left.text == "data['x']['${N}'] < 1"


def test_arrays_may_grow(tmp_path: Path) -> None:
    path = tmp_path / "s.sh"
    path.write_text('A=(\'max(data["x"]) < 1\')\nA+=(\'min(data["x"]) > 1\')\ncheck_metrics.py f "${A[@]}"\n')
    assert [item.check.text for item in migrate_script(path).carried] == [
        'max(data["x"]) < 1',
        'min(data["x"]) > 1',
    ]


def test_a_call_without_arguments_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "s.sh"
    path.write_text("uv run tests/check_metrics.py\n")
    assert "no metrics file" in migrate_script(path).left_behind[0].reason


def test_scripts_are_found_in_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/x.sh", "y.sh", "notes.txt"):
        (tmp_path / name).write_text("true\n")
    assert [path.name for path in find_scripts([tmp_path, tmp_path / "y.sh"])] == ["x.sh", "y.sh"]
    with pytest.raises(UsageError, match="no such file"):
        find_scripts([tmp_path / "missing"])


def test_the_command_writes_suites_and_says_what_is_missing(
    tmp_path: Path, migration: Migration, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.sh").write_text("echo 'open check_metrics.py\n")
    output = tmp_path / "suites"
    assert main(["migrate", str(tmp_path), "--output", str(output)]) == 1
    told = capsys.readouterr().out
    assert "2 scripts, 1 call the checker: 9 checks carried over, 2 left behind" in told
    assert "broken.sh: not a shell script that can be read: line 1: a single quote is not closed" in told
    assert sorted(path.name for path in output.iterdir()) == ["grpo-tiny-2.yaml", "grpo-tiny.yaml"]


def test_the_exit_code_tells_whole_from_nothing(tmp_path: Path) -> None:
    good, none = tmp_path / "good.sh", tmp_path / "none.sh"
    good.write_text("python check_metrics.py f 'max(data[\"x\"]) < 1'\n")
    none.write_text("echo hello\n")
    assert main(["migrate", str(good)]) == 0
    assert main(["migrate", str(none)]) == 5
    assert main(["migrate", str(tmp_path / "missing.sh")]) == 2


def test_two_scripts_of_one_name_are_not_written_over_each_other(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "s.sh").write_text("python check_metrics.py f 'max(data[\"x\"]) < 1'\n")
    assert main(["migrate", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


GUARDED = """MAX_STEPS=20
{before}if {condition}; then
    uv run tests/check_metrics.py $JSON_METRICS 'median(data["train/loss"]) < 9'
fi
"""
JQ = """$(jq 'to_entries | .[] | select(.key == "train/loss") | .value | keys | map(tonumber) | max' $M)"""
HAS = (
    """$(jq -r 'if has("train/loss") then (."train/loss" | keys | map(tonumber) | max // 0) else 0 end' $M)"""
)


def suites_of(tmp_path: Path, script: str) -> list[Suite]:
    path = tmp_path / "s.sh"
    path.write_text(script)
    texts = suite_texts(migrate_script(path))
    found = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        found.append(load_suite(tmp_path / name))
    return found


@pytest.mark.parametrize(
    ("before", "condition", "steps"),
    [
        ("", f"[[ {JQ} -ge $MAX_STEPS ]]", 20),
        ("", f'[ "{JQ}" -gt "${{MAX_STEPS}}" ]', 21),
        (f"LAST={HAS}\n", "[[ $LAST -ge $MAX_STEPS ]]", 20),
        (f"LAST={HAS}\n", "(( LAST >= 7 ))", 7),
    ],
)
def test_the_guard_around_a_call_becomes_the_steps_of_its_suite(
    tmp_path: Path, before: str, condition: str, steps: int
) -> None:
    [suite] = suites_of(tmp_path, GUARDED.format(before=before, condition=condition))
    assert (suite.steps, suite.steps_of, suite.parameters) == (steps, "train/loss", {})
    assert judged(suite, 1)[0].outcome is Outcome.FAIL
    assert all(verdict.outcome is Outcome.PASS for verdict in judged(suite, 21))


def judged(suite: Suite, last: int) -> list[Verdict]:
    steps = np.arange(1, last + 1)
    series = Series(tag="train/loss", steps=steps, values=np.ones(last))
    return judge_log(RunLog(sources=[], series={"train/loss": series}), Questions(suites=[suite]))


def test_a_script_that_ends_before_the_call_is_a_guard(tmp_path: Path) -> None:
    script = f"""MAX_STEPS=20
LAST={HAS}
if [[ "$LAST" -lt $MAX_STEPS ]]; then
    echo too short
    exit 1
fi
uv run tests/check_metrics.py $J 'max(data["train/loss"]) < 9'
"""
    [suite] = suites_of(tmp_path, script)
    assert (suite.steps, suite.steps_of) == (20, "train/loss")
    [without] = suites_of(tmp_path, script.replace("exit 1", "true"))
    assert without.steps is None


def test_without_a_guard_the_steps_that_the_run_is_started_for_are_asked(tmp_path: Path) -> None:
    script = "python run.py grpo.max_num_steps=3\npython check_metrics.py f 'max(data[\"x\"]) < 1'\n"
    [suite] = suites_of(tmp_path, script)
    assert (suite.steps, suite.steps_of) == (3, None)
    assert "the script itself does not check" in (tmp_path / "s.yaml").read_text()


def test_steps_that_stand_in_an_array_of_options_are_asked(tmp_path: Path) -> None:
    script = """OPTIONS=(
    policy.model_name=tiny
    grpo.max_num_steps=2
)
python run.py "${OPTIONS[@]}"
python check_metrics.py f 'max(data["x"]) < 1'
"""
    [suite] = suites_of(tmp_path, script)
    assert suite.steps == 2


@pytest.mark.parametrize(
    ("derived", "steps"),
    [
        ("defaults: ../base.yaml\nsft:\n  max_num_steps: 7\n", 7),
        ("defaults: ../base.yaml\nsft:\n  seed: 1\n", 50),
        ("defaults: [../other.yaml, ../base.yaml]\n", 50),
        ("sft:\n  max_num_steps: 7\ngrpo:\n  max_num_steps: 8\n", None),
        ("sft: {seed: 1}\n", None),
        ("[not, a, mapping]\n", None),
        ("a: [\n", None),
    ],
)
def test_steps_that_only_the_configuration_of_the_run_says_are_asked(
    tmp_path: Path, derived: str, steps: int | None
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/run.yaml").write_text(derived)
    (tmp_path / "base.yaml").write_text("sft:\n  max_num_steps: 50\n")
    (tmp_path / "tests").mkdir()
    script = """ROOT=$(realpath ..)
python run.py --config "$ROOT/configs/run.yaml"
python check_metrics.py f 'max(data["x"]) < 1'
"""
    [suite] = suites_of(tmp_path / "tests", script)
    assert suite.steps == steps
    text = (tmp_path / "tests/s.yaml").read_text()
    assert ("from run.yaml" if steps else "add steps") in text


def test_an_evaluation_after_the_run_is_not_asked_for_its_steps(tmp_path: Path) -> None:
    script = """python run.py grpo.max_num_steps=3
python check_metrics.py train.json 'max(data["x"]) < 1'
python check_metrics.py score.json 'data["score"] >= 0.2' 'abs(data["score"] - 1) < 1'
"""
    training, evaluation = suites_of(tmp_path, script)
    assert (training.steps, evaluation.steps) == (3, None)
    log = RunLog(sources=[], series={}, scalars={"score": 0.3})
    verdicts = judge_log(log, Questions(suites=[evaluation]))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASS, Outcome.PASS]


def test_steps_that_the_console_names_are_a_guard(tmp_path: Path) -> None:
    script = """LEAST=${LEAST:-3}
SEEN=0
for _ in $(seq 1 9); do
    SEEN=$(grep -cE "train step [0-9]+/" run.log || true)
    sleep 1
done
if (( SEEN < LEAST )); then
    exit 1
fi
python check_metrics.py f 'max(data["x"]) < 1'
"""
    [suite] = suites_of(tmp_path, script)
    assert suite.steps == 3


def test_one_of_several_ways_may_end_a_run_so_its_steps_are_left_behind_and_named(tmp_path: Path) -> None:
    path = tmp_path / "s.sh"
    path.write_text("""python run.py grpo.max_num_steps=9
if [[ "$EXPECT" == "end" ]]; then
    python check_metrics.py f 'max(data["x"]) < 1'
else
    kill $RUN
    python check_metrics.py f "max(data['x']) < $LIMIT"
fi
""")
    migration = migrate_script(path)
    assert [left.text for left in migration.left_behind] == [
        "the run is started for 9 steps",
        "the run is started for 9 steps",
        "max(data['x']) < ${LIMIT}",
    ]
    assert [text.count("# left behind: ") for text in suite_texts(migration).values()] == [1, 2]


def test_a_guard_whose_step_is_not_known_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "s.sh"
    path.write_text(GUARDED.format(before="", condition=f"[[ {JQ} -ge $LAST_STEP ]]"))
    [left] = migrate_script(path).left_behind
    assert "$LAST_STEP has no literal value" in left.reason and left.line == 2


def test_branches_that_exclude_each_other_are_suites_of_their_own(tmp_path: Path) -> None:
    script = """python check_metrics.py $J 'max(data["both"]) < 1'
if [[ "$EXPECT" == "survival" ]]; then
    python check_metrics.py $J 'max(data["reward"]) > 0'
else
    python check_metrics.py $J 'max(data["reward"]) < 0.5'
fi
"""
    first, second = suites_of(tmp_path, script)
    assert (first.parameters, second.parameters) == ({"EXPECT": "survival"}, {"EXPECT": "not survival"})
    assert [item.expression for item in first.checks] == ['max(data["both"]) < 1', 'max(data["reward"]) > 0']
    assert [item.expression for item in second.checks] == [
        'max(data["both"]) < 1',
        'max(data["reward"]) < 0.5',
    ]


def test_the_ways_of_a_case_are_suites_of_their_own(tmp_path: Path) -> None:
    script = """case "$MODE" in
  fast) python check_metrics.py $J 'max(data["x"]) < 1' ;;
  *) python check_metrics.py $J 'max(data["x"]) < 2' ;;
esac
"""
    assert [suite.parameters for suite in suites_of(tmp_path, script)] == [{"MODE": "fast"}, {}]
