"""Forty edits of a small RL project with Ray actors: what `--affected` chooses, beside pytest-testmon alone.

    python benchmarks/affected_edits.py [--edits 1-40|11,12,15] [--no-testmon] [--json FILE]

Run it with a Python that has ray, pyyaml, pytest, and pytest-testmon for the comparison. For each edit
the whole suite runs: a test is affected when its outcome differs from that of the project as it was, or when it
did not exist. That is decided by running, not by the selection's own idea of a dependency.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

SEATRIAL = str(Path(__file__).resolve().parents[1] / "src")
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n\n[tool.ruff]\nline-length = 100\n',
    "README.md": "A small stack.\n",
    "src/stack/__init__.py": "",
    "src/stack/algorithms/__init__.py": "from .advantages import group_advantages, whiten\n",
    "src/stack/algorithms/advantages.py": '''"""Advantages."""
from .statistics import mean, spread

def group_advantages(rewards):
    centre = mean(rewards)
    return [reward - centre for reward in rewards]

def whiten(values):
    width = spread(values)
    return [value / width for value in values]
''',
    "src/stack/algorithms/statistics.py": """# Moments.
def mean(values):
    return sum(values) / len(values)

def spread(values):
    centre = mean(values)
    return (sum((value - centre) ** 2 for value in values) / len(values)) ** 0.5
""",
    "src/stack/losses.py": """from stack import ops

def policy_loss(ratio, advantage):
    return -min(ratio * advantage, ops.clip(ratio, 0.8, 1.2) * advantage)
""",
    "src/stack/ops.py": "def clip(value, low, high):\n    return max(low, min(high, value))\n",
    "src/stack/config.py": """from pathlib import Path
import yaml

def load_recipe(path):
    recipe = yaml.safe_load(Path(path).read_text())
    if "defaults" in recipe:
        base = load_recipe(Path(path).parent / recipe.pop("defaults"))
        recipe = {**base, **recipe}
    return recipe
""",
    "src/stack/rollout/__init__.py": "",
    "src/stack/rollout/actor.py": """import ray

@ray.remote(num_cpus=0)
class RolloutActor:
    def __init__(self):
        with open("data/prompts.txt") as file:
            self.prompts = file.read().split()

    def generate(self):
        from stack.rollout import sampler
        return [sampler.sample(prompt) for prompt in self.prompts]

    def count(self):
        return len(self.prompts)
""",
    "src/stack/rollout/sampler.py": """from stack.rollout.decoding import decode

def sample(prompt):
    return decode(prompt) + "!"
""",
    "src/stack/rollout/decoding.py": "def decode(prompt):\n    return prompt.upper()\n",
    "src/stack/trainer/__init__.py": "",
    "src/stack/trainer/actor.py": """import importlib
import os
import ray

@ray.remote(num_cpus=0)
class TrainActor:
    def __init__(self, policy):
        self.policy = importlib.import_module(f"stack.policies.{policy}").Policy()

    def step(self):
        return self.policy.parameters() * float(os.environ.get("STACK_SCALE", "1"))
""",
    "src/stack/policies/__init__.py": "",
    "src/stack/policies/dense.py": "class Policy:\n    def parameters(self):\n        return 10\n",
    "src/stack/policies/moe.py": """from stack.policies.experts import EXPERTS

class Policy:
    def parameters(self):
        return 10 * EXPERTS
""",
    "src/stack/policies/experts.py": "EXPERTS = 4\n",
    "src/stack/reward/__init__.py": "",
    "src/stack/reward/remote.py": """import ray

@ray.remote(num_cpus=0)
def score(answer, truth):
    from stack.reward import verifier
    return verifier.verify(answer, truth)
""",
    "src/stack/reward/verifier.py": """from stack.reward.normalise import normalise

def verify(answer, truth):
    return float(normalise(answer) == normalise(truth))
""",
    "src/stack/reward/normalise.py": "def normalise(text):\n    return text.strip().lower()\n",
    "src/stack/cli.py": """import sys
from stack.config import load_recipe
from stack.report import render

if __name__ == "__main__":
    print(render(load_recipe(sys.argv[1])))
""",
    "src/stack/report.py": """from pathlib import Path

def render(recipe):
    template = Path("templates/report.txt").read_text()
    return template.format(**recipe)
""",
    "src/stack/registry.py": """import importlib
_FILTERS = {}

def filters():
    if not _FILTERS:
        for name in ("length", "language"):
            _FILTERS[name] = importlib.import_module("stack.filters." + name).keep
    return _FILTERS
