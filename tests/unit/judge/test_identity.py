"""Machines that are listed twice, clones of one disk, and nodes that claim to be others.

Fleets of a few nodes on SSH, Kubernetes and Slurm. A machine has GPUs, a serial, a machine id and, on SSH, a host key.
What a node reports of them is known or hidden. An honest node is never worse than a warning. One machine under two
names is always found where an id of both is known.
"""

import json
from dataclasses import dataclass, field

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import placement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import identity
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import earlier_faults, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import drains
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.drains import SlurmNode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.builders import check, healthy, judge, make_record, make_run, metric, training_metrics

SSH, KUBERNETES, SLURM, LOCAL = "ssh", "kubernetes", "slurm", "local"
HONEST = ("pass", "warn")


@dataclass
class Node:
    """What a node reports, and what the controller knows of it. ``other`` is the node whose ids it copies."""

    name: str
    machine_id: str = ""
    serial: str = ""
    gpus: list = field(default_factory=list)
    host_key: str = ""
    machine: str = ""
    #: UUIDs of its list of GPUs; None: those that it reports.
    listed: list = None
    #: UUIDs of the GPUs that training worked on; None: the facts' own.
    at_work: list = None
    hostname: str = ""
    earlier: list = ()


def machine(name, scheduler=SSH, gpus=4, **fields):
    """An honest node on a machine of its own. ``gpus`` is their number, or the UUIDs that it reports."""
    defaults = {
        "machine_id": f"id-of-{name}",
        "serial": f"serial-of-{name}",
        "gpus": [f"GPU-{name}-{index}" for index in range(gpus)] if isinstance(gpus, int) else gpus,
        "host_key": f"SHA256:{name}" if scheduler == SSH else "",
        "machine": f"uid-{name}" if scheduler == KUBERNETES else name if scheduler == SLURM else "",
    }
    return Node(name, **{**defaults, **fields})


def copy_of(original, name, scheduler=SSH, **fields):
    """A node on a machine of its own that reports the identity of another's."""
    reported = {key: getattr(original, key) for key in ("machine_id", "serial", "gpus", "hostname")}
    return machine(name, scheduler, **{**reported, **fields})


def evidence_of(nodes):
    run = make_run([node.name for node in nodes], stages=["facts", "training"])
    evidence = healthy(run)
    for node in nodes:
        listed = node.gpus if node.listed is None else node.listed
        environment = evidence.records[node.name]["facts"]["environment"]
        environment["identity"] = {"machine_id": node.machine_id, "serial": node.serial, "gpu_uuids": node.gpus}
        environment["gpus"] = [{"index": index, "name": "H200", "uuid": uuid} for index, uuid in enumerate(listed)]
        environment["os"] = {"hostname": node.hostname}
        at_work = node.gpus if node.at_work is None else node.at_work
        evidence.records[node.name]["training"]["environment"]["devices"] = [
            {"index": index, "uuid": uuid.removeprefix("GPU-")} for index, uuid in enumerate(at_work)
        ]
        evidence.launches[node.name] |= {key: getattr(node, key) for key in ("host_key", "machine")}
        evidence.earlier_gpus[node.name] = frozenset(uuid.lower() for uuid in node.earlier)
    return run, evidence


def identity_entries(nodes):
    report = judge(*evidence_of(nodes))
    return {
        node["name"]: next(check for check in node["checks"] if check["name"] == "identity") for node in report["nodes"]
    }


def verdicts(*nodes):
    return {name: entry["verdict"] for name, entry in identity_entries(nodes).items()}


