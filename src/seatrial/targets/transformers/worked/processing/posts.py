"""Laws of what image processors make of outputs of models: maps, boxes, segments, depths and masks, by definition."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as nnf

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.processing import pictures
from seatrial.targets.transformers.worked.processing.compare import plain, unlike
from seatrial.targets.transformers.worked.records import tensor_pictures

classes = pictures.classes
SIZES: Sequence[tuple[int, int]] = ((40, 60), (30, 20))
"""Heights and widths of two pictures."""


class Outputs(dict[str, Any]):
    """What a model returns, by name and by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def _drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.RandomState(seed).randn(*shape).astype(np.float32))


def _row(outputs: Outputs, number: int) -> Outputs:
    return Outputs({name: value[number : number + 1] for name, value in outputs.items()})


def _method(made: Any, name: str) -> Callable[..., Any]:
    """Return a function of a processor.

    Raises:
        NotServed: it does not have it.
    """
    if not hasattr(made, name):
        raise NotServed(f"no {name}")
    found: Callable[..., Any] = getattr(tensor_pictures._with(made)(), name)
    return found


def _unlike_rows(call: Callable[..., Any], outputs: Outputs, sizes: Any, **options: Any) -> Iterator[str]:
    """Yield where what is made of two rows is not what is made of each, and what the call changes."""
    kept = copy.deepcopy(outputs)
    found = call(outputs, target_sizes=sizes, **options)
    yield from (f"the outputs{one}" for one in unlike(outputs, kept))
    for number in range(2):
        own = None if sizes is None else sizes[number : number + 1]
        single = call(_row(kept, number), target_sizes=own, **options)
        yield from (f"row {number}:{one}" for one in unlike(found[number], single[0]))


def _semantic(made: Any) -> Iterator[str]:
    """Yield where maps are not the largest logits of resized maps."""
    call = _method(made, "post_process_semantic_segmentation")
    source = inspect.getsource(made.post_process_semantic_segmentation)
    of_queries = "class_queries_logits" in source or "pred_masks" in source
    labels, masks = _drawn(1, 2, 7, 6), _drawn(2, 2, 7, 6, 8)
    logits = 2 * _drawn(0, 2, 5, 6, 8)
    if of_queries:
        outputs = Outputs(
            class_queries_logits=labels, masks_queries_logits=masks, logits=labels, pred_masks=masks
        )
    else:
        outputs = Outputs(logits=logits)
    wide = nnf.interpolate(masks, size=(384, 384), mode="bilinear", align_corners=False)
    maps = [logits] if not of_queries else [
        torch.einsum("bqc,bqhw->bchw", labels.softmax(-1)[..., :-1], one.sigmoid()) for one in (masks, wide)
    ]  # fmt: skip
    for sizes in (None, list(SIZES)):
        found = call(copy.deepcopy(outputs), target_sizes=sizes)
        if len(found) != 2:
            yield f"{len(found)} maps"
            continue
        for number in range(2):
            right = [
                one[number] if sizes is None else
                nnf.interpolate(one[number : number + 1], size=sizes[number], mode="bilinear", align_corners=False)[0]
                for one in maps
            ]  # fmt: skip
            due = [one.argmax(0) for one in right]
            own = torch.as_tensor(plain(found[number]))
            if not any(own.shape == one.shape and (own == one).float().mean() > 0.99 for one in due):
                yield f"row {number} of sizes {sizes}: {tuple(own.shape)} {own.ravel()[:9].tolist()}"
        yield from _unlike_rows(call, outputs, sizes)


def _boxes() -> Outputs:
    places = 0.3 + 0.4 * _drawn(4, 2, 6, 2).sigmoid()
    spans = 0.1 + 0.3 * _drawn(5, 2, 6, 2).sigmoid()
    return Outputs(logits=2 * _drawn(3, 2, 6, 5), pred_boxes=torch.cat([places, spans], -1))


SCHEMES = ("softmax", "largest", "pairs", "best pairs")
"""The largest class of each query, of a softmax with a last class of no object or of sigmoids; queries and classes."""
SQUARE = ("Owlv2ImageProcessor", "Owlv2ImageProcessorPil", "Owlv2ImageProcessorFast")
"""Of pictures that are padded to a square: boxes are relative to the longer side."""
BILINEAR = ("CHMv2ImageProcessor", "Tipsv2DptImageProcessor")
"""Depths are resized so."""


