"""What trials ask of filters, of dynamic sampling, of the buffer's logged size, and of damaged checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.runlog import Series
from seatrial.trials.run_evidence import NotGivenError
from seatrial.trials.sensors import damage
from seatrial.trials.sensors.damage import damage_seen, damaged_copies
from seatrial.trials.sensors.drawn import wrongly_drawn
from seatrial.trials.sensors.filters import buffer_holds_what_waits, rows_are_filtered
from seatrial.trials.sensors.options import Options, flat
from seatrial.verdict import Outcome

OPTIONS: dict[str, Any] = {
    "policy": {"max_total_sequence_length": 8, "generation": {"max_new_tokens": 3}},
    "data": {"environment": None},
    "grpo": {
        "num_prompts_per_step": 2,
        "num_generations_per_prompt": 2,
        "overlong_filtering": False,
        "zero_variance_filter": False,
        "use_dynamic_sampling": False,
        "dynamic_sampling_max_gen_batches": None,
        "batch_multiplier": 1.5,
        "async_grpo": {
            "enabled": False,
            "drop_zero_variance": False,
            "drop_longer_than": None,
            "max_trajectory_age_steps": 1,
        },
    },
}


def run(rows: list[LedgerRow], scalars: dict[str, list[float]], num_steps: int = 1, **grpo: Any) -> Any:
    """Return a run with these rows and scalars of steps 1, 2, and so on."""
    async_grpo = {**OPTIONS["grpo"]["async_grpo"], **grpo.pop("async_grpo", {})}
    configuration = {**OPTIONS, "grpo": {**OPTIONS["grpo"], **grpo, "async_grpo": async_grpo}}

    def series(tag: str) -> Series | None:
        values = scalars.get(tag)
        if values is None:
            return None
        return Series(tag=tag, steps=np.arange(1, len(values) + 1), values=np.array(values))

    return SimpleNamespace(
        job=SimpleNamespace(
            configuration=configuration, num_steps=num_steps, first_step=1, ledger_dir=Path("no rows")
        ),
        ledger=rows,
        series=series,
    )


def row(index: int, reward: float, *, mask: int = 1, length: int = 2, cut: bool = False) -> LedgerRow:
    """Return a row of the group of its index; a prompt of two tokens."""
    return LedgerRow(
        step=1,
        index=index,
        prompt_id=index // 2,
        token_ids=(9,) * (2 + length),
        prompt_length=2,
        loss_mask=(0, 0) + (mask,) * length,
        generation_logprobs=(-1.0,) * length,
        reward=reward,
        finish_reason="length" if cut else "stop",
    )


def turned(number: int) -> LedgerRow:
    """Return a row of some turns of one token each, with a token of the environment between them."""
    mask = [1, 0] * number
    return replace(
        row(0, 1.0, length=2 * number),
        loss_mask=(0, 0, *mask),
        generation_logprobs=tuple(-1.0 * on for on in mask),
    )


@pytest.mark.parametrize(
    ("name", "arguments", "number", "is_seen"),
    [
        ("lookup", {}, 2, False),
        ("lookup", {}, 3, True),
        ("lookup", {"environment_args.max_turns": 3}, 3, False),
        ("own:Environment", {}, 3, False),
    ],
)
def test_turns_beyond_the_bound_are_seen(
    name: str, arguments: dict[str, int], number: int, is_seen: bool
) -> None:
    """Of a built-in environment by its documented bound; another one's own bound is not known."""
    evidence = run([turned(number), row(1, 0.0), row(2, 0.0), row(3, 1.0)], {})
    policy = {"max_total_sequence_length": 99, "generation": {"max_new_tokens": 99}}
    data = {"environment": name, **arguments}
    evidence.job.configuration = {**evidence.job.configuration, "policy": policy, "data": data}
    wrong = "".join(rows_are_filtered(evidence)[0])
    assert (f"{number} turns, more than the" in wrong) is is_seen
    assert bool(wrong) is is_seen


FLAT = [row(0, 1.0), row(1, 1.0), row(2, 0.0), row(3, 1.0)]
MASKED = [row(0, 1.0, mask=0), row(1, 1.0, mask=0), row(2, 0.0), row(3, 1.0)]
CUT = [row(0, 1.0), row(1, 0.0), row(2, 0.0, mask=0, length=3, cut=True), row(3, 1.0)]


