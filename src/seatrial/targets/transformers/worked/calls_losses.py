"""Calls of Transformers' losses of boxes, masks and frames, whose results are on record; see `recorded_calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

CLASSES, QUERIES, LAYERS, ROWS = 4, 6, 3, 2
LOSSES = "transformers.loss.loss_for_object_detection"
DEFORMABLE, GROUNDED = "transformers.loss.loss_deformable_detr", "transformers.loss.loss_grounding_dino"
RT, FINE = "transformers.loss.loss_rt_detr", "transformers.loss.loss_d_fine"


def _boxes(*shape: int, seed: int) -> Tensor:
    """Return boxes as centers and sizes, all within a picture."""
    found = numbers(*shape, 4, seed=seed).abs()
    return torch.cat([0.3 + 0.4 * found[..., :2], 0.1 + 0.3 * found[..., 2:]], dim=-1)


def targets(masks: bool = False, empty: bool = False) -> list[dict[str, Tensor]]:
    """Return the boxes of two pictures: two and three of them, or none of the first."""
    found = []
    for row, classes in enumerate(([] if empty else [3, 0], [1, 1, 2])):
        one = {
            "class_labels": torch.tensor(classes, dtype=torch.long),
            "boxes": _boxes(len(classes), seed=20 + row) if classes else torch.zeros(0, 4),
        }
        if masks:
            one["masks"] = (numbers(len(classes), 4 + row, 5, seed=30 + row) > 0).float()
        found.append(one)
    return found


def config(**options: Any) -> Any:
    """Return options of losses, each with a value of its own."""
    return SimpleNamespace(
        **{
            "class_cost": 1.5, "bbox_cost": 4.0, "giou_cost": 2.5, "num_labels": CLASSES, "eos_coefficient": 0.3,
            "bbox_loss_coefficient": 4.5, "giou_loss_coefficient": 2.25, "mask_loss_coefficient": 1.75,
            "dice_loss_coefficient": 0.75, "class_loss_coefficient": 1.25, "auxiliary_loss": True,
            "decoder_layers": LAYERS, "focal_alpha": 0.3, "two_stage": True, "matcher_class_cost": 1.5,
            "matcher_bbox_cost": 4.0, "matcher_giou_cost": 2.5, "matcher_alpha": 0.3, "matcher_gamma": 1.5,
            "use_focal_loss": True, "weight_loss_vfl": 1.25, "weight_loss_bbox": 4.5, "weight_loss_giou": 2.25,
            "focal_loss_alpha": 0.7, "focal_loss_gamma": 1.75, "weight_loss_fgl": 0.2, "weight_loss_ddf": 1.5,
            "max_num_bins": 8, "reg_scale": 4.0, "up": 0.5, "group_detr": 2, "mask_point_sample_ratio": 2,
            "mask_class_loss_coefficient": 1.75, "mask_dice_loss_coefficient": 0.75, "weight_loss_mal": 1.1,
            "mal_alpha": 0.9, "use_dense_one_to_one": True, "num_denoising": 2, **options,
        }
    )  # fmt: skip


def _outputs(queries: int = QUERIES) -> dict[str, Any]:
    """Return logits and boxes of the last layer and of all."""
    logits = numbers(LAYERS, ROWS, queries, CLASSES, seed=3, scale=2.0)
    boxes = _boxes(LAYERS, ROWS, queries, seed=4)
    return {
        "logits": logits[-1], "pred_boxes": boxes[-1], "outputs_class": logits, "outputs_coord": boxes, "device": "cpu",
    }  # fmt: skip


def _reported(found: Any) -> list[Any]:
    loss, parts, auxiliary = found
    named = {name: float(value) for name, value in sorted(parts.items())}
    return [float(loss), named, None if auxiliary is None else [sorted(one) for one in auxiliary]]


def _whole(
    extra: int, function: Any, masks: bool = False, more: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return a loss with its parts: with and without layers between, and with a picture without boxes."""
    found = []
    for options, empty in (
        ({"auxiliary_loss": False, **(more or {})}, False),
        (more or {}, False),
        (more or {}, True),
    ):
        outputs = _outputs()
        size = outputs["logits"].shape[-1] + extra
        if extra:
            for name in ("logits", "outputs_class"):
                outputs[name] = numbers(*outputs[name].shape[:-1], size, seed=6, scale=2.0)
            outputs["outputs_class"][-1] = outputs["logits"]
        if masks:
            outputs["pred_masks"] = numbers(ROWS, QUERIES, 3, 4, seed=7, scale=3.0)
        found.append(_reported(function(config=config(**options), labels=targets(masks, empty), **outputs)))
    return found


