"""What a cluster costs the controller: validations of 1, 10, 100 and 1000 nodes whose stages only take their time.

    python benchmarks/cluster/run.py --nodes 1,10,100,1000

The cluster is simulated, in a process of its own on this machine; the controller, its requests and its store are real.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/fleet"))

from meter import Cost, columns, controller_environment, measure, scratch

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
PLAYBOOK_SECONDS = 900
STAGES = ("first", "second", "third")


@dataclass(frozen=True)
class Result:
    """One cluster. Seconds, bytes. `plan`: what one node's stages take; `requests`: all that were answered."""

    nodes: int
    verdict: str
    passed: int
    wall: float
    clean: float
    plan: float
    cpu: float
    clean_cpu: float
    cluster_cpu: float
    #: Of all processes of the controller, pages counted once: without the embedded store, and with it.
    memory: int
    memory_with_store: int
    resident: int
    main: int
    clean_memory: int
    requests: dict[str, int]
    clean_requests: dict[str, int]
    jobs: int
    left: int
    load: float

    @property
    def beyond(self) -> float:
        return self.wall - self.plan

    @property
    def all_requests(self) -> int:
        return sum(self.requests.values()) + sum(self.clean_requests.values())


def main() -> int:
    options = arguments()
    results = []
    for count in options.nodes:
        stages = dict(zip(STAGES, options.seconds, strict=True))
        with scratch(count, options.keep) as folder, simulated(count, stages, folder) as cluster:
            results.append(measured(cluster, count, stages, folder))
        print(row(results[-1]), flush=True)
    print(table(results))
    if options.json:
        documents = [{**asdict(one), "all_requests": one.all_requests, "beyond": one.beyond} for one in results]
        options.json.write_text(json.dumps(documents, indent=1) + "\n")
    return 0 if all(result.passed == result.nodes and not result.left for result in results) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=numbers, default=[1, 10, 100, 1000])
    parser.add_argument("--seconds", type=float, nargs=3, default=[10.0, 20.0, 10.0], help="of the three stages")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--keep", type=Path, help="keep the logs of the playbooks here")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