def _detections(logits: Tensor, scheme: str) -> list[tuple[int, int, float]]:
    """Return query, label and score of what a row of logits finds."""
    if scheme == "softmax":
        scores, labels = logits.softmax(-1)[:, :-1].max(-1)
    elif scheme == "largest":
        scores, labels = logits.sigmoid().max(-1)
    else:
        scored = logits.sigmoid()
        pairs = [
            (query, label, float(scored[query, label]))
            for query in range(len(logits))
            for label in range(logits.shape[1])
        ]
        pairs.sort(key=lambda one: -one[-1])
        return pairs if scheme == "pairs" else pairs[: len(logits)]
    return [(query, int(labels[query]), float(scores[query])) for query in range(len(logits))]


def _detected(made: Any) -> Iterator[str]:
    """Yield where boxes, scores and labels are those of no known scheme."""
    call = _method(made, "post_process_object_detection")
    outputs = _boxes()
    wrong: dict[str, list[str]] = {}
    for scheme in SCHEMES:
        for threshold in (0.0, 0.5, 0.8):
            for sizes in (None, list(SIZES), torch.tensor(SIZES)):
                found = call(copy.deepcopy(outputs), threshold=threshold, target_sizes=sizes)
                for number, own in enumerate(found):
                    due = []
                    for query, label, score in _detections(outputs.logits[number], scheme):
                        x, y, wide, high = outputs.pred_boxes[number, query].tolist()
                        box = [x - wide / 2, y - high / 2, x + wide / 2, y + high / 2]
                        if sizes is not None:
                            tall, broad = SIZES[number]
                            if made.__name__ in SQUARE:
                                tall = broad = max(tall, broad)
                            box = [one * side for one, side in zip(box, (broad, tall) * 2, strict=True)]
                        if score > threshold:
                            due.append([round(one, 2) for one in (score, float(label), *box)])
                    shown = [
                        [round(float(one), 2) for one in (score, label, *box)]
                        for score, label, box in zip(own["scores"], own["labels"], own["boxes"], strict=True)
                    ]
                    same = len(shown) == len(due) and np.allclose(sorted(shown), sorted(due), atol=0.03)
                    if not same:
                        wrong.setdefault(scheme, []).append(
                            f"{threshold}, {sizes is not None}, row {number}: {sorted(shown)[:2]}, {sorted(due)[:2]}"
                        )
                if len(found) != 2:
                    wrong.setdefault(scheme, []).append(f"{len(found)} rows")
    if len(wrong) == len(SCHEMES):
        yield from min(wrong.values(), key=len)
    for sizes in (None, list(SIZES)):
        yield from _unlike_rows(call, outputs, sizes, threshold=0.3)


COLUMNS: Sequence[Sequence[tuple[int, int, int]]] = (
    ((0, 3, 1), (3, 5, 2), (5, 8, 1)),
    ((0, 2, 0), (2, 7, 2), (7, 8, 0)),
)
"""First and last column and label of each segment of two rows."""


def _segments() -> Outputs:
    """Return outputs with three queries that fill a picture, and one of no object."""
    labels, masks = torch.full((2, 4, 4), -6.0), torch.full((2, 4, 6, 8), -8.0)
    for number, row in enumerate(COLUMNS):
        for query, (first, last, label) in enumerate(row):
            labels[number, query, label] = 4.0 + query
            masks[number, query, :, first:last] = 8.0
        labels[number, 3, 3] = 6.0
    return Outputs(class_queries_logits=labels, masks_queries_logits=masks, logits=labels, pred_masks=masks)


def _unlike_segments(found: Any, number: int, fused: Sequence[int], what: str) -> Iterator[str]:
    """Yield where a map [6, 8] and its segments are not those of a row."""
    own = torch.as_tensor(plain(found["segmentation"]))
    if tuple(own.shape) != (6, 8):
        yield f"{what}: a map {tuple(own.shape)}"
        return
    due = sorted((first, last, label) for first, last, label in COLUMNS[number])
    seen = []
    for first, last, _ in due:
        ids = {int(one) for one in own[:, first:last].ravel()}
        known = [one["label_id"] for one in found["segments_info"] if one["id"] in ids]
        seen.append((first, last, known[0] if len(ids) == 1 and known else None))
    if seen != due:
        yield f"{what}: {seen}, {due} is due"
    numbers = [one["id"] for one in found["segments_info"]]
    count = len({label for *_, label in due if label in fused}) + sum(label not in fused for *_, label in due)
    if len({*numbers}) != count:
        yield f"{what}: ids {numbers}, {count} are due"
    for one in found["segments_info"]:
        if not 0.9 < one["score"] <= 1:
            yield f"{what}: score {one['score']}"
        if one.get("was_fused", False) != (one["label_id"] in fused):
            yield f"{what}: was_fused {one['was_fused']} of {one['label_id']}"


