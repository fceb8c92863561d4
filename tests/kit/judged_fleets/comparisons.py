"""Nodes beside each other: slow parts and nodes, two populations, other software, few nodes, history, baselines."""

import copy
import random
from unittest import mock

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import baseline, compare, make_baseline
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis import correlation
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis import fleet as analysis

from tests.kit.builders import SHIPPED, TIME, check, facts_record, make_record, metric
from tests.kit.judged_fleets.fleet import Fleet, fleet, judged

NAME = "diagnostics_matmul_bf16_tflops"
SPREAD = "diagnostics_matmul_bf16_spread_ratio"
NODE = "diagnostics_all_reduce_bus_bytes_per_second"
FIELDS = {
    "stage": "diagnostics", "metric": NAME, "kind": "outlier", "peers": "fleet", "scope": "gpu", "unit": "TFLOP/s",
    "max_below": 0.035, "deviations": 4, "min_peers": 4, "retry": True,
}  # fmt: skip
SLOW = check("slow", **FIELDS)
FINAL = check("final", **{**FIELDS, "retry": False})
BESIDE = check("beside", **{**FIELDS, "relative_to": "node", "max_below": 0.03})
SPREADS = check("spreads", **{**FIELDS, "spread_from": SPREAD, "repeats": 8})
SOFTWARE = check("software", **{**FIELDS, "alike": ["torch"], "group_by": ["fingerprints.setup"]})
PLACES = check("places", **{**FIELDS, "same_part": True})
NODES = check("nodes", **{**FIELDS, "metric": NODE, "scope": "node", "unit": "bytes/s"})
ABOVE = {key: value for key, value in FIELDS.items() if key != "max_below"}
HOT = check("hot", **{**ABOVE, "metric": "gpu_temperature_max_celsius", "unit": "celsius", "max_above": 0.2})
BOTH = check("both", **FIELDS, max_above=0.05)
TRAINING = check("train", **{**FIELDS, "stage": "training", "metric": "training_model_tflops"})
FLOOR = check("floor", stage="diagnostics", metric=NAME, scope="gpu", unit="TFLOP/s", value=300)
ALL = [FLOOR, SLOW, BESIDE, SPREADS, SOFTWARE, PLACES, NODES, TRAINING, HOT, BOTH]


def drawn(count, *, gpus=8, centre=670.0, cv=0.005, seed=1, checks=ALL, tails=False, model="NVIDIA H200", **fields):
    """Nodes that differ by a share ``cv``, and whose GPUs differ by less."""
    draw = random.Random(seed)
    names = [f"node-{number + 1:02}" for number in range(count)]
    made = Fleet(names, stages=["facts", "diagnostics", "training"], checks=list(checks), **fields)
    for number, name in enumerate(names):
        deviation = draw.gauss(0, cv) / (draw.uniform(0.15, 1) if tails else 1)
        rate = centre * max(0.5, 1 + deviation)
        figures = []
        for gpu in range(gpus):
            figures.append(metric(NAME, rate * draw.gauss(1, 0.001), "TFLOP/s", f"gpu:{gpu}"))
            figures.append(metric(SPREAD, 0.003, "ratio", f"gpu:{gpu}"))
            figures.append(metric("gpu_temperature_max_celsius", 65 + draw.gauss(0, 1), "celsius", f"gpu:{gpu}"))
        figures.append(metric(NODE, 366e9 * draw.gauss(1, 0.002), "bytes/s"))
        made.evidence.records[name] = {
            "facts": facts_record(name, gpus=gpus),
            "diagnostics": make_record(name, "diagnostics", metrics=figures, environment={"torch": "2.11"},
                                       fingerprints={"setup": "a"}),
            "training": make_record(name, "training", metrics=[
                metric("training_model_tflops", 451 * draw.gauss(1, 0.003), "TFLOP/s", f"gpu:{gpu}")
                for gpu in range(gpus)
            ], environment={"torch": "2.11"}, fingerprints={"setup": "a"}),
        }  # fmt: skip
        for gpu in made.facts(name)["gpus"]:
            gpu.update(name=model, serial=f"{number}-{gpu['index']}", driver_version="580.1")
        made.node(name)["labels"] = {"rack": f"r{number // 8}", "driver": "x"}
    return made


