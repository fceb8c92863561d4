"""Nodes of which the first is slower than its peers whenever it is measured; the watch measures it again with two."""

import json
import re

#: A comparison of so few nodes is a verdict where one of them is far off.
NODES = 8
STAGE = "work"
METRIC = "work_items_per_second"
PEERS = {
    "name": "work_peers", "stage": STAGE, "metric": METRIC, "unit": "requests/s", "kind": "outlier", "peers": "fleet",
    "max_below": 0.03, "deviations": 4, "severity": "required", "retry": True, "source": "Peers.", "remedy": "Look.",
}  # fmt: skip
#: The last figure of the node's name scatters the speed of the others. The node is busy until the file is there.
MEASURE = """\
number=$(printf %s "$GPUVAL_NODE" | tail -c 1)
speed=100.$number; [ "$number" = 1 ] && speed=70
while [ -n "$1" ] && [ ! -e "$1" ]; do sleep 0.2; done
printf '{"state": "success", "metrics": [{"name": "work_items_per_second", "value": %s, "unit": "requests/s",
"scope": "node"}]}' "$speed" > "$GPUVAL_RESULT_FILE"
"""


def settings(folder, until=""):
    """Settings of a run of these nodes; a criteria file lies in the folder. The work lasts until a file exists."""
    criteria = folder / "criteria.json"
    criteria.write_text(json.dumps({"schema": "gpuval.criteria/1", "checks": [PEERS]}))
    work = {"command": ["sh", "-c", MEASURE, "sh", until], "timeout_seconds": 300, "needs": ["facts"]}
    return {"gpuval_stages": ["facts", STAGE], "work_workload": work, "gpuval_criteria": [str(criteria)]}


def measured_again(done):
    """By the console, the nodes that are to be measured again: the first node, and two good ones."""
    found = re.search(r"1 nodes differ from their peers; measured again, with good ones: (.*)", done.output)
    assert found, done
    names = found[1].strip().split(", ")
    assert len(names) == 3 and names[0].endswith("1"), names
    return names


def assert_only_first_differs(report, again, warned_of=""):
    """The first node, alone, is no PASS. ``again``: the nodes that were to be measured again; they alone have a warning
    with these words."""
    nodes = {node["name"]: node for node in report["nodes"]}
    reasons = {name: node["class"] for name, node in nodes.items() if node["verdict"] != "PASS"}
    assert list(reasons) == again[:1], reasons
    for name, node in nodes.items():
        reasons = [check["reason"] for check in node["checks"] if check["name"] == "not_measured_again"]
        assert len(reasons) == bool(warned_of and name in again), (name, reasons)
        assert all(warned_of in reason for reason in reasons), reasons
