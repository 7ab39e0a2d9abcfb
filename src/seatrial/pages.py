"""HTML pages rendered from Jinja templates in packages; everything that comes from a run is escaped."""

from __future__ import annotations

from typing import Any


def render(package: str, template: str, **values: Any) -> str:
    """Return the page of `templates/TEMPLATE` inside a package.

    Args:
        package: such as `seatrial.report`.
        template: name of the file; it names no value that is not given.
        values: what the template names. Text is escaped, and control characters become blanks; what a template marks
            `safe` is our own markup, such as a chart.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


def _shown(value: Any) -> Any:
    """Return text without characters that HTML forbids; markup, and what is no text, as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(sign if sign.isprintable() or sign in "\n\t" else " " for sign in value)
