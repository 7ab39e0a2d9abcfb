"""What the trials of level 2 ask of a run that is not what it should be."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.runlog import Series
from seatrial.trials.refit import (
    CONSUMER,
    WRITING,
    deltas_between_full_syncs,
    every_tensor_verified,
)
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.sent import (
    BYTES,
    FULL,
    LARGEST,
    LOADED,
    VERIFIED,
    messages_are_bounded,
    sizes_of_syncs,
    syncs_carry_changes,
)
from seatrial.trials.sensors.times import TRANSFER, _untimed_syncs
from seatrial.verdict import Outcome


def evidence(num_tensors: int = 3, num_steps: int = 3, **series: list[float] | None) -> Any:
    """Return the parts of a run's evidence that these sensors read; a series that is None was not logged."""
    tags = {"verified": VERIFIED, "full": FULL, "sent": BYTES, "largest": LARGEST, "loaded": LOADED}
    tags |= {phase: f"{CONSUMER}{phase}" for phase in WRITING}
    logged = {
        tags[name]: Series(
            tag=tags[name], steps=np.arange(1, len(values) + 1), values=np.array(values, dtype=np.float64)
        )
        for name, values in series.items()
        if values is not None
    }
    return SimpleNamespace(
        series=logged.get,
        job=SimpleNamespace(num_steps=num_steps, checkpoint_dir=None),
        weights=SimpleNamespace(changes=[None] * num_tensors),
    )


@pytest.mark.parametrize(
    ("verified", "outcome"),
    [
        ([3, 3, 3], Outcome.PASS),
        ([5, 5, 5], Outcome.PASS),  # buffers too
        ([3, 2, 3], Outcome.FAIL),
        ([3, float("nan"), 3], Outcome.FAIL),
        ([3, 3], Outcome.FAIL),
        ([], Outcome.FAIL),
        (None, Outcome.FAIL),
    ],
)
def test_every_tensor_at_every_step(verified: list[float] | None, outcome: Outcome) -> None:
    """A step without a verified sync is a step that may have sampled with anything."""
    assert every_tensor_verified(evidence(verified=verified)).outcome is outcome


def test_a_model_without_tensors_proves_nothing() -> None:
    """Nought is at least nought, and no evidence."""
    assert every_tensor_verified(evidence(num_tensors=0, verified=[0, 0, 0])).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("full", "sent", "outcome"),
    [
        ([1, 0, 0, 1], [100, 40, 30, 100], Outcome.PASS),
        ([1, 1, 1, 1], [100, 100, 100, 100], Outcome.FAIL),
        ([1, 0, 0, 0], [100, 40, 30, 20], Outcome.FAIL),
        ([1, 0, 0, 1], [100, 0, 30, 100], Outcome.FAIL),
        ([1, 0, 0, 1], [100, 40, 100, 100], Outcome.FAIL),
        ([1, 0, 0, 1], [100, 40, float("nan"), 100], Outcome.FAIL),
        ([1, 0, 0], [100, 40, 30, 100], Outcome.FAIL),
        (None, [100.0], Outcome.FAIL),
    ],
)
def test_changes_travel_between_full_syncs(
    full: list[float] | None, sent: list[float] | None, outcome: Outcome
) -> None:
    """Two of each, none empty, none as large as a full one."""
    timed: dict[str, list[float] | None] = {phase: [0.1, 0.1] for phase in WRITING}
    assert deltas_between_full_syncs(evidence(full=full, sent=sent, **timed)).outcome is outcome


@pytest.mark.parametrize("phase", WRITING)
def test_a_phase_that_is_not_timed_is_named(phase: str) -> None:
    """Where changes were written."""
    timed: dict[str, list[float] | None] = {one: [0.1] for one in WRITING if one != phase}
    verdict = deltas_between_full_syncs(evidence(full=[1, 0, 0, 1], sent=[100, 40, 30, 100], **timed))
    assert verdict.outcome is Outcome.FAIL
    assert f"{CONSUMER}{phase} was not logged" in verdict.reason


