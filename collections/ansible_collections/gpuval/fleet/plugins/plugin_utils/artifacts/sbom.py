"""What is in an image, as a software bill of materials: CycloneDX 1.6, from the lists of dpkg and Python."""

from __future__ import annotations

import re
import uuid
from typing import Any
from urllib.parse import quote

SPEC = "1.6"
MAX_COMPONENTS = 20_000
#: One form for all images of an id: the same image has the same document.
_NAMESPACE = uuid.UUID("6f1c2b0e-8d0a-5c9e-9f55-6d3c7a3f1b11")
_FIELD = re.compile(r"[\x21-\x7e]{1,200}")


def document(reference: str, identity: str, listing: str) -> dict[str, Any]:
    """Return the document of the image `reference` with this id. `listing` is image_builder.LISTING's output."""
    components: dict[str, dict[str, Any]] = {}
    distribution = ""
    for line in listing.splitlines():
        kind, *fields = line.split("\t")
        if not fields or not all(_FIELD.fullmatch(field) for field in fields):
            continue
        component = None
        if kind == "os" and len(fields) == 2:
            distribution = fields[0]
            component = {"type": "operating-system", "name": fields[0], "version": fields[1]}
        elif kind == "deb" and len(fields) == 3:
            purl = f"pkg:deb/{_part(distribution or 'debian')}/{_part(fields[0])}@{_part(fields[1])}?arch={fields[2]}"
            component = {"type": "library", "name": fields[0], "version": fields[1], "purl": purl}
        elif kind == "pypi" and len(fields) == 2:
            purl = f"pkg:pypi/{_part(re.sub(r'[-_.]+', '-', fields[0]).lower())}@{_part(fields[1])}"
            component = {"type": "library", "name": fields[0], "version": fields[1], "purl": purl}
        elif kind == "git" and len(fields) == 3:
            purl = f"pkg:generic/{_part(fields[0])}@{fields[2]}?vcs_url={_part(f'git+{fields[1]}@{fields[2]}')}"
            component = {"type": "application", "name": fields[0], "version": fields[2], "purl": purl}
        if component and len(components) < MAX_COMPONENTS:
            name = component.get("purl", f"os:{component['name']}")
            components[name] = {"bom-ref": name, **component}
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, identity)}",
        "version": 1,
        "metadata": {"component": {"bom-ref": identity, "type": "container", "name": reference, "version": identity}},
        "components": [components[name] for name in sorted(components)],
    }


def _part(text: str) -> str:
    return quote(text, safe=".-_~")