def slower(made, names, factor, figure=NAME, scope=None, stage="diagnostics"):
    for name in names:
        made.scale(name, stage, figure, factor, scope)
    return made


def first(made, count):
    return list(made.run["nodes"])[:count]


@fleet
def slow_parts(_folder):
    """One GPU, one node, a rack, halves, in fleets of several sizes."""
    documents = {}
    for count in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 24, 40):
        documents[f"{count}_healthy"] = drawn(count).judged(alone=False)
        made = slower(drawn(count), first(drawn(count), 1), 0.9, scope="gpu:3")
        documents[f"{count}_slow_gpu"] = made.judged(alone=False)
        documents[f"{count}_slow_node"] = slower(drawn(count), ["node-01"], 0.9).judged(alone=False)
    for count, bad, factor in ((24, 8, 0.94), (16, 4, 0.9), (16, 8, 0.9), (16, 12, 0.9), (10, 2, 0.9), (9, 3, 0.93),
                               (24, 3, 0.96), (40, 2, 0.96)):  # fmt: skip
        made = drawn(count)
        documents[f"{bad}_of_{count}_at_{factor}"] = slower(made, first(made, bad), factor).judged(alone=False)
    for count, factor in ((9, 0.955), (12, 0.958), (16, 0.96)):
        made = drawn(count, cv=0.003)
        documents[f"2_of_{count}_doubtful"] = slower(made, first(made, 2), factor).judged(alone=False)
    made = slower(slower(drawn(12, cv=0.002), ["node-01"], 0.969), ["node-02"], 0.956)
    documents["one_of_two_doubtful"] = made.judged(alone=False)
    some = drawn(16)
    for gpu in (0, 1, 2, 3):
        slower(some, ["node-02"], 0.9, scope=f"gpu:{gpu}")
    slower(some, ["node-03"], 0.97)
    slower(some, ["node-03"], 0.97, "training_model_tflops", stage="training")
    documents["half_of_a_node_and_two_stages"] = some.judged(alone=False)
    return documents


@fleet
def noisy_fleets(_folder):
    """Fleets that scatter, with long tails, and with a figure too good to be true."""
    documents = {}
    for case, options in {
        "wide": {"cv": 0.05}, "narrow": {"cv": 0.0}, "tails": {"cv": 0.01, "tails": True},
        "tails_wide": {"cv": 0.03, "tails": True, "seed": 3}, "other_seed": {"seed": 9},
    }.items():  # fmt: skip
        for count in (8, 20, 40):
            documents[f"{case}_{count}"] = drawn(count, **options).judged(alone=False)
        documents[f"{case}_with_slow_node"] = slower(drawn(20, **options), ["node-05"], 0.93).judged(alone=False)
    few_good = drawn(9, checks=[FLOOR, NODES])
    rates = (366.0, 366.0, 366.0, 366.0, 367.0, 365.0, 364.5, 364.0, 363.5)
    for name, rate in zip(few_good.run["nodes"], rates, strict=True):
        few_good.set(name, "diagnostics", NODE, rate * 1e9)
    documents["one_good_node"] = few_good.judged(alone=False)
    documents["too_good"] = slower(drawn(16), ["node-03"], 3.0).judged(alone=False)
    documents["slow_twice"] = slower(
        slower(drawn(10), ["node-05"], 0.97), ["node-05"], 0.96, "training_model_tflops", stage="training"
    ).judged(alone=False)
    return documents


