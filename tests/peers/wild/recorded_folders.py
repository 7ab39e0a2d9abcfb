"""Records the outputs of model classes of the installed Transformers.

    python -m tests.peers.wild.recorded_folders FOLDER ...

Run in the environment of each release in turn, the newest
first: numbers of an earlier one that are those of the newest hold from it on, others in its line alone.
"""

import itertools
import json
import sys
import time
import warnings
from typing import Any

from tests.peers.wild.recorded_logits import rounded

from seatrial.relations.laws.models.recorded import BOUND
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers import folder_models, folder_records
from seatrial.targets.transformers.folder_inputs import every_candidate

OF_OPTIONS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "Model")
"""Ends of the names of classes whose options are recorded, the first that a configuration has."""


EXACT = ("fresh", "places", "shifted")
NEWEST = "5.24.0"
"""The release that was recorded first."""
LONGEST = 12.0
"""Seconds after which options of a folder are left out."""
CHECKED = ("plain", "left", "sdpa", "loss", "generated")
"""Forms whose numbers are compared with those of float64."""


class Doubled(folder_models.OneClass):
    """A class in float64, with the inputs of another."""

    def __init__(self, one: folder_models.OneClass) -> None:
        super().__init__(one.model_class)
        self._is_small = True
        self.inputs = {
            name: value.double() if getattr(value, "is_floating_point", bool)() else value
            for name, value in one.inputs.items()
        }

    def made(self, attention: str = "eager", config: Any = None) -> Any:
        return super().made(attention, config).double()


def _imprecise(one: folder_models.OneClass) -> set[tuple[str, str]]:
    """Return the forms and fields that rounding decides."""
    try:
        other = Doubled(one)
    except Exception:  # noqa: BLE001  no inputs
        return set()
    return {
        (form, field)
        for form in CHECKED
        for field, given in other.of(form).items()
        if (right := one.of(form).get(field)) is not None
        and max(abs(a - b) for a, b in zip(given, right, strict=True)) > BOUND / 4 * max(right[-1], 1e-9)
    }


def _line(release_name: str) -> str:
    """Return the line of a release, such as 4.57."""
    return ".".join(release_name.split(".")[:2])


def add(own: dict[str, list[float]], installed: str, given: list[float], *, is_alone: bool) -> None:
    """Add the numbers of a release: under its name where they hold from it on, under its line where they hold in that.

    Args:
        own: what is recorded, which is changed.
        installed: the release.
        given: its numbers.
        is_alone: whether they hold for no release between, as names of weights may change.
    """
    right = own.get(NEWEST, [])
    is_same = len(right) == len(given) and max(
        abs(a - b) for a, b in zip(given, right, strict=True)
    ) <= BOUND / 4 * max(right[-1], 1e-9)
    if installed == NEWEST:
        own[NEWEST] = given
    elif is_same and not is_alone:
        own[installed] = own.pop(NEWEST)
    else:
        own[_line(installed)] = given


def _without(fields: dict[str, Any], installed: str) -> dict[str, Any]:
    """Return the fields of a form without the numbers of a release; those of another that are the same stay."""
    found: dict[str, Any] = {}
    for field, given in fields.items():
        for key, value in given.items():
            if installed == NEWEST and key != NEWEST:
                found.setdefault(field, {})[_line(key)] = value
            elif installed != NEWEST and key != _line(installed):
                found.setdefault(field, {})[NEWEST] = value
    return found


def _errors(one: folder_models.OneClass) -> list[str]:
    """Return what a class says of the first inputs that are tried."""
    found = []
    for inputs in itertools.islice(every_candidate(one.model), 2):
        try:
            one.called(one.model, inputs)
        except Exception as error:  # noqa: BLE001
            found.append(f"{[*inputs]} {error!r}"[:200])
    return found


def record_folder(folder: str, found: dict[str, Any]) -> None:
    """Add the classes of a folder to what was recorded of it."""
    installed, start = release("transformers"), time.monotonic()
    classes = type("Of", (folder_records.FolderRecord,), {"kind": folder})().classes
    for name, forms in list(found.items()):
        found[name] = {form: kept for form, fields in forms.items() if (kept := _without(fields, installed))}
    chosen: dict[Any, str] = {}
    for end in OF_OPTIONS:
        for name, one in classes.items():
            if name.endswith(end):
                chosen.setdefault(one.model_class.config_class, name)
    for name, one in classes.items():
        forms = list(folder_models.FORMS)
        try:
            one.model  # noqa: B018
            if chosen.get(one.model_class.config_class) == name:
                forms += list(one.options)
        except Exception as error:  # noqa: BLE001
            print(folder, name, "not made", type(error).__name__, str(error)[:150], flush=True)
            continue
        left_out = _imprecise(one)
        is_unstable = any(form in ("plain", "left") for form, _ in left_out)
        if left_out:
            print(folder, name, "not precise", sorted(left_out)[:4], flush=True)
        for form in forms:
            if time.monotonic() - start > LONGEST and form not in folder_models.FORMS:
                continue
            for field, given in one.of(form).items():
                if (form, field) in left_out or (is_unstable and form not in EXACT):
                    continue
                own = found.setdefault(name, {}).setdefault(form, {}).setdefault(field, {})
                add(own, installed, rounded(given), is_alone=form == "fresh")
        if name not in found:
            print(folder, name, "nothing", one.refused.get("plain"), flush=True)
        elif "plain" in one.refused:
            print(folder, name, "no plain", one.refused["plain"], _errors(one), flush=True)


def main(*folders: str) -> None:
    """Add the installed release to the record."""
    path = folder_records.RECORD
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for folder in folders:
        start = time.monotonic()
        try:
            record_folder(folder, found.setdefault(folder, {}))
        except Gone:
            continue
        finally:
            if not found[folder]:
                del found[folder]
        count = sum(len(fields) for forms in found.get(folder, {}).values() for fields in forms.values())
        found = {kind: {name: own for name, own in every.items() if own} for kind, every in found.items()}
        print(folder, count, f"{time.monotonic() - start:.1f} s", flush=True)
        lines = [f"{json.dumps(kind)}: {json.dumps(values)}" for kind, values in sorted(found.items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
