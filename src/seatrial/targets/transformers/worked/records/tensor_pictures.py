"""Pictures that image processors of Transformers make with torchvision, by class and options, on record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seatrial.targets.transformers.worked.records import pictures
from seatrial.targets.transformers.worked.records.answers import given

RECORD = "tensor_pictures_record"
ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "PerceptionLMImageProcessor": {"size": {"height": 56, "width": 56}, "max_num_tiles": 2, "tile_size": 56},
    "DonutImageProcessor": {"resample": 2, "size": {"height": 36, "width": 28}},
    "Swin2SRImageProcessor": {"size_divisor": 8},
    "ImageGPTImageProcessor": {"clusters": [[0.1, 0.2, 0.3], [-0.5, -0.4, 0.6], [0.9, 0.8, -0.7]]},
    "LayoutLMv2ImageProcessor": {"apply_ocr": False}, "LayoutLMv3ImageProcessor": {"apply_ocr": False},
}  # fmt: skip
"""Options of classes that do not work without."""
_boxes = [[[4.0, 5.0, 20.0, 10.0], [10.0, 2.0, 30.0, 30.0]], [[3.0, 7.0, 9.0, 40.0]]]
CALLED: Mapping[str, Callable[[], dict[str, Any]]] = {
    "VitPoseImageProcessor": lambda: {"boxes": _boxes},
    "VitMatteImageProcessor": lambda: {
        "trimaps": [pictures._segments(53, 37) * 60, pictures._segments(31, 60) * 60], "return_tensors": "pt"},
    "LlavaNextImageProcessor": lambda: {"return_tensors": "pt"},
}  # fmt: skip
"""Options of calls of classes that need them."""


def _with(made: Any) -> Callable[..., Any]:
    name = made.__name__.removesuffix("Fast")
    always, called = ALWAYS.get(name, {}), CALLED.get(name, dict)

    def new(**options: Any) -> Any:
        processor = made(**{**always, **options})
        if not called():
            return processor

        class Called(made):  # type: ignore[misc]
            """A processor whose calls have more options."""

            def __call__(self, images: Any, **given: Any) -> Any:
                return super().__call__(images, **{**called(), **given})

        return Called(**{**always, **options})

    return new


def _cases(made: Any) -> Iterator[str]:
    return pictures._cases(_with(made))


def _ask(made: Any, case: str) -> Any:
    return pictures._ask(_with(made), case)


def _names() -> Iterator[str]:
    import transformers

    fast = {name for name in dir(transformers) if name.endswith("ImageProcessorFast")}
    for name in dir(transformers):
        if name.endswith("ImageProcessor") and not name.startswith(("Auto", "Base")):
            yield name
    for name in fast:
        if not name.startswith(("Auto", "Base")):
            yield name.removesuffix("Fast")


def places_of(kind: str) -> str:
    """Return where a class is: those of later releases have the name that older ones gave to the one of PIL."""
    return f"transformers:{kind}Fast transformers:{kind}"


def given_now() -> dict[str, Any]:
    """Return what the installed release gives, of classes that work on tensors."""
    import transformers

    kinds = {
        name: places_of(name)
        for name in sorted({*_names()})
        if _of_tensors(getattr(transformers, f"{name}Fast", None) or getattr(transformers, name))
    }
    return given(kinds, _cases, _ask)


def _of_tensors(made: Any) -> bool:
    bases = {one.__name__ for one in made.__mro__}
    return bool(bases & {"TorchvisionBackend", "BaseImageProcessorFast"})
