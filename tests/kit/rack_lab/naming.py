"""Whether a report names the part that a fault of a rack befell."""

import re
from dataclasses import dataclass

NAMING = ("fail", "missing", "warn")


@dataclass(frozen=True)
class NamedPart:
    """What a report says of a part: verdict and name of the check, nodes or rack that it is about, its reason, and help
    for the reader (source and remedy)."""

    verdict: str
    check: str
    about: str
    reason: str
    part: str
    help: str


def statements(report):
    """All that the report says against nodes and racks, racks first."""
    for rack in report.get("racks", ()):
        for check in rack["checks"]:
            if check["verdict"] in NAMING:
                about = " ".join([_rack_word(rack["name"]), *check["nodes"]])
                yield NamedPart(check["verdict"], check["name"], about, check["reason"], "rack", _help(check))
    for node in report["nodes"]:
        for check in node["checks"]:
            if check["verdict"] in NAMING:
                part = check.get("part", "")
                yield NamedPart(check["verdict"], check["name"], node["name"], check["reason"], part, _help(check))


def _help(check):
    return f"{check['source']} {check['remedy']}"


def _rack_word(name):
    return name if name.startswith("rack") else f"rack {name}"


def named_by(report, fault):
    """For each statement about the fault, whether or not it names all parts; the names that none of them has."""
    expected = fault["expected"]
    pattern = re.compile(expected["about"])
    about = [
        statement
        for statement in statements(report)
        if pattern.search(f"{statement.check} {statement.reason} {statement.help}")
    ]
    places = [name for name in expected["names"] if not name.startswith(("GPU ", "link "))]
    parts = [name for name in expected["names"] if name.startswith(("GPU ", "link "))]
    useful = [statement for statement in about if not places or any(_says(statement, place) for place in places)]
    missing = [place for place in places if not any(_says(statement, place) for statement in useful)]
    missing += [part for part in parts if not any(_says(statement, part) for statement in useful)]
    return useful, missing


def _says(statement, name):
    """GPU 2 is gpu:2 in reports, in reasons and parts; a link is `link 7`; a gang of rack 4 may be rack-4."""
    text = re.sub(r"\brack-(?=\d)", "rack ", f"{statement.about} {statement.part} {statement.reason}")
    words = [name, name.replace("GPU ", "gpu:")]
    return any(re.search(rf"\b{re.escape(word)}\b", text) for word in words)
