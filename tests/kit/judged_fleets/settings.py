"""What settings and files of a site become before nodes are judged: criteria, SKUs, baselines, versions, NICs."""

import json

import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import (
    baseline,
    criteria,
    declared,
    expected_fingerprints,
    make_baseline,
    sku_catalogue,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds import KINDS

from tests.kit.builders import SHIPPED, SPEED, TIME
from tests.kit.judged_fleets.comparisons import drawn
from tests.kit.judged_fleets.fleet import fleet

CHECK = yaml.safe_load(SPEED)[0]
SKU = {
    "schema": "gpuval.skus/1", "name": "mine", "title": "Mine", "vendor": "nvidia", "models": ["Mine*"],
    "gpu": {"memory_bytes": 8e10, "memory_bytes_per_second": 2e12, "peak_tflops": {"bf16": 500},
            "power_limit_watts": 300, "pcie_generation": 4, "pcie_width": 16},
    "links": {"kind": "NVLink", "per_gpu_count": 4, "bytes_per_second": 1e11}, "gpu_count": {"node": 8, "part": [1]},
    "sources": ["a data sheet"], "checks": [],
}  # fmt: skip
OUTLIER = {"kind": "outlier", "peers": "fleet", "unit": "tokens/s", "max_below": 0.1}


def _or_error(function, *arguments, **options):
    """What it returns, or the message of its error; paths of this machine are left out."""
    try:
        return function(*arguments, **options)
    except GpuvalError as error:
        return f"{type(error).__name__}: {error}"


def _without(text, folder):
    return json.loads(json.dumps(text).replace(f"{folder}/", ""))


def _parsed(document):
    return [
        {"name": check.name, "stage": check.stage, "kind": check.kind, "value": check.value}
        for check in criteria.parse(document)
    ]


def _document(*checks, **fields):
    return {"schema": "gpuval.criteria/1", "checks": list(checks), **fields}


def _changed(**fields):
    entry = {**CHECK, **fields}
    return {key: value for key, value in entry.items() if value is not None}


ODD_CHECKS = {
    "text_as_number": _changed(kind="equal", value="1e9"),
    "text_of_gpus": _changed(kind="equal", value="1.2", scope="gpu"),
    "text_with_unit": _changed(kind="equal", value="v1.2", unit="GB"),
    "text": _changed(kind="equal", value="v1.2"),
    "ranks_without_count": _changed(scope="rank"),
    "neighbours_of_nodes": _changed(**OUTLIER, value=None, relative_to="node"),
    "every_stage_of_outliers": _changed(**OUTLIER, value=None, every_stage=True, name="training_speed"),
    "gang_of_outliers": _changed(**OUTLIER, value=None, of_gang=True),
    "requires_itself": _changed(requires=["speed"]),
    "within_upside_down": _changed(kind="within", value=None, low=2, high=1),
    "node_with_alike": _changed(kind="outlier", peers="node", scope="gpu", max_below=0.1, alike=["torch"], value=None),
    "node_alone": _changed(kind="outlier", peers="node", scope="gpu", max_below=0.1, value=None),
    "fleet": _changed(**OUTLIER, value=None),
    "same_without_path": _changed(kind="same", peers="node", value=None),
    "same_by_two_lists": _changed(kind="same", peers="node", path="a[].b[].c", value=None),
    "same": _changed(kind="same", value=None),
    "baseline_of_links": _changed(kind="baseline", unit="GB/s", max_below=0.1, scope="link", parts_from="links_count",
                                  same_part=True, value=None),
    "baseline_by_kernel": _changed(kind="baseline", unit="GB/s", max_below=0.1, group_by=["os.kernel"], value=None),
    "baseline": _changed(kind="baseline", unit="GB/s", max_below=0.1, value=None),
    "no_stage": _changed(stage=None),
    "also": _changed(name="training_speed", also=["loading"]),
    "also_of_another_name": _changed(also=["loading"]),
    "unknown_key": _changed(vlaue=3),
    "unknown_kind": _changed(kind="most"),
    "no_name": _changed(name=None),
    "fingerprints": _changed(applies={"fingerprints": {"setup": ["a"]}, "sku": ["h200"], "gpu_count": [8]}),
}  # fmt: skip


@fleet
def criteria_of_sites(folder):
    """Files of criteria, right and wrong, and what is said of them."""
    documents = {name: _or_error(_parsed, _document(entry)) for name, entry in ODD_CHECKS.items()}
    documents["twice"] = _or_error(_parsed, _document(CHECK, CHECK))
    documents["of_one_stage"] = _or_error(_parsed, _document(ODD_CHECKS["no_stage"], stage="loading"))
    documents["no_object"] = _or_error(_parsed, _document(7))
    documents["no_list"] = _or_error(_parsed, {"schema": "gpuval.criteria/1", "checks": 7})
    documents["descriptions"] = {check.name: KINDS[check.kind].describe(check, check.value) for check in SHIPPED}
    files = {
        "fine.yml": _document(CHECK, informational=[{"stage": "training", "metrics": ["x_*"], "reason": "shown"}]),
        "odd.yml": _document(CHECK, {**CHECK, "name": "two", "stage": "trainign"}, {**CHECK, "name": "three", "x": 1},
                             {**CHECK, "name": "four", "stage": "nothing"}),
        "twice.yml": _document(CHECK, CHECK),
        "no_criteria.yml": {"schema": "something"},
        "list.yml": [1],
        "metric.yml": _document({**CHECK, "metric": "training_tokens_per_secnd"},
                                {**CHECK, "name": "b", "metric": "z"}),
        "sku.yml": {**SKU, "checks": [{**CHECK, "name": "speed_mine"}]},
        "sku_odd.yml": {**SKU, "checks": [CHECK]},
    }  # fmt: skip
    for name, document in files.items():
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=False))
    (folder / "broken.yml").write_text("checks: [")
    (folder / "keys.yml").write_text("schema: gpuval.criteria/1\nschema: x\n")
    stages = ["facts", "training", "loading"]
    for path in sorted(folder.glob("*.yml")):
        documents[path.name] = {
            "problems": _or_error(criteria.problems_of, path, stages),
            "doubtful": _or_error(criteria.doubtful_metrics, path),
            "read": _or_error(lambda path: [check.name for check in criteria.read_file(path)], path),
        }
    together = criteria.load([folder / "fine.yml", folder / "fine.yml"])
    documents["together"] = [len(together), together[0].name, len(together.informational)]
    documents["beside_shipped"] = len(criteria.beside_shipped([folder / "fine.yml"])) - len(SHIPPED)
    return _without(documents, folder)