def sampling(batches: float, dropped: float, discarded: float) -> dict[str, list[float]]:
    """Return the counters of dynamic sampling."""
    tag = "train/dynamic_sampling_num_"
    return {
        f"{tag}gen_batches": [batches],
        f"{tag}dropped_groups": [dropped],
        f"{tag}discarded_valid_samples": [discarded],
    }


SPREAD = [row(0, 1.0), row(1, 0.0), row(2, 0.0), row(3, 1.0)]


@pytest.mark.parametrize(
    ("rows", "scalars", "grpo", "wrong"),
    [
        (FLAT, {}, {}, ""),
        (MASKED, {}, {}, "row 0 is left out"),
        (MASKED, {"train/num_zero_variance_filtered": [2.0]}, {"zero_variance_filter": True}, ""),
        (MASKED, {"train/num_zero_variance_filtered": [4.0]}, {"zero_variance_filter": True}, "is 4.0"),
        (FLAT, {"train/num_zero_variance_filtered": [2.0]}, {"zero_variance_filter": True}, "is in the loss"),
        (CUT, {"train/num_overlong_filtered": [1.0]}, {"overlong_filtering": True}, ""),
        (CUT, {"train/num_overlong_filtered": [1.0]}, {}, "row 2 is left out"),
        (FLAT, {}, {"async_grpo": {"enabled": True, "drop_zero_variance": True}}, "all equal"),
        (SPREAD, {}, {"async_grpo": {"enabled": True, "drop_zero_variance": True}}, ""),
        (SPREAD, {}, {"async_grpo": {"enabled": True, "drop_longer_than": 3}}, "drop_longer_than=3"),
        (
            [*SPREAD[:3], row(3, 1.0, length=4)],
            {},
            {},
            "4 tokens, more than policy.generation.max_new_tokens",
        ),
        ([*SPREAD[:3], row(3, 1.0, length=7)], {}, {}, "policy.max_total_sequence_length=8"),
        ([*SPREAD[:3], row(3, 1.0, cut=True)], {}, {}, "is cut after 2 tokens, and no limit is reached"),
        (SPREAD, sampling(1, 0, 2), {"use_dynamic_sampling": True}, ""),
        (SPREAD, sampling(2, 2, 4), {"use_dynamic_sampling": True}, ""),
        (FLAT, sampling(1, 0, 2), {"use_dynamic_sampling": True}, "all equal"),
        (SPREAD, sampling(2, 0, 6), {"use_dynamic_sampling": True}, "for a full step"),
        (SPREAD, sampling(1, 2, 0), {"use_dynamic_sampling": True}, "4 groups from 1 batches of 3"),
        (SPREAD, sampling(11, 2, 0), {"use_dynamic_sampling": True}, "11 generation batches"),
        (SPREAD, {}, {"use_dynamic_sampling": True}, "nan generation batches"),
    ],
)
def test_rows_are_those_that_the_filters_leave(
    rows: list[LedgerRow], scalars: dict[str, list[float]], grpo: dict[str, Any], wrong: str
) -> None:
    """Two prompts of two rows a step; a generation batch has three."""
    found, _, number = rows_are_filtered(run(rows, scalars, **grpo))
    assert number == 4
    assert any(wrong in text for text in found) if wrong else not found, found


def drawn(*groups: tuple[int, int, str], **changed: Any) -> list[dict[str, Any]]:
    """Return prompts that were drawn, each with its batch, number and fate; `changed` are facts of the first one."""
    rewards = {"held": [], "zero variance": [1.0, 1.0], "trained": [0.0, 1.0], "surplus": [0.0, 1.0]}
    found: list[dict[str, Any]] = [
        {"batch": batch, "prompt_id": number, "fate": fate, "rewards": rewards[fate]}
        for batch, number, fate in groups
    ]
    found[0].update(changed)
    return found


