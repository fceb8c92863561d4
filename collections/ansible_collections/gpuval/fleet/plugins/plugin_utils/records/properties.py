"""Properties of a node's hardware and software (driver, VBIOS, ...) from its records, as short texts for reports. Pure.

A new property needs a row of ``skus/shared/properties.yml``.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ...module_utils.engines import engine_types
from ..core import units, yaml_file
from ..core.escape import one_line
from ..core.paths import COLLECTION
from . import environment
from .documents import Record

FACTS = "facts"
#: For nodes of one NVLink domain: {stage that runs over NVLink: stage that does the same over the network}.
NVLINK_STAGES = {"collective_nvlink": "collective", "fabric_nvlink": "fabric"}
ANY_STAGE = "*"
IMAGE = "image"
MAX_TEXT = 160
#: Suffix of fingerprints that identify the setup of a stage, not its result.
SETUP = "_setup"
MAX_SETUPS = 8
ARGUMENTS = "arguments"


class NodeProperty(NamedTuple):
    """A property: title for people, the stage that reports it, its path in the record's environment, its unit."""

    name: str
    title: str
    stage: str
    path: str
    unit: str = ""


def _read_properties(rows: Iterable[Mapping[str, str]]) -> Iterator[NodeProperty]:
    for row in rows:
        for engine in engine_types() if "{engine}" in row["name"] else ("",):
            titled = {**row, "title": row["title"].format(engine=engine.capitalize())}
            yield NodeProperty(**{key: text.format(engine=engine) for key, text in titled.items()})


_TABLE = yaml_file.shipped(COLLECTION / "skus/shared/properties.yml", "properties")
PROPERTIES = tuple(_read_properties(_TABLE["properties"]))
#: For each property whose version can be declared: metric of the check, words for the component, remedy.
VERSIONS: Mapping[str, Mapping[str, str]] = _TABLE["versions"]
TITLES = {**{known.name: known.title for known in PROPERTIES}, IMAGE: "Image"}
PATHS = {known.name: known.path for known in PROPERTIES}


def properties_of(record: Record) -> dict[str, str]:
    """``{property: text}`` of the hardware and software that a record reports; several values are sorted and joined."""
    reported: dict[str, str] = {}
    for prop in PROPERTIES:
        if prop.stage in (ANY_STAGE, record["stage"]):
            values = sorted({_human(text, prop.unit) for text in environment.texts(record["environment"], prop.path)})
            if values:
                reported[prop.name] = one_line(", ".join(values), MAX_TEXT)
    if record["image"]:
        reported[IMAGE] = one_line(record["image"], MAX_TEXT)
    return reported


def _human(text: str, unit: str) -> str:
    try:
        return units.human(float(text), unit) if unit else text
    except ValueError:
        return text


def setup_of(record: Record) -> dict[str, str]:
    """The settings that a record's figures depend on: setups that its stage reported, and a digest of its arguments."""
    placeholders = {record["run_id"]: "{run_id}", record["node"]: "{node}"}
    words: list[str] = []
    for word in record["command"]:
        text = word if words else PurePosixPath(word).name
        for name, placeholder in placeholders.items():
            text = text.replace(name, placeholder)
        words.append(text)
    setups = sorted(name for name in record["fingerprints"] if name.endswith(SETUP))
    return {
        **{one_line(name, 80): one_line(record["fingerprints"][name], 80) for name in setups[:MAX_SETUPS]},
        ARGUMENTS: hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8],
    }


def versions_of(node: Mapping[str, Any], stage: Mapping[str, Any]) -> Mapping[str, str]:
    """``{property: text}`` that a report's stage reported; for the facts stage, those of the node."""
    versions: Mapping[str, str] = (node if stage["name"] == FACTS else stage).get("versions", {})
    return versions
