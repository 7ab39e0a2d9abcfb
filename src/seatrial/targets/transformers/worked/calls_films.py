"""Calls of Transformers' functions of films, groups and sizes whose results are on record; see `recorded_calls`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from seatrial.targets.transformers.worked.calls_pictures import (
    CHANGES,
    CHW,
    FIRST,
    FORMATS,
    HWC,
    LAST,
    PICTURES,
    PIL_RGB,
    Calls,
    by_table,
    each,
    picture,
    shown,
)  # fmt: skip
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

FILMS = "transformers.video_utils"
FILM, TALL = picture(5, 7, 6, 3), picture(5, 3, 4, 6, seed=4)
CLIPS: Sequence[Any] = (
    FILM,
    TALL,
    torch.tensor(TALL),
    [FILM, FILM],
    [FILM, picture(2, 4, 6, 3)],
    [[HWC, HWC], [HWC]],
    [PIL_RGB, PIL_RGB],
    [[PIL_RGB, PIL_RGB], [PIL_RGB]],
    [HWC, HWC],
    picture(2, 5, 4, 6, 3),
    torch.tensor(picture(2, 5, 3, 4, 6)),
    "a.mp4",
    ["a.mp4", "b.mp4"],
    [["a.png", "b.png"]],
    HWC,
    PIL_RGB,
    [],
    None,
    5,
)
FILM_TABLES: Mapping[str, Calls] = {
    **{
        name: each(CLIPS)
        for name in (
            "is_valid_video_frame",
            "is_valid_video",
            "valid_videos",
            "is_batched_video",
            "make_batched_videos",
        )
    },
    "convert_pil_frames_to_video": each([[[PIL_RGB, PIL_RGB]], [FILM], ["a"]]),
    "is_scaled_video": each([FILM, FILM / 255.0, FILM * 0]),
    "get_video_size": [
        ((one,), {"channel_dim": form}) for one in (FILM, TALL) for form in (None, FIRST, LAST)
    ],
    "get_uniform_frame_indices": [
        ((total,), {"num_frames": number}) for total in (1, 7, 30) for number in (None, 1, 4, 7, 8)
    ],
    "convert_to_rgb": each(
        [FILM, TALL, picture(5, 1, 4, 6), picture(5, 4, 4, 6), torch.tensor(picture(5, 4, 4, 6))],
        {},
        {"input_data_format": FIRST},
    ),
    "pad": [
        ((one, padding), {"mode": mode, **more})
        for one in (FILM, TALL)
        for padding in (2, (1, 2), ((1, 2), (0, 3)), (1, 2, 3))
        for mode in ("constant", "reflect", "replicate", "symmetric")
        for more in FORMATS[:3]
    ],
}


def _sampled(function: Any) -> list[Any]:
    """Return which frames are taken, by number and by rate, and their times."""
    made: Any = importlib.import_module(FILMS).VideoMetadata
    found: list[Any] = []
    for total, rate, number, wanted in product(
        (1, 10, 33), (None, 5.0, 29.97), (None, 1, 4, 40), (None, 1, 2.5, 60)
    ):
        metadata = made(total_num_frames=total, fps=rate, duration=None if rate is None else total / rate)
        found.append(refusal(partial(function, metadata, num_frames=number, fps=wanted)))
    return found


def _metadata(made: Any) -> list[Any]:
    """Return times, rates and fields of what is known of films, and what batches of them become."""
    module = importlib.import_module(FILMS)
    one = made(
        total_num_frames=10,
        fps=4.0,
        width=6,
        height=4,
        duration=2.5,
        video_backend="own",
        frames_indices=[0, 4, 9],
    )
    found: list[Any] = [
        refusal(lambda: one.timestamps),
        refusal(lambda: one.sampled_fps),
        refusal(lambda: sorted(one)),
        refusal(lambda: len(one)),
        refusal(lambda: one["fps"]),
        refusal(lambda: made(total_num_frames=3).timestamps),
        refusal(lambda: made(total_num_frames=3).sampled_fps),
        refusal(lambda: made(total_num_frames=3, fps=2.0).timestamps),
    ]
    refusal(lambda: one.update({"fps": 8.0, "width": 9}))
    found.append([one.fps, one.width, refusal(lambda: one.timestamps)])
    videos = [FILM, picture(2, 4, 6, 3)]
    for given in (
        None,
        {"total_num_frames": 5, "fps": 2.0},
        [{"total_num_frames": 5}, {"total_num_frames": 2}],
        one,
        [one, one],
        [[{"total_num_frames": 5}]],
    ):
        out = refusal(lambda given=given: module.make_batched_metadata(videos, given))
        found.append(out if isinstance(out, str) else [dict(each) for each in out])
    return found


def _grouped(function: Any) -> list[Any]:
    """Return pictures or films that are grouped by their shapes, and put back in their order."""
    module = importlib.import_module(function.__module__)
    films = function.__module__ == FILMS
    shapes = ((2, 3, 4, 6), (2, 3, 5, 5), (2, 3, 4, 6)) if films else ((3, 4, 6), (3, 5, 5), (3, 4, 6))
    rows = [torch.tensor(picture(*shape, seed=at)).float() for at, shape in enumerate(shapes)]
    found: list[Any] = []
    for options in (
        ({},)
        if films
        else ({"disable_grouping": False}, {"disable_grouping": True}, {"disable_grouping": None})
    ):

        def call(options: Any = options) -> Any:
            groups, places = function(rows, **options)
            back = (module.reorder_videos if films else module.reorder_images)(
                {shape: one + 1 for shape, one in groups.items()}, places
            )
            return shown(
                [
                    sorted(str(shape) for shape in groups),
                    list(groups.values()),
                    {str(at): place for at, place in places.items()},
                    back,
                ]
            )

        found.append(refusal(call))
    if not films:
        nested = [[rows[0], rows[1]], [], [rows[2]]]
        for disabled in (False, True):

            def deep(disabled: Any = disabled) -> Any:
                groups, places = function(nested, disable_grouping=disabled, is_nested=True)
                return shown([list(groups.values()), module.reorder_images(groups, places, is_nested=True)])

            found.append(refusal(deep))
    return found


def _older(made: Any) -> list[Any]:
    """Return pictures that the older extractor of features changes."""
    one, found = made(), []
    for value in (CHW, HWC, torch.tensor(CHW), PIL_RGB):
        calls = (
            *(partial(one.center_crop, value, size) for size in (2, (3, 5), (6, 9), (2, 9))),
            *(partial(one.resize, value, size, default_to_square=False) for size in (3, (3, 5))),
            *(partial(one.to_numpy_array, value, rescale=rescale, channel_first=first)
              for rescale in (None, True, False) for first in (True, False)),
            partial(one.normalize, value, [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
            partial(one.normalize, value, 0.5, 0.25, rescale=True),
            partial(one.expand_dims, value), partial(one.flip_channel_order, value), partial(one.to_pil_image, value),
            partial(one.rotate, value, 90), partial(one.convert_rgb, value),
        )  # fmt: skip
        found += [refusal(lambda call=call: shown(call())) for call in calls]
    return found


def _sizes(made: Any) -> list[Any]:
    """Return sizes that are read, set and compared as mappings and as fields."""
    one, other = made(height=3, width=5), made(shortest_edge=4, longest_edge=9)
    return [
        refusal(call)
        for call in (
            lambda: dict(one),
            lambda: list(other),
            lambda: one["height"],
            lambda: one.get("longest_edge", 8),
            lambda: "width" in one,
            lambda: "shortest_edge" in one,
            lambda: one == {"height": 3, "width": 5},
            lambda: one == made(height=3, width=5),
            lambda: one == other,
            lambda: hash(one) == hash(made(height=3, width=5)),
            lambda: dict(one | {"height": 7}),
            lambda: dict({"height": 7} | one),
            lambda: one["other"],
            lambda: one.__setitem__("height", 8),
            lambda: one.height,
            lambda: dict(**other),
            lambda: dict(other | one),
        )
    ]


CALLS: Sequence[Call] = (
    *(
        Call("formulas", f"{FILMS}:{name}", "films of every form", partial(by_table, calls))
        for name, calls in FILM_TABLES.items()
    ),
    Call("formulas", f"{FILMS}:default_sample_indices_fn", "numbers and rates", _sampled),
    Call("formulas", f"{FILMS}:VideoMetadata", "times and rates", _metadata),
    Call("formulas", f"{CHANGES}:group_images_by_shape", "groups and orders", _grouped),
    Call("formulas", f"{FILMS}:group_videos_by_shape", "groups and orders", _grouped),
    Call("formulas", f"{PICTURES}:ImageFeatureExtractionMixin", "changes of pictures", _older),
    Call("formulas", f"{PICTURES}:SizeDict", "fields of sizes", _sizes),
)
FILM_CALL_ROWS = rows_of(CALLS)
