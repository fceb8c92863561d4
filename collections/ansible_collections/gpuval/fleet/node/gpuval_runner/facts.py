"""``facts``: the stage that says what the node is."""

from __future__ import annotations

import json
import sys

from gpuval_runner.files import write_result


def facts(root: str, accelerator: str) -> int:
    """Write what the hardware package finds as the stage's result, or print it outside a stage.

    Returns 1 when the result is a failure, else 0.
    """
    from gpuval_node.hardware.collect import facts_result

    result = facts_result(root=root, accelerator=accelerator)
    if not write_result(result):
        json.dump(result, sys.stdout, indent=2)
        print()
    if result["state"] == "failure":
        print(f"failure: {result['message']}", file=sys.stderr)
        return 1
    return 0
