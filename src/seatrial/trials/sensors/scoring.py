"""Verdicts on numbers that a run logged, computed again with transformers' own models from the rows of its ledger.

The stack's scoring code is not used: the rows go through the model one by one, without padding. The images and sounds
of refrl's media tasks are drawn again from the numbers of their prompts. Torch and transformers are imported on first
use.

Shapes: S positions of a row, V vocabulary, N positions that a draft head is trained on, D width, E experts.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.paths import model_facts, run_facts

TOLERANCE = {"float32": 2e-4, "bfloat16": 0.1}
"""Nats by which a log-probability may differ, by the policy's precision."""
_COLOURS = {"r": (1, -1, -1), "g": (-1, 1, -1), "b": (-1, -1, 1)}


def first_scores(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """At step 1 the trainer's log-probabilities are those of the initial model in transformers."""
    options = run_facts(evidence).get("config", {}).get("policy", {}).get("generation", {})
    if options.get("top_p", 1.0) != 1.0 or options.get("top_k") is not None:
        raise BlockedError(
            "completions were sampled with top-p or top-k, whose scores are not computed again"
        )
    model, facts = load_model(evidence.job.initial_model)
    rows = [row for row in evidence.ledger if row.step == 1]
    wrong, largest, number = [], 0.0, 0
    for row in rows:
        logits_SV = _forward(model, facts, row).logits[0].double() / options.get("temperature", 1.0)
        placeholder = placeholder_of(facts)
        if placeholder is not None:
            logits_SV[:, placeholder] = -math.inf  # the token of a feature is never sampled
        ids, length = list(row.token_ids or ()), row.prompt_length or 0
        scores_SV = logits_SV.log_softmax(-1)
        right = [float(scores_SV[place - 1, ids[place]]) for place in range(length, len(ids))]
        gaps = [abs(one - other) for one, other in zip(right, row.prev_logprobs or (), strict=False)]
        number += len(gaps)
        largest = max([largest, *gaps])
        if (
            len(right) != len(row.prev_logprobs or ())
            or not max(gaps, default=0) <= TOLERANCE[policy_precision(evidence)]
        ):
            wrong.append(f"step 1 row {row.index} is {max(gaps, default=math.nan):.3g} nats off")
    return wrong[:3], f"{number} tokens of {len(rows)} rows, at most {largest:.2g} nats apart", number


def policy_precision(evidence: RunEvidence) -> str:
    """Return the precision that the policy computes in; the job's own is the sampler's where that is coarser."""
    policy = run_facts(evidence).get("config", {}).get("policy", {})
    return str(policy.get("precision", evidence.job.precision))


def draft_of(
    model: Any,
    facts: Mapping[str, Any],
    head: Mapping[str, Any],
    rows: Sequence[LedgerRow],
    temperature: float,
) -> tuple[dict[str, float], int]:
    """Return the loss, the chance of an accepted token and the gradient's norm of a draft head, and its tokens.

    It guesses the token after next. The norm is that of the head alone, before clipping. The chance is the sum over
    tokens of the smaller of the two probabilities, the policy's and the head's (arXiv 2211.17192, theorem 3.5).

    Args:
        model: the policy, of transformers.
        facts: of its config.json.
        head: its tensors by name, each a torch tensor that takes a gradient.
        rows: of one update.
        temperature: of sampling.
    """
    import torch

    total, accepted, number = 0.0, 0.0, 0
    for row in rows:
        ids, mask = torch.tensor(row.token_ids), torch.tensor(row.loss_mask).bool()
        states_SD = _forward(model, facts, row, output_hidden_states=True).hidden_states[-1][0]
        chosen = mask[2:].nonzero()[:, 0]
        with torch.no_grad():
            embeddings_ND = model.get_input_embeddings()(ids[chosen + 1])
            policy_NV = model.get_output_embeddings()(states_SD[chosen + 1])
        states_ND = (
            states_SD[chosen] @ head["hidden_proj.weight"].T + embeddings_ND @ head["embed_proj.weight"].T
        )
        inner_ND = _norm(states_ND, head["norm.weight"]) @ head["up_proj.weight"].T
        states_ND = states_ND + torch.nn.functional.silu(inner_ND) @ head["down_proj.weight"].T
        logits_NV = model.get_output_embeddings()(_norm(states_ND, head["final_norm.weight"]))
        scores_NV = (logits_NV / temperature).log_softmax(-1)
        loss = -scores_NV[torch.arange(len(chosen)), ids[chosen + 2]].sum()
        loss.backward()
        total += float(loss.detach())
        accepted += float(
            torch.minimum(scores_NV.detach().exp(), (policy_NV / temperature).softmax(-1)).sum()
        )
        number += len(chosen)
    gradients = [weight.grad for weight in head.values() if weight.grad is not None]
    norm = math.sqrt(math.fsum(float(gradient.square().sum()) for gradient in gradients))
    found = {"loss": total, "acceptance_rate": accepted, "grad_norm": norm}
    return {name: value / max(1, number) for name, value in found.items()}, number


def unreached_experts(evidence: RunEvidence) -> frozenset[str]:
    """Return the names of the experts' tensors that no token is sent to from which a trained token follows.

    Every row goes through the initial model and the trained one: an expert is reached by a token that both send to it,
    as those between them most likely do, and by rows of the first update, which the initial model sends. In the last
    layer a token has a gradient only if the next one trains; in the others it has one by attention.
    """
    models = [load_model(folder) for folder in (evidence.job.initial_model, evidence.job.final_model)]
    reached: set[tuple[int, int]] = set()
    for row in evidence.ledger:
        is_first = row.step == 1 and evidence.job.num_updates_per_step == 1
        sent = [_sent(model, facts, row) for model, facts in (models[:1] if is_first else models)]
        reached |= {(layer, expert) for layer, _, expert in set.intersection(*sent)}
    return frozenset(
        change.name
        for change in evidence.weights.changes
        if (place := _expert_of(change.name)) is not None and place not in reached
    )


def _sent(model: Any, facts: Mapping[str, Any], row: LedgerRow) -> set[tuple[int, int, int]]:
    """Return (layer, token's place, expert) of a row's tokens that have a gradient."""
    import torch

    layers = _forward(model, facts, row, output_router_logits=True).router_logits
    found = set()
    for layer, logits_SE in enumerate(layers):
        first = max(0, (row.prompt_length or 0) - 1) if layer + 1 == len(layers) else 0
        chosen_SK = torch.topk(logits_SE[first:-1], facts["num_experts_per_tok"], dim=-1).indices
        found |= {(layer, place, expert) for place, of in enumerate(chosen_SK.tolist()) for expert in of}
    return found


def _expert_of(name: str) -> tuple[int, int] | None:
    """Return (layer, expert) of a tensor's name; None where it is no expert's."""
    _, _, rest = name.partition("layers.")
    layer, _, rest = rest.partition(".mlp.experts.")
    expert = rest.partition(".")[0]
    return (int(layer), int(expert)) if layer.isdecimal() and expert.isdecimal() else None


def load_model(folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """Return a folder's model in float32, with its config.json.

    Raises:
        BlockedError: transformers or the file is missing.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise BlockedError(f"transformers is needed to compute scores again: {error}") from error
    facts = model_facts(folder)
    transformers.utils.logging.disable_progress_bar()
    kind = getattr(transformers, facts["architectures"][0])
    return kind.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval(), facts


def _forward(model: Any, facts: Mapping[str, Any], row: LedgerRow, **options: Any) -> Any:
    import torch

    ids_1S = torch.tensor([row.token_ids])
    with torch.no_grad():
        return model(
            input_ids=ids_1S,
            attention_mask=torch.ones_like(ids_1S),
            use_cache=False,
            **media_of(facts, int(row.prompt_id)),
            **options,
        )


def placeholder_of(facts: Mapping[str, Any]) -> int | None:
    """Return the token whose places take the features of an image or sound; None for a model of text."""
    token: int | None = facts.get("image_token_index", facts.get("audio_token_index"))
    return token


def media_of(facts: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the model's arguments for the image or sound of a prompt."""
    import torch

    if "image_token_index" in facts:
        return {
            "pixel_values": torch.from_numpy(image_of(number, facts["vision_config"]["image_size"]))[None]
        }
    if "audio_token_index" in facts:
        sound = torch.from_numpy(sound_of(number, facts["audio_config"]["num_mel_bins"]))[None]
        mask = torch.ones(1, sound.shape[-1], dtype=torch.int64)
        return {"input_features": sound, "feature_attention_mask": mask}
    return {}


def image_of(number: int, size: int) -> npt.NDArray[np.float32]:
    """Return the image [3, size, size] of a prompt of the task `colour`: a colour in each quarter."""
    image = np.zeros((3, size, size), dtype=np.float32)
    half = size // 2
    for quarter, digit in enumerate(_digits(number // 4, 3)):
        top, left = divmod(quarter, 2)
        colour = np.array(list(_COLOURS.values())[digit], dtype=np.float32)
        image[:, top * half : (top + 1) * half, left * half : (left + 1) * half] = colour[:, None, None]
    return image


def sound_of(number: int, num_bands: int) -> npt.NDArray[np.float32]:
    """Return the spectrogram [bands, 16] of a prompt of the task `pitch`: four tones of four frames, in order."""
    sound = np.full((num_bands, 16), -1.0, dtype=np.float32)
    for tone, band in enumerate(_digits(number // 4, num_bands)):
        sound[band, 4 * tone : 4 * tone + 4] = 1.0
    return sound


def _digits(number: int, base: int) -> Sequence[int]:
    """Return four digits, the lowest first."""
    return [number // base**place % base for place in range(4)]


def _norm(states_ND: Any, weight_D: Any) -> Any:
    return states_ND * (states_ND.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight_D
