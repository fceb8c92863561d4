"""The Jinja2 templates of report forms. Every text passes the escaping of its form (HTML or Markdown)."""

import functools
from collections.abc import Callable
from pathlib import Path

import jinja2
from markupsafe import Markup

from ..core import units

FOLDER = Path(__file__).parent


@functools.cache
def load(name: str, escaped: Callable[..., str]) -> jinja2.Template:
    """Load the template file ``name``. Texts pass ``escaped``; the filter ``upto`` also limits their length."""

    def safe(text: str, *limit: int) -> Markup:
        return Markup(escaped(text, *limit))  # noqa: S704 - the form's own escaping, not HTML's, for Markdown

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: safe(value) if type(value) is str else value,
    )
    environment.filters |= {
        "upto": safe,
        "human": units.human,
        "duration": lambda value: units.duration(value) if value is not None else "",
        "percent": lambda ratio: f"{ratio:.2%}" if ratio is not None and ratio < 10 else "",
    }
    return environment.get_template(name)
