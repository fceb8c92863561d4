"""All made-up fleets, and what is written of each."""

import json
import tempfile
from pathlib import Path

from tests.kit.judged_fleets import comparisons, ends, hardware, identities, kinds, launches  # noqa: F401  (they register their fleets)
from tests.kit.judged_fleets.fleet import FLEETS


def judge_fleet(name):
    """The documents of one fleet."""
    with tempfile.TemporaryDirectory() as folder:
        return FLEETS[name](Path(folder))


def canonical_text(documents):
    """The documents as JSON of one form, with a line for each value."""
    return json.dumps(documents, sort_keys=True, indent=1, ensure_ascii=False, default=_plain) + "\n"


def _plain(value):
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} in the documents of a fleet")
