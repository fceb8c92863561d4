"""A stage of an extension in pods and in jobs of Slurm, and a scheduler of an extension with its own classes."""

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_fleet import ClusterFleet, Containers
from tests.kit.extension import write_extension
from tests.kit.flux import write_flux

NIGHT = {"gpuval_profile": "night", "gpuval_gang_stages": {}}


class ProfiledFleet(ClusterFleet):
    """Its stages are those of the profile."""

    @property
    def variables(self):
        return {name: value for name, value in super().variables.items() if name != "gpuval_stages"}


def assert_burned(fleet, node):
    """The node ran the stage's own program, by the profile's setting, and its criteria judged it."""
    fleet.assert_evidence(node, {"facts": "success", "burn": "success"})
    assert "burned by the site's own program" in fleet.log(node, "burn")
    figures = {metric["name"]: metric["value"] for metric in fleet.record(node, "burn")["metrics"]}
    assert figures["burn_seconds"] == 3
    checks = {check["name"]: check["verdict"] for check in fleet.verdict(node)["checks"]}
    assert checks["burn_turned"] == "pass"


def test_a_stage_of_an_extension_runs_in_pods(tmp_path):
    extension = str(write_extension(tmp_path / "site"))
    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods")) as kit:
        kit.add_nodes(2, gpus=0)
        settings = {**NIGHT, "gpuval_extensions": [extension], "gpuval_workload_python": "python3"}
        fleet = ProfiledFleet(tmp_path / "fleet", kit=kit, settings=settings)
        done = fleet.play()
        assert done.code == 0, str(done)
        names = sorted(fleet.read_run()["nodes"])
        for node in names:
            assert_burned(fleet, node)
        done = fleet.play("gpuval.fleet.validate", "-e", "burn_turns=0", "-e", "gpuval_run_id=new")
        assert done.code != 0
        assert [fleet.verdict(node)["class"] for node in names] == ["burn_turned"] * 2
        done = fleet.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
        assert done.code == 0, str(done)
        assert [kit.all(kind) for kind in ("Job", "Pod", "Secret", "ConfigMap")] == [[], [], [], []]


def test_a_stage_of_an_extension_runs_in_jobs_of_slurm(tmp_path, new_slurm_fleet):
    extension = str(write_extension(tmp_path / "site"))
    fleet = new_slurm_fleet(settings={**NIGHT, "gpuval_extensions": [extension]})
    done = fleet.play()
    assert done.code == 0, str(done)
    for node in ("gpu-1", "gpu-2"):
        assert_burned(fleet, node)
    assert [fleet.left_on(node) for node in fleet.bed.nodes] == [[], []]


def test_a_scheduler_of_an_extension_has_its_own_classes(tmp_path, new_slurm_fleet, slurm):
    """One node is drained by others, one is missing; the others' verdicts stand."""
    slurm.call("scontrol", "update", "nodename=gpu-2", "state=drain", "reason=bad fan")
    extension = str(write_flux(write_extension(tmp_path / "site")))
    own = {"gpuval_extensions": [extension], "gpuval_retries": 0}
    fleet = new_slurm_fleet(expected=["gpu-1", "gpu-2", "gpu-9"], settings={**NIGHT, **own})
    done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_placement=flux")  # the inventory says slurm
    assert done.code != 0
    assert fleet.verdict("gpu-1")["verdict"] == "PASS", str(done)
    assert_burned(fleet, "gpu-1")
    classes = {node: fleet.verdict(node)["class"] for node in ("gpu-2", "gpu-9")}
    assert classes == {"gpu-2": "flux_drained", "gpu-9": "flux_node_missing"}
    actions = {fleet.verdict(node)["action"]["name"] for node in classes}
    assert actions == {"retest"}, "of classes whose subject is the scheduler"
    assert "bad fan" in done.told
