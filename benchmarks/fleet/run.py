"""What a fleet costs the controller: whole validations of 10, 50 and 100 nodes whose stages only sleep.

    python benchmarks/fleet/run.py --nodes 10,50,100

Nodes are containers on this machine, so they and the controller share its processors. Each figure is for the whole of
`validate`: from the command to the verdict. The floor, measured between the runs on the same nodes, is plain OpenSSH.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from floor import floor
from meter import Cost, columns, controller_environment, measure, scratch
from nodes import Counts, Nodes

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
STAGES = ("first", "second", "third")
PLAYBOOK_SECONDS = 1800
#: Connections end some seconds after a launch.
SETTLE_SECONDS = 8
#: The goals for 100 nodes.
MAX_FLOORS = 4
MAX_CONTROLLER_SECONDS = 0.25


@dataclass(frozen=True)
class Result:
    """One fleet. Seconds, bytes; `plan` is the longest sum of one node's stages by its records, `sleeps` as drawn."""

    nodes: int
    verdict: str
    wall: float
    plan: float
    sleeps: float
    floor: float
    floors: tuple[float, float]
    cpu: float
    ssh_cpu: float
    memory: int
    resident: int
    processes_at_work: int | None
    ssh_at_work: int | None
    connections: int
    sessions: int
    network_bytes: int
    node_cpu: float
    floor_cpu: float
    prepare: float
    check: float
    clean: float
    load: float
    load_after: float

    @property
    def beyond(self) -> float:
        return self.wall - self.plan

    @property
    def ratio(self) -> float:
        return self.beyond / self.floor


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the nodes are removed
    results = []
    for count in options.nodes:
        with scratch(count, options.keep) as folder, Nodes(count, folder, options.image) as nodes:
            results.append(measured(nodes, folder, options))
        print(row(results[-1]), flush=True)
    print(table(results))
    last = results[-1]
    kept = last.ratio <= MAX_FLOORS and last.cpu <= MAX_CONTROLLER_SECONDS * last.nodes
    limits = f"{MAX_FLOORS} floors and {MAX_CONTROLLER_SECONDS} s of the controller per node"
    print(f"{last.nodes} nodes within {limits}: {'yes' if kept else 'no'}")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.verdict == "PASS" for result in results) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=lambda text: [int(word) for word in text.split(",")], default=[10, 50, 100])
    parser.add_argument("--forks", type=int, default=50, help="parallelism of Ansible and of the floor")
    parser.add_argument("--sleep", type=float, nargs=2, default=[5.0, 20.0], help="shortest and longest stage, seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--image", default="debian:bookworm-slim", help="base of the nodes' image")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--keep", type=Path, help="keep the logs of the playbooks here")
    parser.add_argument("--only-validate", action="store_true", help="leave out prepare and the check mode")
    return parser.parse_args()


def measured(nodes: Nodes, folder: Path, options: argparse.Namespace) -> Result:
    draw = random.Random(options.seed)  # noqa: S311 - the same plans every time
    sleeps = {name: [round(draw.uniform(*options.sleep), 1) for _ in STAGES] for name in nodes.names}
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts(nodes, sleeps), "vars": variables(nodes, folder)}}))

    def play(playbook: str, *words: str) -> Cost:
        command = [str(PLAYBOOK), f"gpuval.fleet.{playbook}", "-i", str(inventory), "-f", str(options.forks)]
        command += words
        log = folder / f"{playbook}{''.join(words)}.txt"
        return measure(command, log, controller_environment(PLAYBOOK, ROOT, folder), ROOT, PLAYBOOK_SECONDS)

    load = os.getloadavg()[0]
    before = nodes.counts()
    least = floor(nodes, options.forks)
    plain, before = nodes.counts() - before, nodes.counts()
    prepare = check = Cost(0, 0.0, 0.0)
    if not options.only_validate:
        prepare, check = play("prepare"), play("validate", "--check")
        before = nodes.counts()
    validate = play("validate")
    seen: Counts = nodes.counts() - before
    load_after = os.getloadavg()[0]
    floors, ssh_cpu = zip(least, floor(nodes, options.forks), strict=True)
    report = json.loads((folder / "results/latest/report.json").read_text())
    clean = play("clean")
    if clean.code:
        raise SystemExit(f"clean failed: {(folder / 'clean.txt').read_text()[-2000:]}")
    if report["verdict"] != "PASS":
        print((folder / "validate.txt").read_text()[-3000:], file=sys.stderr)
    quiet = validate.between(*at_work(folder / "results/latest/nodes"))
    return Result(
        nodes=nodes.count,
        verdict=report["verdict"],
        wall=validate.wall_seconds,
        plan=longest_plan(folder / "results/latest/nodes"),
        sleeps=max(sum(each) for each in sleeps.values()),
        floor=sum(floors) / 2,
        floors=floors,
        cpu=validate.cpu_seconds,
        ssh_cpu=sum(ssh_cpu) / 2,
        memory=validate.peak_shared,
        resident=validate.peak_resident,
        processes_at_work=max((sample.processes for sample in quiet), default=None),
        ssh_at_work=max((sample.ssh for sample in quiet), default=None),
        connections=seen.connections,
        sessions=seen.sessions,
        network_bytes=seen.network_bytes,
        node_cpu=seen.cpu_seconds,
        floor_cpu=plain.cpu_seconds,
        prepare=prepare.wall_seconds,
        check=check.wall_seconds,
        clean=clean.wall_seconds,
        load=load,
        load_after=load_after,
    )


