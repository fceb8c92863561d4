"""Identities of machines and GPUs: clones, claims, twins, copies of figures, and GPUs in another order."""

import copy

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units

from tests.kit.builders import TIME, check, metric, times
from tests.kit.judged_fleets.fleet import Fleet, fleet


def _fleet(nodes, **fields):
    return Fleet(nodes, **{"stages": ["facts", "training"], **fields})


def _identity(fleet_, name):
    return fleet_.facts(name)["identity"]


def _with_uuids(fleet_):
    """The list of GPUs tells their UUIDs, too."""
    for name in fleet_.run["nodes"]:
        for index, gpu in enumerate(fleet_.facts(name)["gpus"]):
            gpu["uuid"] = f"GPU-{name}-{index}"


@fleet
def same_machines(_folder):
    """Pairs that have some identities in common; each pair is a run of three."""
    documents = {}
    cases = {
        "all": ("machine_id", "serial", "gpu_uuids"), "ids": ("machine_id", "serial"), "gpus": ("gpu_uuids",),
        "gpus_and_machine": ("machine_id", "gpu_uuids"), "machine": ("machine_id",), "serial": ("serial",),
    }  # fmt: skip
    for case, same in cases.items():
        for gpus in (8, 0):
            pair = _fleet(["a", "b", "c"], gpus=gpus, vendor="nvidia" if gpus else "cpu")
            for what in same:
                _identity(pair, "b")[what] = _identity(pair, "a")[what]
            documents[f"{case}_{gpus}"] = pair.judged(alone=False)
    hidden = _fleet(["a", "b"])
    _identity(hidden, "a").update(serial="7")
    _identity(hidden, "b").update(copy.deepcopy(_identity(hidden, "a")), serial=None)
    documents["serial_hidden"] = hidden.judged(alone=False)
    return documents


@fleet
def claims(_folder):
    """A node that claims GPUs of others, in ways that tell which of the two is right, or do not."""
    documents = {}

    def claimed(case, nodes=("a", "b", "c"), **fields):
        found = documents[case] = _fleet(nodes, **fields)
        _with_uuids(found)
        return found

    some = claimed("some_of_another")
    _identity(some, "b")["gpu_uuids"][:2] = _identity(some, "a")["gpu_uuids"][:2]
    of_two = claimed("of_two_others")
    _identity(of_two, "c")["gpu_uuids"] = [
        *_identity(of_two, "a")["gpu_uuids"][:4], *_identity(of_two, "b")["gpu_uuids"][:4]
    ]  # fmt: skip
    more = claimed("more_than_it_has")
    _identity(more, "b")["gpu_uuids"] += _identity(more, "a")["gpu_uuids"][:1]
    no_list = claimed("no_list_of_gpus")
    _identity(no_list, "b")["gpu_uuids"][:3] = _identity(no_list, "a")["gpu_uuids"][:3]
    for name in "ab":
        no_list.facts(name)["gpus"] = []
    no_gpus = claimed("without_gpus_of_its_own")
    _identity(no_gpus, "b").update(machine_id=_identity(no_gpus, "a")["machine_id"], gpu_uuids=[])
    _identity(no_gpus, "b")["serial"] = _identity(no_gpus, "a")["serial"]
    both = claimed("one_gpu_in_both_lists")
    _identity(both, "b")["gpu_uuids"][0] = _identity(both, "a")["gpu_uuids"][0]
    both.facts("b")["gpus"][0]["uuid"] = _identity(both, "a")["gpu_uuids"][0]
    many = claimed("many", [f"n{number}" for number in range(12)])
    for number in range(1, 12):
        _identity(many, f"n{number}")["machine_id"] = "cloned"
    useless = claimed("useless", ["a", "b", "c", "d"])
    for name, text in zip("abcd", ("To be filled by O.E.M.", "00000000-0000", 7, None), strict=True):
        _identity(useless, name).update(serial=text, machine_id="None")
    nothing = claimed("nothing_known", ["a", "b"])
    for name in "ab":
        nothing.facts(name).pop("identity")
    no_facts = claimed("no_facts", ["a", "b"])
    no_facts.drop("a", "facts")
    odd = claimed("odd_forms", ["a", "b", "c", "d", "e"])
    odd.record("a", "facts", environment={"accelerator": "x", "identity": [], "gpus": {}})
    odd.record("b", "facts", environment={"gpus": [None, 3, {"index": "x"}], "identity": {"gpu_uuids": "many"}})
    odd.record("c", "facts", environment={})
    odd.facts("d")["identity"]["gpu_uuids"] = [None, 7, "GPU-d-0"]
    odd.facts("e")["gpus"] = [
        {"index": 0, "model": "H200", "serial": "N/A", "uuid": "0", "slot": "4", "bus_id": "0000:01:00.0"},
        {"index": None, "name": "H200", "module_id": 3}, {"module_id": "x"}, {"slot": "2", "module_id": 1},
    ]  # fmt: skip
    twice = claimed("gpu_listed_twice", ["identity", "list", "useless"])
    _identity(twice, "identity")["gpu_uuids"][1] = _identity(twice, "identity")["gpu_uuids"][0].upper()
    twice.facts("list")["gpus"][3]["uuid"] = twice.facts("list")["gpus"][2]["uuid"]
    _identity(twice, "useless")["gpu_uuids"] = ["N/A"]
    for gpu in twice.facts("useless")["gpus"]:
        gpu["uuid"] = "N/A"
    return {case: found.judged(alone=False) for case, found in documents.items()}