KEPT = [row(0, 0.0), row(1, 1.0), row(2, 0.0), row(3, 1.0)]
IN_ONE = ((0, 0, "trained"), (0, 1, "trained"), (0, 2, "surplus"))
IN_TWO = (
    (0, 0, "trained"),
    (0, 2, "zero variance"),
    (0, 3, "zero variance"),
    (1, 1, "trained"),
    (1, 0, "held"),
    (1, 2, "surplus"),
)


@pytest.mark.parametrize(
    ("groups", "counts", "rows", "changed", "wrong"),
    [
        (IN_ONE, (1, 0, 2), KEPT, {}, ""),
        (IN_TWO, (2, 2, 2), KEPT, {}, ""),
        (IN_ONE, (1, 1, 2), KEPT, {}, "dropped_groups is 1, what was drawn gives 0"),
        (IN_ONE, (2, 0, 2), KEPT, {}, "gen_batches is 2"),
        (IN_ONE, (1, 0, 0), KEPT, {}, "discarded_valid_samples is 0"),
        (IN_ONE[:2], (1, 0, 0), KEPT, {}, "batch 0 drew 2 prompts, not 3"),
        (IN_ONE, (1, 0, 2), KEPT, {"rewards": [0.0, 1.0, 1.0]}, "has 3 completions, not 2"),
        (IN_ONE, (1, 0, 2), KEPT, {"rewards": [1.0, 1.0]}, "with the rewards [1.0, 1.0] is trained"),
        (IN_ONE, (1, 1, 2), KEPT, {"fate": "zero variance"}, "[0.0, 1.0] is zero variance"),
        (IN_ONE, (1, 0, 2), [*KEPT[2:], *KEPT[:2]], {}, "row 0 is 0 for prompt 1, kept was 0 for prompt 0"),
        (IN_ONE, (1, 0, 4), KEPT, {"fate": "surplus"}, "prompt 0 is left out, and the step has 0 groups"),
        (
            (*IN_TWO[:4], (1, 0, "trained"), IN_TWO[5]),
            (2, 2, 2),
            KEPT,
            {},
            "prompt 0 is trained, and held by then",
        ),
        ((*IN_ONE[:2], (0, 2, "held")), (1, 0, 0), KEPT, {}, "prompt 2 is held, and not held by then"),
        (IN_TWO, (2, 2, 2), KEPT, {"prompt_id": 2, "batch": 0}, "prompt 2 is drawn again, in batch 0"),
    ],
)
def test_dynamic_sampling_keeps_drops_and_draws_as_it_says(
    tmp_path: Path,
    groups: tuple[tuple[int, int, str], ...],
    counts: tuple[float, float, float],
    rows: list[LedgerRow],
    changed: dict[str, Any],
    wrong: str,
) -> None:
    """A step of two groups of two; a batch draws three prompts."""
    lines = [json.dumps(one) + "\n" for one in drawn(*groups, **changed)]
    (tmp_path / "drawn_data_step1.jsonl").write_text("".join(lines))
    evidence = run(rows, sampling(*counts), use_dynamic_sampling=True)
    evidence.job.ledger_dir, evidence.job.first_step = tmp_path, 1
    options = Options(flat(evidence.job.configuration))
    found = list(wrongly_drawn(evidence, {1: rows}, options))
    assert any(wrong in text for text in found) if wrong else not found, found


