"""Level 5: does the path through the model that only one architecture has run, train and export?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.targets.base import JobRequest, TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import judge_run, moved_sensors, prepare_model, smoke_claims, smoke_sensors
from seatrial.trials.launching import launch, with_own_options
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.draft import draft_is_that_of_the_rows
from seatrial.trials.sensors.later_steps import int8_scores
from seatrial.trials.sensors.paths import (
    FLOAT_GAP,
    INT8_GAP,
    draft_tensors,
    draft_tokens,
    expert_load,
    int8_gap,
    int8_layers,
    media_rows,
    sensor,
    tower_moved,
)
from seatrial.trials.sensors.run import Sensor
from seatrial.trials.sensors.scoring import first_scores
from seatrial.trials.sensors.served import SERVED, served
from seatrial.verdict import Outcome, Verdict

RECIPE = "grpo-smoke"
SCORES = sensor("step 1: log-probabilities are those of transformers", "each token of each row", first_scores)
DRAFT_LOSS = "draft: the loss is that of the token after next"
SCORED = (
    "at step 1 the trainer's log-probabilities are those of transformers' own model on the prompts as drawn"
)
SEEDED = "a model of another seed has other random tensors"
LEAST_EXPERTS = 11
"""From ten on, names sorted as text are in another order than numbers."""
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


OF_MEDIA = (
    "several images or sounds in a prompt, unequal sizes, backends that did not serve the run, other engines, SFT, "
    "that the model learns (level 6)"
)
"""What trials of vision and audio models do not prove."""


@dataclass(kw_only=True)
class Architecture:
    """GRPO on a model of one architecture. A `seatrial.trials.base.Trial`."""

    name: str
    made: str
    """What the target's `make_architecture` calls it."""
    model: str
    """How the name of the class that serves it ends."""
    summary: str
    claim: str
    """What its own sensors show."""
    sensors: tuple[Sensor, ...]
    recipe: str = RECIPE
    words: tuple[str, ...] = ()
    """`a.b=value` words of its run, in addition to those of the smoke."""
    level: int = 5
    proves: str = ""
    """What it claims unless something limits the run; follows from the claim."""
    does_not_prove: str = (
        "that the model learns (level 6), pretrained weights, real sizes, backends that did not serve the run"
    )

    def __post_init__(self) -> None:
        """Say what it proves."""
        self.proves = f"{self.model} served the run; {self.claim}; what level 0 proves"

    def run(self, context: TrialContext) -> None:
        """Make the model, train, judge."""
        context.target.preflight()
        model = prepare_model(context, context.directory / "model", context.seed, self.made)
        if model is None:
            return
        request = JobRequest(
            recipe=self.recipe,
            model=model,
            directory=context.directory,
            seed=context.seed,
            words=self.words,
            runs_examples=True,
        )
        job = with_own_options(
            self.name,
            lambda own: context.target.job(replace(request, overrides=(*own, *context.overrides))),
        )
        evidence = RunEvidence(job, launch(context, job, context.directory / "run.log"), context.imports)
        sensors = [*smoke_sensors(job), Sensor(SERVED, self._served), *self._asked(job)]
        sensors += [SCORES] if _can_score(context.overrides) else []
        if judge_run(context, evidence, sensors):
            is_made = self._made_of_seeds(context, model, job.frozen)
            context.claim(*self.claims(job, SCORES in sensors, is_made))

    def _made_of_seeds(self, context: TrialContext, model: Path, fixed: Sequence[str]) -> bool:
        """Make a second model of another seed and compare the two; return whether the first was made here."""
        if context.target.given_model(context.overrides) is not None:
            return False
        other = prepare_model(
            context,
            context.directory / "other-model",
            context.seed + 1,
            self.made,
            log="make-other-model.log",
        )
        if other is not None:
            context.record(differ_by_seed(model, other, fixed))
        return True

    def _asked(self, job: TrainingJob) -> list[Sensor]:
        """Return its sensors; the draft loss of several updates a step is logged as their mean, and is not judged."""
        return [one for one in self.sensors if job.num_updates_per_step == 1 or one.name != DRAFT_LOSS]

    def _served(self, evidence: RunEvidence) -> Verdict:
        return served(evidence, evidence.job.backend, evidence.job.mesh, model=self.model)

    def claims(self, job: TrainingJob, can_score: bool = True, is_made: bool = True) -> Sequence[Claim]:
        """Return what the run proves."""
        return [
            Claim(text=f"{self.model} served the run", verdicts=(SERVED,)),
            Claim(
                text=self.claim,
                verdicts=tuple(one.name for one in (*self._asked(job), *moved_sensors(job))),
            ),
            *([Claim(text=SCORED, verdicts=(SCORES.name,))] if can_score else []),
            *([OF_SEEDS] if is_made else []),
            *smoke_claims(job),
        ]