class Saving(RunEvidence):
    """A run of three steps in bfloat16 whose only tensor has 100 elements, of which each step changes some."""

    def __init__(
        self,
        folder: Path,
        changed: Sequence[int],
        full: Sequence[float],
        sent: Sequence[float],
        *,
        verified: float = 1.0,
        interval: int = 20,
        loaded: Sequence[float] = (),
    ) -> None:
        """Write the initial model and the checkpoints, and log what each sync carried."""
        weights = np.ones(100, dtype=np.float32)
        for step, count in enumerate((0, *changed)):
            place = folder / ("model" if not step else f"checkpoints/step_{step}/policy")
            place.mkdir(parents=True)
            weights[:count] += 1
            save_file({"w" if not step else "model.w": weights}, place / "model.safetensors")
        options: dict[str, Any] = {
            "policy": {
                "precision": "bfloat16",
                "train_global_batch_size": 1,
                "lora_cfg": {"enabled": False},
                "generation": {
                    "delta_compression": {
                        "enabled": True,
                        "dtype": "bfloat16",
                        "full_sync_interval": interval,
                    }
                },
            }
        }
        job: Any = SimpleNamespace(
            num_steps=3,
            num_updates_per_step=1,
            checkpoint_dir=folder / "checkpoints",
            checkpoint_form="step_{step}/policy",
            initial_model=folder / "model",
            ledger_dir=folder,
            first_step=1,
            configuration=options,
        )
        super().__init__(job, None, [])  # type: ignore[arg-type]
        logged = evidence(
            full=list(full),
            sent=list(sent),
            verified=[verified] * 3,
            largest=list(sent),
            loaded=list(loaded),
            **{phase: [0.1] for phase in WRITING},
        )
        self._logged = logged.series
        self.__dict__["ledger"] = [
            LedgerRow(step=step, index=0, prompt_id=0, token_ids=(1, 2), prompt_length=1, loss_mask=(0, 1))
            for step in (1, 2, 3)
        ]

    def series(self, tag: str) -> Series | None:
        """Return a logged series."""
        found: Series | None = self._logged(tag)
        return found


def test_bytes_of_changes_are_those_of_the_saved_weights(tmp_path: Path) -> None:
    """Two bytes an element, four for its place; a tensor whose changes take as much as all of it travels whole."""
    run = Saving(tmp_path, (10, 90, 0), full=(1, 0, 0), sent=(200, 60, 200))
    assert sizes_of_syncs(run) == {1: (200, 200, 1, 0), 2: (200, 60, 1, 60), 3: (200, 200, 1, 0)}
    assert syncs_carry_changes(run)[0] == []
    assert (
        "step 2" in syncs_carry_changes(Saving(tmp_path / "2", (10, 90, 0), (1, 0, 0), (200, 54, 200)))[0][0]
    )


@pytest.mark.parametrize(
    ("loaded", "wrong"),
    [
        ((0, 24, 0), ""),
        ((0, 30, 0), ""),
        ((0, 13, 0), "step 2: train/weight_sync/largest_load_bytes is 13, not within 14 and 30"),
        ((0, 36, 0), "step 2: train/weight_sync/largest_load_bytes is 36, not within 14 and 30"),
        ((6, 30, 0), "step 1: train/weight_sync/largest_load_bytes is 6, not within 0 and 0"),
    ],
)
def test_changes_are_loaded_in_batches(tmp_path: Path, loaded: Sequence[float], wrong: str) -> None:
    """Of as many bytes as configured, where a tensor has so many; none of a sync of every element."""
    run = Saving(tmp_path, (10, 90, 0), (1, 0, 1), (200, 60, 200), loaded=loaded)
    delta = run.job.configuration["policy"]["generation"]["delta_compression"]
    delta |= {"delta_load_batch_size_bytes": 30, "sparse_bucket_size_bytes": 200}
    found = messages_are_bounded(run)[0]
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)


def test_full_syncs_and_tensors_are_counted(tmp_path: Path) -> None:
    """Every second sync is full where the interval is 2; each tensor of the policy is verified."""
    full, sent = (1, 0, 1), (200, 60, 200)
    assert syncs_carry_changes(Saving(tmp_path, (10, 90, 0), full, sent, interval=2))[0] == []
    late = syncs_carry_changes(Saving(tmp_path / "late", (10, 90, 0), full, sent, interval=3))[0]
    assert "step 3: train/weight_sync/full is 1.0, the interval of full syncs gives 0" in late
    lost = syncs_carry_changes(Saving(tmp_path / "lost", (10, 90, 0), full, sent, interval=2, verified=2.0))[
        0
    ]
    assert "step 1: train/weight_sync/tensors_verified is 2.0, the policy has 1 tensors" in lost