def test_the_buffer_holds_what_later_steps_take() -> None:
    """Three steps of two groups, sampled a step ahead: two wait at steps 1 and 2, and none at the last."""
    groups = [
        {"number": n, "fate": "trained", "step": n // 2 + 1, "weight_step": max(0, n // 2 - 1)}
        for n in range(6)
    ]
    for sizes, wrong in (
        ([2, 2, 0], ""),
        ([0, 1, 0], ""),
        ([2, 2, 2], "step 3: the buffer is logged with 2 groups, at most 0"),
        ([4, 4, 2], "step 1"),
        ([2, 2], "step 3"),
    ):
        found, _, _ = buffer_holds_what_waits(run([], {"train/buffer_size": list(sizes)}, 3), groups)
        assert any(wrong in text for text in found) if wrong else not found, (sizes, found)


def test_groups_in_place_of_dropped_ones_may_wait() -> None:
    """The last step drops one group; the rest of the batch that makes up for it is left over."""
    groups: list[dict[str, Any]] = [
        {"number": 0, "fate": "zero variance", "step": 1, "weight_step": 0},
        *({"number": n, "fate": "trained", "step": 1, "weight_step": 0} for n in (1, 2)),
        {"number": 3, "fate": "unused", "step": 2, "weight_step": 0},
    ]
    for size, good in ((1, True), (2, False)):
        found, _, _ = buffer_holds_what_waits(run([], {"train/buffer_size": [size]}, 1), groups)
        assert (not found) is good


def checkpoint(folder: Path, **facts: Any) -> Any:
    """Return a run that saved a checkpoint of two files after step 1."""
    (folder / "saved" / "step_1" / "policy").mkdir(parents=True)
    (folder / "saved" / "step_1" / "info.json").write_text('{"step": 1}')
    (folder / "saved" / "step_1" / "policy" / "model").write_bytes(bytes(range(30)))
    job = {
        "checkpoint_dir": folder / "saved",
        "checkpoint_steps": (1,),
        "checkpoint_form": "step_{step}/policy",
    }
    return SimpleNamespace(job=SimpleNamespace(**{**job, **facts}))


def test_each_copy_differs_in_two_bytes_of_one_file(tmp_path: Path) -> None:
    """As many copies as files; the original stays."""
    evidence = checkpoint(tmp_path)
    copies = damaged_copies(evidence, tmp_path / "copies")
    assert copies == {"step_1001": "info.json", "step_1002": "policy/model"}
    source = tmp_path / "saved" / "step_1"
    for copy, damaged in copies.items():
        for name in copies.values():
            pairs = zip(
                (source / name).read_bytes(), (tmp_path / "copies" / copy / name).read_bytes(), strict=True
            )
            assert sum(one != other for one, other in pairs) == (2 if name == damaged else 0)


def test_checkpoints_of_another_form_are_not_judged(tmp_path: Path) -> None:
    """A target that names none, and one that saves elsewhere."""
    for name, facts in (
        ("none", {"checkpoint_dir": None}),
        ("no step", {"checkpoint_steps": ()}),
        ("form", {"checkpoint_form": "checkpoint-{step}"}),
    ):
        with pytest.raises(NotGivenError, match="step_N"):
            damaged_copies(checkpoint(tmp_path / name, **facts), tmp_path / "copies")


@pytest.mark.parametrize(
    ("lines", "steps", "outcome"),
    [
        (["skipping step_1001, damaged", "skipping step_1002: damaged"], [1], Outcome.PASS),
        (["skipping step_1001, damaged"], [1], Outcome.FAIL),
        (["skipping step_1001, damaged", "skipping step_1002: damaged"], [2], Outcome.FAIL),
        (["skipping step_1001, damaged", "skipping step_1002: damaged"], [], Outcome.FAIL),
        ([], [2], Outcome.FAIL),
    ],
)
def test_a_run_names_each_copy_and_begins_at_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], steps: list[int], outcome: Outcome
) -> None:
    """A run that went on from a copy logs a later step first."""
    (tmp_path / "run.log").write_text("\n".join(lines))
    log = SimpleNamespace(
        series={"train/loss": SimpleNamespace(steps=np.array(steps, dtype=int))} if steps else {}
    )
    monkeypatch.setattr(damage, "read_logs", lambda folder: log)
    evidence: Any = SimpleNamespace(
        job=SimpleNamespace(log_dir=tmp_path), launched=SimpleNamespace(log_path=tmp_path / "run.log")
    )
    verdict = damage_seen(evidence, {"step_1001": "info.json", "step_1002": "policy/model"})
    assert verdict.outcome is outcome, verdict


def test_nothing_to_damage_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, no evidence."""
    (tmp_path / "run.log").write_text("")
    log = SimpleNamespace(series={"train/loss": SimpleNamespace(steps=np.array([1]))})
    monkeypatch.setattr(damage, "read_logs", lambda folder: log)
    evidence: Any = SimpleNamespace(
        job=SimpleNamespace(log_dir=tmp_path), launched=SimpleNamespace(log_path=tmp_path / "run.log")
    )
    assert damage_seen(evidence, {}).outcome is Outcome.FAIL
