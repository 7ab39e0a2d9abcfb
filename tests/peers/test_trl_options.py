"""What measured.json says of options is so: a law breaks if TRL's trainer does not get the option."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import run_in

TABLE = Path("src/seatrial/targets/trl/options/measured.json")
PROGRAM = """
import json, sys
from seatrial.targets.trl.options.dropping import measure
print("\\n" + json.dumps(measure([sys.argv[1]], sys.argv[2:], most=1)))
"""

OFFERED = """
import json
from seatrial.targets.trl.options.public import offered
print("\\n" + json.dumps([[one.name, one.state] for one in offered()]))
"""


def measured_anew(python: Path, root: Path, trainer: str, options: list[str]) -> dict[str, dict[str, str]]:
    """Drop options of a trainer and return the setup and the law that sees each."""
    ran = run_in(python, root, PROGRAM, trainer, *options)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, dict[str, str]] = json.loads(ran.stdout.splitlines()[-1])[trainer]
    return found


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_few_dropped_options_are_seen(peer_python: Callable[[str], Path], repository: Path) -> None:
    """One of the loss, one of the optimizer, one of the order of rows."""
    recorded = json.loads((repository / TABLE).read_text(encoding="utf-8"))["trainers"]["SFT"]
    names = ["loss_type", "weight_decay", "shuffle_dataset"]
    assert measured_anew(peer_python("trl"), repository, "SFT", names) == {
        name: recorded[name] for name in names
    }


@pytest.mark.peer
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trainer", ["SFT", "DPO", "GRPO"])
def test_every_dropped_option_is_seen_as_recorded(
    peer_python: Callable[[str], Path], repository: Path, trainer: str
) -> None:
    """Each covered option, with its setup and its law."""
    recorded = json.loads((repository / TABLE).read_text(encoding="utf-8"))["trainers"][trainer]
    seen = {name: one for name, one in recorded.items() if one["law"] and not one["law"].startswith("raises")}
    assert measured_anew(peer_python("trl"), repository, trainer, list(seen)) == seen


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_public_names_are_judged_or_listed_without(
    peer_python: Callable[[str], Path], repository: Path
) -> None:
    """A trainer by its setups, a function by the table that names it; what no adapter names is uncovered."""
    ran = run_in(peer_python("trl"), repository, OFFERED)
    assert ran.returncode == 0, ran.stderr[-3000:]
    states = dict(json.loads(ran.stdout.splitlines()[-1]))
    assert states["GRPOTrainer"].startswith("whole-grpo")
    assert states["parse_response"] == "utilities"
    assert states["create_reference_model"] == "worked"
    assert states["AsyncGRPOTrainer"] == "out of scope: vLLM"
    assert "uncovered" in states.values()
