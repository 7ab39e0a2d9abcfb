"""TRL's heads in tiles, divergences of distillation and cuts of images, in the contract's form."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from inspect import getsource
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.tiled import weights_of
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release

OUTPUTS = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
NAMES = ("log-probabilities", "entropy", "squares", "mean")


def _head(function: Any) -> Callable[..., Any]:
    def tiled(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        options: Mapping[str, Any],
        tile: int,
    ) -> dict[str, Any]:
        given = [one.clone().requires_grad_() for one in (hidden, weight, *(() if bias is None else (bias,)))]
        offset = given[2] if bias is not None else None
        shape = (options.get("softcap"), options.get("scale", 1.0))
        found = function.apply(
            given[0], given[1], offset, targets, options.get("temperature", 1.0), tile, *shape, OUTPUTS
        )
        own, entropy = found[:2]
        (own * weights_of(own) + entropy * weights_of(entropy).flip(0)).sum().backward()
        return {
            **{name: value.detach().double() for name, value in zip(NAMES, found, strict=False)},
            "first": found[4].tolist(),
            "gradients": [one.grad for one in given],
        }

    return tiled


def _divergence(function: Any) -> Callable[..., Any]:
    def tiled(
        student: Sequence[Tensor],
        teacher: Sequence[Tensor],
        beta: float,
        temperature: float,
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        given = [one.clone().requires_grad_() for one in student]
        shape = (options.get("scale", 1.0), options.get("softcap"))
        found, entropy = function.apply(*given, None, *teacher, None, beta, temperature, *shape, *shape)
        (found * weights_of(found)).sum().backward()
        return {
            "divergence": found.detach(),
            "entropy": entropy.detach(),
            "gradients": [one.grad for one in given],
        }

    return tiled


def _largest(compute: Any) -> Callable[..., Any]:
    return lambda student, teacher, number, tail, alpha: compute(
        student, teacher, distillation_topk=number, distillation_add_tail=tail, distillation_alpha=alpha
    )


def _whole(compute: Any) -> Callable[..., Any]:
    return lambda student, teacher, alpha: compute(student, teacher, distillation_alpha=alpha)


def _clipped(apply: Any) -> Callable[..., Any]:
    def weighted(losses: Tensor, now: Tensor, before: Tensor, most: float) -> dict[str, Any]:
        given = losses.clone().requires_grad_(), now.clone().requires_grad_()
        found = apply(*given, before, most)
        of_losses, of_now = torch.autograd.grad(found.sum(), given, materialize_grads=True)
        return {"losses": found.detach(), "of losses": of_losses, "of probabilities": of_now}

    return weighted


def _sampled(compute: Any) -> Callable[..., Any]:
    def gradient(student: Tensor, teacher: Tensor, ids: Tensor) -> dict[str, Any]:
        logits = student.clone().requires_grad_()
        loss = compute(logits, teacher, ids, distillation_alpha=1.0)
        return {"gradient": torch.autograd.grad(loss.sum(), logits)[0]}

    return gradient


def _plain(compute: Any) -> Callable[..., Any]:
    return lambda *arguments: compute(*arguments)


def _words(merge: Any) -> Callable[..., Any]:
    has_ways = "token_merge_strategy" in getsource(merge)

    def merged(probs: Tensor, words: Sequence[Sequence[int]], ids: Tensor, how: str) -> Any:
        if how != "observed" and not has_ways:
            raise NotServed(f"ULDLoss of trl {release('trl')} has one way to merge")
        return merge(SimpleNamespace(token_merge_strategy=how), probs, words, ids)

    return merged


def _both(*places: str, name: str, adapt: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any] | None:
    """Return a function that two trainers have each a copy of, and that gives the copies' results if they are one."""
    found = []
    for place in places:
        try:
            found.append(adapt(find_name("trl", [f"{place}:{name}"])))
        except Gone:
            continue
    if not found:
        return None

    def called(*arguments: Any) -> Any:
        results = [one(*arguments) for one in found]
        return next((one for one in results[1:] if not _equal(one, results[0])), results[0])

    return called


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(value, other[name]) for name, value in one.items())
    return torch.equal(one, other)


def _layout(function: Any) -> Callable[..., Any]:
    """Return the cut of images, for layouts that the installed release knows."""
    text = getsource(function)

    def cut(batch: Mapping[str, Any]) -> Any:
        if unknown := [
            name for name in batch if name not in ("input_ids", "num_images") and f'"{name}"' not in text
        ]:
            raise NotServed(f"{function.__name__} of trl {release('trl')} knows no {', '.join(unknown)}")
        alone = "num_tiles" in batch and "spatial_shapes" not in batch
        if alone and '"num_tiles" in batch' not in text:  # before 1.12
            raise NotServed(f"{function.__name__} of trl {release('trl')} knows no num_tiles without shapes")
        return function(dict(batch))

    return cut


def functions() -> dict[str, Callable[..., Any]]:
    """Return what the installed release has."""
    found: dict[str, Callable[..., Any]] = {}
    adapt: Callable[[Any], Callable[..., Any]]
    for name, place, own, adapt in (
        ("head in tiles", "trl.kernels.chunked_logprob", "ChunkedLogProbFunction", _head),
        ("divergence in tiles", "trl.kernels.chunked_divergence", "ChunkedDivergenceFunction", _divergence),
    ):
        try:
            found[name] = adapt(getattr(importlib.import_module(place), own))
        except (ModuleNotFoundError, AttributeError):
            continue
    losses = ("trl.experimental.sdft.loss_utils", "trl.experimental.sdpo.loss_utils")
    for name, own, adapt in (
        ("divergence of the largest", "compute_topk_self_distillation_loss", _largest),
        ("divergence of logits", "compute_full_logit_self_distillation_loss", _whole),
        ("divergence of log-probabilities", "compute_divergence", _plain),
        ("rest of ids", "add_tail_bucket", _plain),
        ("weighted losses", "apply_importance_sampling_clipping", _clipped),
        ("divergence of sampled ids", "compute_sampled_token_self_distillation_loss", _sampled),
    ):
        if (both := _both(*losses, name=own, adapt=adapt)) is not None:
            found[name] = both
    try:
        words = find_name("trl", ["trl.experimental.gold.gold_trainer:ULDLoss"])
        align, merge = words._align_by_byte_offsets, words._merge_probabilities_with_alignment_groups
        found["words of two tokenizers"] = lambda *offsets: tuple(map(list, align(*offsets)))
        found["probabilities of words"] = _words(merge)
    except (Gone, AttributeError):  # earlier releases align texts, and have one way to merge
        pass
    try:
        split = find_name("trl", ["trl.trainer.utils:split_pixel_values_by_grid"])
        join = find_name("trl", ["trl.trainer.utils:unsplit_pixel_values_by_grid"])
    except Gone:
        return found
    if "num_images" not in getsource(split):  # releases before 0.24 have one image a sample
        return found
    cut = _layout(split)
    return {**found, "images of samples": cut, "images joined again": lambda batch: join(cut(batch))}
