"""Worked examples of verl's tools: modules that are loaded, names that are added, plain values, time limits."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.worked.values import PYTHON

IMPORTS = "verl.utils.import_utils:"


def folder() -> Path:
    """Return a new folder."""
    return Path(new_folder())


def raised(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the type of the error of a call, or `nothing`."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            call(*arguments, **options)
    except Exception as error:  # noqa: BLE001  its type is the result
        return type(error).__name__
    return "nothing"


def _temporary(change: Any) -> list[Any]:
    """Return variables within and after a block, which an error ends."""
    os.environ["SEATRIAL_SET"] = "before"
    os.environ.pop("SEATRIAL_UNSET", None)
    found: list[Any] = []
    with contextlib.suppress(ValueError), change("SEATRIAL_SET", "a"), change("SEATRIAL_UNSET", "b"):
        found = [os.environ["SEATRIAL_SET"], os.environ["SEATRIAL_UNSET"]]
        raise ValueError
    return [*found, os.environ["SEATRIAL_SET"], "SEATRIAL_UNSET" in os.environ]


def _plain(convert: Callable[..., Any]) -> list[Any]:
    from omegaconf import OmegaConf

    given = OmegaConf.create({"a": {"b": [1, 2]}, "c": None})
    found = convert({"x": given, "y": (given["a"]["b"], 3)})
    return [found, type(found["x"]).__name__, type(found["x"]["a"]).__name__, type(found["y"]).__name__]


def _names(of: Any) -> list[Any]:
    """Return members of an enumeration that grows: numbers, names, copies, what is taken out and refused."""
    names = import_without("verl.single_controller.base.decorator", UNUSED).Dispatch
    member = names.register("seatrial_own")
    try:
        found = [
            member.name,
            names.SEATRIAL_OWN is member,
            names.from_name("seatrial_OWN") is member,
            names.from_name("none"),
            names["SEATRIAL_OWN"] is member,
            ["SEATRIAL_OWN" in names, member in names, "none" in names],
            names.names()[-1],
            names.values()[-1] is member,
            list(names)[-1] is member,
            copy.copy(member) is member,  # by what pickling calls, too
            member.value == max(one.value for one in names),
            raised(names.register, "Seatrial_Own"),
        ]
    finally:
        names.remove("seatrial_own")
    return [*found, "SEATRIAL_OWN" in names, hasattr(names, "SEATRIAL_OWN")]


def _times(limit: Callable[..., Any]) -> list[Any]:
    """Return results of calls with a time limit, by signals: in time, late, with an error."""
    with contextlib.redirect_stdout(io.StringIO()):
        decorate = limit(seconds=0.2, use_signals=True)
    late = decorate(lambda: time.sleep(5))
    return [
        decorate(lambda number, plus: number + plus)(1, plus=2),
        raised(late),
        raised(decorate(lambda: 1 / 0)),
    ]


def _loaded(load: Callable[..., Any]) -> list[Any]:
    """Return what is loaded from a file, by its path and with a scheme, from a package, and what is refused."""
    path = folder() / "own.py"
    path.write_text("value = 3\n", encoding="utf-8")
    broken = path.with_name("broken.py")
    broken.write_text("1 / 0\n", encoding="utf-8")
    return [
        load(str(path), "value"),
        load(f"file://{path}", "value"),
        load("pkg://json", "dumps") is json.dumps,
        load("pkg://os/path", "sep") == os.path.sep,
        [
            raised(load, *given)
            for given in ((str(path), "none"), (f"{path}x", "value"), (str(broken), "value"))
        ],
    ]


def _modules(load: Callable[..., Any]) -> list[Any]:
    path = folder() / "own.py"
    path.write_text("value = 3\n", encoding="utf-8")
    one = load(str(path), "seatrial_loaded_module")
    kept = sys.modules.pop("seatrial_loaded_module", None) is one
    fresh = load(str(path)) is not load(str(path))
    sys.modules["seatrial_loaded_module"] = one
    try:
        again = raised(load, str(path), "seatrial_loaded_module")
    finally:
        del sys.modules["seatrial_loaded_module"]
    return [load(""), load(None), kept, fresh, again]


def _by_name(load: Callable[..., Any]) -> list[Any]:
    return [
        load("json.JSONDecoder") is json.JSONDecoder,
        [raised(load, name) for name in ("JSONDecoder", "json.None_", "seatrial_none.Name")],
    ]


def _configuration_path(resolve: Callable[..., Any]) -> list[Any]:
    """Return paths of a file: an absolute one, one in the working folder, one within the package, and none."""
    import verl

    root, before = folder(), Path.cwd()
    (root / "own.yaml").write_text("", encoding="utf-8")
    os.chdir(root)
    try:
        return [
            resolve("/none/own.yaml"),
            resolve("own.yaml") == str(root / "own.yaml"),
            resolve("base_config.py") == str(Path(verl.__file__).parent / "base_config.py"),
            raised(resolve, "none.yaml"),
            raised(resolve, "../" + root.name + "/none.yaml"),
        ]
    finally:
        os.chdir(before)


def _deprecated(mark: Callable[..., Any]) -> list[Any]:
    import warnings

    decorate: Callable[[Callable[..., int]], Callable[..., int]] = mark("other")

    @decorate
    def old(number: int, *, more: int = 0) -> int:
        """Old."""
        return number + more

    @mark()
    class Old:
        """Old."""

        def __init__(self, number: int) -> None:
            self.number = number

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [old(1, more=2), Old(3).number]
    return [*found, [("'other'" in str(one.message), one.category.__name__) for one in said], old.__doc__]


ROWS: Sequence[Row] = (
    Row("wrappers", f"{PYTHON}temp_env_var", "within and after", _temporary, ["a", "b", "before", False]),
    Row(
        "wrappers",
        f"{PYTHON}convert_to_regular_types",
        "options within lists",
        _plain,
        [{"x": {"a": {"b": [1, 2]}, "c": None}, "y": [[1, 2], 3]}, "dict", "dict", "list"],
    ),
    Row(
        "wrappers",
        f"{PYTHON}DynamicEnum",
        "members that are added",
        _names,
        [
            *("SEATRIAL_OWN", True, True, None, True, [True, True, False], "SEATRIAL_OWN"),
            *(True, True, True, True, "ValueError", False, False),
        ],
        since="0.4",
    ),
    Row(
        "wrappers",
        f"{PYTHON}NestedNamespace",
        "dictionaries within",
        lambda make: [
            (made := make({"a": 1, "b": {"c": {"d": 2}}}, e=3)).a,
            made.b.c.d,
            made.e,
        ],
        [1, 2, 3],
    ),
    Row("wrappers", f"{PYTHON}timeout_limit", "signals", _times, [3, "TimeoutError", "ZeroDivisionError"]),
    Row(
        "wrappers",
        f"{IMPORTS}load_extern_object",
        "files and packages",
        _loaded,
        [3, 3, True, True, ["AttributeError", "FileNotFoundError", "RuntimeError"]],
    ),
    Row(
        "wrappers",
        f"{IMPORTS}load_module",
        "modules that are kept",
        _modules,
        [None, None, True, True, "RuntimeError"],
    ),
    Row(
        "wrappers",
        f"{IMPORTS}load_class_from_fqn",
        "names",
        _by_name,
        [True, ["ValueError", "AttributeError", "ImportError"]],
    ),
    Row(
        "wrappers",
        f"{IMPORTS}resolve_config_path",
        "folders",
        _configuration_path,
        ["/none/own.yaml", True, True, "FileNotFoundError", "FileNotFoundError"],
    ),
    Row(
        "wrappers",
        f"{IMPORTS}deprecated",
        "a function and a class",
        _deprecated,
        [3, 3, [(True, "FutureWarning"), (False, "FutureWarning")], "Old."],
        since="0.5",
    ),
)