IMAGE = {"machine_id": "of-the-image"}
A = machine("a")
#: Name, nodes, verdicts of their check `identity`.
CASES = [
    # honest nodes
    ("strangers", [A, machine("b")], "pass pass"),
    ("one disk image", [machine("a", **IMAGE), machine("b", **IMAGE)], "warn warn"),
    ("one disk image, serials hidden", [machine(name, serial="", **IMAGE) for name in "ab"], "warn warn"),
    ("one disk image, no GPUs, serials hidden", [machine(n, serial="", gpus=0, **IMAGE) for n in "ab"], "warn warn"),
    ("one disk image with its host key", [machine(n, host_key="SHA256:x", **IMAGE) for n in "ab"], "warn warn"),
    ("one disk image with its host key, no GPUs",
     [machine(n, host_key="SHA256:x", gpus=0, **IMAGE) for n in "ab"], "warn warn"),
    ("one host key, other ids", [machine(n, host_key="SHA256:x") for n in "ab"], "warn warn"),
    ("serial of a batch", [machine(n, serial="batch") for n in "ab"], "warn warn"),
    ("a clone with broken GPUs", [A, machine("b", gpus=0, machine_id=A.machine_id)], "warn warn"),
    ("a clone with broken GPUs, no serials, baked host key",
     [machine("a", serial="", host_key="SHA256:x", **IMAGE),
      machine("b", serial="", host_key="SHA256:x", gpus=0, **IMAGE)], "warn warn"),
    ("pods of one image, no GPUs, no serials",
     [machine(n, KUBERNETES, gpus=0, serial="", **IMAGE) for n in "ab"], "warn warn"),
    ("Slurm nodes of one image, no GPUs, no serials",
     [machine(n, SLURM, gpus=0, serial="", **IMAGE) for n in "ab"], "warn warn"),
    ("unknown host keys, disjoint GPUs", [machine(n, LOCAL, serial="", **IMAGE) for n in "ab"], "warn warn"),
    # one machine under two names
    ("one machine", [A, copy_of(A, "b", host_key=A.host_key)], "fail fail"),
    ("one machine, serial hidden from one", [A, copy_of(A, "b", host_key=A.host_key, serial="")], "fail fail"),
    ("one machine, only its GPUs known",
     [machine("a", LOCAL, machine_id="", serial=""), machine("b", LOCAL, machine_id="", serial="", gpus=A.gpus)],
     "fail fail"),
    ("one machine without GPUs",
     [machine("a", gpus=0), machine("b", gpus=0, machine_id="id-of-a", serial="serial-of-a", host_key="SHA256:a")],
     "fail fail"),
    ("one machine without GPUs, host keys unknown",
     [machine("a", LOCAL, gpus=0), machine("b", LOCAL, gpus=0, machine_id="id-of-a", serial="serial-of-a")],
     "fail fail"),
    # a node that claims another's identity
    ("all copied, host keys differ", [A, copy_of(A, "b")], "warn warn"),
    ("all copied in a cluster", [machine("a", KUBERNETES), copy_of(A, "b", KUBERNETES)], "warn warn"),
    ("all copied on Slurm", [machine("a", SLURM), copy_of(A, "b", SLURM)], "warn warn"),
    ("all copied, without a list of GPUs", [A, copy_of(A, "b", listed=[])], "warn fail"),
    ("all copied, its list of GPUs is its own", [A, copy_of(A, "b", listed=machine("b").gpus)], "warn fail"),
    ("all copied, also the host key, but the list", [A, copy_of(A, "b", listed=machine("b").gpus, host_key=A.host_key)],
     "warn fail"),
    ("all copied, it works on its own GPUs", [A, copy_of(A, "b", at_work=machine("b").gpus)], "warn fail"),
    ("all copied, it had other GPUs before",
     [machine("a", earlier=A.gpus), copy_of(A, "b", earlier=machine("b").gpus)], "warn fail"),
    ("all copied, in the earlier run too",
     [machine("a", earlier=A.gpus), copy_of(A, "b", earlier=A.gpus)], "warn warn"),
    ("all copied with the hostname",
     [machine("gpu-1", hostname="gpu-1.site"), copy_of(machine("gpu-1", hostname="gpu-1.site"), "gpu-2")], "warn fail"),
    ("all copied with GPUs of its own", [A, copy_of(A, "b", gpus=[*A.gpus, *machine("b").gpus], listed=A.gpus)],
     "warn fail"),
    ("a part of the GPUs", [machine("a", gpus=8), machine("b", gpus=[f"GPU-a-{i}" for i in range(4)])], "warn warn"),
    ("one of the GPUs", [A, machine("b", gpus=[A.gpus[0], "GPU-b-1"])], "warn warn"),
    ("one of the GPUs, host keys unknown", [machine("a", LOCAL), machine("b", LOCAL, gpus=[A.gpus[0], "GPU-b-1"])],
     "missing missing"),
    ("a name without GPUs of its own", [machine("a", LOCAL), copy_of(A, "b", LOCAL, gpus=[], listed=A.gpus)],
     "warn fail"),
    ("all copied by two", [A, copy_of(A, "b"), copy_of(A, "c", listed=machine("c").gpus)], "warn warn fail"),
    ("two take a GPU each",
     [machine("a"), machine("b", gpus=[A.gpus[0], "GPU-b-1"]), machine("c", gpus=[A.gpus[1], "GPU-c-1"])],
     "warn warn warn"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_identities_of_nodes(nodes, expected):
    assert " ".join(verdicts(*nodes).values()) == expected
    assert " ".join(verdicts(*nodes[::-1]).values()) == expected, "the order of the nodes decides"


def test_every_rule_and_every_contradiction_decides_a_case():
    decided, contradictions = set(), set()
    for _, nodes, _ in [*CASES, ("many", [A, *(machine(n) for n in "bcd"), robber("e")], "")]:
        for pair, _ in identity._pairs(*evidence_of(nodes)):
            decided.add(next(name for name, holds, _ in identity.PAIR_RULES if holds(pair)))
            contradictions.add(pair.claimer[1])
    assert decided == {name for name, *_ in identity.PAIR_RULES}
    assert contradictions == {"", *identity.CONTRADICTIONS}


def robber(name):
    return machine(name, gpus=["GPU-e-0", *(f"GPU-{victim}-0" for victim in "abcd")])


def test_clones_in_a_cluster_have_machines_of_their_own_which_the_store_is_given():
    nodes = [{"metadata": {"uid": uid}, "status": {"nodeInfo": {"machineID": "cloned"}}} for uid in ("u1", "u2")]
    first, second = map(placement._machine, nodes)
    assert first != second
    assert placement._machine({"metadata": {"uid": "u1"}, "status": {"nodeInfo": {"machineID": "new"}}}) != first
    launch = {"state": "started", "machine": first}
    schemas.validate("launch", launch, what="launch")
    assert publishing.published_launch(launch)["machine"] == first


def test_a_contradicted_claim_names_the_evidence_against_it():
    entry = identity_entries([A, copy_of(A, "b", listed=machine("b").gpus)])["b"]
    assert entry["reason"].endswith(": its list of GPUs lacks the UUID")
    disputed = identity_entries([A, copy_of(A, "b")])
    assert all(entry["reason"].startswith(identity.DISPUTED) for entry in disputed.values())


def test_a_fault_of_the_node_stands_before_its_identity():
    run, evidence = evidence_of([machine("a", LOCAL), copy_of(A, "b", LOCAL)])
    message = "8 GPUs on the PCI bus, but no working driver"
    evidence.records["b"]["facts"].update(state="failure", message=message, exit_code=1)
    lines = judge(run, evidence)["summary"]
    assert any(line.startswith("a INCOMPLETE") and "one machine listed twice" in line for line in lines)
    assert any(line.startswith("b FAIL facts") and message in line for line in lines)


def test_a_machine_that_is_listed_twice_is_an_error_of_the_inventory():
    """Of no node: no action that takes one out of use, none that earlier runs make graver, and no drain."""
    run, evidence = evidence_of([machine("a", LOCAL), copy_of(A, "b", LOCAL)])
    report = judge(run, evidence, earlier={("same_machine_twice", "serial serial-of-a"): {"r1", "r2", "r3"}})
    for node in report["nodes"]:
        (check,) = [check for check in node["checks"] if check["verdict"] == "fail"]
        assert (node["verdict"], node["class"], node["flaky"]) == ("INCOMPLETE", "same_machine_twice", False)
        assert (node["action"]["name"], node["action"]["earlier_runs"]) == ("retest", [])
        assert (check["name"], check["class"]) == ("identity", "same_machine_twice")
        assert check["remedy"].startswith("fix the inventory: give every machine one name")
        seen = SlurmNode(frozenset({"IDLE"}))
        for incomplete in (False, True):
            assert drains.decide(seen, node, report["run"], None, incomplete=incomplete).state == ""
    assert report["verdict"] == "INCOMPLETE"


@pytest.mark.parametrize(("clone", "verdict"), [(IMAGE, "PASS"), ({}, "INCOMPLETE")])
def test_gpus_that_a_machine_lacked_earlier_are_not_missed_on_the_clones_of_its_disk(clone, verdict):
    run, evidence = evidence_of([machine(name, gpus=0, serial="", **clone) for name in "ab"])
    for name in "ab":
        evidence.records[name]["facts"]["environment"]["accelerator"] = {"vendor": "cpu", "count": 0}
        evidence.records[name]["facts"]["metrics"] = [metric("gpu_count", 0), metric("gpu_hardware_count", 0)]
        evidence.records[name]["training"]["metrics"] = training_metrics(2, part="rank")
    of_clone = f"machine_id {'of-the-image' if clone else 'id-of-a'}"
    report = judge(run, evidence, [check("speed")], earlier={("accelerator", of_clone): {"earlier"}})
    assert report["nodes"][0]["verdict"] == verdict


@pytest.mark.parametrize(("listed", "verdict"), [(machine("b").gpus, "PASS"), (None, "INCOMPLETE")])
def test_figures_that_a_liar_copied_are_held_against_it_alone(listed, verdict):
    run, evidence = evidence_of([A, copy_of(A, "b", listed=listed)])
    for name in "ab":
        evidence.records[name]["training"]["metrics"] += [
            metric(f"training_{what}_seconds", 0.1234567 * factor, "seconds")
            for what, factor in (("step", 1.0), ("data", 1.7), ("sync", 2.3))
        ]
    verdicts = {node["name"]: node["verdict"] for node in judge(run, evidence)["nodes"]}
    assert verdicts == {"a": verdict, "b": "INCOMPLETE"}


@st.composite
def fleets(draw):
    """Honest machines, some of them clones, and up to two liars, which copy ids of honest ones."""
    scheduler = draw(st.sampled_from([SSH, KUBERNETES, SLURM]))
    gpus = draw(st.sampled_from([0, 1, 4]))
    honest = []
    clone = draw(st.sampled_from([{}, IMAGE, {**IMAGE, "serial": ""}, {**IMAGE, "serial": "batch"}]))
    for name in "abc"[: draw(st.integers(1, 3))]:
        broken = gpus and draw(st.integers(0, 5)) == 0
        hidden = {key: "" for key in ("machine_id", "serial") if draw(st.integers(0, 3)) == 0}
        earlier = draw(st.sampled_from([(), [f"GPU-{name}-{index}" for index in range(gpus)]]))
        fields = {**clone, **hidden, "earlier": earlier, "hostname": draw(st.sampled_from(["", name, "image"]))}
        honest.append(machine(name, scheduler, 0 if broken else gpus, **fields))
    liars = []
    for name in "xy"[: draw(st.integers(0, 2))]:
        others = honest + liars
        mine = machine(name, scheduler, gpus)
        fields = {key: getattr(draw(st.sampled_from(others)), key) for key in ("machine_id", "serial", "hostname")
                  if draw(st.booleans())}  # fmt: skip
        victims = draw(st.sampled_from([[], others[:1], others]))
        stolen = list({uuid: None for victim in victims for uuid in victim.gpus[: draw(st.integers(0, 4))]})
        fields["gpus"] = draw(st.sampled_from([mine.gpus, stolen, stolen + mine.gpus, mine.gpus[1:] + stolen]))
        fields["listed"] = draw(st.sampled_from([None, mine.gpus, stolen, [], fields["gpus"][1:]]))
        fields["at_work"] = draw(st.sampled_from([None, mine.gpus, []]))
        fields["earlier"] = draw(st.sampled_from([(), mine.gpus, stolen]))
        liars.append(machine(name, scheduler, **fields))
    return honest, liars


@settings(max_examples=400)
@given(fleets())
def test_an_honest_node_is_never_worse_than_a_warning(fleet):
    honest, liars = fleet
    found = identity_entries([*liars, *honest])
    assert {found[node.name]["severity"] for node in honest if found[node.name]["verdict"] == "missing"} <= {"advisory"}
    worse = {node.name for node in honest if found[node.name]["verdict"] not in (*HONEST, "missing")}
    assert not worse


@settings(max_examples=200)
@given(fleets())
def test_a_node_is_disputed_or_fails_where_it_lists_a_gpu_of_another(fleet):
    honest, liars = fleet
    found = identity_entries([*liars, *honest])
    of_honest = {uuid for node in honest for uuid in node.gpus}
    for liar in liars:
        entry = found[liar.name]
        if of_honest & {*liar.gpus}:
            assert entry["verdict"] == "fail" or entry["reason"].startswith(identity.DISPUTED)


@st.composite
def doubles(draw):
    """One machine under two names, and perhaps another; each name reports some of what it has."""
    gpus = draw(st.sampled_from([0, 2]))
    scheduler = draw(st.sampled_from([SSH, LOCAL]))
    keys = draw(st.sampled_from([("host_key",), ("serial",), ("machine_id", "serial"), ("host_key", "machine_id")]))
    names = []
    for name in "ab":
        hidden = {key: "" for key in ("machine_id", "serial", "host_key") if key not in keys and draw(st.booleans())}
        names.append(copy_of(machine("m", gpus=gpus), name, **{"host_key": "SHA256:m", **hidden}))
        if scheduler == LOCAL:
            names[-1].host_key = ""
    return names, [machine("c", scheduler, gpus)] if draw(st.booleans()) else []


@settings(max_examples=200)
@given(doubles())
def test_one_machine_under_two_names_is_always_found(case):
    names, others = case
    both = [key for key in ("machine_id", "serial", "gpus", "host_key") if all(getattr(node, key) for node in names)]
    if not both:
        return
    found = verdicts(*names, *others)
    assert [found[node.name] for node in names] == ["fail", "fail"]
    assert {found[node.name] for node in others} <= {"pass"}


def test_what_nodes_had_in_earlier_runs_of_the_inventory(tmp_path):
    run = make_run(["a", "b"])
    for run_id, opened, gpus in (("r1", "2026-11-01", {"a": "GPU-1", "b": "GPU-2"}), ("r2", "2026-11-03", {"a": "3"})):
        folder = RunFolder(tmp_path / run_id)
        folder.path.mkdir()
        folder.run_file.write_text(json.dumps({**run, "run_id": run_id, "created_at": f"{opened}T10:00:00Z"}))
        for name, uuid in gpus.items():
            record = make_record(name, "facts", environment={"gpus": [{"uuid": uuid}]})
            folder.evidence_file(name, "facts").parent.mkdir(parents=True)
            folder.evidence_file(name, "facts").write_text(json.dumps(record))
    now = RunFolder(tmp_path / "now")
    assert earlier_faults.gpus_of(now, run, ["a", "b", "c"]) == {"a": {"gpu-1"}, "b": {"gpu-2"}, "c": set()}
    assert earlier_faults.gpus_of(now, run, []) == {}