OF_SEEDS = Claim(text="every random tensor of a model follows from its seed", verdicts=(SEEDED,))


def differ_by_seed(model: Path, other: Path, fixed: Sequence[str] = ()) -> Verdict:
    """Judge whether the tensors of two models of different seeds differ; Blocked where no tensor has several values.

    Args:
        model: folder of one; models in folders of it, such as a draft head, are compared too.
        other: folder of the other.
        fixed: ends of the names of tensors that no seed determines, apart from those of a single value.
    """
    tensors, others = _all_tensors(model), _all_tensors(other)
    same, num_drawn = [], 0
    for name, tensor in tensors.items():
        values = tensor.read()
        if np.ptp(values) > 0 and not name.endswith(tuple(fixed)):
            num_drawn += 1
            if name in others and (values == others[name].read()).all():
                same.append(name)
    wrong = [f"{name} is the same for two seeds" for name in same]
    wrong += [f"{name} is in one of two models alone" for name in sorted(tensors.keys() ^ others.keys())]
    return Verdict(
        name=SEEDED,
        outcome=Outcome.FAIL if wrong else Outcome.PASS if num_drawn else Outcome.BLOCKED,
        reason="; ".join(wrong[:3])
        or (
            f"{num_drawn} of {len(tensors)} tensors are drawn, and differ"
            if num_drawn
            else "no tensor is drawn"
        ),
        value=float(len(same)),
        bound="== 0 tensors of several values that are equal for two seeds",
        num_samples=num_drawn,
    )


def _all_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model and of those in folders of it, by place and name."""
    places = sorted({file.parent for file in folder.rglob("*.safetensors")})
    return {
        f"{place.relative_to(folder) / name}": tensor
        for place in places
        for name, tensor in stored_tensors(place).items()
    }


def _can_score(overrides: Sequence[str]) -> bool:
    """Whether scores can be computed again: of a model made here, on its task, sampled without a filter."""
    filters = ("policy.generation.top_p", "policy.generation.top_k", "policy.model_name", "data.task")
    return not any(word.startswith(filters) for word in overrides)


def _dense(evidence: RunEvidence) -> tuple[list[str], str, int]:
    names = [change.name for change in evidence.weights.changes if change.num_changed]
    kinds = {kind: [name for name in names if kind in name] for kind in ("self_attn.", ".mlp.", HEAD)}
    wrong = [f"no tensor of {kind} moved" for kind, of in kinds.items() if not of]
    wrong += [
        f"{name} is of another architecture" for name in names if ".experts." in name or "_norm." in name
    ]
    return wrong, ", ".join(f"{len(of)} of {kind}" for kind, of in kinds.items()), len(names)


def _tied(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The one matrix has moved, and the export ties it: it has no separate head, or one with the same bits."""
    final = evidence.job.final_model
    tensors = stored_tensors(final)
    embeddings = [name for name in tensors if name.endswith(EMBEDDING)]
    moved = [
        change.name for change in evidence.weights.changes if change.name in embeddings and change.num_changed
    ]
    try:
        is_tied = json.loads((final / "config.json").read_text(encoding="utf-8"))["tie_word_embeddings"]
    except (OSError, ValueError, KeyError) as error:
        raise BlockedError(
            f"{final}/config.json does not say whether the embeddings are tied: {error!r}"
        ) from error
    wrong = [] if is_tied is True else [f"the export says tie_word_embeddings={is_tied}"]
    wrong += [] if moved else ["the tied embedding did not move"]
    if HEAD in tensors and embeddings and (tensors[HEAD].read() != tensors[embeddings[0]].read()).any():
        wrong.append(f"the export has a {HEAD} of its own")
    return wrong, f"{', '.join(moved)} moved, and there is no other head", len(moved)


