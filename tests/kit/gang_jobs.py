"""Members of a job of several nodes on this machine: each a program with an address and folders of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages

from tests.kit import jobs
from tests.kit.workload_process import NODE

WITHIN = 90
#: The leader waits a second for the first cause of a failure, not five.
MEMBER = """
import sys
from gpuval_workloads.gang import control_channel
control_channel.GRACE_SECONDS = 1.0
from gpuval_workloads.job.program import main
sys.exit(main())
"""


class Members:
    """A job on its members. ``end`` returns for each its exit code, its log and its result."""

    def __init__(
        self, folder, port, path, count=2, *, labels=(), slots=1, python=sys.executable, chosen=None, **variables
    ):
        (declared,) = stages.workloads([path], together=True, **(chosen or {})).values()
        self.folder, self.processes = folder, []
        members = [
            {
                "node": f"node-{i + 1}",
                "address": f"127.0.0.{i + 1}",
                "slots": slots,
                "labels": dict(labels[i : i + 1] or ()),
            }
            for i in range(count)
        ]
        for index in range(count):
            own = folder / str(index)
            own.mkdir()
            gang = {"name": "all", "members": members, "index": index, "port": port, "ssh_port": port + 2}
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith(("GPUVAL_", "OMPI_"))},
                "PYTHONPATH": str(NODE), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(own),
                "GPUVAL_GANG": json.dumps(gang), "GPUVAL_GANG_TOKEN": "t" * 32,
                "GPUVAL_GANG_KEYS": str(folder / "keys"),
                "GPUVAL_WORK_DIR": str(own), "GPUVAL_RESULT_FILE": str(own / "result.json"), "GPUVAL_RUN_ID": "run-1",
                "GPUVAL_NODE": members[index]["node"], "GPUVAL_ACCELERATOR": "cpu", "GPUVAL_GPU_COUNT": "0",
                "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": str(port + 3), **declared["environment"], **variables,
            }  # fmt: skip
            with (own / "log").open("w") as log:
                self.processes.append(
                    subprocess.Popen(
                        [str(python), "-c", MEMBER], env=environment, stdin=subprocess.DEVNULL,
                        stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    )
                )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self, index):
        return (self.folder / str(index) / "log").read_text()

    def until(self, index, text):
        deadline = time.monotonic() + WITHIN
        while text not in self.log(index):
            assert time.monotonic() < deadline, self.log(index)
            time.sleep(0.1)

    def end(self):
        deadline = time.monotonic() + WITHIN
        return [self._ended(index, process, deadline) for index, process in enumerate(self.processes)]

    def _ended(self, index, process, deadline):
        code = process.wait(max(1, deadline - time.monotonic()))
        result = self.folder / str(index) / "result.json"
        return code, self.log(index), json.loads(result.read_text()) if result.exists() else None


def write(folder, *steps, **changes):
    return jobs.write(folder, nodes="gang", steps=list(steps), **{"join_seconds": 60, **changes})