def at_work(evidence: Path) -> tuple[float, float]:
    """From when all nodes were launched, with some seconds for connections to end, until the last of them was done."""

    def moments(stage: str, key: str) -> list[float]:
        texts = [json.loads(path.read_text())[key] for path in evidence.glob(f"*/{stage}.json")]
        return [datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() for text in texts if text]

    return max(moments(STAGES[0], "started_at")) + SETTLE_SECONDS, max(moments(STAGES[-1], "finished_at"))


def longest_plan(evidence: Path) -> float:
    """The largest sum of what one node's stages took, by its own records."""
    folders = [folder for folder in evidence.iterdir() if folder.is_dir()]
    return max(sum(duration(folder / f"{stage}.json") for stage in ("facts", *STAGES)) for folder in folders)


def duration(record: Path) -> float:
    return float(json.loads(record.read_text())["duration_seconds"] or 0.0)


def hosts(nodes: Nodes, sleeps: dict[str, list[float]]) -> dict[str, dict[str, object]]:
    return {
        name: {
            "ansible_host": nodes.addresses[name],
            **{f"{stage}_seconds": took for stage, took in zip(STAGES, sleeps[name], strict=True)},
        }
        for name in nodes.names
    }


def variables(nodes: Nodes, folder: Path) -> dict[str, object]:
    workloads = {
        f"{stage}_workload": {
            "command": ["sh", "-c", f"sleep {{{{ {stage}_seconds }}}}; echo slept: {{{{ {stage}_seconds }}}} seconds"],
            "patterns": [{"name": "slept", "pattern": r"^slept: (?P<value>[0-9.]+) (?P<unit>seconds)"}],
            "timeout_seconds": 600,
        }
        for stage in STAGES
    }
    return {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(nodes.key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={nodes.known_hosts}",
        "gpuval_stages": ["facts", *STAGES],
        "gpuval_sku": "cpu",
        "gpuval_runtime": "host",
        "gpuval_results_dir": str(folder / "results"),
        "gpuval_state_dir": str(folder / "state"),
        "gpuval_store_address": nodes.gateway,
        **workloads,
    }


def row(result: Result) -> str:
    return (
        f"{result.nodes} nodes: {result.verdict}, {result.wall:.1f} s, plan {result.plan:.1f} s, floor "
        f"{result.floor:.1f} s: {result.beyond:.1f} s beyond the plan are {result.ratio:.1f} floors; "
        f"processor seconds: controller {result.cpu:.1f}, nodes {result.node_cpu:.1f}"
    )


def shown(count: int | None) -> str:
    return "-" if count is None else str(count)


def table(results: list[Result]) -> str:
    lines = [
        ("nodes", lambda r: f"{r.nodes}"),
        ("verdict", lambda r: r.verdict),
        ("load average before", lambda r: f"{r.load:.2f}"),
        ("load average after", lambda r: f"{r.load_after:.2f}"),
        ("validate, s", lambda r: f"{r.wall:.1f}"),
        ("longest plan, s", lambda r: f"{r.plan:.1f}"),
        ("its sleeps alone, s", lambda r: f"{r.sleeps:.1f}"),
        ("beyond the plan, s", lambda r: f"{r.beyond:.1f}"),
        ("floor, s", lambda r: f"{r.floor:.1f}"),
        ("the same before and after", lambda r: "/".join(f"{each:.1f}" for each in r.floors)),
        ("ratio to the floor", lambda r: f"{r.ratio:.2f}"),
        ("ratio, sleeps alone as the plan", lambda r: f"{(r.wall - r.sleeps) / r.floor:.2f}"),
        ("controller CPU, s", lambda r: f"{r.cpu:.1f}"),
        ("controller CPU per node, s", lambda r: f"{r.cpu / r.nodes:.3f}"),
        ("the same, times the floor's", lambda r: f"{r.cpu / r.ssh_cpu:.1f}"),
        ("nodes' CPU per node, s", lambda r: f"{r.node_cpu / r.nodes:.3f}"),
        ("the same, times the floor's", lambda r: f"{r.node_cpu / r.floor_cpu:.1f}"),
        ("nodes' CPU per node in the floor, s", lambda r: f"{r.floor_cpu / r.nodes:.3f}"),
        ("memory (pages counted once), MB", lambda r: f"{r.memory / 1e6:.0f}"),
        ("memory (sum of RSS), MB", lambda r: f"{r.resident / 1e6:.0f}"),
        ("processes while nodes work", lambda r: shown(r.processes_at_work)),
        ("ssh processes while nodes work", lambda r: shown(r.ssh_at_work)),
        ("SSH connections per node", lambda r: f"{r.connections / r.nodes:.2f}"),
        ("SSH sessions per node", lambda r: f"{r.sessions / r.nodes:.2f}"),
        ("bytes per node, SSH and store", lambda r: f"{r.network_bytes / r.nodes:.0f}"),
        ("prepare, s", lambda r: f"{r.prepare:.1f}"),
        ("check mode, s", lambda r: f"{r.check:.1f}"),
        ("clean, s", lambda r: f"{r.clean:.1f}"),
    ]
    return columns(lines, results)


if __name__ == "__main__":
    sys.exit(main())
