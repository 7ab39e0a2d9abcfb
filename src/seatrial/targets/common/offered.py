"""What a stack offers by name, module by module, and what is said of each name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

UNCOVERED = "uncovered"
OUT = "out of scope: "


class Offered(NamedTuple):
    """A public name of the release."""

    module: str
    name: str
    state: str
    """Of the adapters that judge it; `uncovered`, or `out of scope: ` with a reason."""

    @property
    def relevant(self) -> bool:
        """Whether a law should judge it."""
        return not self.state.startswith(OUT)


def offered(
    package: str, out_of_scope: Mapping[str, str], state_of: Callable[[str, Any], str]
) -> Iterator[Offered]:
    """Yield every public class and function of an installed package, module by module.

    Args:
        package: name of the import package.
        out_of_scope: reasons by the name of a module or package; with a star at its end by the beginning of the name.
        state_of: (name, class or function) -> its state.
    """
    root = importlib.import_module(package)
    walked = pkgutil.walk_packages(root.__path__, prefix=f"{package}.", onerror=lambda _: None)
    for found in sorted(walked, key=lambda one: one.name):
        reason = next((why for place, why in out_of_scope.items() if _is_in(found.name, place)), None)
        try:
            module = importlib.import_module(found.name)
        except Exception:  # noqa: BLE001  a module of a package that is not installed
            yield Offered(found.name, "", OUT + (reason or "it cannot be imported here"))
            continue
        for name, given in vars(module).items():
            one = undecorated(given)
            is_own = inspect.isclass(one) or inspect.isfunction(one)
            if is_own and not name.startswith("_") and one.__module__ == found.name:
                yield Offered(found.name, name, OUT + reason if reason else state_of(name, one))


def _is_in(module: str, place: str) -> bool:
    """Return whether a module is one, or in a package, that a name, with or without a star, matches."""
    if place.endswith("*"):
        return module.startswith(place[:-1])
    return module == place or module.startswith(f"{place}.")


def undecorated(value: Any) -> Any:
    """Return what was decorated: the class of an actor of Ray, the function that a wrapper names."""
    actor = getattr(getattr(value, "__ray_metadata__", None), "modified_class", None)
    if inspect.isclass(actor):
        return actor
    return inspect.unwrap(value) if inspect.isfunction(value) else value


def summary(title: str, rows: Sequence[Offered]) -> str:
    """Return a line that counts the names that are judged."""
    relevant = [row for row in rows if row.relevant]
    judged = sum(row.state != UNCOVERED for row in relevant)
    return f"{title}: {judged} of {len(relevant)} relevant names are judged"


def print_rows(title: str, rows: Sequence[Offered]) -> None:
    """Print the table."""
    print(summary(title, rows))
    for row in rows:
        print(f"{row.module}.{row.name}\t{row.state}")
