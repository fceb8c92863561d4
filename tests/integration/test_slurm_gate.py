"""From FAIL to work on a real Slurm with Prolog, Epilog and health check: the script and the way of docs/gate.md."""

import json
import re
import shutil

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.fleet import ROOT, until
from tests.kit.runner import COLLECTION
from tests.kit.slurm_bed import SlurmBed
from tests.kit.slurm_fleet import SlurmFleet

PAGE = (ROOT / "docs/gate.md").read_text()
SCRIPT = re.search(r"```sh\n(#!/bin/sh\n# /etc/slurm/gpuval.sh.*?)```", PAGE, re.DOTALL)[1]
LINES = """\
Prolog=/etc/slurm/gpuval.sh
Epilog=/etc/slurm/gpuval.sh
HealthCheckProgram=/shared/health-check
HealthCheckInterval=5
HealthCheckNodeState=ANY
"""
#: Counts the health checks, which a file turns off.
HEALTH_CHECK = """\
#!/bin/sh
[ ! -e /shared/off ] || exit 0
/etc/slurm/gpuval.sh
echo $? >>/shared/checks.$(hostname)
"""
ENOUGH = {
    "name": "enough", "stage": "work", "metric": "worked_items", "unit": "count", "kind": "min", "value": 50,
    "severity": "required", "source": "This test.", "remedy": "Repair the node.",
}  # fmt: skip
RESERVATION = "ReservationName=gpuval Users=root StartTime=now Duration=4:00:00 Nodes=gpu-1 Flags=MAINT,IGNORE_JOBS"


@pytest.fixture
def shared(tmp_path):
    """The folder that all nodes share, with the gate."""
    made = tmp_path / "shared"
    (made / "gpuval").mkdir(parents=True)
    made.chmod(0o777)
    shutil.copy(COLLECTION / "node/gpuval_health.py", made / "gpuval/gpuval-health")
    (tmp_path / "gpuval.sh").write_text(SCRIPT)
    (made / "health-check").write_text(HEALTH_CHECK)
    for path in (made / "gpuval/gpuval-health", tmp_path / "gpuval.sh", made / "health-check"):
        path.chmod(0o755)
    return made


@pytest.fixture
def bed(tmp_path, shared):
    volumes = ["--volume", f"{shared}:/shared", "--volume", f"{tmp_path}/gpuval.sh:/etc/slurm/gpuval.sh:ro"]
    with SlurmBed(tmp_path / "bed", options=volumes, lines=LINES) as bed:
        yield bed


def reason(bed, node):
    found = re.search(r"Reason=(.*) \[", bed.call("scontrol", "show", "node", node))
    return found[1] if found else ""


def working(items):
    pattern = {"name": "worked_items", "pattern": r"^worked: (?P<value>\d+) (?P<unit>\S+)"}
    return {"command": ["sh", "-c", f"echo worked: {items} count"], "patterns": [pattern]}


def submit(bed, *options):
    """Work of others."""
    shown = bed.call("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=true")
    return int(shown)


def test_a_failed_node_is_repaired_validated_and_at_work_again(bed, shared, tmp_path):
    criteria = tmp_path / "criteria.yml"
    criteria.write_text(json.dumps({"schema": "gpuval.criteria/1", "checks": [ENOUGH]}))
    settings = {
        "gpuval_stages": ["facts", "work"], "work_workload": working(10), "gpuval_gang_stages": {}, "gpuval_retries": 0,
        "gpuval_criteria": [str(criteria)], "gpuval_taint_failed": True,
        "gpuval_health_file": str(shared / "gpuval/health.json"),
    }  # fmt: skip
    fleet = SlurmFleet(tmp_path / "fleet", bed, expected=["gpu-1"], settings=settings)
    try:
        done = fleet.play()
        assert "gpu-1 FAIL" in done.told, str(done)
        drained = f"gpuval:{fleet.run_id}:enough"
        assert reason(bed, "gpu-1") == drained

        # Others comment on and resume it: the health check drains it again, and what a Prolog refuses runs elsewhere.
        bed.call("scontrol", "update", "nodename=gpu-1", "comment=was_DRAINED_before State=DOWN")
        bed.call("scontrol", "update", "nodename=gpu-1", "state=resume")
        until(lambda: reason(bed, "gpu-1") == drained, "the health check drains it")
        (shared / "off").touch()
        bed.call("scontrol", "update", "nodename=gpu-2", "state=drain", "reason=busy")
        bed.call("scontrol", "update", "nodename=gpu-1", "state=resume")
        job = submit(bed)
        until(lambda: reason(bed, "gpu-1") == "Prolog error", "the Prolog refuses it")
        bed.call("scontrol", "update", "nodename=gpu-2", "state=resume")
        until(lambda: "Reason=BeginTime" in bed.call("scontrol", "show", "job", str(job)), "it is requeued")
        bed.call("scontrol", "update", f"jobid={job}", "starttime=now")  # Slurm waits for two minutes
        until(lambda: bed.jobs()[job] == "COMPLETED", "it runs elsewhere")
        assert " NodeList=gpu-2 " in bed.call("scontrol", "show", "job", str(job), "-o")

        # Validation without the reservation is refused as well, and says why.
        bed.call("scontrol", "update", "nodename=gpu-1", "state=resume")
        bed.wait_idle()  # a node that was resumed does not respond until slurmctld has pinged it
        done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=refused")
        assert re.search("gpu-1 INCOMPLETE.*Prolog error", done.told), str(done)
        assert fleet.verdict("gpu-1")["class"] == "slurm_drained"

        # As the page says: it is repaired, in a reservation, resumed and validated there.
        bed.call("scontrol", "create", "reservation", *RESERVATION.split())
        bed.call("scontrol", "update", "nodename=gpu-1", "state=resume")
        (shared / "off").unlink()
        checks = shared / "checks.gpu-1"
        checks.write_text("")
        until(lambda: len(checks.read_text().splitlines()) > 1, "two health checks")
        assert set(checks.read_text().split()) == {"0"}
        fleet.settings["work_workload"] = working(100)
        repair = {"node": "gpu-1", "part": "node", "action": "riser", "at": run_folder.now(), "by": "K. Weber"}
        fleet.settings["gpuval_repairs"] = [repair]
        fleet.source["reservation"] = "gpuval"
        done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=again")
        assert done.code == 0, str(done)
        bed.call("scontrol", "delete", "ReservationName=gpuval")
        assert "DRAIN" not in bed.state("gpu-1")
        job = submit(bed, "--nodelist=gpu-1")
        until(lambda: bed.jobs()[job] == "COMPLETED", "the node works for others")
        done = fleet.play("gpuval.fleet.clean")
        assert done.code == 0, str(done)
        assert "Slurm has no reservation gpuval" in done.told
    finally:
        fleet.close()
