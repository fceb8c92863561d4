"""One cause, one part: of what a slow part does to the figures of a node, the first part named is the right one.

The patterns are physical: a factor for each figure that depends on the part, put on one node of sixteen, and judged by
the shipped criteria.
"""

import copy
import re

import fleets
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import entries
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.implicated_parts import PartLayout, suspect_parts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import markdown_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page.causes import warned_parts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.problems import part_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import node_lines

from tests.kit.builders import SHIPPED, judge

FLEET = fleets.drawn(16, 0.005, 0.003, 1, each=0, planted={}, skus=("h200",))
NODE = "node-0000"
COLLECTIVES = r"diagnostics_(all_\w+|reduce_scatter|broadcast)_bus_bytes_per_second"
TRAINING = r"training_model_tflops"
#: By what fails the figures that fall, as pattern of "metric scope": all fall by the same share.
CORES = r"(diagnostics_matmul_\w+_tflops|diagnostics_overlap_ratio|training_compute_ratio) {gpu}"
MEMORY = r"diagnostics_memory_bytes_per_second {gpu}"
COPIES = r"diagnostics_(host_to_device|device_to_host|both_ways)\w*_bytes_per_second {gpu}"
LINKS = r"diagnostics_peer_bytes_per_second link:({name}>gpu\d|gpu\d>{name})"
TRAINED = rf"{TRAINING} gpu:\d"


def of_gpu(*patterns, gpu):
    return [pattern.format(gpu=f"gpu:{gpu}", name=f"gpu{gpu}") for pattern in patterns]


def on_cores(gpu, share):
    return share, of_gpu(CORES, TRAINED, gpu=gpu), f"gpu:{gpu}"


PATTERNS = {
    **{f"cores of gpu {gpu} by {share:.0%}": on_cores(gpu, share) for gpu in (0, 3, 7) for share in (0.1, 0.2, 0.4)},
    **{f"a share of gpu {gpu} is taken by {share:.0%}":
       (share, [*of_gpu(CORES, MEMORY, COPIES, LINKS, TRAINED, gpu=gpu), f"{COLLECTIVES} node"], f"gpu:{gpu}")
       for gpu in (1, 5) for share in (0.1, 0.3)},
    **{f"memory of gpu {gpu}": (0.15, of_gpu(MEMORY, TRAINED, gpu=gpu), f"gpu:{gpu}") for gpu in (2, 6)},
    **{f"slot of gpu {gpu}": (0.5, of_gpu(COPIES, gpu=gpu), f"gpu:{gpu}") for gpu in (0, 4)},
    **{f"all links of gpu {gpu}": (0.3, [*of_gpu(LINKS, gpu=gpu), f"{COLLECTIVES} node"], f"gpu:{gpu}")
       for gpu in (0, 1, 6)},
    **{f"half of the links of gpu {gpu}": (0.3, [rf"diagnostics_peer_bytes_per_second link:gpu{gpu}>gpu\d",
                                                f"{COLLECTIVES} node"], f"gpu:{gpu}") for gpu in (2, 7)},
    **{f"one link {a} to {b}": (0.4, [rf"diagnostics_peer_bytes_per_second link:gpu{a}>gpu{b}", f"{COLLECTIVES} node"],
                               f"link:gpu{a}>gpu{b}") for a, b in ((1, 3), (0, 7))},
    **{f"both ways {a} and {b}": (0.4, [rf"diagnostics_peer_bytes_per_second link:gpu({a}>gpu{b}|{b}>gpu{a})",
                                       f"{COLLECTIVES} node", TRAINED], rf"link:gpu({a}>gpu{b}|{b}>gpu{a})")
       for a, b in ((2, 5), (4, 6))},
    "host copies of all": (0.3, [COPIES.format(gpu=r"gpu:\d")], "host"),
    "host memory": (0.3, [COPIES.format(gpu=r"gpu:\d"), r"diagnostics_numa_memory_bytes_per_second node"],
                    "host memory"),
    "host memory alone": (0.3, [r"diagnostics_numa_memory_bytes_per_second node"], "(host memory|node|)"),
    "first NUMA node": (0.3, [COPIES.format(gpu="gpu:[0-3]")], "NUMA node 0"),
    "second NUMA node": (0.3, [COPIES.format(gpu="gpu:[4-7]"), r"diagnostics_numa_balance_ratio node"], "NUMA node 1"),
    "GPU switch": (0.4, [r"diagnostics_peer_bytes_per_second link:.*", f"{COLLECTIVES} node", TRAINED], "GPU switch"),
}  # fmt: skip


