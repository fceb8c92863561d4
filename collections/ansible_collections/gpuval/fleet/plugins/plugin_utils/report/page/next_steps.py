"""What to do after a run, as commands of the controller that can be pasted. Pure functions."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from ...core import commands
from ..problems import actions_line

_MAKE = re.compile("`(make [^`]+)`")


def of_report(report: Mapping[str, Any], inventory: str) -> list[tuple[str, str]]:
    """(purpose, command) of each next step after a report; the command is empty for repairs by hand. ``inventory``: as
    commands name it, empty for the default."""
    chosen = f" INVENTORY={shlex.quote(inventory)}" if inventory else ""
    bad = [node for node in report["nodes"] if node["verdict"] != "PASS"]
    steps = []
    if not bad and report["nodes"]:
        steps = [
            ("Keep the figures of this fleet as a baseline", f"make baseline NAME=site{chosen}"),
            ("Make the customer's copy", f"make deliver{chosen}"),
            ("Remove what the run put on the nodes", f"make clean{chosen}"),
        ]
    if bad:
        actions = actions_line(bad).removeprefix("Actions: ")
        steps += [(f"Act on the nodes: {actions}", "")] if actions else []
        steps.append(("Collect logs and host evidence of the run", f"make logs{chosen}"))
        name = bad[0]["name"]
        steps.append((f"See whether {name} failed before", f"make history NODE={shlex.quote(name)}{chosen}"))
        if resume := report["run"].get("resume"):
            line = _MAKE.search(resume)
            command = line[1] + ("" if "INVENTORY=" in line[1] else chosen) if line else ""
            steps.append((f"The run has not ended: {resume.replace('`', '')}", command))
        else:
            steps.append(("Validate again what did not pass", f"make rerun{chosen}"))
        if len(bad) < len(report["nodes"]):
            steps.append(("Use the nodes that passed", f"make hostfile FILE=hostfile{chosen}"))
    if commands.AGAIN:
        steps = [(purpose, line) for purpose, line in steps if not line or line.startswith("make rerun")]
    return [(purpose, commands.command(line)) for purpose, line in steps]