@pytest.mark.parametrize(("sent", "outcome"), [((200, 0, 0), None), ((200, 6, 0), Outcome.FAIL)])
def test_a_sync_of_unchanged_weights_is_empty(
    tmp_path: Path, sent: tuple[float, ...], outcome: Outcome | None
) -> None:
    """With too few others, whether changes alone travel is not judged; bytes for no change are a fault."""
    run = Saving(tmp_path, (0, 0, 0), full=(1, 0, 0), sent=sent)
    if outcome is None:
        run = Saving(tmp_path / "two", (0, 0, 0), full=(1, 0, 1), sent=(200, 0, 200))
        with pytest.raises(NotGivenError, match="carried no change"):
            deltas_between_full_syncs(run)
        return
    assert deltas_between_full_syncs(run).outcome is outcome


@pytest.mark.parametrize(
    ("is_delta", "largest", "wrong"),
    [
        (True, [30, 30, 0], ""),
        (True, [30, 31, 0], "step 2"),
        (True, [30, 13, 0], "step 2"),
        (True, [30, 0, 0], "step 2"),
        (True, [30], "step 2"),
        (True, None, "step 1"),
        (False, [90, 50, 0], ""),
        (False, [101, 50, 0], "step 1"),
    ],
)
def test_messages_are_as_large_as_configured(is_delta: bool, largest: list[float] | None, wrong: str) -> None:
    """Of changes and of whole weights by their own options; a sync of something has a message of something."""
    run = evidence(sent=[200, 50, 0], largest=largest)
    delta = {"enabled": is_delta, "sparse_bucket_size_bytes": 30}
    generation = {"delta_compression": delta, "weight_bucket_size_bytes": 100}
    run.job = SimpleNamespace(first_step=1, num_steps=3, configuration={"policy": {"generation": generation}})
    found = messages_are_bounded(run)[0]
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)


@pytest.mark.parametrize(
    ("timed", "validated", "changes", "missing"),
    [
        ({2: ["collect_tensors"]}, {}, {}, ""),
        ({}, {1: ["collect_tensors"]}, {}, ""),
        ({}, {}, {}, "collect_tensors"),
        ({}, {}, {"placement": "inline"}, ""),
        ({2: ["collect_tensors"]}, {}, {"delta_compression": {"enabled": True}}, "sparse_nonzero"),
        (
            {2: ["collect_tensors", "sparse_nonzero", "sparse_encode"]},
            {},
            {"placement": "inline", "delta_compression": {"enabled": True}},
            "",
        ),
    ],
)
def test_a_sync_logs_each_of_its_phases(
    timed: dict[int, list[str]], validated: dict[int, list[str]], changes: dict[str, Any], missing: str
) -> None:
    """In its step, or in the validation after the one before; the first step has no update to send."""
    tags = {
        f"timing/{loop}/{TRANSFER}{name}": step
        for loop, of in (("train", timed), ("validation", validated))
        for step, names in of.items()
        for name in names
    }
    logged = {
        tag: Series(tag=tag, steps=np.array([step]), values=np.array([0.1])) for tag, step in tags.items()
    }
    logged[FULL] = Series(
        tag=FULL,
        steps=np.array([1, 2]),
        values=np.array([1.0, 0.0 if "delta_compression" in changes else 1.0]),
    )
    generation = {"colocated.enabled": False, "placement": "process", "delta_compression.enabled": False}
    generation |= {f"{name}.enabled": of["enabled"] for name, of in changes.items() if name != "placement"}
    generation |= {name: of for name, of in changes.items() if name == "placement"}
    options = {f"policy.generation.{name}": value for name, value in generation.items()}
    options |= {"grpo.async_grpo.enabled": False, "policy.train_global_batch_size": 1}
    rows = [
        LedgerRow(step=step, index=0, prompt_id=0, token_ids=(1, 2), prompt_length=1, loss_mask=(0, 1))
        for step in (1, 2)
    ]
    run: Any = SimpleNamespace(
        log=SimpleNamespace(series=logged),
        series=logged.get,
        ledger=rows,
        job=SimpleNamespace(first_step=1, ledger_dir=Path("no rows")),
    )
    found = "".join(
        _untimed_syncs(
            run,
            {
                step: dict.fromkeys((f"{TRANSFER}{name}" for name in timed.get(step, ())), 0.1)
                for step in (1, 2)
            },
            options,
        )
    )
    assert missing in found
    assert bool(found) is bool(missing)