def disturbed(share, patterns):
    """The report on the fleet, in which those figures of one node fall by that share."""
    records = copy.deepcopy(FLEET.evidence.records[NODE])
    records["facts"]["environment"]["pci_accelerators"] = [
        {"address": gpu["pci_address"], "numa_node": gpu["index"] // 4}
        for gpu in records["facts"]["environment"]["gpus"]
    ]
    fallen = 0
    for record in records.values():
        for metric in record["metrics"]:
            if any(re.fullmatch(pattern, f"{metric['name']} {metric['scope']}") for pattern in patterns):
                metric["value"] *= 1 - share
                fallen += 1
            elif metric["name"] == "training_compute_p50_seconds" and f"_ratio) {metric['scope']}" in "".join(patterns):
                metric["value"] /= 1 - share
    assert fallen
    evidence = copy.copy(FLEET.evidence)
    evidence.records = {**FLEET.evidence.records, NODE: records}
    return judge(FLEET.run, evidence, SHIPPED)


def first_part(report):
    node = next(node for node in report["nodes"] if node["name"] == NODE)
    if node["verdict"] != "PASS":
        return part_of(node, entries.headline(node)).partition(",")[0].partition(";")[0]
    rows = [row for row in warned_parts(report) if NODE in row.nodes]
    return rows[0].part.partition(",")[0] if rows else None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_right_part_comes_first(pattern):
    share, patterns, part = PATTERNS[pattern]
    report = disturbed(share, patterns)
    first = first_part(report)
    bad = {node["name"] for node in report["nodes"] if node["verdict"] != "PASS"}
    assert re.fullmatch(part, first)
    assert bad <= {NODE}


def test_there_are_thirty_patterns():
    assert len(PATTERNS) >= 30


def test_a_gpu_stands_first_on_the_console_and_where_it_shows_behind_it():
    """A tenth of GPU 1 is lost: a link failed, all GPUs are slow in training, and GPU 1 itself only warned."""
    share, patterns, _ = PATTERNS["all links of gpu 1"]
    report = disturbed(share, patterns)
    (line,) = [line for line in node_lines(report) if line.startswith(NODE)]
    assert "(gpu:1, serial 0000001, 0000:91:00.0; seen in link:" in line
    text = markdown_report(report)
    assert "seen in link:gpu0" in text


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [("all links of gpu 1", ["gpu:1"]), ("GPU switch", ["GPU switch"]), ("host memory", ["host memory"])],
)
def test_the_action_names_the_part_that_explains_all(pattern, parts):
    node = next(node for node in disturbed(*PATTERNS[pattern][:2])["nodes"] if node["name"] == NODE)
    assert node["action"]["parts"] == parts


def test_findings_of_one_part_are_one_row_of_the_warnings():
    share, patterns, _ = PATTERNS["memory of gpu 2"]
    report = disturbed(share, patterns)
    rows = [row for row in warned_parts(report) if NODE in row.nodes and row.part]
    assert [row.part.partition(",")[0] for row in rows] == ["gpu:2"]
    assert len(rows[0].checks) > 1
    row = next(line for line in markdown_report(report).splitlines() if line.startswith("| gpu:2, serial 0000002"))
    assert all(f"{name[:12]}" in row.replace("\\", "") for name in rows[0].checks)


def symptom(part, metric, verdict="warn", stage="rdma", name=None):
    return {"name": name or metric, "stage": stage, "metric": metric, "verdict": verdict, "part": part}


OTHER_PARTS = {
    "link:mlx5_3:1": [("link:mlx5_3:1", "rdma_write_ratio"), ("link:mlx5_3:1", "combined_load_nic_ratio"),
                      ("link:mlx5_3:1>mlx5_4:1", "rdma_pair_ratio")],
    "mlx5_0": [("link:mlx5_0:1>mlx5_1:1", "rdma_pair_ratio"), ("link:mlx5_2:1>mlx5_0:1", "rdma_pair_ratio")],
    "link:nvme0n1": [("link:nvme0n1", "storage_sequential_read_bytes_per_second"),
                     ("link:nvme0n1", "storage_random_read_requests_per_second"),
                     ("link:nvme1n1", "storage_disk_used_ratio")],
    "gpu:2": [("rank:2", "diagnostics_matmul_fp32_tflops"), ("rank:2", "diagnostics_memory_bytes_per_second")],
}  # fmt: skip


@pytest.mark.parametrize("part", OTHER_PARTS)
def test_nics_disks_and_ranks_are_parts_too(part):
    suspects = suspect_parts([symptom(*shown) for shown in OTHER_PARTS[part]], PartLayout(8))
    assert suspects[0].part == part


def test_two_faults_are_two_findings_and_the_greater_one_comes_first():
    checks = [
        symptom("gpu:1", "diagnostics_matmul_bf16_tflops", "fail"),
        symptom("gpu:5", "diagnostics_memory_bytes_per_second"),
        symptom("gpu:5", "diagnostics_matmul_bf16_tflops"),
        symptom("node", "training_model_tflops", "fail"),
        symptom("gpu:5", "training_compute_ratio"),
        symptom("gpu:1", "training_compute_ratio"),
        symptom("node", "kernel_mce_count"),
    ]
    suspects = suspect_parts(checks, PartLayout(8))
    assert [(suspect.part, set(suspect.explains)) for suspect in suspects] == [
        ("gpu:5", {1, 2, 3, 4}),
        ("gpu:1", {0, 5}),
    ]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_lone_figure_of_a_node_names_no_part(gpus):
    assert suspect_parts([symptom("node", "training_model_tflops", "fail")], PartLayout(gpus)) == []
    assert suspect_parts([symptom("node", "gang_all_reduce_bus_bytes_per_second")] * 3, PartLayout(gpus)) == []
