"""What is in an image, as a software bill of materials: CycloneDX 1.6, from the lists of dpkg and Python."""

import re
import uuid
from typing import Any
from urllib.parse import quote

SPEC = "1.6"
MAX_COMPONENTS = 20_000
#: Namespace of serial numbers that depend only on the image's id: the same image has the same document.
_NAMESPACE = uuid.UUID("6f1c2b0e-8d0a-5c9e-9f55-6d3c7a3f1b11")
#: Number of fields in a line of the listing, by the line's kind.
FIELDS = {"os": 2, "deb": 3, "pypi": 2, "git": 3}
TYPES = {"os": "operating-system", "git": "application"}
_FIELD = re.compile(r"[\x21-\x7e]{1,200}")


def document(reference: str, identity: str, listing: str) -> dict[str, Any]:
    """Return the bill of materials of an image. `identity`: its id; `listing`: output of image_builder.LISTING."""
    components: dict[str, dict[str, Any]] = {}
    distribution = ""
    for line in listing.splitlines():
        kind, *fields = line.split("\t")
        if len(fields) != FIELDS.get(kind) or not all(_FIELD.fullmatch(field) for field in fields):
            continue
        name, version = fields[0], fields[2] if kind == "git" else fields[1]
        if kind == "os":
            distribution, purl = name, ""
        elif kind == "deb":
            purl = f"pkg:deb/{_part(distribution or 'debian')}/{_part(name)}@{_part(version)}?arch={fields[2]}"
        elif kind == "pypi":
            purl = f"pkg:pypi/{_part(re.sub(r'[-_.]+', '-', name).lower())}@{_part(version)}"
        else:
            purl = f"pkg:generic/{_part(name)}@{version}?vcs_url={_part(f'git+{fields[1]}@{version}')}"
        if len(components) < MAX_COMPONENTS:
            identifier, more = purl or f"os:{name}", {"purl": purl} if purl else {}
            component = {"type": TYPES.get(kind, "library"), "name": name, "version": version, **more}
            components[identifier] = {"bom-ref": identifier, **component}
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
