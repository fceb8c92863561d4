"""The cluster of the benchmark in a process of its own: an API server, kubelets and stages that only take their time.

Prints its kubeconfig, serves until its input ends, then prints what it was asked and its own processor time.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "collections/ansible_collections/gpuval/fleet/node"),
]

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_records import Records


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--stages", type=json.loads, required=True, help="seconds of each stage, as a JSON object")
    options = parser.parse_args()
    with ClusterKit(options.directory, stage_seconds_of=options.stages, on_stage=Records()) as kit:
        kit.add_nodes(options.nodes, gpus=0)
        print(json.dumps({"kubeconfig": str(kit.kubeconfig)}), flush=True)
        for _line in sys.stdin:  # each line asks for the counts so far
            print(json.dumps(figures(kit)), flush=True)


def figures(kit: ClusterKit) -> dict[str, object]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "requests": {" ".join(filter(None, asked)): count for asked, count in kit.counts().items()},
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "jobs": len(kit.all("Job")),
        "left": sum(len(kit.all(kind)) for kind in ("Job", "Pod", "Secret", "ConfigMap")),
        "most_running": kit.most_running,
    }


if __name__ == "__main__":
    main()
