"""The cache against a real store: what changed is read, what is gone is forgotten, what is hostile is refused."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history import HistoryError, output, table
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.cache import Cache
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.query import History, Question
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.sync import sync

from tests.kit.builders import metric
from tests.kit.history import CHECKS, Run


class Bucket:
    """An empty bucket, its cache, and what the server was asked for."""

    def __init__(self, store, root):
        self.store, self.root = store, root
        self.gets = []
        store.client.meta.events.register("before-parameter-build.s3.GetObject", self._got)
        self.cache = Cache(root, "place")

    def _got(self, params, **_):
        self.gets.append(params["Key"])

    def sync(self):
        self.gets.clear()
        return sync(self.store, self.cache)

    def ask(self, **asked):
        """Sync, and the document; what lines say is looked at too."""
        self.sync()
        question = Question(*(asked.get(key, "") for key in ("node", "serial", "sku", "metric", "since")))
        document = History(self.cache, question, CHECKS).document()
        schemas.validate("history", document, what="history")
        document["lines"] = "\n".join(table.lines(document))
        return document


@pytest.fixture
def bucket(store, tmp_path):
    bucket = Bucket(store, tmp_path)
    yield bucket
    bucket.cache.close()


def verdicts(document):
    return [(row["run_id"], row["verdict"]) for row in document["rows"]]


def test_runs_are_found_by_their_run_json_wherever_they_lie(bucket):
    Run(0).put(bucket.store)
    Run(1, folder="site/weekly").put(bucket.store)
    Run(2, folder="site").put(bucket.store)
    bucket.store.put("models/llama/run.json", b"{}")
    bucket.store.put("images/x/run.json", b"{}")
    bucket.store.put("other/notes.txt", b"hello")
    assert bucket.sync().runs == 3
    assert [row["run_id"] for row in bucket.ask()["rows"]] == ["run-0", "run-1", "run-2"]


def test_a_second_call_reads_nothing_and_a_changed_report_alone_is_read(bucket):
    runs = [Run(number).put(bucket.store) for number in range(2)]
    bucket.store.put("run-0/records/training/node-1.json", b"{}")
    assert bucket.sync().read == len(bucket.gets) == 2 * (1 + 1), "run.json and report.json, and no record"
    assert bucket.sync().read == len(bucket.gets) == 0

    runs[1].speed("node-2", [650.0] * 4)
    runs[1].put(bucket.store)
    bucket.sync()
    assert set(bucket.gets) == {"run-1/run.json", "run-1/report/report.json"}
    (figure,) = bucket.ask(node="node-2")["figures"]
    assert [one["median"] for one in figure["runs"]] == [700, 650]
    (figure,) = bucket.ask(node="node-1")["figures"]
    assert [one["median"] for one in figure["runs"]] == [700, 700], "what did not change is still there"


def test_a_report_of_release_1_0_has_figures_but_no_versions(bucket):
    for number in range(2):
        run = Run(number)
        ((_, head), (key, data)) = run.objects()
        report = json.loads(data)
        for node in report["nodes"] if number == 0 else ():
            del node["versions"]
            for stage in node["stages"]:
                del stage["setup"]
                stage.pop("versions", None)
        bucket.store.put(f"run-{number}/run.json", head)
        bucket.store.put(key, json.dumps(report).encode())
    document = bucket.ask(node="node-1")
    assert [(row["driver"], row["verdict"]) for row in document["rows"]] == [(None, "PASS"), ("580.1", "PASS")]
    assert [[run["run_id"] for run in figure["runs"]] for figure in document["figures"]] == [["run-0"], ["run-1"]]
    assert document["figures"][0]["setup"] == "", "nothing says that its arguments were the same"


def test_what_is_gone_from_the_bucket_is_forgotten(bucket):
    for number in range(3):
        Run(number).put(bucket.store)
    bucket.sync()
    bucket.store.delete_prefix("run-1/")
    bucket.store.delete_prefix("run-2/report/")
    assert bucket.sync().forgotten == 1
    document = bucket.ask(node="node-3")
    assert verdicts(document) == [("run-0", "PASS"), ("run-2", "not judged")]
    assert [run["run_id"] for run in document["figures"][0]["runs"]] == ["run-0"]


def test_the_cache_may_be_deleted_or_damaged_at_any_time(bucket):
    for number in range(2):
        Run(number).put(bucket.store)
    before = bucket.ask(node="node-1")
    for run in bucket.cache.runs():
        run.remove()
    assert bucket.ask(node="node-1") == before
    first, second = bucket.cache.runs()
    first.file("records").write_bytes(b"no parquet")
    (second.path / "state.json").write_text("{")
    assert bucket.ask(node="node-1") == before
    assert bucket.sync().read == 0


def test_hostile_records_are_no_evidence_and_reported(bucket):
    run = Run(0)
    run.records["node-1"]["facts"]["environment"]["gpus"][0]["driver_version"] = "\x1b[31m<b>580'; DROP TABLE runs; --"
    odd = (10**31, -(10**30), 1e308, 5e-324, 0, None)
    told = [metric(f"odd_{place}_count", value) for place, value in enumerate(odd)]
    told.append(metric("training_model_tflops", 1e308, "\ud800\x00'\"; TFLOP/s", "link:a>b"))
    run.records["node-3"]["training"]["metrics"] += told
    run.records["node-3"]["training"]["fingerprints"]["odd_setup"] = "\udfff\x00\u202e'"
    run.receive_all()
    training = {**run.records["node-2"]["training"], "node": "node-1"}
    run.refuse("node-2", "training", json.dumps(training).encode())
    run.refuse("node-2", "loading", b"[" * 100_000)
    run.refuse("node-2", "inference", b" " * (2 << 20))
    run.put(bucket.store)
    document = bucket.ask()
    assert bucket.ask(node="node-3", metric="odd_*,training_model_tflops")["figures"]
    assert document["refused_count"] == 3
    assert {one["stage"] for one in document["refused"]} == {"training", "loading", "inference"}
    assert "node is 'node-1', but it was found under 'node-2'" in document["lines"]
    assert "\x1b" not in document["lines"]
    assert bucket.sync().read == 0, "what was refused is not read again"
    assert document["rows"][0]["nodes"] == 3


def test_a_report_counts_only_where_it_is_one_of_that_run(bucket):
    first, second = Run(0).put(bucket.store), Run(1, folder="run-0")
    assert verdicts(bucket.ask(node="node-1")) == [("run-0", "PASS")]
    second.put(bucket.store, judged=False)  # the folder was taken for another run
    document = bucket.ask(node="node-1")
    assert verdicts(document) == [("run-1", "not judged")]
    assert any("belongs to run run-0" in problem for problem in bucket.sync().problems)
    bucket.store.put("run-0/report/report.json", b'{"nodes": [{"name": "node-1"}]}')
    assert verdicts(bucket.ask(node="node-1")) == [("run-1", "not judged")]
    first.put(bucket.store)
    assert verdicts(bucket.ask(node="node-1")) == [("run-0", "PASS")]


def test_a_run_json_that_is_none_is_reported_and_a_copy_counts_once(bucket):
    run = Run(0).put(bucket.store)
    bucket.store.put("broken/run.json", b"{")
    for key, data in run.objects():
        bucket.store.put(f"copy/{key}", data)
    done = bucket.sync()
    assert done.runs == 1
    assert {"broken/run.json", "copy/run-0/run.json"} == {problem.split()[0] for problem in done.problems}
    assert [run.state["folder"] for run in bucket.cache.runs() if run.state] == ["run-0"]


def test_a_gpu_is_followed_to_another_node_by_its_serial(bucket):
    for number in range(4):
        run = Run(number)
        if number >= 2:  # the GPUs of place 0 changed places
            one, two = (run.facts(node)["gpus"][0] for node in ("node-1", "node-2"))
            one["serial"], two["serial"], one["uuid"], two["uuid"] = (
                two["serial"],
                one["serial"],
                two["uuid"],
                one["uuid"],
            )
        run.speed("node-1", [700 if number < 2 else 710, 700, 700, 700])
        run.speed("node-2", [710 if number < 2 else 680 - number, 700, 700, 700])
        run.put(bucket.store)
    document = bucket.ask(serial="NODE-1/0")
    assert [(row["node"], row["part"]) for row in document["rows"]] == [("node-1", "gpu:0")] * 2 + [
        ("node-2", "gpu:0")
    ] * 2
    (figure,) = document["figures"]
    assert [run["median"] for run in figure["runs"]] == [700, 700, 678, 677]


def test_a_gpu_that_the_stage_numbers_otherwise_than_the_facts_has_no_serial(bucket, tmp_path):
    for number in range(3):
        run = Run(number)
        run.speed("node-1", [700, 650, 700, 700])
        order = [0, 1, 2, 3] if number < 2 else [1, 0, 2, 3]
        devices = [{"index": index, "uuid": f"node-1-{which}"} for index, which in enumerate(order)]
        run.records["node-1"]["training"]["environment"]["devices"] = devices
        run.put(bucket.store)
    (figure,) = bucket.ask(serial="node-1/1")["figures"]
    assert [one["run_id"] for one in figure["runs"]] == ["run-0", "run-1"]
    (figure,) = bucket.ask(node="node-1")["figures"]
    assert [one["parts"] for one in figure["runs"]] == [4, 4, 4], "the node still has them"
    exported(bucket, tmp_path / "records.jsonl", metric="training_model_tflops")
    documents = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    gpus = {one["_id"]: [each["gpu"] for each in one["metrics"]] for one in documents if one["stage"] == "training"}
    assert gpus["run-2/node-1/training"] == [None] * 4
    assert gpus["run-2/node-2/training"] == [f"node-2/{gpu}" for gpu in range(4)]


def test_a_renamed_node_is_shown_under_both_names(bucket):
    Run(0).put(bucket.store)
    renamed = Run(1, nodes=("node-1", "node-2", "new-name"))
    renamed.facts("new-name")["identity"] |= {"serial": "S-node-3", "machine_id": "machine-of-node-3"}
    renamed.put(bucket.store)
    assert [row["node"] for row in bucket.ask(node="new-name")["rows"]] == ["node-3", "new-name"]


def test_drift_is_found_and_says_what_changed(bucket):
    for number in range(6):
        run = Run(number)
        wobble = (0, 0.9, -0.8, 0.3, -0.5, 0.7)[number]
        for node in run.records:
            run.speed(node, [700 + wobble, 701 - wobble, 699 + wobble, 700])
        run.speed("node-2", [700 + wobble, (700 - wobble) * (1 - 0.01 * number), 700, 700])
        if number >= 3:
            for gpu in run.facts("node-2")["gpus"]:
                gpu["driver_version"] = "590.2"
            run.records["node-2"]["training"]["environment"]["torch"] = "2.14.0"
        run.put(bucket.store)
    document = bucket.ask()
    (drift,) = document["drifts"]
    assert (drift["node"], drift["part"], drift["gpu"]) == ("node-2", "gpu:1", "node-2/1")
    assert drift["total_ratio"] == pytest.approx(-0.05, rel=0.05)
    assert [(one["what"], one["after"], one["run_id"]) for one in drift["changes"]] == [
        ("driver", "590.2", "run-3"), ("torch", "2.14.0", "run-3"),
    ]  # fmt: skip
    assert document["held_count"] == 13
    assert "slower" in document["lines"]
    assert bucket.ask(node="node-1")["drift_count"] == 0
    assert bucket.ask(since="2026-09-20")["held_count"] == 0, "three runs are too few"


def test_figures_of_other_arguments_are_not_compared(bucket):
    for number in range(6):
        run = Run(number)
        for records in run.records.values():
            records["training"]["command"] = ["python3", "--seconds", "20" if number % 2 else "300"]
        run.speed("node-1", [700 - 20 * number] * 4)
        run.put(bucket.store)
    document = bucket.ask(node="node-1")
    assert len(document["figures"]) == 2
    assert document["held_count"] == 0


def test_figures_of_another_revision_are_a_series_of_their_own(bucket):
    for number in range(6):
        run = Run(number)
        for records in run.records.values():
            for one in records["training"]["metrics"]:
                one.update({"revision": 2} if number >= 3 and one["name"] == "training_model_tflops" else {})
        run.put(bucket.store)
    document = bucket.ask(node="node-2")
    (first, second) = document["figures"]
    assert second["setup"] == f"revision 2 {first['setup']}"
    assert [len(figure["runs"]) for figure in (first, second)] == [3, 3]
    assert document["held_count"] == 0, "three runs of each are too few"


def test_flaky_machines_are_reported_with_counts(bucket):
    for number in range(4):
        run = Run(number)
        if number % 2:
            run.speed("node-3", [500, 700, 700, 700])
        if number == 2:
            run.further_attempt("node-1")
        run.put(bucket.store)
    document = bucket.ask()
    told = {one["node"]: (one["changes"], one["pattern"], one["retried_runs"]) for one in document["flaky"]}
    assert told == {"node-3": (3, "PFPF", []), "node-1": (0, "", ["run-2"])}
    assert [row["failed_checks"] for row in bucket.ask(node="node-3")["rows"]] == [[], ["tflops gpu:0"]] * 2


def test_questions_that_have_no_answer_say_what_to_do(bucket):
    assert bucket.ask()["lines"] == "history of the fleet: no run in the bucket; `make validate` starts one"
    Run(0).put(bucket.store)
    for asked, message in (
        ({"node": "node-9"}, "known are node-1, node-2, node-3"),
        ({"serial": "x"}, "serial or UUID of a GPU"),
        ({"sku": "mi300x"}, "known are h200"),
        ({"metric": "tflop"}, "training_model_tflops"),
        ({"since": "soon"}, "give a date"),
        ({"node": "a", "sku": "b"}, "only one of history_node"),
    ):
        with pytest.raises(HistoryError, match=message):
            bucket.ask(**asked)
    assert bucket.ask(metric="training/*_seconds")["figures"]
    assert bucket.ask(sku="NVIDIA H200")["rows"][0]["nodes"] == 3


def exported(bucket, path, **asked):
    bucket.sync()
    question = Question(*(asked.get(key, "") for key in ("node", "serial", "sku", "metric", "since")))
    return output.export(History(bucket.cache, question, CHECKS), path, bucket.cache.draft, dry=False)


def test_records_are_exported_for_a_document_database_and_as_parquet(bucket, tmp_path):
    for number in range(2):
        run = Run(number)
        run.run["nodes"]["node-1"]["labels"] = {"rack": "r1", "site.row": "b"}
        run.put(bucket.store)
    run.refuse("node-2", "training", b"{}")
    run.put(bucket.store)
    lines, table_file = tmp_path / "records.jsonl", tmp_path / "records.parquet"
    assert exported(bucket, lines) == [str(lines)]
    assert exported(bucket, lines) == []
    documents = {one["_id"]: one for one in map(json.loads, lines.read_text().splitlines())}
    assert len(documents) == 2 * 3 * len(run.records["node-1"]) - 1
    assert "run-1/node-2/training" not in documents, "it is refused"
    found = documents["run-0/node-1/training"]
    assert found["time"] == {"$date": "2026-09-01T10:00:00Z"}
    assert found["labels"] == {"rack": "r1", "site_row": "b"}
    assert (found["verdict"], found["state"]) == ("PASS", "success")
    assert found["versions"]["driver"] == "580.1"
    assert found["versions"]["torch"] == "2.13.0"
    speeds = [one for one in found["metrics"] if one["name"] == "training_model_tflops"]
    assert [(one["part"], one["gpu"], one["value"]) for one in speeds] == [
        (f"gpu:{gpu}", f"node-1/{gpu}", 700.0) for gpu in range(4)
    ]
    assert exported(bucket, table_file) == [str(table_file)]
    execute = bucket.cache.connection.execute
    rows = execute(
        "SELECT _id, epoch(time), labels['rack'], len(metrics) FROM read_parquet(?)", [str(table_file)]
    ).fetchall()
    assert {row[0]: row[3] for row in rows} == {key: len(one["metrics"]) for key, one in documents.items()}
    assert ("run-0/node-1/training", 1788256800.0, "r1", len(found["metrics"])) in rows


def test_an_export_has_what_was_asked_for(bucket, tmp_path):
    path = tmp_path / "some.jsonl"
    with pytest.raises(HistoryError, match="the bucket has no run"):
        exported(bucket, path)
    for number in range(2):
        Run(number).put(bucket.store)
    exported(bucket, path, serial="node-2/1", metric="training_model_tflops", since="2026-09-05")
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(one["run_id"], one["node"]) for one in documents} == {("run-1", "node-2")}
    assert [one["gpu"] for document in documents for one in document["metrics"]] == ["node-2/1"]
