"""A hostfile of an earlier gang is never left where the next one is looked for."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import hostfiles
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit.builders import facts_record, metric
from tests.kit.gang_actions import write_hostfile_of
from tests.kit.gang_bed import Bed, build

OF_ALL = "".join(f"10.0.0.{place} slots=1\n" for place in range(1, 5))


def ended(tmp_path, run_id="run-1", *, racks=None, unfit=()):
    """Four nodes of CPUs whose search is over, in the results of `tmp_path`."""
    gang = build(4, 1, rack=0, noise=0.0)
    bed = Bed(tmp_path, gang, stages=["fabric"], run_id=run_id, labels=racks, unfit=unfit)
    run = bed.folder.read_run()
    for node, expected in run["nodes"].items():
        expected.update(sku="cpu", gpu_count=0)
        if node not in unfit:
            facts = facts_record(node, vendor="cpu", gpus=0, run_id=run_id)
            facts["metrics"].append(metric("gpu_without_driver_count", 0))
            folder.write_json(bed.folder.evidence_file(node, "facts"), facts)
    bed.folder.write_run(run)
    bed.go()
    return bed


def racks_of(bed):
    run = bed.folder.read_run()
    for place, node in enumerate(run["nodes"].values()):
        node["labels"] = {"rack": f"r{place // 2}"}
    bed.folder.write_run(run)


def test_one_of_all_is_gone_where_there_are_two_gangs_now(tmp_path):
    bed, shared = ended(tmp_path), tmp_path / "hostfile"
    assert not write_hostfile_of(bed, path=str(shared)).failed
    assert shared.read_text() == OF_ALL
    racks_of(bed)
    done = write_hostfile_of(bed, path=str(shared), group_by=["rack"], check_mode=True)
    assert (done.failed, shared.read_text()) == (False, OF_ALL), done.text
    done = write_hostfile_of(bed, path=str(shared), group_by=["rack"])
    assert not done.failed, done.text
    assert f"{shared} is of an earlier gang: it is removed" in done.text
    assert sorted(path.name for path in tmp_path.glob("hostfile*")) == ["hostfile.r0", "hostfile.r1"]
    assert not write_hostfile_of(bed, path=str(shared)).failed
    assert [path.name for path in tmp_path.glob("hostfile*")] == ["hostfile"]


def test_one_of_another_run_is_gone_where_no_gang_is_left(tmp_path):
    shared = tmp_path / "hostfile"
    assert not write_hostfile_of(ended(tmp_path), path=str(shared)).failed
    later = ended(tmp_path, "run-2", unfit=["node-001", "node-002", "node-003"])
    done = write_hostfile_of(later, path=str(shared))
    assert done.failed
    assert "no two nodes of the run may work together" in done.text
    assert f"removed, since they are of earlier gangs: {shared}" in done.text
    assert not shared.exists()


def test_what_others_wrote_or_changed_stays(tmp_path):
    results, target = tmp_path / "results", tmp_path / "hostfile"
    hostfiles.write(results, {target: "a slots=1\n", tmp_path / "hostfile.x": "b slots=1\n"}, [])
    (tmp_path / "hostfile.mine").write_text("c slots=1\n")
    (tmp_path / "hostfile.x").write_text("b slots=8\n")
    assert hostfiles.stale(results, target) == [target]
    assert hostfiles.stale(results, target, [target]) == []
    assert hostfiles.stale(results, tmp_path / "other") == []
    (results / hostfiles.FILE).write_text("[")
    assert hostfiles.stale(results, target) == []