def _segmented(name: str, made: Any) -> Iterator[str]:
    """Yield where segments of instances, or of all, are not those of the queries."""
    call = _method(made, name)
    outputs, small = _segments(), [(6, 8), (6, 8)]
    takes = inspect.signature(call).parameters
    for number, found in enumerate(call(copy.deepcopy(outputs), target_sizes=small)):
        yield from _unlike_segments(found, number, (), f"row {number}")
    for sizes in (small, [(12, 16), (18, 24)], None):
        yield from _unlike_rows(call, outputs, sizes)
    high = call(copy.deepcopy(outputs), target_sizes=small, threshold=1.0)
    if any(one["segments_info"] for one in high):
        yield "segments of a score below the threshold"
    if "label_ids_to_fuse" in takes:
        for labels in ((1,), (0, 2)):
            fused = call(copy.deepcopy(outputs), target_sizes=small, label_ids_to_fuse={*labels})
            for number, found in enumerate(fused):
                yield from _unlike_segments(found, number, labels, f"row {number}, fused {labels}")
    if "return_binary_maps" in takes:
        for number, found in enumerate(
            call(copy.deepcopy(outputs), target_sizes=small, return_binary_maps=True)
        ):
            maps = torch.as_tensor(plain(found["segmentation"]))
            due = []
            for first, last, _ in COLUMNS[number]:
                one = torch.zeros(6, 8)
                one[:, first:last] = 1
                due.append(one.tolist())
            if sorted(maps.float().tolist()) != sorted(due):
                yield f"row {number}, maps {tuple(maps.shape)}"


def _depths(made: Any) -> Iterator[str]:
    """Yield where depths are not those of a model, resized."""
    call = _method(made, "post_process_depth_estimation")
    outputs = Outputs(predicted_depth=5 + _drawn(6, 2, 6, 8))
    takes = inspect.signature(call).parameters
    more: dict[str, Any] = {"do_remove_padding": False} if "do_remove_padding" in takes else {}
    for sizes in (None, [(9, 16), (12, 8)]):
        found = call(copy.deepcopy(outputs), target_sizes=sizes, **more)
        for number, one in enumerate(found):
            due = outputs.predicted_depth[number]
            if sizes is not None:
                mode = "bilinear" if made.__name__.removesuffix("Fast") in BILINEAR else "bicubic"
                due = nnf.interpolate(due[None, None], size=sizes[number], mode=mode, align_corners=False)[
                    0, 0
                ]
            yield from (f"row {number}, {sizes}:{said}" for said in unlike(one["predicted_depth"], due))
        yield from _unlike_rows(call, outputs, sizes, **more)


def _masks(made: Any) -> Iterator[str]:
    """Yield where masks are not of the size of their picture, or not those above the threshold."""
    call = _method(made, "post_process_masks")
    takes = inspect.signature(call).parameters
    sizes = [(40, 60), (30, 20)]
    masks = [_drawn(7, 1, 3, 16, 16), _drawn(8, 1, 3, 16, 16)]
    more: dict[str, Any] = {}
    if "reshaped_input_sizes" in takes:
        more["reshaped_input_sizes"] = [(683, 1024), (1024, 683)]

    def asked(rows: slice, **options: Any) -> Any:
        own = {name: value[rows] for name, value in more.items()}
        return call(copy.deepcopy(masks[rows]), original_sizes=sizes[rows], **own, **options)

    whole, soft = asked(slice(None)), asked(slice(None), binarize=False)
    for number in range(2):
        if tuple(whole[number].shape) != (1, 3, *sizes[number]):
            yield f"row {number}: {tuple(whole[number].shape)}"
        yield from (f"row {number}:{one}" for one in unlike(whole[number], soft[number] > 0))
        alone = asked(slice(number, number + 1), binarize=False)[0]
        yield from (f"row {number} alone:{one}" for one in unlike(soft[number], alone))
        high = asked(slice(None), mask_threshold=0.7)[number]
        yield from (f"row {number}, 0.7:{one}" for one in unlike(high, soft[number] > 0.7))


