"""Verdict on what a run says of its processes, its policy and its generator, against its options and its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.evidence.weights import stored_tensors
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.decoder import FAMILIES
from seatrial.trials.sensors.options import loop_of, options_of
from seatrial.trials.sensors.paths import (
    by_step,
    first_step_of_command,
    model_facts,
    read_object,
    run_facts,
    sensor,
)
from seatrial.trials.sensors.run_record import CLOCK

TRAINER = "trainer"
OWN_KERNELS = "the model's own"
"""How the record of a policy begins that no fused kernels serve: on a CPU there are none."""

PLACEMENT = re.compile(r"Shard\(|Replicate\(|Partial\(")
"""In the form of a weight: its placement on a dimension of processes."""
OF_HEADS = ("q_norm.weight", "k_norm.weight")
"""Norms of each head, which tensor parallelism cuts as it cuts the heads."""


def processes_are_recorded(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The record names every process once, and the policy, its layout and the generator that the options ask for.

    Raises:
        NotGivenError: the target does not say how the run is configured, or the run writes no such record.
        BlockedError: a file cannot be read.
    """
    options, facts = options_of(evidence), run_facts(evidence)
    if "policy" not in facts or "generator" not in facts:
        raise NotGivenError("the run writes no record of its policy and its generator")
    checks = (_wrong_parts, _wrong_policy, _wrong_generator, _wrong_attempts)
    wrong = [what for check in checks for what in check(evidence, facts, options)]
    seen = f"{facts['policy'].get('name')}, {facts['generator']}, {facts.get('placement', {}).get('by')}"
    return wrong[:3], seen, len(checks)


PROCESSES = sensor(
    "the run records its processes, policy and generator truly",
    "as the options and the weights have them",
    processes_are_recorded,
)


