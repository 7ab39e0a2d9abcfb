"""Level 4: is a run that several processes share the run of one process?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.weights import compare_weights
from seatrial.targets.base import JobRequest, TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import judge_run, moved_sensors, prepare_model, smoke_sensors
from seatrial.trials.launching import launch, with_own_options
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import PARAMETERS_MOVED, Sensor
from seatrial.trials.sensors.same_runs import compare_other_series, compare_rows
from seatrial.trials.sensors.served import PLACED, SERVED, need, placed, served
from seatrial.verdict import Outcome, Verdict

RECIPE = "grpo-smoke"
NUM_PROCESSES = 2
"""Of every layout."""
EPSILON = "policy.optimizer.eps=1e-4"
"""Of both runs: Adam divides by the root of the second moment, and rounding of a gradient near 0 by the usual 1e-8."""
OF_LAYOUTS = ("policy.dtensor_cfg.", "policy.megatron_cfg.", "cluster.num_processes=", "cluster.placement=")
"""Beginnings of overrides that say how processes share a run."""
COMPARED: Mapping[str, tuple[str, ...]] = {
    "gradient norm": ("train/grad_norm",),
    "loss and reward": ("train/loss", "train/reward", "train/gen_kl_error"),
    "counters": ("train/global_valid_toks", "train/global_valid_seqs", "train/total_num_tokens"),
}
"""Series that must be the same, by what they mean."""
TOLERANCE = {"float32": 1e-4, "int8": 1e-4, "bfloat16": 2.0**-5}
"""Largest difference by precision, absolute below 1 and relative above: in bfloat16, four roundings to eight bits.

Of series but counters, which are equal, and of each element of the weights, which a step of the recipe moves by 1e-3.
The precision int8 is the sampler's alone.
"""
WEIGHTS = "same weights as of one process"


@dataclass
class ParallelLayout:
    """A layout of processes against one process. A `seatrial.trials.base.Trial`."""

    name: str
    summary: str
    words: tuple[str, ...]
    """`a.b=value` words that ask for the layout."""
    backend: str
    """What serves the policy in it, as the run says of itself."""
    mesh: Mapping[str, int]
    """Dimensions of more than one process, likewise."""
    made: str | None = None
    """Architecture of the model (`prepare_model`); None: the target's own."""
    placement: str = "process"
    """What starts the processes, as the run says of itself."""
    num_processes: int = 2
    """Of the layout, each on a device of its own."""
    level: int = 4
    does_not_prove: str = (
        "raw gradients before clipping (relation R2), more than two processes, other devices"
    )

    proves: str = ""
    """What it claims unless something limits the run; follows from the summary."""

    def __post_init__(self) -> None:
        """Say what it proves."""
        self.proves = f"{self.summary}: gradient norms, losses, counters and weights are those of one process"

    def run(self, context: TrialContext) -> None:
        """Prepare, train alone and in the layout, compare."""
        context.target.preflight()
        need(self.backend, self.placement)
        model = prepare_model(context, context.directory / "model", context.seed, self.made)
        if model is None:
            return
        evidence = {}
        for way, job in self._jobs(context, model).items():
            launched = launch(context, job, context.directory / way / "run.log")
            evidence[way] = RunEvidence(job, launched, context.imports)
            if not judge_run(context, evidence[way], smoke_sensors(job), f"{way}: "):
                return
        self._compare(context, evidence["alone"], evidence["shared"])

    def _jobs(self, context: TrialContext, model: Path) -> dict[str, TrainingJob]:
        """Return the run of one process and the one in the layout, with the same options."""
        own = {
            "alone": without_layout(context.overrides),
            "shared": (*context.overrides, *self.words),
        }
        for way in own:
            (context.directory / way).mkdir()

        def jobs(options: Sequence[str]) -> dict[str, TrainingJob]:
            requests = {
                way: JobRequest(
                    recipe=RECIPE,
                    model=model,
                    directory=context.directory / way,
                    seed=context.seed,
                    overrides=(EPSILON, *options, *overrides),
                    runs_examples=way == "shared",
                )
                for way, overrides in own.items()
            }
            return {way: context.target.job(request) for way, request in requests.items()}

        return with_own_options(self.name, jobs)

    def _compare(self, context: TrialContext, alone: RunEvidence, shared: RunEvidence) -> None:
        tolerance = TOLERANCE[alone.job.precision]
        # The first tokens are drawn with equal weights. Later ones may differ where bfloat16 rounds them otherwise.
        last_step = 1 if alone.job.precision == "bfloat16" else math.inf
        left_out = [*itertools.chain(*COMPARED.values())]
        if self.backend == "megatron":  # which logs no routers
            left_out += [tag for tag in alone.log.series if tag.startswith("train/moe/")]
        questions = [
            partial(served, shared, self.backend, self.mesh),
            partial(placed, shared, self.placement, NUM_PROCESSES),
            *(partial(compare_series, what, alone, shared) for what in COMPARED),
            partial(compare_other_series, alone, shared, left_out, tolerance, last_step=last_step),
            partial(compare_rows, alone, shared, tolerance, last_step=last_step),
            partial(compare_weights_within, alone, shared),
        ]
        for ask in questions:
            try:
                context.record(ask())
            except BlockedError as error:
                context.record(Verdict(name="layout: evidence", outcome=Outcome.BLOCKED, reason=str(error)))
        context.claim(*self.claims(moved_sensors(shared.job)))

    def claims(self, moved: Sequence[Sensor] = (PARAMETERS_MOVED,)) -> list[Claim]:
        """Return what the trial proves; `moved` are the checks of what trained."""
        return [
            Claim(text=f"the policy was served by {self.backend} in this layout", verdicts=(SERVED,)),
            Claim(text=f"its processes were started by {self.placement}", verdicts=(PLACED,)),
            *(Claim(text=f"{what}: as of one process", verdicts=(_series_name(what),)) for what in COMPARED),
            Claim(
                text="the trained weights are those of one process, and had moved",
                verdicts=(WEIGHTS, *(f"shared: {sensor.name}" for sensor in moved)),
            ),
        ]