@fleet
def clones(_folder):
    """One disk on a hundred nodes, with and without hardware that tells them apart."""
    documents = {}
    for case, identity in {
        "gpus": {"machine_id": "cloned"},
        "nothing": {"machine_id": "cloned", "serial": None, "gpu_uuids": []},
    }.items():
        cloned = Fleet([f"n{number:02}" for number in range(70)], stages=["facts"], checks=[])
        for name in cloned.run["nodes"]:
            _identity(cloned, name).update(identity)
        documents[case] = cloned.judged(alone=False)
    return documents


@fleet
def copies(_folder):
    """Figures of another node to the last digit."""
    nodes = ("a", "b", "c", "d", "e", "gang-1", "gang-2", "few-1", "few-2")
    copied = Fleet(nodes, stages=["facts", "training", "loading"])
    for number, name in enumerate(nodes):
        for stage, alike in (("training", "abc"), ("loading", "de")):
            for figure in copied.evidence.records[name][stage]["metrics"]:
                if units.is_timed(figure["unit"]):
                    figure["value"] *= 1.0123456789 + (0 if name in alike else number + 1) / 700
    for name in ("gang-1", "gang-2"):
        copied.node(name)["gang_stages"] = ["training"]
        copied.evidence.records[name]["training"]["metrics"] = copied.evidence.records["e"]["training"]["metrics"]
    for name in "de":
        copied.record(name, "loading")["metrics"].append(metric("loading_verify_seconds", 1.12345678, "seconds"))
    copied.drop("c", "loading")
    for name in ("few-1", "few-2"):
        copied.record(name, "training", metrics=copied.evidence.records["a"]["training"]["metrics"][:2])
    for name in "ab":
        copied.set(name, "training", "training_model_tflops", None, "gpu:3")
    return copied.judged()


@fleet
def orders_of_gpus(_folder):
    """Stages that number the GPUs otherwise than the facts."""
    slow = check("tflops", metric="training_model_tflops", scope="gpu", value=600, unit="TFLOP/s")
    nodes = ("same", "swapped", "foreign", "odd", "none", "no-identity", "amd-same", "amd-other")
    ordered = _fleet(nodes, checks=[slow])
    _with_uuids(ordered)
    for name in nodes:
        ordered.scale(name, "training", "training_model_tflops", 0.1, "gpu:3")
        ordered.record(name, "training", environment={"devices": [
            {"index": index, "uuid": f"{name}-{index}"} for index in range(8)
        ]})  # fmt: skip
    devices = {name: ordered.evidence.records[name]["training"]["environment"]["devices"] for name in nodes}
    devices["swapped"][0]["uuid"], devices["swapped"][1]["uuid"] = "GPU-swapped-1", "GPU-swapped-0"
    devices["foreign"][5]["uuid"] = "GPU-other-5"
    devices["odd"][:3] = [None, {"uuid": 7}, {"uuid": "GPU-odd-2"}]
    ordered.record("none", "training", environment={})
    ordered.facts("no-identity").pop("gpus")
    for name in ("amd-same", "amd-other"):
        ordered.facts(name)["accelerator"]["vendor"] = "amd"
    devices["amd-same"][0]["uuid"], devices["amd-same"][1]["uuid"] = "amd-same-1", "amd-same-0"
    for device in devices["amd-other"]:
        device["uuid"] = f"torch-{device['index']}"
    return ordered.judged()


@fleet
def same_machine_one_after_the_other(_folder):
    """One machine that worked under two names, one after the other."""
    twins = _fleet(["a", "b"])
    for name, begun in (("a", TIME), ("b", "2026-11-02T11:00:00Z")):
        for stage in twins.evidence.records[name]:
            twins.record(name, stage, **times(begun))
        twins.facts(name)["identity"] = {"machine_id": "4f", "serial": None if name == "a" else "S-other"}
    return twins.judged()
