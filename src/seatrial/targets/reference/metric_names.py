"""What refrl says that its scalars of the policy loss are, for the relations."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.relations.contracts.named_metrics import MetricSpec
from seatrial.relations.records import LossSpec

OF_EVERY_LOSS = {
    "token_mult_prob_error": MetricSpec(quantity="sampler_mult"),
    "gen_kl_error": MetricSpec(quantity="sampler_k3"),
    "policy_kl_error": MetricSpec(quantity="trainer_k3"),
    "approx_entropy": MetricSpec(quantity="weighted_surprise"),
    "num_valid_samples": MetricSpec(quantity="one", how="sum", over="rows"),
    "global_valid_toks": MetricSpec(quantity="one", how="sum"),
}


def metric_specs(loss: LossSpec) -> Mapping[str, MetricSpec]:
    """Return the scalars of a loss; those of a ratio are left out where it is that of a sequence."""
    if loss.kind == "gspo":
        return OF_EVERY_LOSS
    clip = (loss.ratio_clip_min, loss.ratio_clip_max)
    return {
        **OF_EVERY_LOSS,
        "probs_ratio": MetricSpec(quantity="ratio"),
        "probs_ratio_min": MetricSpec(quantity="ratio", how="min"),
        "probs_ratio_max": MetricSpec(quantity="ratio", how="max"),
        "probs_ratio_clamped": MetricSpec(quantity="clamped_ratio", clip=clip),
        "probs_ratio_clamped_min": MetricSpec(quantity="clamped_ratio", how="min", clip=clip),
        "probs_ratio_clamped_max": MetricSpec(quantity="clamped_ratio", how="max", clip=clip),
    }