class Cluster:
    """The simulated cluster's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.kubeconfig = self._answer()["kubeconfig"]

    def counts(self) -> dict[str, Any]:
        print(file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
        if not line:
            raise SystemExit("the simulated cluster has ended: see above")
        return json.loads(line)


@contextmanager
def simulated(count: int, stages: dict[str, float], folder: Path) -> Iterator[Cluster]:
    command = [sys.executable, str(Path(__file__).with_name("cluster.py")), str(folder)]
    command += ["--nodes", str(count), "--stages", json.dumps(stages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Cluster(process)
        finally:
            process.kill()


def measured(cluster: Cluster, count: int, stages: dict[str, float], folder: Path) -> Result:
    inventory = folder / "inventory"
    (inventory / "group_vars").mkdir(parents=True)
    (inventory / "cluster.kubernetes.yml").write_text(
        json.dumps({"plugin": "gpuval.fleet.kubernetes_nodes", "kubeconfig": cluster.kubeconfig})
    )
    (inventory / "group_vars/all.json").write_text(json.dumps(variables(stages, folder)))

    def play(playbook: str) -> Cost:
        command = [str(PLAYBOOK), f"gpuval.fleet.{playbook}", "-i", str(inventory)]
        environment = controller_environment(PLAYBOOK, ROOT, folder)
        return measure(command, folder / f"{playbook}.txt", environment, ROOT, PLAYBOOK_SECONDS, [cluster.pid])

    load, before = os.getloadavg()[0], cluster.counts()
    validate = play("validate")
    ran = cluster.counts()
    path = folder / "results/latest/report.json"
    report = json.loads(path.read_text()) if path.exists() else {"verdict": "no report"}
    passed = report.get("counts", {}).get("PASS", 0)  # the run is PARTIAL: no stage puts work on a GPU
    if passed != count:
        print((folder / "validate.txt").read_text()[-4000:], file=sys.stderr)
    clean = play("clean")
    if clean.code:
        print((folder / "clean.txt").read_text()[-4000:], file=sys.stderr)
    end = cluster.counts()
    return Result(
        nodes=count,
        verdict=report["verdict"],
        passed=passed,
        wall=validate.wall_seconds,
        clean=clean.wall_seconds,
        plan=sum(stages.values()),
        cpu=validate.cpu_seconds,
        clean_cpu=clean.cpu_seconds,
        cluster_cpu=ran["cpu_seconds"] - before["cpu_seconds"],
        memory=validate.peak_without_store,
        memory_with_store=validate.peak_shared,
        resident=validate.peak_resident,
        main=validate.peak_main,
        clean_memory=clean.peak_shared,
        requests=ran["requests"],
        clean_requests={
            asked: more for asked, total in end["requests"].items() if (more := total - ran["requests"].get(asked, 0))
        },
        jobs=ran["jobs"],
        left=end["left"],
        load=load,
    )


def variables(stages: dict[str, float], folder: Path) -> dict[str, object]:
    workloads = {f"{stage}_workload": {"command": ["true"], "timeout_seconds": 600} for stage in stages}
    return {
        "gpuval_stages": list(stages),
        "gpuval_results_dir": str(folder / "results"),
        "gpuval_state_dir": str(folder / "state"),
        "gpuval_store_address": own_address(),
        "gpuval_pods": {"image": "registry.example/work:1"},
        "gpuval_sku": "cpu",
        "gpuval_deadline_seconds": 600,
        **workloads,
    }


def own_address() -> str:
    """An IPv4 address of this machine that is not the loopback's, as a controller gives to its nodes."""
    for found in psutil.net_if_addrs().values():
        for one in found:
            if one.family is socket.AF_INET and not one.address.startswith("127."):
                return one.address
    raise RuntimeError("this machine has no network interface but the loopback")


def row(result: Result) -> str:
    return (
        f"{result.nodes} nodes: {result.verdict}, {result.all_requests} requests, {result.wall:.1f} s, "
        f"{result.beyond:.1f} s beyond the plan, {result.cpu:.1f} processor seconds, {result.memory / 1e6:.0f} MB"
    )


def table(results: list[Result]) -> str:
    lines = [
        ("nodes", lambda r: f"{r.nodes}"),
        ("verdict", lambda r: r.verdict),
        ("load average before", lambda r: f"{r.load:.2f}"),
        ("requests, validate and clean", lambda r: f"{r.all_requests}"),
        ("  of which clean", lambda r: f"{sum(r.clean_requests.values())}"),
        ("requests per node", lambda r: f"{r.all_requests / r.nodes:.2f}"),
        ("validate, s", lambda r: f"{r.wall:.1f}"),
        ("plan of one node, s", lambda r: f"{r.plan:.1f}"),
        ("beyond the plan, s", lambda r: f"{r.beyond:.1f}"),
        ("controller CPU, s", lambda r: f"{r.cpu:.1f}"),
        ("controller CPU per node, s", lambda r: f"{r.cpu / r.nodes:.3f}"),
        ("simulated cluster's CPU, s", lambda r: f"{r.cluster_cpu:.1f}"),
        ("memory (pages counted once), MB", lambda r: f"{r.memory / 1e6:.0f}"),
        ("the same with the embedded store, MB", lambda r: f"{r.memory_with_store / 1e6:.0f}"),
        ("memory (sum of RSS), MB", lambda r: f"{r.resident / 1e6:.0f}"),
        ("memory of ansible-playbook (RSS), MB", lambda r: f"{r.main / 1e6:.0f}"),
        ("clean, s", lambda r: f"{r.clean:.1f}"),
        ("clean: memory, MB", lambda r: f"{r.clean_memory / 1e6:.0f}"),
    ]
    return columns(lines, results)


if __name__ == "__main__":
    sys.exit(main())