@fleet
def odd_figures(_folder):
    """Figures that are missing, no numbers, in other units, given twice, of parts that the node has not, or absurd."""
    cases = {
        "none": lambda made, name: made.forget(name, "diagnostics", NAME),
        "one-gpu-none": lambda made, name: made.forget(name, "diagnostics", NAME, "gpu:5"),
        "no-number": lambda made, name: made.set(name, "diagnostics", NAME, None, "gpu:5"),
        "gflops": lambda made, name: [
            figure.update(value=figure["value"] * 1000, unit="GFLOP/s")
            for figure in made.figures(name, "diagnostics", NAME)
        ],
        "seconds": lambda made, name: made.set(name, "diagnostics", NAME, 670.0, "gpu:2", unit="seconds"),
        "twice": lambda made, name: made.record(name, "diagnostics")["metrics"].append(
            metric(NAME, 900.0, "TFLOP/s", "gpu:0")
        ),
        "ninth": lambda made, name: made.set(name, "diagnostics", NAME, 670.0, "gpu:8", unit="TFLOP/s"),
        "zeros": lambda made, name: made.set(name, "diagnostics", NAME, 0),
        "absurd": lambda made, name: made.set(name, "diagnostics", NAME, 1e290, "gpu:1"),
        "tiny": lambda made, name: made.set(name, "diagnostics", NAME, 1e-290, "gpu:1"),
        "no-spread": lambda made, name: made.forget(name, "diagnostics", SPREAD, "gpu:1"),
        "odd-spread": lambda made, name: made.set(name, "diagnostics", SPREAD, -1, "gpu:1"),
        "loud-spread": lambda made, name: made.set(name, "diagnostics", SPREAD, 5.0, "gpu:1"),
        "no-torch": lambda made, name: made.record(name, "diagnostics", environment={}),
        "no-setup": lambda made, name: made.record(name, "diagnostics", fingerprints={}),
        "no-model": lambda made, name: [gpu.pop("name") for gpu in made.facts(name)["gpus"]],
        "no-count": lambda made, name: made.record(name, "facts", metrics=[]),
        "no-facts": lambda made, name: made.drop(name, "facts"),
        "no-record": lambda made, name: made.drop(name, "diagnostics"),
        "running": lambda made, name: made.record(name, "diagnostics", state="running"),
        "crashed": lambda made, name: made.record(name, "diagnostics", state="crash"),
        "cpu": lambda made, name: made.evidence.records[name].update(facts=facts_record(name, vendor="cpu", gpus=0)),
        "other-workload": lambda made, name: made.record(name, "diagnostics", workload="training_validation"),
        "excused": lambda made, name: (
            made.forget(name, "diagnostics", NAME),
            made.record(name, "diagnostics")["environment"].update(left_out={"bf16": "not supported"}),
        ),
        "earlier-slow": lambda made, name: made.attempt(name, "diagnostics", metrics=[
            {**figure, "value": figure["value"] * 0.5} for figure in made.record(name, "diagnostics")["metrics"]
        ]),
        "earlier-odd": lambda made, name: made.attempt(
            name, "diagnostics", metrics=[metric(NAME, None, scope="gpu:0")]
        ),
        "earlier-running": lambda made, name: made.attempt(name, "diagnostics", state="running", metrics=[]),
        "two-gpus": lambda made, name: [
            made.evidence.records[name].update(facts=facts_record(name, gpus=2)),
            [made.forget(name, "diagnostics", NAME, f"gpu:{gpu}") for gpu in range(2, 8)],
        ],
    }  # fmt: skip
    excusing = check("excusing", **{**FIELDS, "excused_by": ["left_out.bf16"]})
    checks = [*ALL, FINAL, excusing]
    documents = {}
    for count in (3, 12):
        for case, change in cases.items():
            made = drawn(count, checks=checks)
            change(made, "node-02")
            documents[f"{case}_of_{count}"] = made.judged(alone=False)
    halves = drawn(16, checks=checks)
    slower(halves, first(halves, 4), 0.8)
    cases["no-number"](halves, "node-01")
    cases["one-gpu-none"](halves, "node-02")
    documents["odd_in_the_worse_half"] = halves.judged(alone=False)
    zeros = drawn(12, checks=checks)
    for name in zeros.run["nodes"]:
        zeros.set(name, "diagnostics", NAME, 0)
    documents["all_zero"] = zeros.judged(alone=False)
    return documents


