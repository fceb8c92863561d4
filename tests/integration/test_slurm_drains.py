"""Verdicts as drains of a real Slurm: FAIL drains, what passes is resumed, the drains of others stay."""

import json
import os
import re

import pytest

from tests.kit.actions import run_action
from tests.kit.builders import write_report
from tests.kit.reports import report_of


@pytest.fixture
def mark(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{slurm.commands}{os.pathsep}{os.environ['PATH']}")

    def mark(report, *, check_mode=False, **options):
        folder = tmp_path / report["run"]["run_id"]
        (folder / ".state").mkdir(parents=True, exist_ok=True)
        write_report(report, folder)
        (folder / "run.json").write_text(json.dumps({"run_id": folder.name, "nodes": {}}))
        options = {"run_id": folder.name, "results_dir": str(tmp_path), "scheduler": "slurm", **options}
        done = run_action("mark_nodes", options, check_mode=check_mode)
        assert not done.failed, done.text
        return done.result

    return mark


def reason(slurm, node):
    found = re.search(r"Reason=(.*) \[", slurm.call("scontrol", "show", "node", node))
    return found[1] if found else ""


def test_fail_drains_and_what_passes_is_resumed(slurm, mark):
    slurm.call("scontrol", "update", "nodename=gpu-2", "state=drain", "reason=bad fan")
    failed = {"gpu-1": "FAIL", "gpu-2": "FAIL", "gpu-9": "FAIL"}
    assert mark(report_of(failed, 9), check_mode=True)["nodes"] == ["gpu-1"]
    assert "DRAIN" not in slurm.state("gpu-1")

    done = mark(report_of(failed, 10))
    assert (done["nodes"], done["missing"], done["foreign"]) == (["gpu-1"], ["gpu-9"], ["gpu-2 (bad fan)"])
    assert (slurm.state("gpu-1"), reason(slurm, "gpu-1")) == ("IDLE+DRAIN", "gpuval:run-10:speed")
    assert reason(slurm, "gpu-2") == "bad fan"

    loading = report_of(
        dict.fromkeys(("gpu-1", "gpu-2"), "PASS"), 11, narrowed_by=["tags"], stages=["facts", "loading"]
    )
    assert mark(loading)["open"] == {"gpu-1": ["training/speed"]}
    assert slurm.state("gpu-1") == "IDLE+DRAIN"

    passed = report_of(dict.fromkeys(("gpu-1", "gpu-2"), "PASS"), 12, narrowed_by=["limit"])
    done = mark(passed)  # tested until it passes, and then repaired
    assert (done["nodes"], done["open"]) == ([], {"gpu-1": ["repair/"]})
    repair = {"node": "gpu-1", "part": "node", "action": "dimm", "at": "2026-11-11T10:00:00Z", "by": "K. Weber"}
    assert mark(passed, repairs=[repair])["nodes"] == ["gpu-1"]
    assert "DRAIN" not in slurm.state("gpu-1") and reason(slurm, "gpu-1") == ""
    assert (slurm.state("gpu-2"), reason(slurm, "gpu-2")) == ("IDLE+DRAIN", "bad fan")

    mark(report_of({"gpu-1": "INCOMPLETE"}, 13))
    assert "DRAIN" not in slurm.state("gpu-1")
    hung = report_of({"gpu-1": "INCOMPLETE"}, 14)
    mark(hung, taint_incomplete=True)
    assert "DRAIN" not in slurm.state("gpu-1")  # nothing implicates the node
    hung = report_of({"gpu-1": "INCOMPLETE"}, 15)
    hung["nodes"][0]["class"] = "hung"
    mark(hung, taint_incomplete=True)
    assert reason(slurm, "gpu-1") == "gpuval:run-15:hung"
    released = run_action("mark_nodes", {"state": "absent", "run_ids": ["run-15"], "scheduler": "slurm"})
    assert (released.failed, released.result["nodes"]) == (False, ["gpu-1"])
    assert "DRAIN" not in slurm.state("gpu-1") and "DRAIN" in slurm.state("gpu-2")
