"""Kinds of criteria on single nodes: limits, trends, fingerprints, parts, what a check applies to and what it needs."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Criteria

from tests.kit.builders import check, facts_record, make_record, metric, training_metrics
from tests.kit.judged_fleets.fleet import Fleet, fleet


def _held(one, metrics, *, gpus=8, vendor="nvidia", more=(), **fields):
    """What is judged of a node whose training reported these metrics, by one check and ``more``."""
    run_fields = {key: fields.pop(key) for key in ("sku", "gpu_count", "setups", "profile") if key in fields}
    held = Fleet(["node-1"], stages=["facts", "training"], checks=[one, *more], gpus=gpus, vendor=vendor, **run_fields)
    held.replace("node-1", "training", metrics=metrics, **fields)
    return held.judged(alone=False)


@fleet
def limits(_folder):
    """Limits of every kind beside figures that hold them, miss them, or have another unit."""
    cases = {
        "min_at": ({"kind": "min", "value": 10}, 10, "count"),
        "min_under": ({"kind": "min", "value": 10}, 9.999999999, "count"),
        "min_alike_in_words": ({"kind": "min", "value": 900}, 899.9996, "count"),
        "max_over_in_other_unit": ({"kind": "max", "value": 100, "unit": "ms"}, 0.1000001, "seconds"),
        "max_at_in_other_unit": ({"kind": "max", "value": 100, "unit": "ms"}, 0.1, "seconds"),
        "min_in_bits": ({"kind": "min", "value": 5.79, "unit": "Gbps"}, 723749999, "bytes_per_second"),
        "within_at": ({"kind": "within", "low": 1, "high": 2}, 2, "count"),
        "within_over": ({"kind": "within", "low": 1, "high": 2}, 2.5, "count"),
        "within_under": ({"kind": "within", "low": 1, "high": 2}, 0.5, "count"),
        "equal": ({"kind": "equal", "value": 8}, 8, "count"),
        "equal_not": ({"kind": "equal", "value": 8}, 7, "count"),
        "other_unit": ({"kind": "max", "value": 1, "unit": "GB"}, 1, "seconds"),
        "unknown_unit": ({"kind": "max", "value": 1, "unit": "GB"}, 1, "parsecs"),
        "not_a_number": ({"kind": "max", "value": 1}, None, "seconds"),
        "not_a_number_advice": ({"kind": "max", "value": 1, "severity": "advisory"}, None, "seconds"),
    }
    documents = {
        name: _held(check(metric="m", **fields), [metric("m", value, unit)])
        for name, (fields, value, unit) in cases.items()
    }
    documents["twice"] = _held(check(metric="m", value=1), [metric("m", 2), metric("m", 0)])
    documents["absent"] = _held(check(metric="m", value=1), [])
    documents["absent_where_reported"] = _held(check(metric="m", value=1, where_reported=True), [])
    documents["absent_stage_where_reported"] = _held(
        check(metric="m", stage="loading", value=1, where_reported=True), []
    )
    from_counts = {
        "gpus_declared": {"gpu_count": 8}, "gpus_fewer": {"gpu_count": 4}, "gpus_not_declared": {},
        "gpus_unknown": {"gpus": 0, "vendor": "amd"},
    }  # fmt: skip
    for name, fields in from_counts.items():
        one = check("gpus", metric="m", kind="equal", value_from="gpu_count")
        documents[name] = _held(one, [metric("m", 8)], **fields)
    for source in ("gpu_pairs", "gpus"):
        one = check("pairs", metric="m", kind="equal", value_from=source)
        documents[f"from_{source}"] = _held(one, [metric("m", 56 if source == "gpu_pairs" else 7)])
        unknown = Fleet(["node-1"], stages=["facts", "training"], checks=[one])
        unknown.record("node-1", "facts", metrics=[])
        unknown.replace("node-1", "training", metrics=[metric("m", 1)])
        documents[f"from_{source}_unknown"] = unknown.judged(alone=False)
    for name, declared in (("hot", {"gpu_temperature_max_celsius": 60}), ("no_limit", {}), ("cool", {
        "gpu_temperature_max_celsius": 90})):  # fmt: skip
        one = check("hot", metric="gpu_temperature_max_celsius", kind="max", scope="gpu", unit="celsius",
                    value_from="gpu_temperature_max")  # fmt: skip
        warm = Fleet(["node-1"], stages=["facts", "training"], checks=[one])
        warm.node("node-1")["declared"] = declared
        for gpu in range(8):
            warm.set("node-1", "training", "gpu_temperature_max_celsius", 65, f"gpu:{gpu}", unit="celsius")
        documents[f"temperature_{name}"] = warm.judged(alone=False)
    return documents


@fleet
def trends(_folder):
    """Figures that fall or rise, in one stage."""
    cases = {
        "falls": (8.0, 4.0, "falling"), "falls_little": (8.0, 7.9, "falling"), "rises": (8.0, 9.0, "rising"),
        "wrong_way": (8.0, 9.0, "falling"), "negative": (-2.0, -4.0, "falling"), "stays": (8.0, 8.0, "falling"),
        "from_zero": (0.0, 1.0, "rising"), "first_no_number": (None, 1.0, "rising"),
        "last_no_number": (8.0, None, "falling"),
    }  # fmt: skip
    fields = {"kind": "trend", "metric": "b", "baseline_metric": "a", "min_change": 0.05}
    documents = {
        name: _held(check(direction=direction, **fields), [metric("a", first, "loss"), metric("b", last, "loss")])
        for name, (first, last, direction) in cases.items()
    }
    falling = check(direction="falling", **fields)
    documents["no_first"] = _held(falling, [metric("b", 1.0)])
    documents["other_unit"] = _held(falling, [metric("a", 8.0, "seconds"), metric("b", 1.0, "bytes")])
    documents["several_firsts"] = _held(falling, [metric("a", 8.0), metric("a", 0.0), metric("b", 1.0)])
    documents["crashed"] = _held(falling, [metric("a", 8.0), metric("b", 8.0)], state="crash")
    documents["failed"] = _held(falling, [metric("a", 8.0), metric("b", 4.0)], state="failure")
    per_gpu = check(direction="falling", scope="gpu", **fields)
    parts = [metric(name, value, "loss", f"gpu:{gpu}") for gpu in range(8) for name, value in (("a", 8), ("b", 4))]
    documents["per_gpu"] = _held(per_gpu, parts)
    documents["per_gpu_one_is_gone"] = _held(per_gpu, [one for one in parts if one["scope"] != "gpu:2"])
    return documents


@fleet
def parts(_folder):
    """Figures of GPUs, ranks and links: some missing, some failing, too many, and counts that cannot be."""
    tflops = check("tflops", metric="training_model_tflops", scope="gpu", value=600)
    p99 = check(
        "p99", metric="training_step_p99_seconds", scope="rank", kind="max", parts_from="training_processes_count"
    )
    links = check("links", metric="l", scope="link", value=1, parts_from="links_count")
    told = training_metrics()

    def without(*scopes):
        return [one for one in told if one["scope"] not in scopes]

    def scaled(*scopes):
        return [{**one, "value": 1.0} if one["scope"] in scopes else one for one in told]

    def ranks(value):
        return [{**one, "value": value} if one["name"] == "training_processes_count" else one for one in told]

    def of_links(count, number, value=2):
        figures = [metric("l", value, scope=f"link:gpu{at}>gpu{at + 1}") for at in range(number)]
        return [metric("links_count", count), *figures]

    many = [metric("training_model_tflops", 1.0, scope=f"gpu:{gpu}") for gpu in range(80)]
    documents = {
        "all": _held(tflops, told),
        "two_missing": _held(tflops, without("gpu:5", "gpu:7")),
        "two_missing_of_declared": _held(tflops, without("gpu:5", "gpu:7"), gpu_count=8),
        "two_fail": _held(tflops, scaled("gpu:3", "gpu:4")),
        "all_fail": _held(tflops, scaled(*(f"gpu:{gpu}" for gpu in range(8)))),
        "all_fail_and_one_is_gone": _held(tflops, [
            one for one in scaled(*(f"gpu:{gpu}" for gpu in range(8))) if one["scope"] != "gpu:7"
        ]),
        "all_fail_and_one_has_no_unit": _held(check("tflops", metric="m", scope="gpu", value=600, unit="TFLOP/s"), [
            metric("m", 1.0, "TFLOP/s" if gpu else "watts", f"gpu:{gpu}") for gpu in range(8)
        ]),
        "all_fail_and_one_is_told_twice": _held(check("tflops", metric="m", scope="gpu", value=600, unit="TFLOP/s"), [
            *(metric("m", 1.0, "TFLOP/s", f"gpu:{gpu}") for gpu in range(8)), metric("m", 1.0, "watts", "gpu:0")
        ]),
        "two_units_are_wrong": _held(check("tflops", metric="m", scope="gpu", value=600, unit="TFLOP/s"), [
            metric("m", 700.0, "TFLOP/s" if gpu > 1 else "watts", f"gpu:{gpu}") for gpu in range(8)
        ]),
        "one_gpu_fails": _held(tflops, training_metrics(1, tflops=1.0), gpus=1),
        "eighty_fail": _held(tflops, many, gpu_count=80),
        "no_gpus": _held(tflops, told, gpu_count=0),
        "ranks": _held(p99, told),
        "rank_missing": _held(p99, without("rank:6")),
        "ranks_not_told": _held(p99, [one for one in told if one["name"] != "training_processes_count"]),
        "ranks_absurd": _held(p99, ranks(1e300)),
        "ranks_no_number": _held(p99, ranks(None)),
        "ranks_told_twice": _held(p99, [*told, metric("training_processes_count", 4)]),
        "links": _held(links, of_links(4, 4)),
        "links_missing": _held(links, of_links(4, 3)),
        "links_too_many": _held(links, of_links(2, 4)),
        "links_none": _held(links, of_links(0, 0)),
        "links_of_one_gpu": _held(links, of_links(0, 0), gpus=1),
        "ranks_without_count": _held(
            check("ranks", metric="training_step_p99_seconds", scope="rank", kind="max", parts_from="none_count"), told
        ),
    }  # fmt: skip
    unknown = Fleet(["node-1", "node-2"], stages=["facts", "training"], checks=[tflops])
    unknown.record("node-1", "facts", metrics=[])
    unknown.set("node-2", "facts", "gpu_count", 7.5)
    documents["gpus_unknown"] = unknown.judged(alone=False)
    return documents


@fleet
def applies(_folder):
    """Checks that are for some profiles, SKUs, vendors, workloads and numbers of GPUs."""
    documents = {}
    for name, where in {
        "profile_other": {"profile": ["burnin"]}, "profile": {"profile": ["quick", "burnin"]},
        "sku_other": {"sku": ["h100"]}, "sku": {"sku": ["h200"]}, "accelerator_other": {"accelerator": ["amd"]},
        "accelerator": {"accelerator": ["nvidia"]}, "gpu": {"accelerator": ["gpu"]},
        "workload_other": {"workload": ["training_validation"]}, "workload": {"workload": ["training"]},
        "gpu_count_other": {"gpu_count": [1, 4]}, "gpu_count": {"gpu_count": [8]},
        "at_least_other": {"gpus_at_least": 16}, "at_least": {"gpus_at_least": 8},
    }.items():  # fmt: skip
        documents[name] = _held(check(applies=where), training_metrics())
        documents[f"{name}_cpu"] = _held(check(applies=where), training_metrics(part="rank"), gpus=0, vendor="cpu")
        unknown = Fleet(["node-1"], stages=["training"], checks=[check(applies=where)])
        documents[f"{name}_unknown"] = unknown.judged(alone=False)
    no_workload = Fleet(["node-1"], stages=["facts", "training"], checks=[check(applies={"workload": ["other"]})])
    no_workload.run["workloads"] = {}
    documents["workload_of_the_record"] = no_workload.judged(alone=False)
    no_workload.drop("node-1", "training")
    documents["workload_unknown"] = no_workload.judged(alone=False)
    where = {"accelerator": ["gpu"], "gpu_count": [8]}
    reported = check(applies=where, where_reported=True)
    documents["where_reported_elsewhere"] = _held(reported, training_metrics(4), gpus=4)
    unknown = Fleet(["node-1"], stages=["training"], checks=[reported])
    documents["where_reported_unknown"] = unknown.judged(alone=False)
    return documents


@fleet
def setups(_folder):
    """Limits that are for one way to work, beside what the settings ask for."""
    documents = {}
    for severity in ("required", "advisory"):
        limit = check(applies={"fingerprints": {"setup": ["a", "b"]}}, severity=severity)
        for name, reported, asked in (
            ("as_asked", "a", ["a"]), ("not_told", None, ["a"]), ("other_than_asked", "c", ["a"]),
            ("other_asked", "a", ["c"]), ("other_asked_and_done", "c", ["c", "d"]), ("nothing_asked", "a", None),
            ("nothing_asked_other", "c", None), ("nothing_asked_not_told", None, None),
        ):  # fmt: skip
            documents[f"{name}_{severity}"] = _held(
                limit, training_metrics(), fingerprints={"setup": reported} if reported else {},
                setups={"training": {"setup": {"any": asked}}} if asked else {},
            )  # fmt: skip
    of_sku = {"training": {"setup": {"h200": ["a"], "any": ["c"]}, "empty": {"h100": ["x"]}}}
    documents["of_sku"] = _held(
        check(applies={"fingerprints": {"setup": ["a"]}}),
        training_metrics(),
        setups=of_sku,
        fingerprints={"setup": "a"},
    )
    return documents


@fleet
def fingerprints(_folder):
    """Fingerprints that are to be a certain text."""
    text = check(kind="equal", metric="firmware", value="1.2.3")
    return {
        "equal": _held(text, [], fingerprints={"firmware": "1.2.3"}),
        "other": _held(text, [], fingerprints={"firmware": "1.2.2"}),
        "none": _held(text, []),
        "earlier": _held(text, [], fingerprints={"firmware": "1.2.3"}, attempt=2, attempts=[
            make_record(fingerprints={"firmware": "1.2.2"})
        ]),
    }  # fmt: skip


@fleet
def requirements(_folder):
    """Checks that are judged only when others pass, excuses, advice, and checks that hold for every stage."""
    first = check("first", metric="a", value=1)
    second = check("second", metric="b", value=1, requires=["first"])
    third = check("third", metric="b", value=1, requires=["first", "nothing_of_the_kind"], severity="advisory")
    excuses = check("precision", metric="p", scope="gpu", value=1, excused_by=["left_out.fp8", "telemetry.absent.p"])
    documents = {
        "both": _held(first, [metric("a", 2), metric("b", 2)], more=[second, third]),
        "first_fails": _held(first, [metric("a", 0), metric("b", 2)], more=[second, third]),
        "first_is_gone": _held(first, [metric("b", 0)], more=[second, third]),
        "second_is_elsewhere": _held(first, [metric("a", 0)], more=[
            check("second", metric="b", value=1, requires=["first"], applies={"profile": ["burnin"]})
        ]),
    }  # fmt: skip
    for name, environment in {
        "excused": {"telemetry": {"absent": {"p": "not supported by this driver"}}},
        "not_excused": {"telemetry": {"absent": {"p": "the driver failed"}}},
        "precision_of_the_sku": {"left_out": {"fp8": "no fp8 product"}},
        "half_excused": {"left_out": {"fp8": "not supported"}, "telemetry": {"absent": {"p": "the driver failed"}}},
        "silent": {},
    }.items():
        documents[name] = _held(excuses, [metric("p", 2, scope="gpu:0")], environment=environment)
        for models in ("H100", "NVIDIA B200"):
            model = Fleet(["node-1"], stages=["facts", "training"], checks=[excuses])
            for gpu in model.facts("node-1")["gpus"]:
                gpu["name"] = models
            model.replace("node-1", "training", metrics=[], environment=environment)
            documents[f"{name}_{models}".replace(" ", "_")] = model.judged(alone=False)
    documents["excused_and_failed"] = _held(
        excuses, [metric("p", 0, scope="gpu:0")], environment={"telemetry": {"absent": {"p": "not supported"}}}
    )
    everywhere = check("training_errors", metric="errors", kind="max", value=0, every_stage=True)
    also = check("facts_errors", stage="facts", metric="errors", kind="max", value=1)
    since_boot = check("loading_errors", stage="loading", metric="others", kind="max", value=1)
    every = Fleet(["fine", "bad"], stages=["facts", "training", "loading"], checks=[everywhere, also, since_boot])
    for stage in ("facts", "training", "loading"):
        every.set("bad", stage, "errors", 1)
        every.set("bad", stage, "others", 0)
    documents["every_stage"] = every.judged()
    return documents


@fleet
def same_on_all_gpus(_folder):
    """What is to be the same on all GPUs of a node."""
    firmware = check("firmware", stage="facts", metric="firmware", kind="same", peers="node",
                     path="gpus[].firmware_version")  # fmt: skip
    documents = {}
    for severity in ("required", "advisory"):
        one = check("firmware", stage="facts", metric="firmware", kind="same", peers="node", severity=severity,
                    path="gpus[].firmware_version", applies={"accelerator": ["gpu"]})  # fmt: skip
        nodes = ("alike", "one-other", "halves", "none", "no-index", "cpu", "crash", "no-record")
        same = Fleet(nodes, stages=["facts", "training"], checks=[one])
        for name in nodes:
            for gpu in same.facts(name)["gpus"]:
                gpu["firmware_version"] = "96.00"
        same.facts("one-other")["gpus"][2]["firmware_version"] = "95.00"
        for gpu in same.facts("halves")["gpus"][:4]:
            gpu["firmware_version"] = "95.00"
        for gpu in same.facts("none")["gpus"]:
            del gpu["firmware_version"]
        for gpu in same.facts("no-index")["gpus"]:
            gpu["index"] = "x"
        same.facts("no-index")["gpus"][0]["firmware_version"] = "95.00"
        same.evidence.records["cpu"]["facts"] = facts_record("cpu", vendor="cpu", gpus=0)
        same.record("crash", "facts", state="crash")
        same.drop("no-record", "facts")
        documents[severity] = same.judged()
    open_stage = Fleet(["pending"], stages=["facts", "training"], checks=[firmware])
    open_stage.record("pending", "facts", state="pending")
    documents["pending"] = open_stage.judged()
    return documents


@fleet
def outliers_of_a_node(_folder):
    """Parts of one node beside each other."""
    one = check("beside", metric="m", kind="outlier", peers="node", scope="gpu", max_below=0.05, deviations=4)
    above = check("above", metric="m", kind="outlier", peers="node", scope="gpu", max_above=0.05, deviations=4)
    figures = [metric("m", 100 + gpu / 10, "TFLOP/s", f"gpu:{gpu}") for gpu in range(8)]

    def with_(position, value, unit="TFLOP/s"):
        changed = [dict(figure) for figure in figures]
        changed[position].update(value=value, unit=unit)
        return changed

    documents = {}
    for name, told, fields in (
        ("alike", figures, {}), ("one_slow", with_(3, 50), {}), ("one_fast", with_(3, 150), {}),
        ("no_number", with_(3, None), {}), ("units", with_(3, 50, "GFLOP/s"), {}),
        ("zero", [{**figure, "value": 0} for figure in figures], {}),
        ("two_gpus", figures[:2], {"gpus": 2}), ("two_of_eight", figures[:2], {}),
        ("gone", figures[1:], {}), ("crash", figures, {"state": "crash"}),
    ):  # fmt: skip
        documents[name] = _held(one, told, more=[above], **fields)
    return documents


@fleet
def coverage_gaps(_folder):
    """Figures that no criterion looks at, more of them than are shown, and criteria whose figure no node reports."""
    told = [metric(f"made_up_{number}_count", number) for number in range(120)]
    documents = {"unjudged": _held(check(metric="m", value=1), [*told, metric("m", 2)])}
    documents["unreported"] = _held(check(metric="never", value=1, severity="advisory"), [])
    informational = Fleet(["node-1"], stages=["facts", "training"])
    informational.checks = Criteria(informational.checks, ())
    documents["criteria"] = informational.judged(alone=False)
    return documents


@fleet
def waiting_for_one_gpu(_folder):
    """One GPU holds up the others: its figure fails, what waits for it warns."""
    tflops = check("tflops", metric="training_model_tflops", scope="gpu", value=600)
    compute = check("compute", metric="training_compute_ratio", scope="gpu", kind="max", value=1.05)
    node = check("whole", metric="training_model_tflops", scope="gpu", value=650, severity="advisory")
    documents = {}
    for case, slow in (("one", {3: 1.2}), ("two", {3: 1.2, 5: 1.3}), ("all", dict.fromkeys(range(8), 1.2)),
                       ("none", {})):  # fmt: skip
        held = Fleet(["node-1"], stages=["facts", "training"], checks=[tflops, compute, node])
        for gpu in range(8):
            ratio = slow.get(gpu, 1.0)
            held.set("node-1", "training", "training_compute_ratio", ratio, f"gpu:{gpu}", unit="ratio")
            held.set("node-1", "training", "training_model_tflops", 500.0 + gpu / 10, f"gpu:{gpu}", unit="TFLOP/s")
        documents[case] = held.judged(alone=False)
        for gpu in range(2, 8):
            held.scale("node-1", "training", "training_model_tflops", 2, f"gpu:{gpu}")
        documents[f"{case}_and_two_wait"] = held.judged(alone=False)
    return documents