""",
    "src/stack/filters/__init__.py": "",
    "src/stack/filters/length.py": "def keep(text):\n    return len(text) < 10\n",
    "src/stack/filters/language.py": "def keep(text):\n    return text.isascii()\n",
    "src/stack/unused.py": "VALUE = 1\n",
    "data/prompts.txt": "one two three\n",
    "data/vocabulary.json": '["a", "b"]\n',
    "recipes/base.yaml": "name: base\nsteps: 3\n",
    "recipes/grpo.yaml": "defaults: base.yaml\nname: grpo\ngroup: 8\n",
    "recipes/sft.yaml": "name: sft\nsteps: 5\n",
    "templates/report.txt": "{name}: {steps} steps\n",
    "scripts/launch.sh": '#!/bin/sh\nset -e\n. scripts/environment.sh\n"$PYTHON" -m stack.cli recipes/sft.yaml\n',
    "scripts/environment.sh": "GREETING=hello\nexport GREETING\n",
    "tests/conftest.py": """import os
import sys
import pytest

@pytest.fixture(scope="session")
def cluster():
    import ray
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=os.environ["STACK_RAY_TEMP"], logging_level="ERROR",
             object_store_memory=100_000_000)
    yield ray
    ray.shutdown()

@pytest.fixture
def child_environment():
    return {**os.environ, "PYTHON": sys.executable}

@pytest.fixture
def rewards():
    return [0.0, 1.0]
""",
    "tests/test_advantages.py": """from stack.algorithms import group_advantages, whiten

def test_centred(rewards):
    assert group_advantages(rewards) == [-0.5, 0.5]

def test_whitened(rewards):
    assert whiten(group_advantages(rewards)) == [-1.0, 1.0]
""",
    "tests/test_losses.py": """import pytest
from stack.losses import policy_loss

@pytest.mark.parametrize(("ratio", "loss"), [(1.0, -1.0), (2.0, -1.2)])
def test_policy_loss(ratio, loss):
    assert policy_loss(ratio, 1.0) == loss
""",
    "tests/test_rollout.py": """from stack.rollout.actor import RolloutActor

def test_generates(cluster):
    actor = RolloutActor.remote()
    assert cluster.get(actor.generate.remote()) == ["ONE!", "TWO!", "THREE!"]
    cluster.kill(actor)

def test_counts(cluster):
    actor = RolloutActor.remote()
    assert cluster.get(actor.count.remote()) == 3
    cluster.kill(actor)
""",
    "tests/test_trainer.py": """import pytest
from stack.trainer.actor import TrainActor

@pytest.mark.parametrize(("policy", "parameters"), [("dense", 10), ("moe", 40)])
def test_step(cluster, policy, parameters):
    actor = TrainActor.remote(policy)
    assert cluster.get(actor.step.remote()) == parameters
    cluster.kill(actor)
""",
    "tests/test_reward.py": """from stack.reward.remote import score

def test_right(cluster):
    assert cluster.get(score.remote(" Four", "four")) == 1.0

def test_wrong(cluster):
    assert cluster.get(score.remote("five", "four")) == 0.0

def test_verifier_in_process():
    from stack.reward.verifier import verify
    assert verify("A ", "a") == 1.0
""",
    "tests/test_cli.py": """import subprocess
import sys
import pytest

@pytest.mark.parametrize(("recipe", "steps"), [("grpo", 3), ("sft", 5)])
def test_report(child_environment, recipe, steps):
    command = [sys.executable, "-m", "stack.cli", f"recipes/{recipe}.yaml"]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{recipe}: {steps} steps"
""",
    "tests/test_launch.py": """import subprocess

def test_launch(child_environment):
    done = subprocess.run(["sh", "scripts/launch.sh"], env=child_environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "sft: 5 steps")
""",
    "tests/test_recipes.py": """import os
import pytest
from stack.config import load_recipe

@pytest.mark.parametrize("name", ["base", "grpo", "sft"])
def test_recipe(name):
    assert load_recipe(f"recipes/{name}.yaml")["steps"] in (3, 5)

def test_every_recipe_is_known():
    assert sorted(os.listdir("recipes")) == ["base.yaml", "grpo.yaml", "sft.yaml"]
""",
    "tests/test_filters.py": """from stack.registry import filters

def test_length():
    assert not filters()["length"]("a" * 20)

def test_language():
    assert not filters()["language"]("\\u00fc")
""",
    "tests/test_vocabulary.py": """import json

def test_vocabulary():
    with open("data/vocabulary.json") as file:
        assert len(json.load(file)) == 2
