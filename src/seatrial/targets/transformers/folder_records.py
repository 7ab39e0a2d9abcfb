"""Every public model class of a folder of Transformers' models, with outputs on record; see `contracts.recorded`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import Version

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers.folder_models import OneClass
from seatrial.targets.transformers.folder_table import NOT_RECORDED

RECORD = Path(__file__).with_name("recorded_folders.json")
Stored = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]]


@cache
def record(path: Path = RECORD) -> Mapping[str, Stored]:
    """Return by folder, class, form and field the numbers by release."""
    found: Mapping[str, Stored] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def numbers_for(given: Mapping[str, Sequence[float]], installed: Version) -> Sequence[float] | None:
    """Return the numbers that hold for a release, of those by the releases that were recorded.

    Numbers by the name of a release hold from it on, those by the name of a line, such as 4.57, in that alone.
    """
    line = ".".join(map(str, installed.release[:2]))
    known = [name for name in given if name.count(".") == 2 and installed >= Version(name)]
    if line in given:
        return given[line]
    return given[max(known, key=Version)] if known else None


def folders() -> list[str]:
    """Return the folders of models of the installed release."""
    models: Any = importlib.import_module("transformers.models")
    place = Path(models.__path__[0])
    return sorted(one.name for one in place.iterdir() if list(one.glob("modeling_*.py")))


def classes_in(folder: str) -> list[Any]:
    """Return the public model classes of a folder that have a configuration.

    Raises:
        Gone: the release has no such folder.
    """
    import transformers

    models: Any = importlib.import_module("transformers.models")
    place = Path(models.__path__[0]) / folder
    found = []
    for path in sorted(place.glob("modeling_*.py")):
        if path.name.startswith(("modeling_tf_", "modeling_flax_")):
            continue
        try:
            module: Any = importlib.import_module(f"transformers.models.{folder}.{path.stem}")
        except ImportError:
            continue
        for name in getattr(module, "__all__", ()):
            one = getattr(module, name)
            is_model = isinstance(one, type) and issubclass(one, transformers.PreTrainedModel)
            if is_model and getattr(one, "config_class", None) and not name.endswith("PreTrainedModel"):
                found.append(one)
    if not found:
        raise Gone(f"transformers {release('transformers')} has no models in {folder}")
    return found


class FolderRecord(KnowsFailures):
    """The classes of a folder."""

    thorough = True
    path: ClassVar[Path] = RECORD
    kind: ClassVar[str]

    def __init__(self) -> None:
        """Find the classes in the installed release."""
        self.classes = {
            one.__name__: OneClass(one) for one in classes_in(self.kind) if one.__name__ not in NOT_RECORDED
        }

    @cached_property
    def recorded(self) -> Mapping[str, Sequence[float]]:
        installed = Version(release("transformers"))
        return {
            f"{name}: {form}: {field}": numbers
            for name, forms in record(self.path).get(self.kind, {}).items()
            for form, fields in forms.items()
            for field, given in fields.items()
            if (numbers := numbers_for(given, installed)) is not None
        }

    def projections(self, name: str) -> Sequence[float]:
        model_class, form, field = name.split(": ")
        if model_class not in self.classes:
            raise NotServed(f"no {model_class}")
        found = self.classes[model_class].of(form)
        if field not in found:
            raise NotServed(f"no {field}")
        return found[field]


def _adapter(kind: str) -> type[FolderRecord]:
    words = {"__doc__": f"Model classes of {kind} on record.", "kind": kind}
    return type(f"RecordedFolder_{kind}", (FolderRecord,), words)


ADAPTERS: dict[str, type[Any]] = {f"recorded-folder-{kind}": _adapter(kind) for kind in record()}