def _grounded(function: Any) -> list[Any]:
    """Return the loss of words of a text, with and without that of the encoder."""
    found = []
    maps = tuple((numbers(CLASSES, 5, seed=8 + row) > 0.1).float() for row in range(ROWS))
    maps = tuple(torch.where(one.sum(-1, keepdim=True) > 0, one, torch.ones_like(one)) for one in maps)
    logits = numbers(LAYERS, ROWS, QUERIES, 5, seed=9, scale=2.0)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)[:, None].expand(-1, QUERIES, -1)
    outputs = _outputs()
    outputs |= {"logits": logits[-1], "outputs_class": logits, "label_maps": maps, "text_mask": mask}
    for options in ({"two_stage": False}, {"auxiliary_loss": False}, {}):
        more = {"encoder_logits": logits[0] + 0.5, "encoder_pred_boxes": _boxes(ROWS, QUERIES, seed=11)}
        found.append(_reported(function(config=config(**options), labels=targets(), **outputs, **more)))
    return found


def _denoised(fine: bool, function: Any) -> list[Any]:
    """Return the loss of real-time detectors: with denoised boxes and without, of each matcher, of logits of each form.

    Releases of 5 are given denoised boxes with the others in the last layer.
    """
    found = []
    cases: Sequence[tuple[Mapping[str, Any], bool]] = (
        ({"auxiliary_loss": False}, False), ({}, True), ({"use_focal_loss": False}, True),
        *(() if fine else (({}, False),)),
    )  # fmt: skip
    for options, denoises in cases:
        extra = 12 if denoises else 0
        logits = numbers(ROWS, LAYERS, QUERIES + extra, CLASSES, seed=12, scale=2.0)
        boxes = _boxes(ROWS, LAYERS, QUERIES + extra, seed=13)
        given: dict[str, Any] = {
            "logits": logits[:, -1, extra:], "pred_boxes": boxes[:, -1, extra:], "outputs_class": logits,
            "outputs_coord": boxes, "enc_topk_logits": logits[:, 0, extra:] + 0.3,
            "enc_topk_bboxes": _boxes(ROWS, QUERIES, seed=14), "device": "cpu",
        }  # fmt: skip
        if denoises:
            given["denoising_meta_values"] = {
                "dn_positive_idx": [torch.tensor([0, 1, 6, 7]), torch.tensor([0, 1, 2, 6, 7, 8])],
                "dn_num_group": 2, "dn_num_split": [extra, QUERIES],
            }  # fmt: skip
        if fine:
            given["predicted_corners"] = numbers(ROWS, LAYERS, QUERIES + extra, 4 * 9, seed=15)
            given["initial_reference_points"] = _boxes(ROWS, LAYERS, QUERIES + extra, seed=16)
        own = config(**options)
        if fine:
            own.up = torch.tensor([0.5])
            own.reg_scale = 4.0
        whole = {**given, "logits": logits[:, -1], "pred_boxes": boxes[:, -1]}
        for one in (given, whole) if denoises else (given,):
            found.append(
                refusal(lambda own=own, one=one: _reported(function(config=own, labels=targets(), **one)))
            )
    return found


def _deimv2(function: Any) -> list[Any]:
    extra, found = 12, []
    for dense in (True, False):
        logits = numbers(ROWS, LAYERS, QUERIES + extra, CLASSES, seed=12, scale=2.0)
        boxes = _boxes(ROWS, LAYERS, QUERIES + extra, seed=13)
        given: dict[str, Any] = {
            "logits": logits[:, -1], "pred_boxes": boxes[:, -1], "outputs_class": logits,
            "outputs_coord": boxes, "enc_topk_logits": logits[:, 0, extra:] + 0.3,
            "enc_topk_bboxes": _boxes(ROWS, QUERIES, seed=14), "device": "cpu",
            "denoising_meta_values": {
                "dn_positive_idx": [torch.tensor([0, 1, 6, 7]), torch.tensor([0, 1, 2, 6, 7, 8])],
                "dn_num_group": 2, "dn_num_split": [extra, QUERIES],
            },
            "predicted_corners": numbers(ROWS, LAYERS, QUERIES + extra, 4 * 9, seed=15),
            "initial_reference_points": _boxes(ROWS, LAYERS, QUERIES + extra, seed=16),
        }  # fmt: skip
        own = config(up=torch.tensor([0.5]), use_dense_one_to_one=dense)
        found.append(_reported(function(config=own, labels=targets(), **given)))
    return found


