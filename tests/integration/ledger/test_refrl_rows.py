"""Rows of real refrl runs keep every law, also in configurations that once looked broken; a changed cell is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refrl.cli import main as refrl
from seatrial.cli import main
from seatrial.evidence.ledger.read import read_ledger
from seatrial.verdict import EXIT_FAIL, EXIT_PASS

pytestmark = pytest.mark.e2e
KNOWN = ("--precision", "float32", "--verifier", "byte_closeness", "--group-size", "4", "--num-steps", "3")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Callable[..., Path]:
    """Return a function that trains a tiny model for three steps and gives the folder of its rows."""
    folder = tmp_path_factory.mktemp("runs")

    assert refrl(["make-model", "--output", str(folder / "model")]) == 0
    made: dict[tuple[str, ...], Path] = {}

    def grpo(*overrides: str) -> Path:
        if overrides not in made:
            place = folder / str(len(made))
            words = [
                *("grpo", "--config", str(repository / "src/refrl/recipes/grpo-smoke.yaml")),
                f"policy.model_name={folder / 'model'}",
                f"logger.log_dir={place / 'logs'}",
                f"checkpointing.checkpoint_dir={place / 'checkpoints'}",
            ]
            assert refrl([*words, *overrides]) == 0
            made[overrides] = place / "logs"
        return made[overrides]

    return grpo


def judged(logs: Path, folder: Path, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code of `seatrial ledger` and its verdicts by name."""
    code = main(["ledger", str(logs), *KNOWN, *words, "--json", str(folder / "verdicts.json")])
    document = json.loads((folder / "verdicts.json").read_text())
    return code, {verdict["name"]: verdict for verdict in document["verdicts"]}


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("policy.tokenizer.chat_template=byte", "policy.max_total_sequence_length=96"),
        ("policy.generation.top_p=0.5",),
        ("grpo.advantage.estimator=rloo", "policy.generation.temperature=0.7"),
    ],
    ids=lambda words: " ".join(words) or "as it is",
)
def test_a_sound_run_passes(run: Callable[..., Path], overrides: tuple[str, ...], tmp_path: Path) -> None:
    """A chat template, a filter on tokens and another estimator are no faults; every law is exercised."""
    code, verdicts = judged(run(*overrides), tmp_path)
    outcomes = {name: verdict["outcome"] for name, verdict in verdicts.items()}
    assert code == EXIT_PASS, verdicts
    assert outcomes == dict.fromkeys(outcomes, "Pass")


def test_a_run_whose_verifier_fails_does_not_pass(run: Callable[..., Path], tmp_path: Path) -> None:
    """All rewards are 0 because the verifier takes words for code: the rows say so."""
    logs = run("data.verifier=code_output", "grpo.max_verifier_error_share=1")
    assert main(["ledger", str(logs), "--json", str(tmp_path / "verdicts.json")]) == EXIT_FAIL
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert [verdict["name"] for verdict in verdicts if verdict["outcome"] == "Fail"] == [
        "verifier errors stay below 5 % of rows"
    ]


@pytest.mark.parametrize(
    ("key", "edit", "law"),
    [
        ("reward", lambda cell: cell + 0.01, "rewards recomputed equal the logged"),
        ("reward", lambda cell: cell + 0.01, "advantages recomputed equal the logged"),
        ("advantage", lambda cell: -cell, "advantages recomputed equal the logged"),
        ("loss_mask", lambda cell: [*cell[:-2], 0, cell[-1]], "the loss counts the sampled tokens"),
        ("prev_logprobs", lambda cell: [cell[0] + 0.001, *cell[1:]], "sampler and trainer agree per token"),
        ("generation_logprobs", lambda cell: [*cell[1:], cell[0]], "sampler and trainer agree per token"),
        (
            "token_ids",
            lambda cell: [*cell[:-3], 65, *cell[-2:]],
            "tokens are valid and are the rewarded text",
        ),
        ("completion", lambda cell: cell + "!", "tokens are valid and are the rewarded text"),
        ("prompt", lambda cell: cell[1:], "tokens are valid and are the rewarded text"),
        ("weight_version", lambda cell: cell + 1, "weight versions are in order"),
        ("finish_reason", lambda cell: "stop", "completions end for the reason given"),
        ("answer", lambda cell: cell + "x", "rewards recomputed equal the logged"),
    ],
)
def test_a_cell_changed_by_hand_is_named(
    run: Callable[..., Path], key: str, edit: Callable[[Any], Any], law: str, tmp_path: Path
) -> None:
    """The real rows of a run with one cell changed: the law that is for it names step and row."""
    logs = run()
    rows = read_ledger(logs).rows
    inside = {token for row in rows for token in row.sampled_ids[:-1]}
    # A row that every edit changes: cut at the limit, at a token that ends nothing, with another byte than 65.
    place = next(
        row.index
        for row in rows
        if row.step == 2
        and row.finish_reason == "length"
        and row.sampled_ids[-3] != 65
        and row.sampled_ids[-1] in inside
        and row.advantage
    )
    copy = tmp_path / "logs"
    copy.mkdir()
    for file in logs.glob("train_data_step*.jsonl"):
        (copy / file.name).write_bytes(file.read_bytes())
    lines = (copy / "train_data_step2.jsonl").read_text().splitlines()
    row = json.loads(lines[place])
    row[key] = edit(row[key])
    lines[place] = json.dumps(row)
    (copy / "train_data_step2.jsonl").write_text("\n".join(lines) + "\n")
    code, verdicts = judged(copy, tmp_path)
    assert code == EXIT_FAIL
    assert {"step": 2, "index": place} in verdicts[law]["details"]["rows"], verdicts[law]
