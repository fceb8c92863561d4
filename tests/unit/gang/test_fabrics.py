"""Nodes of NVLink domains work over the network and over NVLink, each judged and searched apart; others as always."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import fabrics, rounds, session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import GangContext, GangNode, Gangs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.sku_catalogue import is_in_domain
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit.builders import SHIPPED, check, facts_record, metric
from tests.kit.gang_bed import CHECKS, USUAL, Bed, Died, Fault, build
from tests.kit.judged_folder import report_on

UUIDS = [f"{number}f4a4bf1-07a0-79a1-939a-0a887f4bffa6" for number in range(1, 4)]
STAGES = ("collective", "collective_nvlink", "deepspeed", "fabric", "fabric_nvlink")
NETWORK_STAGES = ("collective", "deepspeed", "fabric")
NVLINK_CHECKS = [
    check("nvlink_speed", stage="collective_nvlink", metric=rounds.NVLINK_BUS, unit="bytes/s", value=0.9 * USUAL,
          of_gang=True),
    *(one for one in SHIPPED if one.name == "collective_nvlink_network"),
]  # fmt: skip


def rack_facts(name, uuid, clique=32766, model="NVIDIA GB300"):
    facts = facts_record(name, run_id="run-1", gpus=4)
    for gpu in facts["environment"]["gpus"]:
        gpu |= {"name": model, "model": model, "fabric_cluster_uuid": uuid, "fabric_clique": clique}
    return facts


class Racks(Bed):
    """Trays in racks, by `size` each. ``nvlink``: a gang with the faults that only show over NVLink; ``strays``: trays
    whose collectives went by the network instead."""

    def __init__(self, path, count=8, size=4, stages=STAGES, model="NVIDIA GB300", clique=32766, **settings):
        super().__init__(path, build(count, 1, rack=0, noise=0.0), stages=stages, **settings)
        self.nvlink, self.strays = build(count, 2, rack=0, noise=0.0), set()
        for place, name in enumerate(self.gang.nodes):
            facts = rack_facts(name, UUIDS[place // size], clique, model)
            folder.write_json(self.folder.evidence_file(name, "facts"), facts)

    def go(self):
        context = GangContext(self.carry, self.judge, lambda _document: self.step(), self.said.append, self.address)
        placed = {name: GangNode(f"10.0.0.{place}", 1) for place, name in enumerate(self.gang.nodes, 1)}
        known = session.properties(self.folder, self.folder.read_run())
        return Gangs(self.folder, self.settings, context).run_all(placed, known)

    def work(self, below, run, nodes):
        """As nodes do: over NVLink with the members of their clique, under the names of such figures."""
        network = self.gang
        super().work(below, run, nodes)
        members = run["gangs"][run["nodes"][nodes[0]]["gang"]["name"]]["members"]
        groups = list(fabrics.cliques({"": members}).values())
        self.gang = self.nvlink
        for group in groups:
            names = [member["node"] for member in group]
            planned = {name: run["nodes"][name]["stages"] for name in names}
            over_nvlink = {name: [one for one in own if one.endswith("_nvlink")] for name, own in planned.items()}
            part = {**run, "nodes": {name: {**run["nodes"][name], "stages": over_nvlink[name]} for name in names}}
            super().work(below, part, names)
            for name in names:
                for stage in over_nvlink[name]:
                    path = below.evidence_file(name, stage)
                    record = folder.read_json(path)
                    for one in record["metrics"]:
                        if one["name"] == rounds.BUS:
                            one["name"] = rounds.NVLINK_BUS
                    record["metrics"].append(metric(rounds.OTHER_NETWORK, int(bool(self.strays & {*names}))))
                    folder.write_json(path, record)
        self.gang = network

    def judge(self, gangs):
        return report_on(self.folder, [*CHECKS, *NVLINK_CHECKS], gangs=gangs, with_gangs=gangs is not None)

    def nodes(self):
        return {node["name"]: node for node in self.judge(self.document)["nodes"]}

    def verdicts(self):
        return {name: node["verdict"] for name, node in self.nodes().items()}


def stages_of(node):
    return [stage["name"] for stage in node["stages"]]


def open_checks(node):
    return {one["name"] for one in node["checks"] if one["verdict"] in ("fail", "missing")}


def test_racks_work_over_both_fabrics_in_one_round_and_each_is_searched(tmp_path):
    bed = Racks(tmp_path)
    bed.go()
    assert bed.verdicts() == dict.fromkeys(bed.gang.nodes, "PASS")
    assert list(bed.document["findings"]) == ["all", "all.nvlink1", "all.nvlink2"]
    assert list(bed.document["findings"]["all.nvlink2"]["nodes"]) == bed.gang.nodes[4:]
    first, *searched = bed.document["rounds"]
    assert first["name"] == "all"
    run = bed.below("all").read_run()
    assert all(node["stages"] == ["collective", "collective_nvlink", "deepspeed"] for node in run["nodes"].values())
    assert [member["clique"] for member in run["gangs"]["all"]["members"]] == [
        f"{UUIDS[place // 4]}.32766" for place in range(8)
    ]
    for entry in searched:
        (stage,) = {stage for node in bed.below(entry["name"]).read_run()["nodes"].values() for stage in node["stages"]}
        over_nvlink = stage == "fabric_nvlink"
        assert over_nvlink == ("stage" in entry)
        racks = [{bed.gang.nodes.index(node) // 4 for node in nodes} for nodes in entry["gangs"].values()]
        assert not over_nvlink or all(len(rack) == 1 for rack in racks), "no pair over NVLink is of two racks"
    for node in bed.nodes().values():
        assert stages_of(node) == ["facts", "collective", "collective_nvlink", "deepspeed", "fabric", "fabric_nvlink"]


@pytest.mark.parametrize("model", ["NVIDIA H200", "NVIDIA GB200 NVL4"])
def test_nodes_of_other_skus_have_the_rounds_that_they_always_had(tmp_path, model):
    assert not is_in_domain("h200") and not is_in_domain("gb200nvl4") and not is_in_domain(None)
    beds = [Racks(tmp_path / str(len(stages)), model=model, stages=stages) for stages in (STAGES, NETWORK_STAGES)]
    for bed in beds:
        bed.go()
    (gang,) = beds[0].document["gangs"]
    with_nvlink, without = (
        [(one["name"], one["gangs"], bed.below(one["name"]).read_run()["nodes"]) for one in bed.document["rounds"]]
        for bed in beds
    )
    assert [name for name, _, _ in with_nvlink] == [name for name, _, _ in without]
    assert {stage for _, _, nodes in with_nvlink for node in nodes.values() for stage in node["stages"]} == {
        "collective", "deepspeed", "fabric"
    }  # fmt: skip
    assert "clique" not in beds[0].document["gangs"][gang][0]
    said = [[line for line in bed.said if "round" in line] for bed in beds]
    assert said[0] == [line.replace("collective_nvlink, ", "") for line in said[1]]
    for node in beds[0].nodes().values():
        assert node["verdict"] == "PASS" and stages_of(node) == ["facts", "collective", "deepspeed", "fabric"]


def test_a_tray_that_is_slow_over_nvlink_alone_fails_by_its_own_search(tmp_path):
    bed = Racks(tmp_path)
    bed.nvlink.bad["node-006"] = Fault("slow", 0.5)
    bed.go()
    node = bed.nodes()["node-006"]
    assert (node["verdict"], open_checks(node)) == ("FAIL", {"fabric_nvlink_bad", "nvlink_speed"})
    assert bed.document["findings"]["all"]["nodes"]["node-006"] == "healthy"
    assert bed.others("node-006") == {"PASS"}
    assert bed.round_names[-1] == "all-again"
    again = bed.below("all-again").read_run()["nodes"]
    assert {*again} == {*bed.gang.nodes} - {"node-006"}
    assert bed.document["rounds"][-1]["repeats"] == {"all": ["collective_nvlink"]}


def test_a_bad_tray_is_named_with_the_gpu_whose_links_have_errors(tmp_path):
    bed = Racks(tmp_path)
    bed.nvlink.bad["node-006"] = Fault("slow", 0.5)
    work = bed.work

    def with_errors(below, run, nodes):
        work(below, run, nodes)
        path = below.evidence_file("node-006", "fabric_nvlink")
        if "node-006" in nodes and path.exists():
            record = folder.read_json(path)
            record["metrics"] += [
                metric(rounds.LINK_ERRORS, 41 if gpu == 2 else 0, "count", f"gpu:{gpu}") for gpu in range(4)
            ]
            folder.write_json(path, record)

    bed.work = with_errors
    bed.go()
    (reason,) = [one["reason"] for one in bed.nodes()["node-006"]["checks"] if one["name"] == "fabric_nvlink_bad"]
    assert "bad: " in reason and "gpu:2 has 41 new link errors" in reason and "gpu:1" not in reason


def test_a_tray_that_is_slow_over_the_network_alone_keeps_its_good_name_over_nvlink(tmp_path):
    bed = Racks(tmp_path)
    bed.gang.bad["node-002"] = Fault("slow", 0.5)
    bed.go()
    assert open_checks(bed.nodes()["node-002"]) == {"fabric_bad", "speed"}
    assert set(bed.document["findings"]["all.nvlink1"]["nodes"].values()) == {"healthy"}
    assert bed.others("node-002") == {"PASS"}


def test_without_fabric_in_the_profile_only_the_clique_that_failed_is_searched(tmp_path):
    bed = Racks(tmp_path, stages=STAGES[:3])
    bed.nvlink.bad["node-002"] = Fault("slow", 0.5)
    bed.go()
    assert list(bed.document["findings"]) == ["all.nvlink1"]
    assert bed.nodes()["node-002"]["verdict"] == "FAIL"
    assert bed.others("node-002") == {"PASS"}


def test_collectives_over_the_wrong_fabric_accept_no_tray_of_the_clique(tmp_path):
    bed = Racks(tmp_path)
    bed.strays = {"node-001"}
    bed.go()
    verdicts = bed.verdicts()
    assert [verdicts[node] for node in bed.gang.nodes] == ["INCOMPLETE"] * 4 + ["PASS"] * 4
    assert "collective_nvlink_network" in open_checks(bed.nodes()["node-003"])


def test_the_only_tray_of_its_clique_lacks_evidence_over_nvlink(tmp_path):
    bed = Racks(tmp_path, count=5)
    bed.go()
    node = bed.nodes()["node-005"]
    assert bed.others("node-005") == {"PASS"}
    assert node["verdict"] == "INCOMPLETE"
    reasons = {one["name"]: one["reason"] for one in node["checks"] if one["verdict"] == "missing"}
    for stage in ("collective_nvlink", "fabric_nvlink"):
        assert fabrics.NO_PEER in reasons[f"{stage}_state"]
    assert all("nvlink" in name for name in reasons), "the network was tested"
    assert bed.below("all").read_run()["nodes"]["node-005"]["stages"] == ["collective", "deepspeed"]


def test_a_tray_that_is_alone_of_its_clique_without_the_bad_ones_lacks_evidence_over_nvlink(tmp_path):
    bed = Racks(tmp_path, count=6, size=2)
    bed.gang.bad["node-002"] = Fault("slow", 0.5)
    bed.go()
    nodes = bed.nodes()
    assert [bed.verdicts()[name] for name in bed.gang.nodes] == ["INCOMPLETE", "FAIL", *["PASS"] * 4]
    (state,) = (one for one in nodes["node-001"]["checks"] if one["name"] == "collective_nvlink_state")
    assert fabrics.NO_PEER in state["reason"]
    assert all("nvlink" in name for name in open_checks(nodes["node-001"])), "the network was tested again"


def test_trays_whose_facts_name_no_clique_are_not_accepted_by_the_network_alone(tmp_path):
    bed = Racks(tmp_path, count=4, clique=0)
    bed.go()
    assert set(bed.verdicts().values()) == {"INCOMPLETE"}


def test_tags_leave_one_fabric(tmp_path):
    for stages, rounds_wanted in ((STAGES[1::3], {"collective_nvlink"}), (("collective",), {"collective"})):
        bed = Racks(tmp_path / stages[0], stages=stages)
        bed.go()
        run = bed.below("all").read_run()["nodes"]
        assert {stage for node in run.values() for stage in node["stages"]} == rounds_wanted


def test_a_controller_that_dies_anywhere_resumes_both_searches(tmp_path):
    whole = Racks(tmp_path / "whole")
    whole.go()
    steps = whole.happened
    assert steps > 20
    for dies_at in range(3, steps, 7):
        bed = Racks(tmp_path / str(dies_at))
        bed.dies_at = dies_at
        with pytest.raises(Died):
            bed.go()
        bed.dies_at = None
        bed.go()
        assert set(bed.verdicts().values()) == {"PASS"}
        assert bed.round_names == whole.round_names


def test_more_time_is_left_for_a_round_with_stages_over_nvlink(tmp_path):
    for name, model, seconds in (("racks", "NVIDIA GB300", 1100), ("others", "NVIDIA H200", 1000)):
        bed = Racks(tmp_path / name, model=model, round_seconds=1000, nvlink_seconds=100)
        bed.go()
        assert bed.below(bed.round_names[0]).read_run()["deadline_seconds"] == seconds


@pytest.mark.parametrize(
    ("gpus", "clique"),
    [
        ([(UUIDS[0], 32766)] * 4, f"{UUIDS[0]}.32766"),
        ([(UUIDS[0], 1)] * 3 + [(UUIDS[0], 2)], ""),
        ([(UUIDS[0], 0)] * 4, ""),
        ([("00000000-0000-0000-0000-000000000000", 1)] * 4, ""),
        ([("../../" + UUIDS[0], 1)], ""),
        ([(None, None)], ""),
        ([], ""),
    ],
)
def test_a_clique_is_cluster_and_number_of_all_gpus(gpus, clique):
    facts = facts_record()
    facts["environment"]["gpus"] = [{"fabric_cluster_uuid": uuid, "fabric_clique": number} for uuid, number in gpus]
    assert fabrics.clique_of(facts) == clique
    assert fabrics.clique_of(None) == ""