def _in_groups(function: Any) -> list[Any]:
    """Return the loss of queries in groups, and of the encoder."""
    found = []
    for options in ({"auxiliary_loss": False}, {}):
        given = _outputs(2 * QUERIES)
        given["enc_outputs_class"] = numbers(ROWS, 2 * QUERIES, CLASSES, seed=17)
        given["enc_outputs_coord"] = _boxes(ROWS, 2 * QUERIES, seed=18)
        found.append(_reported(function(config=config(**options), labels=targets(), **given)))
    return found


def _ious(function: Any) -> Any:
    one = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 5.0]])
    other = torch.tensor([[1.0, 0.0, 3.0, 2.0], [4.0, 4.0, 5.0, 6.0], [0.0, 0.0, 2.0, 2.0]])
    wrong = refusal(lambda: function(one.flip(1), other))
    return [
        function(one, other),
        wrong if isinstance(wrong, str) else "taken",
        function(one.half(), other.half()),
    ]


def _of_masks(function: Any) -> Any:
    masks, right = numbers(3, 4, 5, seed=1, scale=3.0), (numbers(3, 4, 5, seed=2) > 0).float()
    flat = [masks.flatten(1), right.flatten(1)]
    return [function(*flat, 1), function(*flat, 5.0)]


def _focal(function: Any) -> Any:
    logits, right = numbers(2, 4, 5, seed=1, scale=3.0), (numbers(2, 4, 5, seed=2) > 0).float()
    return [
        function(logits, right, 3, **options)
        for options in ({}, {"alpha": 0.6}, {"alpha": -1.0}, {"gamma": 1.0})
    ]


def _matched(made: Any, extra: Mapping[str, Any] | None = None, given: Sequence[Any] = ()) -> Any:
    """Return pairs of queries and boxes, by each weight of a cost."""
    found = []
    for costs in ((1, 1, 1), (5, 0, 0), (0, 5, 0), (0, 0, 5), (0.5, 2, 3)):
        matcher = made(**dict(zip(("class_cost", "bbox_cost", "giou_cost"), costs, strict=True)))
        outputs = {"logits": numbers(ROWS, QUERIES, CLASSES, seed=3, scale=2.0),
                   "pred_boxes": _boxes(ROWS, QUERIES, seed=4), **(extra or {})}  # fmt: skip
        found.append([[one.tolist() for one in pair] for pair in matcher(outputs, targets(), *given)])
    zero = refusal(lambda: made(class_cost=0, bbox_cost=0, giou_cost=0))
    return [*found, zero if isinstance(zero, str) else "taken"]


def _bins(function: Any) -> Any:
    return [
        function(bins, torch.tensor([up]), scale)
        for bins, up, scale in ((8, 0.5, 4), (6, 0.25, 2), (32, 0.5, 4))
    ]


def _placed(function: Any) -> Any:
    places = torch.tensor([-9.0, -0.5, -0.01, 0.0, 0.02, 0.3, 0.49, 7.0])
    return [list(function(places, bins, 4, torch.tensor([0.5]))) for bins in (8, 16)]


def _distances(function: Any) -> Any:
    points, boxes = _boxes(5, seed=1), numbers(5, 4, seed=2).abs()
    corners = torch.cat([boxes[:, :2] * 0.4, 0.5 + boxes[:, 2:] * 0.4], dim=1)
    return [
        list(function(points, corners, 8, 4.0, torch.tensor([0.5]), **more)) for more in ({}, {"eps": 0.3})
    ]


def _nested(function: Any) -> Any:
    tensors, mask = function([numbers(2, 3, 4), numbers(3, 2, 5, seed=1)]).decompose()
    return [tensors, mask.int(), refusal(lambda: function([torch.zeros(2, 2)]))]


def _pairs_of_masks(function: Any) -> Any:
    return function(numbers(3, 8, seed=1, scale=2.0), (numbers(2, 8, seed=2) > 0).float())


def _points(function: Any) -> Any:
    features, places = numbers(2, 3, 4, 5), numbers(2, 6, 2, seed=1).abs()
    return [
        function(features, places, align_corners=False),
        function(features, places[:, None], align_corners=True),
    ]


def _speech_ends(function: Any) -> Any:
    return [
        function(numbers(6, scale=3.0), torch.tensor([0, 0, 1, 0, 0, 1])),
        function(torch.zeros(2), torch.ones(2)),
    ]


def _velocity(latents: Tensor, start: Tensor, end: Tensor) -> Tensor:
    return torch.sin(latents) * (1 + start) + end**2 * latents