@fleet
def skus_of_sites(folder):
    """Files of the SKU catalogue, and names that sites give to their machines."""
    cases = {
        "fine": [{**CHECK, "name": "speed_mine"}], "name": [CHECK], "like": [{"like": "diagnostics_memory_speed"}],
        "like_of_nothing": [{"like": "no_such_check"}], "like_a_list": [{"like": "diagnostics_speed_advice"}],
        "like_with_value": [{"like": "diagnostics_memory_speed", "value": 1.0e12, "source": "measured"}],
        "like_with_source": [{"like": "diagnostics_memory_speed", "source": "measured"}],
    }  # fmt: skip
    documents = {}
    for name, checks in cases.items():
        document = {**SKU, "checks": checks}
        documents[name] = _or_error(lambda document: [
            [check.name, check.value, list(check.requires)] for check in criteria.sku_checks(document)
        ], document)  # fmt: skip
    documents["no_sku"] = _or_error(criteria.sku_checks, {**SKU, "vendor": "nobody"})
    for name in ("mine", "other"):
        path = folder / f"{name}.yml"
        path.write_text(yaml.safe_dump({**SKU, "checks": cases["fine"]}))
        documents[f"file_{name}"] = _or_error(lambda path: sku_catalogue.Sku(path).title, path)
    path.write_text(yaml.safe_dump({**SKU, "checks": [CHECK]}))
    documents["file_of_a_wrong_check"] = _or_error(sku_catalogue.Sku, path)
    names = ("auto", "cpu", "nvidia", "h200", "8xh200", "hgx-h100-8x", "H20", "h2000", "my-machine", "MI300X")
    documents["remarks"] = {name: sku_catalogue.remark(name) for name in names}
    documents["checks"] = {
        sku.name: {check.name: [check.kind, check.severity, check.value] for check in sku.checks}
        for sku in sku_catalogue.shipped()
    }
    documents["of_models"] = {
        model: getattr(sku_catalogue.of_model(model), "name", None)
        for sku in sku_catalogue.shipped()
        for model in sku.models
    }
    return _without(documents, folder)