@fleet
def other_software(_folder):
    """Some nodes of other software, or of another setup, SKU or number of GPUs, as fast as the rest or slower."""
    documents = {}
    for others in (1, 4, 5, 9, 10):
        for factor in (1.0, 0.9, 1.1):
            made = drawn(20)
            names = first(made, others)
            slower(made, names, factor)
            for name in names:
                made.evidence.records[name]["diagnostics"]["environment"]["torch"] = "2.9"
            documents[f"torch_{others}_at_{factor}"] = made.judged(alone=False)
    for most, others in ((8, 3), (4, 3), (8, 8)):
        made = drawn(most + others)
        for name in first(made, others):
            made.evidence.records[name]["diagnostics"]["fingerprints"]["setup"] = "b"
        made.set("node-01", "diagnostics", NAME, None, "gpu:1")
        documents[f"setup_{others}_beside_{most}"] = made.judged(alone=False)
    several = drawn(24)
    for number, name in enumerate(several.run["nodes"]):
        several.evidence.records[name]["diagnostics"]["environment"]["torch"] = f"2.{number // 8}"
        slower(several, [name], 1 - 0.1 * (number // 16))
    documents["three_torches"] = several.judged(alone=False)
    odd = drawn(20)
    for name in first(odd, 10):
        odd.evidence.records[name]["diagnostics"]["environment"]["torch"] = "2.9"
        odd.set(name, "diagnostics", NAME, 0)
    documents["zeros_of_other_software"] = odd.judged(alone=False)
    lacking = drawn(20)
    for name in first(lacking, 8):
        lacking.evidence.records[name]["diagnostics"]["environment"]["torch"] = "2.9"
    lacking.forget("node-01", "diagnostics", NAME)
    documents["no_figures_of_one"] = lacking.judged(alone=False)
    skus = drawn(20)
    for name in first(skus, 10):
        slower(skus, [name], 2.2)
        for gpu in skus.facts(name)["gpus"]:
            gpu["name"] = "NVIDIA B200"
    slower(skus, ["node-03"], 0.9, scope="gpu:0")
    documents["two_skus"] = skus.judged(alone=False)
    return documents


@fleet
def links_of_nodes(_folder):
    """Links whose number each node tells: most have as many, some have more or fewer, or none agrees."""
    links = check("links", stage="diagnostics", metric="l", kind="outlier", peers="fleet", scope="link", unit="GB/s",
                  max_below=0.03, deviations=4, min_peers=4, parts_from="links_count")  # fmt: skip
    beside = check("links_beside", stage="diagnostics", metric="l", kind="outlier", peers="fleet", scope="link",
                   unit="GB/s", max_below=0.03, deviations=4, min_peers=4, parts_from="links_count",
                   relative_to="node")  # fmt: skip
    documents = {}
    for case, counts in {
        "alike": [6] * 8, "one_more": [6] * 7 + [7], "one_fewer": [6] * 7 + [5], "no_majority": [6, 6, 7, 7, 8, 8],
        "none": [0] * 6, "one_alone": [6], "one_not_told": [6] * 6 + [None], "two": [2] * 6,
    }.items():  # fmt: skip
        made = drawn(len(counts), checks=[links, beside])
        for number, (name, count) in enumerate(zip(made.run["nodes"], counts, strict=True)):
            figures = made.record(name, "diagnostics")["metrics"]
            if count is not None:
                figures.append(metric("links_count", count))
            figures += [
                metric("l", 366.0 + number + link / 10 - (30 if (number, link) == (2, 3) else 0), "GB/s",
                       f"link:gpu{link}>gpu{link + 1}") for link in range(count or 0)
            ]  # fmt: skip
        documents[case] = made.judged(alone=False)
    return documents


@fleet
def judged_before(_folder):
    """Groups of an earlier judgement: a node alone, fewer nodes, other software, and groups of another meaning."""
    documents = {}
    whole = slower(drawn(35), ["node-04"], 0.9)
    slower(whole, ["node-07"], 0.985)
    slower(whole, ["node-07"], 0.98, "training_model_tflops", stage="training")
    for name in first(whole, 9)[4:]:
        whole.evidence.records[name]["diagnostics"]["environment"]["torch"] = "2.9"
    documents["whole"] = whole.judged(alone=False)
    before = documents["whole"]["standings"]
    for case, names in {"slow": ["node-04"], "fine": ["node-05"], "behind": ["node-07"], "few": first(whole, 6),
                        "other_software": ["node-05", "node-06"], "most": first(whole, 30)}.items():  # fmt: skip
        run = {**whole.run, "nodes": {name: whole.run["nodes"][name] for name in names}}
        evidence = copy.deepcopy(whole.evidence)
        evidence.records = {name: evidence.records[name] for name in names}
        evidence.launches = {name: evidence.launches[name] for name in names}
        documents[case] = judged(run, evidence, whole.checks, standings=before, alone=False)
        if case == "few":
            bare = [{key: value for key, value in one.items() if key not in ("repeats", "reach", "normal")}
                    for one in before]  # fmt: skip
            documents["few_of_an_older_document"] = judged(run, evidence, whole.checks, standings=bare, alone=False)
    gone = slower(drawn(8), ["node-04"], 0.8)
    documents["eight"] = gone.judged(alone=False)
    gone.drop("node-08", "diagnostics")
    documents["seven"] = gone.judged(standings=documents["eight"]["standings"], alone=False)
    gone.set("node-03", "diagnostics", NAME, 0)
    documents["seven_one_zero"] = gone.judged(standings=documents["eight"]["standings"], alone=False)
    return documents


@fleet
def same_on_all_nodes(_folder):
    """Fingerprints and paths that are to be the same on all nodes of a kind."""
    documents = {}
    for severity in ("required", "advisory"):
        checks = [
            FLOOR,
            check("hash", stage="diagnostics", metric="sum_sha256", kind="same", severity=severity),
            check("hash_by_torch", stage="diagnostics", metric="sum_sha256", kind="same", severity=severity,
                  group_by=["torch"]),
            check("bios", stage="facts", metric="bios", kind="same", path="firmware.bios_version", severity=severity),
            check("nics", stage="facts", metric="nics", kind="same", path="nics[].firmware_version",
                  group_by=["os.kernel"], severity=severity, applies={"accelerator": ["gpu"]}),
            check("measured", stage="diagnostics", metric="other_sha256", kind="same", severity=severity, retry=True),
        ]  # fmt: skip
        for case, count in (("alone", 1), ("two", 2), ("three", 3), ("eight", 8), ("halves", 8), ("none", 4),
                            ("odd", 12), ("torches", 8), ("three_torches", 7)):  # fmt: skip
            made = drawn(count, checks=checks)
            for number, name in enumerate(made.run["nodes"]):
                record = made.record(name, "diagnostics")
                record["fingerprints"].update(sum_sha256="a" * 8, other_sha256="b" * 8)
                facts = made.facts(name)
                facts.update(firmware={"bios_version": "2.1"}, os={"kernel": "6.8"},
                             nics=[{"firmware_version": "28.4"}, {"firmware_version": "28.4"}])  # fmt: skip
                if case == "halves" and number % 2:
                    record["fingerprints"]["sum_sha256"] = "c" * 8
                    facts["firmware"]["bios_version"] = "2.0"
                if case == "none":
                    facts.update(firmware={}, nics=[], os={})
                if (case == "torches" and number < 1) or (case == "three_torches" and number < 3):
                    record["environment"]["torch"] = f"2.{number}"
                    facts["os"]["kernel"] = f"5.{number}"
            if case in ("two", "three", "eight"):
                made.record("node-01", "diagnostics")["fingerprints"]["sum_sha256"] = "d" * 8
                made.facts("node-01")["firmware"]["bios_version"] = "1.0"
            if case == "odd":
                made.record("node-01", "diagnostics")["fingerprints"].clear()
                made.drop("node-02", "diagnostics")
                made.record("node-03", "diagnostics")["environment"].clear()
                made.facts("node-04")["firmware"] = {}
                earlier = made.attempt("node-05", "diagnostics")
                earlier["fingerprints"]["sum_sha256"] = "e" * 8
                made.attempt("node-06", "diagnostics", state="running", fingerprints={"sum_sha256": "f" * 8})
                made.attempt("node-07", "diagnostics", fingerprints={})
                made.evidence.records["node-08"]["facts"] = facts_record("node-08", vendor="cpu", gpus=0)
                made.record("node-09", "diagnostics", state="running")
                made.drop("node-10", "facts")
                made.facts("node-11")["nics"] = [{"firmware_version": {"a": "x" * 500}}, {"firmware_version": []}]
            documents[f"{case}_{severity}"] = made.judged(alone=False)
    return documents


@fleet
def whole_fleets(_folder):
    """Two SKUs with every defect under the shipped criteria, from the benchmark of detection, and from small fleets."""
    from fleets import Defect
    from fleets import drawn as benchmark

    documents = {}
    planted = {
        "node-0001": Defect("slow GPU", 0.1, "gpu:3"), "node-0003": Defect("slow link", 0.3, "link:gpu1>gpu3"),
        "node-0005": Defect("slow all-reduce", 0.2), "node-0007": Defect("slow node", 0.1),
        "node-0009": Defect("missing metric", None, "gpu:2"), "node-0011": Defect("NaN", None, "gpu:2"),
        "node-0013": Defect("wrong driver"),
    }  # fmt: skip
    for case, options in {
        "tight": {"node_cv": 0.003, "repeat": 0.002}, "loose": {"node_cv": 0.02, "repeat": 0.005, "gpu_cv": 0.01},
        "tails": {"node_cv": 0.01, "repeat": 0.002, "tails": 3, "disturbed": 0.01},
    }.items():  # fmt: skip
        made = benchmark(16, seed=7, each=0, planted=planted, **options)
        documents[case] = judged(made.run, made.evidence, SHIPPED, alone=False)
    one_slow = {"node-0001": Defect("slow GPU", 0.2, "gpu:3"), "node-0002": Defect("slow link", 0.4, "link:gpu1>gpu3")}
    for count in (2, 3, 5):
        few = benchmark(count, 0.005, 0.002, 3, each=0, planted=one_slow)
        documents[f"{count}_nodes"] = judged(few.run, few.evidence, SHIPPED, alone=count == 3)
    return documents


def _baseline_of(made, report=None, **options):
    report = report or made.judged(alone=False)["report"]
    options = {"name": "site", "version": 1, "created_at": TIME, **options}
    return baseline.Baseline(make_baseline.make(report, **options))


@fleet
def baselines(_folder):
    """Baselines that are made of fleets, what changed between them, and fleets that are held against them."""
    fields = {"stage": "diagnostics", "metric": NAME, "kind": "baseline", "scope": "gpu", "unit": "TFLOP/s",
              "max_below": 0.05, "deviations": 4, "retry": True}  # fmt: skip
    held = [
        FLOOR,
        check("slower", **fields),
        check("not_again", **{**fields, "retry": False}),
        check("by_torch", **fields, group_by=["torch"]),
        check("by_setup", **fields, group_by=["torch", "fingerprints.training_setup"]),
        check("by_place", **fields, same_part=True),
        check("in_bits", **{**fields, "unit": "GB/s"}),
        check("both", **fields, max_above=0.05),
        check("node", **{**fields, "metric": NODE, "scope": "node", "unit": "GB/s"}),
        check("on_gpus", **fields, applies={"accelerator": ["amd"]}),
    ]  # fmt: skip

    def trained(count, **options):
        made = drawn(count, checks=held, **options)
        for name in made.run["nodes"]:
            made.record(name, "diagnostics")["fingerprints"]["training_setup"] = "large"
        return made

    made = {}
    good = trained(12)
    good.set("node-02", "diagnostics", NAME, 400.0, "gpu:1")
    made["good"] = _baseline_of(good)
    bad = slower(trained(12, seed=2), ["node-01", "node-02", "node-03"], 0.3)
    bad.record("node-04", "diagnostics")["metrics"] += [
        metric(NAME, 900.0, "TFLOP/s", "gpu:0"), metric(NAME, 900.0, "TFLOP/s", "gpu:30"), metric(NODE, None, "bytes/s")
    ]  # fmt: skip
    bad_report = bad.judged(alone=False)["report"]
    bad.record("node-05", "training", state="failure")
    made["bad"] = _baseline_of(bad, version=2, report=bad_report)
    made["slower"] = _baseline_of(trained(12, centre=630.0, seed=2), version=3)
    made["few"] = _baseline_of(trained(3))
    made["one"] = _baseline_of(trained(1))
    four = trained(6, gpus=4)
    made["four_gpus"] = _baseline_of(four)
    uneven = trained(6)
    uneven.forget("node-01", "diagnostics", NAME, "gpu:7")
    uneven.forget("node-02", "diagnostics", SPREAD)
    made["uneven"] = _baseline_of(uneven)
    zeros = trained(4)
    for name in zeros.run["nodes"]:
        zeros.set(name, "training", "training_model_tflops", 1e-60)
        zeros.set(name, "diagnostics", NODE, 1e-40)
    no_gpus = trained(4)
    no_gpus.record("node-01", "facts", metrics=[])
    made["one_unknown"] = _baseline_of(no_gpus)
    documents = {f"made_{name}": one.document for name, one in made.items()}
    documents["repeatability"] = {name: compare.repeatability(one.document) for name, one in made.items()}
    documents["changes"] = {
        f"{one}_to_{other}": compare.lines(compare.diff(made[one], made[other]))
        for one in made for other in made
    }  # fmt: skip
    for name, one in made.items():
        run = slower(trained(9, seed=5), ["node-03"], 0.9, scope="gpu:1")
        run.attempt("node-04", "diagnostics", metrics=[metric(NAME, 300.0, "TFLOP/s", "gpu:0")])
        documents[f"against_{name}"] = run.judged(baseline=one, alone=name == "good")
    odd = trained(10, seed=5)
    odd.forget("node-01", "diagnostics", NAME)
    odd.drop("node-02", "diagnostics")
    odd.set("node-03", "diagnostics", NAME, None, "gpu:1")
    odd.facts("node-04").pop("gpus")
    odd.record("node-05", "diagnostics", environment={})
    odd.record("node-06", "diagnostics")["fingerprints"]["training_setup"] = "small"
    odd.set("node-07", "diagnostics", NAME, 670.0, "gpu:2", unit="watts")
    odd.set("node-08", "diagnostics", NAME, 670.0, "gpu:8", unit="TFLOP/s")
    for gpu in odd.facts("node-09")["gpus"]:
        gpu["name"] = "NVIDIA B200"
    documents["against_good_odd"] = odd.judged(baseline=made["good"])
    for asked in (["large"], ["small"], ["small", "large"]):
        odd.run["setups"] = {"diagnostics": {"training_setup": {"any": asked}}}
        documents[f"against_good_asked_{'_'.join(asked)}"] = odd.judged(baseline=made["good"], alone=False)
    places = copy.deepcopy(dict(made["good"].document))
    for figure in places["figures"]:
        figure.get("places", {}).pop("gpu:3", None)
    documents["against_good_without_a_place"] = odd.judged(baseline=baseline.Baseline(places), alone=False)
    for figure in places["figures"]:
        figure.pop("places", None)
        figure["unit"] = "watts" if figure["metric"] == NODE else figure["unit"]
    documents["against_an_older_one"] = odd.judged(baseline=baseline.Baseline(places), alone=False)
    documents["against_none"] = odd.judged(alone=False)
    return documents


@fleet
def groups_that_differ(_folder):
    """The analysis of a fleet: racks, drivers and labels that differ, and figures that move together."""
    documents = {}
    racks = drawn(32)
    slower(racks, first(racks, 8), 0.97)
    for number, name in enumerate(racks.run["nodes"]):
        racks.node(name)["labels"] = {
            "rack": f"r{number // 8}", "row": f"w{number // 16}", "driver": "x" if number % 2 else "y",
            "half": str(number % 2), "alike": "first" if number < 9 else "other", "one": name,
        }  # fmt: skip
        for gpu in racks.facts(name)["gpus"]:
            gpu["driver_version"] = "570" if number < 8 else "580"
        clock = 1.5e9 + 1e6 * ((number * 7) % 32)
        racks.set(name, "diagnostics", "gpu_sm_clock_busy_mean_hertz", clock, unit="hertz")
        racks.set(name, "diagnostics", "gpu_power_mean_watts", clock / 3e6 + number % 3, unit="watts")
        racks.set(name, "diagnostics", "gpu_power_max_watts", clock / 3e6 + number % 3, unit="watts")
        racks.set(name, "diagnostics", "errors_count", 1 if number < 8 else 0)
        racks.set(name, "diagnostics", "waiting_seconds", 0.0 if number else None, unit="seconds")
    racks.set("node-03", "diagnostics", NAME, None, "gpu:1")
    racks.forget("node-04", "diagnostics", NAME, "gpu:1")
    racks.record("node-05", "diagnostics", state="crash")
    racks.drop("node-06", "diagnostics")
    racks.drop("node-07", "facts")
    documents["racks"] = racks.judged(alone=False)
    two = drawn(44)
    slower(two, first(two, 8), 0.97)
    slower(two, list(two.run["nodes"])[16:24], 0.95)
    for number, name in enumerate(two.run["nodes"]):
        two.node(name)["labels"] = {"rack": f"r{number // 8}", "row": f"w{number // 24}", "half": f"h{number // 22}"}
    documents["two_racks"] = two.judged(alone=False)
    small = drawn(32, cv=0.001)
    slower(small, first(small, 8), 0.99)
    documents["small_difference"] = small.judged(alone=False)
    overlapping = drawn(44)
    slower(overlapping, first(overlapping, 20), 0.95)
    for number, name in enumerate(overlapping.run["nodes"]):
        overlapping.node(name)["labels"] = {"rack": f"r{number // 12}", "row": "w1" if 9 <= number < 19 else "w2"}
    documents["overlapping"] = overlapping.judged(alone=False)
    few = drawn(14)
    for number, name in enumerate(few.run["nodes"]):
        for figure, begin in (("early", 0), ("late", 4)):
            few.forget(name, "training", "training_model_tflops")
            if begin <= number < begin + 10:
                few.set(name, "training", f"{figure}_count", number * (7 if begin else 3) % 11)
    documents["figures_of_different_nodes"] = few.judged(alone=False)
    with (
        mock.patch.object(analysis, "MAX_STATISTICS", 3),
        mock.patch.object(analysis, "MAX_GROUPS", 4),
        mock.patch.object(correlation, "MAX_PLACES", 20),
    ):
        documents["more_than_is_kept"] = racks.judged(alone=False)
    documents["by_group"] = analysis.by_group(documents["racks"]["report"]["fleet"]["analysis"])
    kinds = drawn(12)
    for name in first(kinds, 4):
        kinds.record(name, "diagnostics", workload="another")
    for name in first(kinds, 6)[4:]:
        kinds.evidence.records[name]["facts"] = facts_record(name, gpus=4)
        for gpu in kinds.facts(name)["gpus"]:
            gpu["name"] = "NVIDIA H200"
    kinds.drop("node-12", "facts")
    kinds.drop("node-11", "diagnostics")
    documents["kinds"] = kinds.judged(alone=False)
    return documents