def _flow(function: Any) -> Any:
    data, noise, times = numbers(3, 4, seed=1), numbers(3, 4, seed=2), numbers(3, 1, seed=3).abs()
    return function(_velocity, data, noise, times)


def _distilled(function: Any) -> Any:
    data, noise = numbers(3, 4, seed=1), numbers(3, 4, seed=2)
    start, end = numbers(3, 1, seed=3).abs() / 2, 0.5 + numbers(3, 1, seed=4).abs() / 2
    found = []
    for kind in ("full", "minimal"):
        weight = torch.tensor(1.5, requires_grad=True)

        def velocity(latents: Tensor, one: Tensor, two: Tensor, weight: Tensor = weight) -> Tensor:
            return _velocity(latents, one, two) * weight

        loss = function(velocity, data, noise, start, end, stop_gradient=kind)
        (gradient,) = torch.autograd.grad(loss.sum(), weight)
        found.append([loss, gradient])
    return found


CALLS: Sequence[Call] = (
    Call("formulas", f"{LOSSES}:ForObjectDetectionLoss", "boxes of two pictures", partial(_whole, 1)),
    Call("formulas", f"{LOSSES}:ForSegmentationLoss", "boxes and masks", partial(_whole, 1, masks=True)),
    Call("formulas", f"{DEFORMABLE}:DeformableDetrForObjectDetectionLoss", "focal classes", partial(_whole, 0)),
    Call("formulas", f"{DEFORMABLE}:DeformableDetrForSegmentationLoss", "with masks", partial(_whole, 0, masks=True)),
    Call("formulas", f"{GROUNDED}:GroundingDinoForObjectDetectionLoss", "words of a text", _grounded),
    Call("formulas", f"{RT}:RTDetrForObjectDetectionLoss", "denoised boxes", partial(_denoised, False)),
    Call("formulas", f"{FINE}:DFineForObjectDetectionLoss", "distributions of edges", partial(_denoised, True)),
    Call("formulas", "transformers.loss.loss_deimv2:Deimv2ForObjectDetectionLoss", "dense matches", _deimv2),
    Call("formulas", "transformers.loss.loss_lw_detr:LwDetrForObjectDetectionLoss", "groups of queries", _in_groups),
    Call("formulas", f"{LOSSES}:box_iou", "overlaps", lambda one: list(_ious(lambda *boxes: list(one(*boxes))))),
    Call("formulas", f"{LOSSES}:generalized_box_iou", "overlaps with what is between", _ious),
    Call("formulas", f"{LOSSES}:dice_loss", "masks", _of_masks),
    Call("formulas", f"{LOSSES}:sigmoid_focal_loss", "focal weights", _focal),
    Call("formulas", f"{GROUNDED}:sigmoid_focal_loss", "focal weights of words", _focal),
    Call("formulas", f"{LOSSES}:HungarianMatcher", "pairs by each cost", _matched),
    Call("formulas", f"{DEFORMABLE}:DeformableDetrHungarianMatcher", "pairs by focal costs", _matched),
    Call("formulas", "transformers.loss.loss_lw_detr:LwDetrHungarianMatcher", "pairs in groups",
         partial(_matched, given=(2,))),
    Call("formulas", f"{LOSSES}:nested_tensor_from_tensor_list", "pictures of two sizes", _nested),
    Call("formulas", f"{FINE}:weighting_function", "bins of edges", _bins),
    Call("formulas", f"{FINE}:translate_gt", "places between bins", _placed),
    Call("formulas", f"{FINE}:bbox2distance", "distances of edges", _distances),
    Call("formulas", "transformers.loss.loss_rf_detr:pair_wise_sigmoid_cross_entropy_loss", "pairs", _pairs_of_masks),
    Call("formulas", "transformers.loss.loss_rf_detr:pair_wise_dice_loss", "pairs", _pairs_of_masks),
    Call("formulas", "transformers.loss.loss_rf_detr:sigmoid_cross_entropy_loss", "masks", _of_masks),
    Call("formulas", "transformers.loss.loss_rf_detr:sample_point", "points of features", _points),
    Call("formulas", "transformers.loss.loss_lsd:end_of_speech_loss", "ends", _speech_ends),
    Call("formulas", "transformers.loss.loss_lsd:lsd_diagonal_loss", "flows", _flow),
    Call("formulas", "transformers.loss.loss_lsd:lsd_distillation_loss", "flows of two times", _distilled),
)  # fmt: skip
LOSS_CALL_ROWS = rows_of(CALLS)