@fleet
def orders_of_sites(_folder):
    """Variables of the inventory as run.json keeps them."""
    documents = {"nics": {}, "versions": {}, "declared": {}}
    for count, rate in ((None, None), ("", "400 Gb/s"), (8, "400 Gb/s"), ("8", ""), (True, None), ("x", None),
                        (1, "many"), (1, "400"), (1, "1 parsec"), (1, "1 Mb/s"), (1, "900 Pb/s")):  # fmt: skip
        documents["nics"][f"{count} {rate}"] = _or_error(declared.parse_nics, count, rate)
    for value in (None, 7, {"driver": "580"}, {"driver": ["580", 570]}, {"drvier": "1"}, {"driver": 580.1},
                  {"driver": ["580.1", 1.5]}, {"driver": []}, {"driver": [" "]},
                  {"kernel": 6}):  # fmt: skip
        documents["versions"][str(value)] = _or_error(declared.parse_versions, value)
    for variable in (declared.SERVICES, declared.MOUNTS, declared.TEMPERATURE):
        for value in (None, [], ["chronyd.service", "/data/"], ["/", "/data/", "/data"], "chronyd", [7], [" "],
                      ["x"] * 65, ["/" + "x" * 300], 0, "0", False, 85, "85", "hot", 20, True, [85]):  # fmt: skip
            documents["declared"][f"{variable} {str(value)[:60]}"] = _or_error(declared.of_host, {variable: value})
    return documents


@fleet
def setups_of_runs(_folder):
    """What commands and environments of stages imply for fingerprints."""
    training = ["{python}", "-m", "gpuval_workloads.training"]
    gang = ["{python}", "-m", "gpuval_workloads.gang"]
    cases = {
        "training": {"training": {"command": [*training, "--seconds", 20]}},
        "validation": {"training": {"command": [*training, "--validation-only"]}},
        "training_small": {"training": {"command": [*training, "--size", "small"]}},
        "training_refused": {"training": {"command": [*training, "--nothing-of-the-kind"]}},
        "training_of_their_own": {"training": {"command": ["true"]}},
        "training_without_command": {"training": {}},
        "diagnostics": {"diagnostics": {}},
        "diagnostics_without_nvls": {"diagnostics": {"environment": {"NCCL_NVLS_ENABLE": 0}}},
        "collective": {"collective": {"command": [*gang, "collectives"]}},
        "collective_only": {"collective": {"command": [*gang, "collectives", "--only", "all_reduce"]}},
        "collective_network": {"collective": {"command": [*gang, "collectives", "--expect-network", "IB"]}},
        "collective_networks": {"collective": {"command": [*gang, "collectives", "--expect-network", "IB*"]}},
        "deepspeed": {"collective": {"command": [*gang, "deepspeed"]}},
        "other": {"loading": {"command": ["true"]}},
    }  # fmt: skip
    return {
        name: {
            "setups": expected_fingerprints.of_stages(
                declarations, ["training", "diagnostics", "collective", "loading"]
            ),
            "of_h200": expected_fingerprints.for_sku(
                expected_fingerprints.of_stages(declarations, list(declarations)), "h200"
            ),
            "of_none": expected_fingerprints.for_sku(
                expected_fingerprints.of_stages(declarations, list(declarations)), None
            ),
        }
        for name, declarations in cases.items()
    }


@fleet
def files_of_baselines(folder):
    """Baselines as files: written, read again, damaged; and runs that make none."""
    made = drawn(6)
    report = made.judged(alone=False)["report"]
    options = {"name": "site", "version": 1, "created_at": TIME}
    document = make_baseline.make(report, **options)
    path = folder / baseline.file_name(document)
    path.write_text(json.dumps(document))
    documents = {"title": baseline.read(path).title, "next": baseline.next_version(folder, "site"),
                 "first": baseline.next_version(folder, "other")}  # fmt: skip
    texts = {"empty": "", "no_baseline": "{}", "list": "[]", "deep": "[" * 100_000, "nan": "NaN",
             "infinite": path.read_text().replace(":", ": 1e999, \"x\":", 1)}  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
        documents[name] = _or_error(baseline.read, folder / f"{name}.json")
    documents["gone"] = _or_error(baseline.read, folder / "gone.json")
    with (folder / "large.json").open("wb") as large:
        large.truncate(baseline.MAX_BYTES + 1)
    documents["large"] = _or_error(baseline.read, folder / "large.json")
    for name, count, gpus in (("one_gpu", 1, 1), ("two_gpus", 1, 2)):
        few = drawn(count, gpus=gpus, checks=made.checks[:1])
        documents[name] = _or_error(make_baseline.make, few.judged(alone=False)["report"], **options)
    bad = drawn(3)
    for name in bad.run["nodes"]:
        bad.record(name, "training", state="crash")
    documents["no_good_node"] = _or_error(make_baseline.make, bad.judged(alone=False)["report"], **options)
    return _without(documents, folder)
