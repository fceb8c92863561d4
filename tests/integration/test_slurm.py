"""Validation on a Slurm cluster of real daemons: jobs instead of logins, and every end that a job can have."""

import re
import subprocess
import sys

import pytest
import yaml

from tests.kit import gang_jobs
from tests.kit.container_fleet import nap
from tests.kit.fleet import ROOT, until
from tests.kit.gang_fleet import RUN_SECONDS

NAPS = {"gpuval_stages": ["facts", "work"], "work_workload": nap(90), "gpuval_gang_stages": {}, "gpuval_retries": 0}


def test_both_nodes_pass_alone_and_together_and_keep_nothing(new_slurm_fleet, slurm):
    """The gang is one job; torchrun starts its ranks on both nodes."""
    own = {"gpuval_stages": ["facts", "work"], "work_workload": nap(1), "run_gang_stages": ["collective"]}
    fleet = new_slurm_fleet(settings={**own, "collective_seconds": 2, "collective_largest_bytes": 1 << 20})
    done = fleet.play(seconds=RUN_SECONDS)
    assert done.code == 0, str(done)
    assert fleet.report()["counts"]["PASS"] == 2
    stages = {stage["name"]: stage["state"] for stage in fleet.verdict("gpu-1")["stages"]}
    assert stages == {"facts": "success", "work": "success", "collective": "success"}
    channels = {stage["name"]: stage["confirmed_by"] for stage in fleet.verdict("gpu-1")["stages"]}
    assert channels == {"facts": "slurm", "work": "slurm", "collective": "store only"}
    measured = fleet.record("gpu-2", "collective")
    assert "gang_all_reduce_bus_bytes_per_second" in {item["name"] for item in measured["metrics"]}
    jobs = sorted(slurm.jobs())
    assert [slurm.jobs()[job] for job in jobs[-3:]] == ["COMPLETED"] * 3
    shown = slurm.call("scontrol", "show", "job", str(jobs[-1]), "-o")
    assert "NodeList=gpu-[1-2] " in shown
    assert f"Comment=gpuval:{fleet.run_id}.all:gpu-1:1 " in shown
    assert [fleet.left_on(node) for node in slurm.nodes] == [[], []]