PAIRS = (((40, 60), (30, 20)), ((20, 50), (70, 40)))
"""Heights and widths of the pictures of two pairs."""


def _matched(made: Any) -> Iterator[str]:
    """Yield where matches of points are not those of the outputs, in pixels of each picture."""
    call = _method(made, "post_process_keypoint_matching")
    places = 0.031 + 0.9 * _drawn(9, 2, 2, 5, 2).sigmoid()
    mask = torch.tensor([[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]])
    matches = torch.tensor([[[3, -1, 0, 4, 1], [2, -1, -1, 0, 3]], [[0, 2, 4, -1, 1], [0, 4, 1, -1, -1]]])
    scores = torch.tensor([[[0.9, 0.0, 0.2, 0.6, 0.8]] * 2, [[0.3, 0.7, 0.9, 0.0, 0.1]] * 2])
    outputs = Outputs(keypoints=places, mask=mask, matches=matches, matching_scores=scores)
    for threshold in (0.0, 0.5):
        for sizes in (list(PAIRS), torch.tensor(PAIRS)):
            found = call(copy.deepcopy(outputs), target_sizes=sizes, threshold=threshold)
            for number, own in enumerate(found):
                due: list[list[list[float]]] = [[], [], []]
                for point in range(5):
                    match, score = int(matches[number, 0, point]), float(scores[number, 0, point])
                    if (
                        not mask[number, 0, point]
                        or not -1 < match < mask[number, 1].sum()
                        or not score > threshold
                    ):
                        continue
                    for side, at in enumerate((point, match)):
                        high, wide = PAIRS[number][side]
                        x, y = places[number, side, at].tolist()
                        due[side].append([int(x * wide), int(y * high)])
                    due[2].append([score])
                shown = [own["keypoints0"].tolist(), own["keypoints1"].tolist()]
                yield from (f"pair {number}, {threshold}:{one}" for one in unlike(shown, due[:2]))
                scored = [[one] for one in own["matching_scores"].tolist()]
                yield from (f"pair {number}, {threshold}, scores:{one}" for one in unlike(scored, due[2]))


def _points(made: Any) -> Iterator[str]:
    """Yield where points are not those of the outputs, in pixels."""
    call = _method(made, "post_process_keypoint_detection")
    outputs = Outputs(
        keypoints=0.031 + 0.9 * _drawn(9, 2, 5, 2).sigmoid(), scores=_drawn(10, 2, 5), descriptors=_drawn(11, 2, 5, 3),
        mask=torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]]),
    )  # fmt: skip
    for sizes in (list(SIZES), torch.tensor(SIZES)):
        for number, own in enumerate(call(copy.deepcopy(outputs), target_sizes=sizes)):
            kept = [point for point in range(5) if outputs.mask[number, point]]
            high, wide = SIZES[number]
            places = [outputs.keypoints[number, point].tolist() for point in kept]
            due = {
                "keypoints": [[int(x * wide), int(y * high)] for x, y in places],
                "scores": outputs.scores[number, kept], "descriptors": outputs.descriptors[number, kept],
            }  # fmt: skip
            yield from (f"row {number}:{one}" for one in unlike(dict(own), due))


def _law(call: Callable[..., Iterator[str]], *given: Any) -> Callable[[Any], list[str]]:
    return lambda made: list(call(*given, made))


LAWS: Mapping[str, Callable[[Any], list[str]]] = {
    "outputs: maps of classes": _law(_semantic),
    "outputs: boxes": _law(_detected),
    "outputs: segments of instances": _law(_segmented, "post_process_instance_segmentation"),
    "outputs: segments of all": _law(_segmented, "post_process_panoptic_segmentation"),
    "outputs: depths": _law(_depths),
    "outputs: masks": _law(_masks),
    "outputs: matches of points": _law(_matched),
    "outputs: points": _law(_points),
}
OTHERWISE: Mapping[str, str] = {
    "CHMv2ImageProcessor": "depths",  # with corners that are aligned
    "EfficientLoFTRImageProcessor": "matches of points",  # of every point of both pictures
}
"""What classes do otherwise by design: patterns of a law and what it says."""