def _experts(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every router moved, and every expert that a token of the trained rows was sent to."""
    changes = {change.name: change for change in evidence.weights.changes}
    experts = sorted(name for name in changes if ".mlp.experts." in name)
    routers = sorted(name for name in changes if name.endswith(".mlp.gate.weight"))
    numbers = {int(name.partition(".experts.")[2].partition(".")[0]) for name in experts}
    unmoved = [name for name in [*experts, *routers] if not changes[name].num_changed]
    unreached = evidence.unreached_experts if unmoved else frozenset()
    wrong = [f"{name} did not move" for name in unmoved if name not in unreached][:3]
    if numbers != set(range(len(numbers))) or len(numbers) < LEAST_EXPERTS:
        wrong.append(f"experts {sorted(numbers)} are not {LEAST_EXPERTS} or more, from 0 on")
    if not routers:
        wrong.append("there is no router")
    left = f"; no token reached {', '.join(sorted(unreached))}" if unreached else ""
    return (
        wrong,
        f"{len(numbers)} experts in {len(routers)} layers, and their routers, moved{left}",
        len(experts),
    )


def architecture_trials() -> Sequence[Architecture]:
    """Return the trial of each architecture."""
    return (
        Architecture(
            name="arch-dense",
            made="dense",
            model="LlamaForCausalLM",
            summary="GRPO on a dense model without norms of queries and keys, with a head of its own",
            claim="attention, feed-forward layers and the head train",
            sensors=(sensor("dense: every kind of layer trains", "each kind moved", _dense),),
        ),
        Architecture(
            name="arch-tied",
            made="tied",
            model="Qwen3ForCausalLM",
            summary="GRPO on a model whose head is its embedding",
            claim="the tied matrix trains, is one in the sampler and the trainer, and is exported tied",
            sensors=(sensor("tied: the head is the embedding", "moved, and exported once", _tied),),
        ),
        Architecture(
            name="arch-moe",
            made="moe",
            model="Qwen3MoeForCausalLM",
            summary="GRPO on a mixture of more than ten experts, with the balance loss of their routers",
            claim="every expert and every router trains, in the sampler's order and the trainer's; the load of the "
            "experts is that of the rows",
            sensors=(
                sensor(
                    "moe: every expert and router trains", f">= {LEAST_EXPERTS} experts, all moved", _experts
                ),
                sensor(
                    "moe: the load of the experts is that of the rows",
                    "tokens x layers x experts",
                    expert_load,
                ),
            ),
            words=("policy.router_aux_loss_coef=0.01",),
            does_not_prove="expert parallelism (relation R2), that balance improves, that the model learns (level 6)",
        ),
        Architecture(
            name="arch-quantised",
            made="quantised",
            model="Qwen3ForCausalLM",
            summary="GRPO sampled from int8 weights, rounded at every weight sync",
            claim="the sampler holds every linear layer in int8, its distribution is another than the trainer's by a "
            "bounded gap, and the loss weighs tokens by it",
            sensors=(
                sensor(
                    "quantised: every linear layer of the sampler is int8", "all but the head", int8_layers
                ),
                sensor(
                    "quantised: tokens are drawn and scored by the rounded weights",
                    "each row of a matrix by its largest element over 127",
                    int8_scores,
                ),
                sensor(
                    "quantised: sampler and trainer differ by the rounding",
                    f"{FLOAT_GAP:g} to {INT8_GAP:g} nats",
                    int8_gap,
                ),
            ),
            words=(
                "policy.generation.quantization=int8",
                "policy.generation.colocated.enabled=false",
                "loss_fn.importance_sampling=masked",
            ),
            does_not_prove="fp8, activations in int8, quantisation-aware training, speed, that the model learns "
            "(level 6)",
        ),
        Architecture(
            name="arch-draft",
            made="draft",
            model="Qwen3ForCausalLM",
            summary="GRPO with a draft head that is trained with the policy",
            claim="the draft head trains on the policy's hidden states and tokens; how often its drafts would be "
            "accepted is logged",
            sensors=(
                sensor("draft: every tensor of the head moved", "all moved", draft_tensors),
                sensor("draft: the head saw the tokens of the rows", "tokens with two before", draft_tokens),
                sensor(DRAFT_LOSS, "computed from the rows, at every step", draft_is_that_of_the_rows),
            ),
            words=("policy.draft.enabled=true",),
            does_not_prove="that rollouts are faster (nothing is sampled with the head), several draft tokens, "
            "that the model learns (level 6)",
        ),
        Architecture(
            name="arch-vlm",
            made="vlm",
            model="LlavaForConditionalGeneration",
            recipe="grpo-vlm",
            summary="GRPO on a model that sees, with an image in each prompt",
            claim="the tower and the projector train through the image of each row, in sampler and trainer alike",
            sensors=(
                sensor(
                    "vlm: the tower and the projector moved",
                    "all moved",
                    partial(tower_moved, part="vision_tower", first="patch_conv.weight"),
                ),
                sensor("vlm: each prompt has its placeholders", "in the prompt alone", media_rows),
            ),
            does_not_prove=OF_MEDIA,
        ),
        Architecture(
            name="arch-audio",
            made="audio",
            model="Qwen2AudioForConditionalGeneration",
            recipe="grpo-audio",
            summary="GRPO on an audio model, with a sound in each prompt",
            claim="the tower and the projector train through the sound of each row, in sampler and trainer alike",
            sensors=(
                sensor(
                    "audio: the tower and the projector moved",
                    "all moved",
                    partial(tower_moved, part="audio_tower", first="conv1.weight"),
                ),
                sensor("audio: each prompt has its placeholders", "in the prompt alone", media_rows),
            ),
            does_not_prove=OF_MEDIA,
        ),
    )