def _wrong_parts(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the processes: ranks, and the parts of `parts.json`."""
    placement = facts.get("placement", {})
    ranks = placement.get("ranks", [])
    pids = [rank.get("pid") for rank in ranks]
    if len(set(pids)) != len(pids):
        yield f"two ranks have one process: {pids}"
    # A node of a Ray cluster has an id of its own, which is not the name of its host.
    where = ("pid",) if placement.get("by") == "ray" else ("pid", "host")
    first = {"pid": ranks[0].get("pid"), "host": ranks[0].get("node")} if ranks else {}
    if ranks and any(first[name] != facts.get(name) for name in where):
        yield f"the first rank is recorded as {ranks[0]}, the run as {facts.get('pid')} on {facts.get('host')}"
    if loop_of(options) != "grpo":
        return
    parts = read_object(evidence.job.ledger_dir / "parts.json")
    if len(set(parts.values())) != len(parts):
        yield f"two parts have one process: {parts}"
    if parts.get(TRAINER) != facts.get("pid"):
        yield f"{TRAINER} is recorded as {parts.get(TRAINER)}, the run is {facts.get('pid')}"
    wanted = set()
    if options["grpo.async_grpo.enabled"] and options["policy.generation.placement"] == "process":
        wanted = {f"generation/{number}" for number in range(options["grpo.async_grpo.num_replicas"])}
    generators = {name for name in parts if name.startswith("generation")}
    if generators != wanted:
        yield f"the generation engines are recorded as {sorted(generators)}, the run has {sorted(wanted)}"


def _wrong_policy(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the record of the policy."""
    said, job = facts["policy"], evidence.job
    live = {dimension: size for dimension, size in said.get("mesh", {}).items() if size > 1}
    if live != dict(job.mesh):
        yield f"the mesh is recorded as {live}, the options give {dict(job.mesh)}"
    backend = job.backend or "hf"
    if said.get("name") != backend:
        yield f"the policy is recorded as {said.get('name')}, the options give {backend}"
    if facts.get("device") == "cpu" and not str(said.get("kernels", OWN_KERNELS)).startswith(OWN_KERNELS):
        yield f"the kernels are recorded as {said['kernels']}, on a CPU"
    number = sum(said.get("weights", {}).values())
    wanted = _num_trained(evidence, options)
    if wanted is not None and number != wanted:
        yield f"{number} trained tensors are recorded, the model has {wanted}"
    yield from _wrong_forms(evidence, said.get("weights", {}), options)
    if said.get("name") == "hf" and set(said.get("weights", {})) != {"Tensor"}:
        yield f"the weights of one process are recorded as {sorted(said.get('weights', {}))}"


def _wrong_forms(
    evidence: RunEvidence, forms: Mapping[str, int], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield that weights are spread over other dimensions than the layout of `policy.dtensor_cfg` says.

    Every weight is spread over the processes that share rows; under tensor parallelism matrices are cut over its
    dimension too, and norms lie on it where the activations between layers are cut (sequence parallelism), each head's
    norm in any case.
    """
    job, sizes = evidence.job, "policy.dtensor_cfg"
    if job.backend != "dtensor" or model_facts(job.initial_model).get("model_type") not in FAMILIES:
        return
    if options["policy.lora_cfg.enabled"]:
        return
    per_weight = {form: len(PLACEMENT.findall(form)) for form in forms}
    if options[f"{sizes}.tensor_parallel_size"] == 1:
        two = sum(number for form, number in forms.items() if per_weight[form] != 1)
        if two:
            yield f"{two} weights are recorded as {sorted(forms)}, and no dimension of tensors has two processes"
        return
    norms = sum(len(tensor.shape) < 2 for tensor in stored_tensors(job.initial_model).values())
    heads = sum(name.endswith(OF_HEADS) for name in stored_tensors(job.initial_model))
    alone = sum(number for form, number in forms.items() if per_weight[form] < 2)
    wanted = 0 if options[f"{sizes}.sequence_parallel"] else norms - heads
    if alone != wanted:
        yield (
            f"{alone} weights are not on the dimension of tensors; with {sizes}.sequence_parallel="
            f"{str(options[f'{sizes}.sequence_parallel']).lower()} it is {wanted}"
        )


def _num_trained(evidence: RunEvidence, options: Mapping[str, Any]) -> int | None:
    """Return how many tensors train; None where the policy holds them in another form than the files."""
    job = evidence.job
    if job.backend not in (None, "hf") or model_facts(job.initial_model).get("model_type") not in FAMILIES:
        return None
    if options["policy.lora_cfg.enabled"]:
        return None if job.adapter_dir is None else len(stored_tensors(job.adapter_dir))
    return len(stored_tensors(job.initial_model))


def _wrong_generator(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield that the generator is another than the options ask for: its library, and whether its layers are in int8."""
    engine, backend = str(facts["generator"]), options["policy.generation.backend"]
    library = {"megatron": "megatron-core"}.get(backend, backend)
    if not engine.startswith(f"{library} "):
        yield f"the generator is recorded as {engine}, the options ask for {library}"
    version = facts.get("versions", {}).get(backend)
    if version is not None and engine.split(",")[0] != f"{library} {version}":
        yield f"the generator is recorded as {engine}, the run has {library} {version}"
    if ("int8" in engine) != (options["policy.generation.quantization"] == "int8"):
        yield (
            f"the generator is recorded as {engine}, policy.generation.quantization is "
            f"{options['policy.generation.quantization']}"
        )


def _wrong_attempts(
    evidence: RunEvidence, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the record of the run's starts: each after the one before, the last one this command."""
    attempts = facts.get("attempts", [])
    if not attempts:
        yield "no start is recorded"
        return
    times = [one.get("started_at", math.nan) for one in attempts]
    if times != sorted(times):
        yield f"the starts are recorded at {times}, not in order"
    began = facts.get("started_at", math.nan)
    if not began - evidence.launched.seconds - CLOCK <= times[-1] <= began + CLOCK:
        yield f"the last start is recorded at {times[-1]}, the run at {began}"
    if evidence.job.first_step == 1 and attempts[0].get("resumed_from") is not None:
        yield f"the first start is recorded to resume from step {attempts[0]['resumed_from']}"
    resumed = [one.get("resumed_from") for one in attempts]
    if resumed[1:] != sorted(step for step in resumed[1:] if step is not None):
        yield f"the starts are recorded to resume from the steps {resumed}"
    earlier = min(by_step(evidence, "train/loss"), default=1) < first_step_of_command(evidence)
    if earlier and len(attempts) < 2:
        yield f"{len(attempts)} start is recorded, and the log holds steps of an earlier one"
