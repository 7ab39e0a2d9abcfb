"""Level 3: does another generation engine sample with the policy's weights, and from the policy's distribution?"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from seatrial.errors import BlockedError
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import train_and_judge
from seatrial.trials.refit import MESSAGES, SENT, Form, refit_claims, refit_sensors
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import PARAMETERS_MOVED, Sensor
from seatrial.verdict import Outcome, Verdict

INTERPRETER = "policy.generation.vllm_cfg.python"
"""Names the interpreter of an environment that has vLLM."""
_SECONDS = 120.0


def served_by(library: str) -> Sensor:
    """Return the question which library sampled, as the process that sampled says it, and not the configuration."""
    name = f"{library} served the rollouts"

    def judge(evidence: RunEvidence) -> Verdict:
        path = evidence.job.ledger_dir / "run_info.json"
        try:
            engine = json.loads(path.read_text(encoding="utf-8")).get("generator")
        except (OSError, ValueError) as error:
            raise BlockedError(f"{path} cannot be read: {error}") from error
        return Verdict(
            name=name,
            outcome=Outcome.PASS if str(engine).startswith(f"{library.lower()} ") else Outcome.FAIL,
            reason=f"the generator's process says that {engine} samples",
            value=str(engine),
            bound=f"{library.lower()}, of any version",
            num_samples=1,
        )

    return Sensor(name, judge)


def form(recipe: str, library: str, *claims: Claim, made: str | None = None) -> Form:
    """Return a refit trial, by another engine, with further claims.

    Guards read back what the library computes with at every sync.
    """
    served = served_by(library)
    return Form(
        recipe,
        made=made,
        sensors=(served, PARAMETERS_MOVED, SENT, MESSAGES),
        claims=(
            Claim(text=f"{library} samples the rollouts", verdicts=(served.name,)),
            Claim(text="the weights that were sent had moved", verdicts=(PARAMETERS_MOVED.name,)),
            *claims,
        ),
    )


VLLM = form(
    "grpo-generation-vllm",
    "vLLM",
    Claim(
        text="every request has a seed of its own",
        verdicts=("ledger: every row draws its own randomness",),
    ),
    made="peaked",  # with weights of the usual size, keys of older weights change little
)
MEGATRON = form("grpo-generation-megatron", "Megatron-core")


class GenerationVllm:
    """A few steps of GRPO that vLLM samples for. A `seatrial.trials.base.Trial`."""

    name = "generation-vllm"
    level = 3
    summary = "GRPO sampled by vLLM in a process of its own"
    proves = (
        "vLLM computes with the policy's weights after every sync, and its log-probabilities are the policy's"
    )
    does_not_prove = "vLLM as a server, over several processes, with LoRA, at speed"

    def run(self, context: TrialContext) -> None:
        """Look for vLLM, prepare, launch, collect, sense.

        Raises:
            BlockedError: no vLLM is there.
        """
        context.target.preflight()
        _require_vllm(context)
        train_and_judge(
            context,
            VLLM.recipe,
            lambda job: refit_sensors(job, VLLM),
            lambda job: refit_claims(job, VLLM),
            VLLM.made,
        )


class GenerationMegatron:
    """A few steps of GRPO that Megatron-core samples for. A `seatrial.trials.base.Trial`."""

    name = "generation-megatron"
    level = 3
    summary = "GRPO sampled by Megatron-core's model in a process of its own"
    proves = (
        "Megatron-core's model computes with the policy's weights after every sync, and its log-probabilities are the "
        "policy's"
    )
    does_not_prove = "Megatron-core over several processes, its dynamic inference engine, speed"

    def run(self, context: TrialContext) -> None:
        """Look for Megatron-core, prepare, launch, collect, sense.

        Raises:
            BlockedError: it is not installed.
        """
        context.target.preflight()
        if importlib.util.find_spec("megatron") is None:
            raise BlockedError(
                f"{sys.executable} has no Megatron-core: pip install 'seatrial[megatron]', and run the trial again"
            )
        train_and_judge(
            context,
            MEGATRON.recipe,
            lambda job: refit_sensors(job, MEGATRON),
            lambda job: refit_claims(job, MEGATRON),
        )


def _require_vllm(context: TrialContext) -> None:
    given = dict(word.split("=", 1) for word in context.overrides if "=" in word)
    python = given.get(INTERPRETER, sys.executable)
    looking = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run(
            [python, "-c", looking],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BlockedError(f"{INTERPRETER}={python} does not answer: {error}") from error
    if found.returncode:
        raise BlockedError(
            f"{python} has no vLLM; make an environment that has it (docs/extend/vllm.md) and name its interpreter: "
            f"{INTERPRETER}=PATH"
        )
