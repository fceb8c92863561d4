"""Swapped cables found by a real lldpd: two nodes and a switch as network namespaces, cables as veth pairs."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import cabling_plan

from tests.kit.builders import SHIPPED, facts_record, healthy, judge, make_run
from tests.kit.fleet import ROOT, until
from tests.kit.needs import needs_namespaces, needs_programs

LIMIT_SECONDS = 60
PORTS = {"node-1": ("eth4", "eth5", "eth6"), "node-2": ("eth4", "eth5", "eth6")}
FACTS = """
import json
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import cabling, tools, tree
print(json.dumps(cabling.facts(tree.Tree("/"), tools.toolbox())))
"""


@pytest.fixture(autouse=True)
def machine():
    needs_namespaces()
    needs_programs({"lldpd": "lldpd", "lldpctl": "lldpd"})


class CableLab:
    """A switch leaf1 and two nodes, each with an lldpd of its own."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        self.names = {name: f"gv{os.getpid()}-{index}" for index, name in enumerate(("leaf1", *PORTS))}
        for namespace in self.names.values():
            self.ip("netns", "add", namespace)
            stack.callback(self.ip, "netns", "del", namespace)

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def cable(self, node, port, switch_port):
        near, far = self.names[node], self.names["leaf1"]
        self.ip("link", "add", port, "netns", near, "type", "veth", "peer", "name", switch_port, "netns", far)
        self.ip("-n", near, "link", "set", port, "up")
        self.ip("-n", far, "link", "set", switch_port, "up")

    def inside(self, name, *command, **options):
        return ["ip", "netns", "exec", self.names[name], *command]

    def start_lldpd(self):
        self.ip("netns", "exec", self.names["leaf1"], "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for name in self.names:
            # a file that the tools of each namespace find as lldpctl, which asks that namespace's lldpd
            socket, tools = self.folder / f"{name}.sock", self.folder / name
            tools.mkdir()
            (tools / "lldpctl").write_text(f'#!/bin/sh\nexec {shutil.which("lldpctl")} -u {socket} "$@"\n')
            (tools / "lldpctl").chmod(0o755)
            process = subprocess.Popen(self.inside(name, shutil.which("lldpd"), "-d", "-u", str(socket)),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
            self.stack.callback(process.wait, LIMIT_SECONDS)
            self.stack.callback(process.terminate)
            until(
                lambda socket=socket: self.configures(socket, "lldp tx-interval 1"), f"lldpd of {name}", LIMIT_SECONDS
            )
        for words in ("system hostname leaf1.dc.example", "lldp portidsubtype ifname"):
            assert self.configures(self.folder / "leaf1.sock", words)

    def configures(self, socket, words):
        command = ["lldpcli", "-u", str(socket), "configure", *words.split()]
        return subprocess.run(command, check=False, capture_output=True, timeout=LIMIT_SECONDS).returncode == 0

    def facts(self, name):
        """What the node sees, once it sees the switch's name on all ports."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "collections"),
            "PATH": f"{self.folder / name}:{os.environ['PATH']}",
        }

        def complete():
            command = self.inside(name, sys.executable, "-c", FACTS)
            answer = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=LIMIT_SECONDS)
            ports = {port["names"][0]: port for port in json.loads(answer.stdout)}
            seen = [
                peer for port in ports.values() for peer in port["neighbours"] if peer["name"] == "leaf1.dc.example"
            ]
            return ports if len(seen) == len(PORTS[name]) else None

        return [*until(complete, "the switch as the neighbour of all ports", LIMIT_SECONDS).values()]


def test_swapped_cables_are_named_with_both_ends():
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o711)  # lldpcli drops root before it opens the socket
        lab = CableLab(folder, stack)
        rows = [(node, port, "leaf1", f"swp{index}") for index, (node, port) in
                enumerate(((node, port) for node, ports in PORTS.items() for port in ports), 1)]  # fmt: skip
        swapped = {"swp1": "swp4", "swp4": "swp1"}
        for node, port, _, switch_port in rows:
            lab.cable(node, port, swapped.get(switch_port, switch_port))
        lab.start_lldpd()
        seen = {node: lab.facts(node) for node in PORTS}
    text = "".join(f"{','.join(row)}\n" for row in (cabling_plan.COLUMNS, *rows))
    plan = cabling_plan.parse(text, "cabling.csv", PORTS)
    run = make_run(tuple(PORTS), stages=["facts"])
    evidence = healthy(run)
    for node in PORTS:
        hostvars = {cabling_plan.SETTING: "cabling.csv"}
        run["nodes"][node]["declared"] = cabling_plan.of_host(node, hostvars, {"cabling.csv": plan}.get)
        facts = facts_record(node)
        facts["environment"]["cabling"] = seen[node]
        evidence.records[node] = {"facts": facts}
    report = judge(run, evidence, SHIPPED)
    reasons = [check["reason"] for node in report["nodes"] for check in node["checks"] if check["name"] == "cabling"]
    ends = [("node-1", "node-2", "swp1", "swp4"), ("node-2", "node-1", "swp4", "swp1")]
    assert reasons == [
        f"{node} eth4: plan leaf1 {planned}, found leaf1.dc.example {found}; "
        f"the cables of {node} eth4 and {other} eth4 are swapped"
        for node, other, planned, found in ends
    ]
    assert [node["verdict"] for node in report["nodes"]] == ["FAIL", "FAIL"]