def without_layout(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides that a run of one process takes: options of layouts are refused there."""
    return tuple(word for word in overrides if not word.startswith(OF_LAYOUTS))


def compare_series(what: str, alone: RunEvidence, shared: RunEvidence) -> Verdict:
    """Hold series of the two runs against one another, step by step."""
    tags = COMPARED[what]
    is_exact, precision = what == "counters", alone.job.precision
    tolerance = 0.0 if is_exact else TOLERANCE[precision]
    # In bfloat16 the runs part after an update, as everywhere in this trial.
    last_step = 1 if precision == "bfloat16" and not is_exact else math.inf
    wrong, largest, steps = [], 0.0, []
    for tag in tags:
        one, other = alone.series(tag), shared.series(tag)
        if one is None or other is None or not len(one):
            wrong.append(f"{tag} is not logged by both")
        elif one.steps.tolist() != other.steps.tolist():
            wrong.append(f"{tag} is there at the steps {other.steps.tolist()}, alone at {one.steps.tolist()}")
        else:
            asked = one.steps <= last_step
            errors = np.abs(one.values - other.values) / np.maximum(1.0, np.abs(one.values))
            largest = float(np.max([largest, *errors[asked]]))
            steps += one.steps[asked].tolist()
    good = not wrong and bool(steps) and largest <= tolerance
    return Verdict(
        name=_series_name(what),
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason="; ".join(wrong) or f"{', '.join(tags)}: largest difference {largest:.3g}",
        value=largest,
        bound=f"<= {tolerance:g} at every step that is compared, of the larger of 1 and the value",
        num_samples=len(steps),
        steps=(min(steps), max(steps)) if steps else None,
    )


def compare_weights_within(alone: RunEvidence, shared: RunEvidence) -> Verdict:
    """Hold the exported weights of the two runs against one another."""
    found = compare_weights(alone.job.final_model, shared.job.final_model)
    wrong = [*found.only_before, *found.only_after, *found.reshaped]
    wrong += [change.name for change in found.changes if change.num_nonfinite]
    largest = max((change.max_abs_change for change in found.changes), default=float("nan"))
    tolerance = TOLERANCE[alone.job.precision]
    good = not wrong and largest <= tolerance
    return Verdict(
        name=WEIGHTS,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=f"not comparable: {', '.join(wrong[:3])}"
        if wrong
        else f"{len(found.changes)} tensors: largest difference {largest:.3g}",
        value=largest,
        bound=f"<= {tolerance:g}",
        num_samples=len(found.changes),
    )


def _series_name(what: str) -> str:
    return f"same {what} as of one process"


def layout_trials() -> Sequence[ParallelLayout]:
    """Return the trial of each layout of two processes."""
    dtensor = ("cluster.num_processes=2", "policy.dtensor_cfg.enabled=true")
    return (
        ParallelLayout(
            "parallel-dp2",
            "GRPO on two processes that each have the whole model",
            ("cluster.num_processes=2",),
            "hf",
            {"data": 2},
        ),
        ParallelLayout(
            "parallel-ray-dp2",
            "GRPO on two ranks in actors of a Ray cluster that each have the whole model",
            ("cluster.num_processes=2", "cluster.placement=ray"),
            "hf",
            {"data": 2},
            placement="ray",
        ),
        ParallelLayout(
            "parallel-fsdp2",
            "GRPO on two processes over which all weights are spread (FSDP2)",
            dtensor,
            "dtensor",
            {"data": 2},
        ),
        ParallelLayout(
            "parallel-tp2",
            "GRPO on two processes that share every layer and the activations between (tensor and sequence parallel)",
            (
                *dtensor,
                "policy.dtensor_cfg.tensor_parallel_size=2",
                "policy.dtensor_cfg.sequence_parallel=true",
            ),
            "dtensor",
            {"tensor": 2},
        ),
        ParallelLayout(
            "parallel-cp2",
            "GRPO on two processes that share every sequence (context parallel)",
            (*dtensor, "policy.dtensor_cfg.context_parallel_size=2"),
            "dtensor",
            {"context": 2},
        ),
        ParallelLayout(
            "parallel-ep2",
            "GRPO on two processes that share the experts of every layer (expert parallel)",
            (*dtensor, "policy.dtensor_cfg.expert_parallel_size=2"),
            "dtensor",
            {"data": 2, "expert": 2},
            made="moe",
        ),
        *_megatron_trials(),
    )


def _megatron_trials() -> Sequence[ParallelLayout]:
    words = ("cluster.num_processes=2", "policy.megatron_cfg.enabled=true")
    layouts = (
        (
            "parallel-megatron-tp2",
            "that share every layer and the activations between (tensor and sequence parallel)",
            ("tensor_model_parallel_size=2", "sequence_parallel=true"),
            {"tensor": 2},
            None,
        ),
        (
            "parallel-megatron-pp2",
            "that each have half of the layers (pipeline parallel)",
            ("pipeline_model_parallel_size=2",),
            {"pipeline": 2},
            None,
        ),
        (
            "parallel-megatron-cp2",
            "that share every sequence (context parallel)",
            ("context_parallel_size=2",),
            {"context": 2},
            None,
        ),
        (
            "parallel-megatron-ep2",
            "that share the experts of every layer (expert parallel)",
            ("expert_model_parallel_size=2",),
            {"data": 2, "expert": 2},
            "moe",
        ),
    )
    return [
        ParallelLayout(
            name,
            f"GRPO by Megatron-core on two processes {how}",
            (*words, *(f"policy.megatron_cfg.{word}" for word in sizes)),
            "megatron",
            mesh,
            made=made,
        )
        for name, how, sizes, mesh, made in layouts
    ]