def test_an_inventory_that_slurm_answered_for_leads_to_a_verdict(new_slurm_fleet, slurm, tmp_path):
    """What `make inventory SLURM=1` writes, with the settings of this site: these nodes only declare their GPUs."""
    fleet = new_slurm_fleet(settings={"gpuval_stages": ["facts", "work"], "work_workload": nap(1)})
    folder = tmp_path / "mine"
    command = [sys.executable, ROOT / "tools/inventory.py", "--slurm=1", f"--output={folder}"]
    made = subprocess.run(command, env=fleet.environment, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    assert "Slurm: 2 node(s), 2 chosen, partition gpu\n" in made.stdout
    assert "sku_h200: 8 GPUs expected, as 2 of 2 node(s) offer: correct it in group_vars/sku_h200.yml" in made.stdout
    path = folder / "group_vars/all.yml"
    written = yaml.safe_load(path.read_text())
    assert written["gpuval_slurm_partition"] == "gpu"
    assert yaml.safe_load((folder / "group_vars/sku_h200.yml").read_text()) == {"gpuval_gpu_count": 8}
    (folder / "group_vars/sku_h200.yml").unlink()  # as who corrects the number
    path.write_text(yaml.safe_dump({**written, **fleet.variables}))
    done = fleet._start(["gpuval.fleet.validate", "-i", str(folder)], ROOT, fleet.environment).wait(RUN_SECONDS)
    assert done.code == 0, str(done)
    assert fleet.report()["counts"]["PASS"] == 2


def test_ends_that_are_no_verdict_each_with_its_class(new_slurm_fleet, slurm):
    """One node is drained by others, one is missing; the third's job is cancelled after a new controller found it."""
    slurm.call("scontrol", "update", "nodename=gpu-2", "state=drain", "reason=bad fan")
    fleet = new_slurm_fleet(expected=["gpu-1", "gpu-2", "gpu-9"], settings=NAPS)
    playing = fleet.start()
    playing.expect("gpu-1 facts: success")
    until(lambda: "naps" in fleet.bed.execute("gpu-1", "sh", "-c", "cat /var/lib/gpuval/*/gpu-1/logs/work.log"), "naps")
    playing.kill()
    reached = fleet.play("gpuval.fleet.reach", "--check", "-e", "run_reach=follow run_reach_node=gpu-1")
    assert f"srun --jobid={max(slurm.jobs())} --overlap" in reached.told
    job = max(slurm.jobs())
    playing = fleet.start()
    playing.expect("0/3 done|2/3 done")
    slurm.call("scancel", str(job))
    done = playing.wait()
    assert done.code != 0
    assert (max(slurm.jobs()), slurm.jobs()[job]) == (job, "CANCELLED")  # the controller that resumed made no other job
    classes = {node: fleet.verdict(node)["class"] for node in ("gpu-1", "gpu-2", "gpu-9")}
    assert classes == {"gpu-1": "slurm_cancelled", "gpu-2": "slurm_drained", "gpu-9": "slurm_node_missing"}
    assert re.search(r"gpu-2 INCOMPLETE.*bad fan", done.told)
    assert fleet.report()["counts"]["INCOMPLETE"] == 3


def test_what_pends_at_the_deadline_says_why(new_slurm_fleet, slurm):
    """One node is busy with others' work, which is no verdict on it; the other's job is held."""
    slurm.call("sbatch", "--exclusive", "--nodelist=gpu-1", "--output=/dev/null", "--wrap=sleep 300")
    until(lambda: "RUNNING" in slurm.jobs().values(), "other work runs")
    held = "{{ ['--hold'] if inventory_hostname == 'gpu-2' else [] }}"
    own = {"gpuval_only_idle": True, "gpuval_deadline_seconds": 70, "gpuval_slurm_arguments": held}
    fleet = new_slurm_fleet(settings={**NAPS, **own})
    done = fleet.play()
    slurm.call("scancel", "--user=root")
    assert "Busy, not checked: gpu-1 (slurm_pending)" in done.told, str(done)
    assert fleet.verdict("gpu-2")["class"] == "slurm_pending"
    assert re.search(r"gpu-2 INCOMPLETE.*JobHeldUser", done.told)


def test_jobs_follow_the_partitions_limit_or_are_refused_at_once(new_slurm_fleet, slurm):
    """A limit that the job exceeds would let it pend for good."""
    slurm.call("scontrol", "update", "partitionname=gpu", "maxtime=3")
    try:
        short = {**NAPS, "gpuval_deadline_seconds": 3600, "work_workload": {**nap(1), "expected_seconds": 100}}
        fleet = new_slurm_fleet(settings=short)
        done = fleet.play()
        assert done.code == 0, str(done)
        assert "MaxTime=00:03:00 of partition gpu: jobs get 3 min 00 s, less than the run has left" in done.told
        assert "TimeLimit=00:03:00" in slurm.call("scontrol", "show", "job", str(max(slurm.jobs())), "-o")
        fleet.settings["work_workload"] = {**nap(1), "expected_seconds": 200}
        jobs = slurm.jobs()
        done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=too-short")
        assert slurm.jobs().keys() <= jobs.keys()  # Slurm forgets jobs that ended 300 s ago, and has no other
        assert re.search(r"gpu-1.* INCOMPLETE.*MaxTime=00:03:00 of partition gpu: jobs get 3 min 00 s", done.told), str(
            done
        )
    finally:
        slurm.call("scontrol", "update", "partitionname=gpu", "maxtime=INFINITE")


@pytest.mark.parametrize(("together", "jobs"), [(False, 2), (True, 1)])
def test_clean_cancels_what_is_left(new_slurm_fleet, slurm, tmp_path, together, jobs):
    gang = {"gpuval_jobs": [str(gang_jobs.write(tmp_path, {"name": "nap", "run": "sleep 90"}, name="work"))]}
    fleet = new_slurm_fleet(settings=gang if together else NAPS)
    playing = fleet.start(*(["gpuval.fleet.job"] if together else []))
    playing.expect("gpu-2 work: running" if together else "gpu-2 facts: success", RUN_SECONDS)
    playing.kill()
    done = fleet.play("gpuval.fleet.clean")
    assert done.code == 0, str(done)
    assert f"cancelled {jobs} job(s)" in done.told
    assert [state for _job, state in sorted(slurm.jobs().items())][-jobs:] == ["CANCELLED"] * jobs
    left = [fleet.left_on(node) for node in slurm.nodes]
    assert together or left == [[], []]


def test_a_gang_outlives_its_controller_and_names_the_node_that_fails(new_slurm_fleet, slurm, tmp_path):
    job = gang_jobs.write(tmp_path, {"name": "nap", "run": "echo napping; sleep 300"}, name="naps")
    fleet = new_slurm_fleet(
        settings={"gpuval_jobs": [str(job)], "gpuval_gang_search": False, "run_gang_lost_seconds": 20}
    )
    playing = fleet.start("gpuval.fleet.job")
    playing.expect("gpu-2 naps: running", RUN_SECONDS)
    playing.kill()
    job = max(slurm.jobs())
    seen = slurm.execute("gpu-2", "sh", "-c", "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep CUDA_VISIBLE")
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in seen, "the step has all GPUs"
    reached = fleet.play("gpuval.fleet.reach", "--check", "-e", "run_reach=follow run_reach_node=gpu-2")
    assert f"srun --jobid={job} --overlap --nodelist=gpu-2" in reached.told
    playing = fleet.start("gpuval.fleet.job")
    playing.expect("resumed")
    slurm.stop("gpu-2")
    done = playing.wait(RUN_SECONDS)
    slurm.start("gpu-2")
    assert done.code != 0
    assert max(slurm.jobs()) == job  # the controller that resumed made no other job
    assert "gpu-2" in fleet.record("gpu-1", "naps")["message"]
    assert fleet.verdict("gpu-1")["verdict"] == "INCOMPLETE"
    assert fleet.verdict("gpu-2")["class"] == "slurm_node_failed"
    assert re.search(rf"job {job} lost gpu-2: DOWN", done.told)