""",
}

Apply = Callable[[Path], None]


def replace(path: str, old: str, new: str) -> Apply:
    """Return an edit that replaces a text that must be there."""

    def apply(project: Path) -> None:
        text = (project / path).read_text()
        if old not in text:
            raise ValueError(f"{path} has no {old!r}")
        (project / path).write_text(text.replace(old, new))

    return apply


def write(path: str, text: str) -> Apply:
    """Return an edit that writes a file."""
    return lambda project: _write(project, {path: text})


def touch(project: Path) -> None:
    """Set the modification time of every file, as a checkout does."""
    for path in project.rglob("*.py"):
        os.utime(path, (1, 1))


EDITS: list[tuple[str, Apply]] = [
    ("ops.clip raises", replace("src/stack/ops.py", "max(low", "1 // 0 or max(low")),
    ("loss has the wrong sign", replace("src/stack/losses.py", "return -min", "return min")),
    ("mean is off by one", replace("src/stack/algorithms/statistics.py", "len(values)\n\n", "(len(values) + 1)\n\n")),
    ("spread is not a root", replace("src/stack/algorithms/statistics.py", "** 0.5", "** 0.25")),
    ("advantages are not centred", replace("src/stack/algorithms/advantages.py", "reward - centre", "reward")),
    ("whiten multiplies", replace("src/stack/algorithms/advantages.py", "value / width", "value * width * 3")),
    ("a re-export of the wrong function", replace("src/stack/algorithms/__init__.py", ", whiten", ", mean as whiten")),
    ("actor: the method adds a row", replace("src/stack/rollout/actor.py", "prompts]", "prompts + ['x']]")),
    ("actor: the count is wrong", replace("src/stack/rollout/actor.py", "return len(self.prompts)", "return 0")),
    ("actor: the import inside a method", replace("src/stack/rollout/sampler.py", '"!"', '"?"')),
    ("actor: one level further down", replace("src/stack/rollout/decoding.py", "upper", "lower")),
    ("actor: the data file it opens", write("data/prompts.txt", "one two\n")),
    ("actor: dense by name", replace("src/stack/policies/dense.py", "10", "11")),
    ("actor: moe by name", replace("src/stack/policies/moe.py", "10 *", "11 *")),
    ("actor: what moe imports", write("src/stack/policies/experts.py", "EXPERTS = 5\n")),
    ("actor: its step", replace("src/stack/trainer/actor.py", "* float", "* 2 * float")),
    ("task: what it imports", replace("src/stack/reward/verifier.py", "==", "!=")),
    ("task: one level further down", replace("src/stack/reward/normalise.py", ".strip().lower()", "")),
    ("task: the function", replace("src/stack/reward/remote.py", "return verifier", "return 1 - verifier")),
    ("child: the module it runs", replace("src/stack/cli.py", "print(", "print('>', ")),
    ("child: what it imports", replace("src/stack/report.py", "template.format", "'' and template.format")),
    ("child: the template it reads", write("templates/report.txt", "{name} - {steps}\n")),
    ("child: one recipe", write("recipes/sft.yaml", "name: sft\nsteps: 6\n")),
    ("child: a recipe behind a recipe", write("recipes/base.yaml", "name: base\nsteps: 4\n")),
    ("a recipe of one test", write("recipes/grpo.yaml", "defaults: base.yaml\nname: grpo2\nsteps: 7\n")),
    ("a new recipe", write("recipes/extra.yaml", "name: extra\nsteps: 3\n")),
    ("the recipe reader raises", replace("src/stack/config.py", "yaml.safe_load(", "yaml.no_such_function(")),
    ("shell: the script", replace("scripts/launch.sh", "sft.yaml", "grpo.yaml")),
    ("shell: the script it reads", write("scripts/environment.sh", "exit 7\n")),
    ("loaded once: the first plugin", replace("src/stack/filters/length.py", "< 10", "< 100")),
    ("loaded once: the second plugin", replace("src/stack/filters/language.py", "text.isascii()", "True")),
    ("data: a vocabulary", write("data/vocabulary.json", '["a"]\n')),
    ("a test's own body", replace("tests/test_losses.py", "== loss", "== loss + 1")),
    ("one of two tests in a module", replace("tests/test_filters.py", '"a" * 20', '"a"')),
    ("a fixture of some tests", replace("tests/conftest.py", "[0.0, 1.0]", "[0.0, 2.0]")),
    ("a new test", write("tests/test_new.py", "def test_new(): pass\n")),
    ("only comments and layout", replace("src/stack/algorithms/statistics.py", "# Moments.", "# Means, widths.\n")),
    ("only modification times", touch),
    ("a module that nothing imports", write("src/stack/unused.py", "VALUE = 2\n")),
    ("a linter's setting", replace("pyproject.toml", "100", "88")),
]  # fmt: skip


@dataclass(frozen=True)
class Score:
    """What one edit affected, and what was chosen."""

    name: str
    affected: list[str]
    chosen: list[str]
    testmon: list[str] | None


def _write(project: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _pytest(project: Path, ray_temp: Path, *arguments: str) -> str:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SEATRIAL_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=project,
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join(["src", SEATRIAL]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "STACK_RAY_TEMP": str(ray_temp),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout + done.stderr


def _failed(output: str) -> set[str]:
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE))


def score(edits: list[tuple[str, Apply]], work: Path, *, with_testmon: bool) -> list[Score]:
    """Seed the project once, then make each edit in a copy and run everything there.

    Raises:
        RuntimeError: the project does not pass as it is.
    """
    ray_temp = work / "ray"
    seeded = work / "seeded"
    _write(seeded, FILES)
    output = _pytest(seeded, ray_temp, "-p", "seatrial.pytest_plugin", "--affected")
    if _failed(output) or " passed" not in output:
        raise RuntimeError(f"the project does not pass as it is:\n{output}")
    if with_testmon:
        shutil.copytree(seeded, work / "testmon", ignore=shutil.ignore_patterns(".seatrial"))
        _pytest(work / "testmon", ray_temp, "-p", "testmon.pytest_testmon", "--testmon")
    scores = []
    for number, (name, apply) in enumerate(edits):
        scores.append(_score_one(name, apply, work, number, ray_temp, with_testmon=with_testmon))
        print(_row(number + 1, scores[-1]), flush=True)
    return scores


def _score_one(
    name: str, apply: Apply, work: Path, number: int, ray_temp: Path, *, with_testmon: bool
) -> Score:
    project = Path(shutil.copytree(work / "seeded", work / f"edit{number}"))
    apply(project)
    output = _pytest(
        project, ray_temp, "-p", "seatrial.pytest_plugin", "--affected-audit", "--affected-explain", "-rfE"
    )
    rows = re.findall(r"^  (run|out)  (\S+): (.*)$", output, re.MULTILINE)
    affected = _failed(output) | {nodeid for _, nodeid, reason in rows if reason.startswith("it is new")}
    testmon = None
    if with_testmon:
        copy = Path(shutil.copytree(work / "testmon", work / f"testmon{number}"))
        apply(copy)
        listed = _pytest(copy, ray_temp, "-p", "testmon.pytest_testmon", "--testmon", "--collect-only")
        testmon = sorted(set(re.findall(r"^(tests/\S+::\S+)", listed, re.MULTILINE)))
    return Score(name, sorted(affected), sorted(n for word, n, _ in rows if word == "run"), testmon)


def _row(number: int, one: Score) -> str:
    affected, chosen = set(one.affected), set(one.chosen)
    text = f"{number:3} {one.name:38} {len(affected):8} {len(chosen):6} {len(affected - chosen):6}"
    if one.testmon is not None:
        text += f" {len(one.testmon):8} {len(affected - set(one.testmon)):6}"
    return text


def totals(pairs: list[tuple[list[str], list[str]]]) -> tuple[float, float]:
    """Return recall and precision over all edits, from pairs of what was affected and what was chosen."""
    hits = sum(len(set(affected) & set(chosen)) for affected, chosen in pairs)
    affected_total = sum(len(affected) for affected, _ in pairs)
    chosen_total = sum(len(chosen) for _, chosen in pairs)
    return hits / max(affected_total, 1), hits / max(chosen_total, 1)


def main() -> int:
    """Print a row per edit, and recall and precision over all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--edits", default=f"1-{len(EDITS)}", help="numbers of edits, such as 3-9 or 11,12,15"
    )
    parser.add_argument("--no-testmon", action="store_true", help="leave the comparison out")
    parser.add_argument("--json", type=Path, help="write the scores here")
    arguments = parser.parse_args()
    edits = []
    for part in arguments.edits.split(","):
        first, _, last = part.partition("-")
        edits += EDITS[int(first) - 1 : int(last or first)]
    # Ray's sockets lie in its temporary folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="sea-", ignore_cleanup_errors=True) as folder:
        print("  # edit                                   affected chosen missed  testmon missed")
        scores = score(edits, Path(folder), with_testmon=not arguments.no_testmon)
    recall, precision = totals([(one.affected, one.chosen) for one in scores])
    print(f"--affected: recall {recall:.1%}, precision {precision:.1%}")
    if not arguments.no_testmon:
        recall, precision = totals([(one.affected, one.testmon or []) for one in scores])
        print(f"testmon:    recall {recall:.1%}, precision {precision:.1%}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in scores], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
