"""Secrets of a stage: where they come from, and how its process gets them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuval_node.redaction import SecretRedactor, secrets_of_run

from gpuval_runner.errors import StoreFileError
from gpuval_runner.files import read_object
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import NodePlan, Stage

#: In the working folder: what the steps' program reads and removes.
SECRETS_FILE = "secrets.json"
MAX_BYTES = 4 << 20
#: The controller refuses shorter secrets.
SHORTEST = 4
#: The end of variables whose values are shown: names of users are words of any text, and parts of nodes' names.
USERNAME = "_USERNAME"


def load(directory: NodeDirectory, plan: NodePlan, stage: Stage, environment: Mapping[str, str]) -> dict[str, str]:
    """The stage's secrets by variable: from the launch, in a pod from its container. Raises ``StoreFileError``."""
    values = environment if plan.runtime == "pod" else read_object(directory.secrets(stage.name), MAX_BYTES)
    secrets = {name: values.get(name) for name in stage.secrets}
    missing = [name for name, value in secrets.items() if not isinstance(value, str) or not value]
    if missing:
        raise StoreFileError(f"secret {', '.join(missing)} is not on this node: validate again")
    return {name: str(value) for name, value in secrets.items()}


def redactor(directory: NodeDirectory, secrets: Mapping[str, str]) -> SecretRedactor:
    """What hides a stage's secrets in its output, and those of the run: a stage may print the run's files, too."""
    values = [value for name, value in secrets.items() if not name.endswith(USERNAME)]
    return SecretRedactor(values, secrets_of_run(directory.root), SHORTEST)
