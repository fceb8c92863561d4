"""The floor: what the same nodes cost with nothing but OpenSSH. Per node one `ssh` that launches, one that fetches."""

from __future__ import annotations

import resource
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from nodes import Nodes

LAUNCH = "setsid sh -c 'sleep 1; echo done > /tmp/floor' >/dev/null 2>&1 </dev/null & echo started"
FETCH = "cat /tmp/floor"


def ssh(nodes: Nodes, name: str, command: str) -> str:
    options = [
        "-F", "none", "-i", str(nodes.key), "-o", f"UserKnownHostsFile={nodes.known_hosts}",
        "-o", "BatchMode=yes", "-o", "ConnectTimeout=20",
    ]  # fmt: skip
    done = subprocess.run(
        ["ssh", *options, f"root@{nodes.addresses[name]}", command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"floor: {name}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def processor_seconds() -> float:
    """Of the processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def floor(nodes: Nodes, parallel: int) -> tuple[float, float]:
    """Seconds for both rounds over all nodes, and the processor time of their `ssh` on the controller.

    The wait for the job between them is not counted.
    """
    took, before = 0.0, processor_seconds()
    with ThreadPoolExecutor(parallel) as pool:
        for command, answer in ((LAUNCH, "started"), (FETCH, "done")):
            begun = time.perf_counter()
            answers = list(pool.map(lambda name, command=command: ssh(nodes, name, command), nodes.names))
            took += time.perf_counter() - begun
            if set(answers) != {answer}:
                raise SystemExit(f"floor: the nodes answered {sorted(set(answers))}")
            time.sleep(3)
    return took, processor_seconds() - before
