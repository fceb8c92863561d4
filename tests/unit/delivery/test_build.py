"""A delivery from the results of a run: what is in it, the same bytes again, nothing internal."""

import base64
import gzip
import hashlib
import io
import json
import random
import re
import stat
import subprocess
import tarfile
import zipfile

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import SecretRedactor
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import (
    DeliveryError,
    destination,
    log_bundle,
    pack,
    report_conversion,
    stage_file,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import build as build_module
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery.build import Request, build
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data import conversion
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import (
    InternalData,
    InternalDataConverter,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.scan import ScanTargets
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.sensitive import Sensitive
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.builders import STAGES, facts_record, healthy, judge, make_record, make_run
from tests.kit.planted_secrets import leaks, plant
from tests.kit.reports import json_text

IDS = {"node-1": "atl1node212", "node-10": "atl1node342", "node-2": "atl1node007"}
SECRET = plant("store")
PLANTED = {
    "secret": SECRET,
    "address": "203.0.113.17",
    "own address": "198.51.100.44",
    "private address": "10.20.30.40",
    "hardware": "02:fc:00:00:00:0a",
    "host name": "gpu-host-17",
    "jump host": "bastion.corp",
}
HOSTILE = (
    f"\x1b[31mred\x1b[0m {SECRET} <script>alert(1)</script>\r\n"
    "node-10 at 10.20.30.40 and 203.0.113.17, gpu-host-17, ssh -J ops@bastion.corp, 02:fc:00:00:00:0a\n"
    "===== log =====\n}\n\u202eevil\n"
    "driver 580.159.04.1, version 10.2.89.1\n"
)


@pytest.fixture
def folder(tmp_path):
    """The results of three nodes: hostile logs, an archive of `make logs`, a missing record."""
    run = make_run(list(IDS), stages=STAGES)
    evidence = healthy(run)
    evidence.records["node-10"]["training"] = make_record(
        "node-10", state="crash", message="peer 10.20.30.40 of node-10 died; see nodes/node-10/training.log",
        image="bastion.corp/node-10/train:1", environment={"torch": "2.13 of gpu-host-17"},
        fingerprints={"training_setup": "large at 10.20.30.40"},
    )  # fmt: skip
    facts = facts_record("node-10")
    facts["environment"]["os"] = {"hostname": "gpu-host-17", "name": "Ubuntu 24.04"}
    facts["environment"]["nics"] = [{"kind": "interface", "name": "eth0", "address": "02:fc:00:00:00:0a"}]
    evidence.records["node-10"]["facts"] = facts
    del evidence.records["node-2"]["inference"]
    folder = run_folder.RunFolder(tmp_path / "results" / run["run_id"])
    folder.write_run(run)
    for name, records in evidence.records.items():
        for stage, record in records.items():
            run_folder.write_json(folder.evidence_file(name, stage), record)
            folder.evidence_file(name, stage, "logs").write_text(f"{stage} on {name}\n{HOSTILE}")
        curve = {
            "name": "training_loss",
            "unit": "loss",
            "scope": "node",
            "x_unit": "step",
            "x": [1, 2],
            "y": [2.0, 1.0],
        }
        series = {"schema": "gpuval.series/1", "run_id": run["run_id"], "node": name, "stage": "training", "attempt": 1}
        run_folder.write_json(folder.evidence_file(name, "training", "series"), {**series, "series": [curve]})
    (folder.path / "report.json").write_text(json_text(judge(run, evidence)))
    archive = log_bundle.archive_file(folder.path, "node-10")
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as packed:
        for name, text in {
            "gpu/nvidia-smi.txt": "| NVIDIA-SMI 580.159.04 on gpu-host-17 |\n",
            "gpu/nvidia-smi-q.txt": "Driver Version : 580.159.04\n",
            "network/addresses.txt": "    link/ether 02:fc:00:00:00:0a\n    inet 198.51.100.44/24 scope global eth0\n",
            "network/routes.txt": "default via 10.20.30.1\n",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    return folder


def sensitive_data():
    found = Sensitive()
    found.add_variables("node-10", {"ansible_host": "203.0.113.17", "ansible_ssh_common_args": "-J ops@bastion.corp"})
    found.secrets.add(SECRET)
    return found


def make(folder, form="folder", ids=IDS, name="acceptance"):
    return build(Request(folder, name, form, ids), sensitive_data())


def contents(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def read_stage_file(data):
    """The header and the parts of a delivered stage file, whose sizes the header has."""
    end = data.index(b"\n}\n") + 3
    head = json.loads(data[:end])
    parts, at = {}, end
    for section in head["sections"]:
        at += len(f"\n===== {section['name']} =====\n".encode())
        parts[section["name"]] = data[at : at + section["bytes"]]
        at += section["bytes"]
    assert at == len(data)
    return head, parts


def test_a_file_for_every_node_and_stage_and_nothing_internal(folder):
    built = make(folder)
    files = contents(built.path)
    expected = {f"logs/{stage}/{identity}.log" for stage in STAGES for identity in IDS.values()}
    forms = {
        "report.json",
        "report.html",
        "report.md",
        "perf.csv",
        "index.csv",
        "README.md",
        "manifest.json",
        "SHA256SUMS",
    }
    assert set(files) == expected | forms
    for name, data in files.items():
        for what, planted in PLANTED.items():
            assert planted.encode() not in data and planted not in name, f"{what} in {name}"
        assert leaks({"secret": SECRET}, data) == []
        assert not re.search(rb"(?<![\w-])node-\d+(?![\w-])", data), name
        assert b"\x1b" not in data and "\u202e".encode() not in data
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=built.path, check=True, timeout=30
    )


def test_a_stage_file_is_header_vendor_state_and_log(folder):
    built = make(folder)
    head, parts = read_stage_file((built.path / "logs/training/atl1node342.log").read_bytes())
    schemas.validate("delivered_stage", head, what="header")
    assert (head["node"], head["stage"], head["state"], head["verdict"]) == ("atl1node342", "training", "crash", "FAIL")
    assert head["message"] == "peer address-1 of atl1node342 died; see nodes/atl1node342/training.log"
    assert head["software"]["os"] == "Ubuntu 24.04"
    assert [check["verdict"] for check in head["checks"] if check["name"] == "training_state"] == ["fail"]
    (vendor,) = [data for name, data in parts.items() if name.startswith("vendor tool: nvidia-smi,")]
    assert vendor == b"| NVIDIA-SMI 580.159.04 on atl1node342 |\n"
    log = parts["log"].decode()
    assert log.startswith("training on atl1node342\n") and "===== log =====\n}" in log
    assert "driver 580.159.04.1, version 10.2.89.1" in log
    assert "<script>" in log, "a log is text; what shows it escapes it"
    head, parts = read_stage_file((built.path / "logs/facts/atl1node342.log").read_bytes())
    assert any(name.startswith("vendor tool: nvidia-smi-q,") for name in parts)
    assert "hostname" not in head["environment"]["os"]
    assert head["environment"]["nics"][0]["address"] == "mac-1"
    assert [gpu["serial"] for gpu in head["gpus"]] == [f"16549{index}" for index in range(8)]


def test_a_stage_without_a_record_is_delivered_as_missing(folder):
    head, parts = read_stage_file((make(folder).path / "logs/inference/atl1node007.log").read_bytes())
    schemas.validate("delivered_stage", head, what="header")
    assert (head["state"], head["verdict"], parts["log"]) == ("missing", "INCOMPLETE", b"")
    (vendor,) = [data for name, data in parts.items() if name.startswith("vendor tool")]
    assert b"serial                  : 165490" in vendor, "without `make logs` what the facts told"


def test_the_report_is_made_anew_under_unique_ids(folder):
    path = make(folder).path
    report = json.loads((path / "report.json").read_text())
    schemas.validate("report", report, what="report")
    assert [node["name"] for node in report["nodes"]] == sorted(IDS.values())
    original = json.loads((folder.path / "report.json").read_text())
    assert report["counts"] == original["counts"] and report["verdict"] == original["verdict"]
    verdicts = {node["name"]: node["verdict"] for node in report["nodes"]}
    assert verdicts == {IDS[node["name"]]: node["verdict"] for node in original["nodes"]}
    (crash,) = [check for node in report["nodes"] for check in node["checks"] if check["verdict"] == "fail"]
    assert "see logs/training/atl1node342.log" in crash["reason"]
    assert any(line.startswith("atl1node342 FAIL training") for line in report["summary"])
    page = (path / "report.html").read_text()
    assert 'href="logs/training/atl1node342.log"' in page and "nodes/" not in page.split("<script")[0]
    assert "training_loss" in page
    assert "logs/training/atl1node342.log" in (path / "report.md").read_text()
    assert (path / "perf.csv").read_text().splitlines()[1].count("atl1node") == 1


def rewrite(folder, change):
    report = json.loads((folder.path / "report.json").read_text())
    change(report)
    (folder.path / "report.json").write_text(json_text(report))


def test_labels_are_converted(folder):
    def change(report):
        for node in report["nodes"]:
            node["labels"] = {"rack": "r1", "bmc": "10.99.1.6", "host": node["name"], "of node-10": "bastion.corp"}

    rewrite(folder, change)
    path = make(folder).path
    node = json.loads((path / "report.json").read_text())["nodes"][0]
    assert node["labels"]["rack"] == "r1" and node["labels"]["host"] == node["name"]
    assert node["labels"]["bmc"].startswith("address-") and node["labels"]["of atl1node342"].startswith("host-")
    for name, data in contents(path).items():
        for planted in (b"10.99.1.6", b"bastion.corp"):
            assert planted not in data, name


def test_nodes_that_an_analysis_names_are_named_by_ids_whatever_they_are_called():
    converter = InternalDataConverter(InternalData(names={"1": "atl1", "2": "atl2", "gpu": "atl3"}))
    analysis = {
        "statistics": [{"outliers": [{"node": "1", "part": "gpu"}, {"node": "gpu", "part": "2"}]}],
        "findings": [{"names": ["2", "gpu"], "value": "2", "text": "2 of 7"}],
    }
    report = {
        "schema": "gpuval.report/1",
        "run": {"run_id": "r", "folder": "r", "bucket": "b", "narrowed_by": []},
        "verdict": "PASS",
        "counts": {"expected": 0, "PASS": 0, "FAIL": 0, "INCOMPLETE": 0, "flaky": 0},
        "nodes": [],
        "fleet": {"checks": [], "problems": [], "analysis": analysis},
    }
    assert report_conversion.converted(report, converter, "x")["fleet"]["analysis"] == {
        "statistics": [{"outliers": [{"node": "atl1", "part": "gpu"}, {"node": "atl3", "part": "2"}]}],
        "findings": [{"names": ["atl2", "atl3"], "value": "2", "text": "2 of 7"}],
    }


def test_an_id_that_is_the_common_name_of_another_worker_is_refused(folder):
    with pytest.raises(DeliveryError, match="the id 4 of node-1 is the name of another worker"):
        make(folder, ids={**IDS, "node-1": "4", "4": "atl1"})
    assert not (folder.path / "delivery").exists()
    make(folder, ids={**IDS, "node-1": "4"})


@pytest.mark.parametrize("word", ["training", "required", "position", "duration_seconds"])
def test_a_secret_that_is_a_word_of_ours_does_not_block(folder, word):
    sensitive = sensitive_data()
    sensitive.secrets.add(word)
    folder.evidence_file("node-1", "loading", "logs").write_text(f"the password is {word}\n")
    built = build(Request(folder, "x", "folder", IDS), sensitive)
    assert built.own_terms == 1
    head, parts = read_stage_file((built.path / "logs/loading/atl1node212.log").read_bytes())
    schemas.validate("delivered_stage", head, what="header")
    assert head["stage"] == "loading"
    assert parts["log"] == b"the password is ***\n"


def test_names_of_deliveries_that_tell_something_are_refused_and_ids_of_runs_converted(folder):
    with pytest.raises(DeliveryError, match="delivery_name"):
        make(folder, name="Node-1")
    sensitive = sensitive_data()
    sensitive.secrets.add("acceptance-2026")
    with pytest.raises(DeliveryError, match="delivery_name"):
        build(Request(folder, "acceptance-2026", "folder", IDS), sensitive)
    rewrite(folder, lambda report: report["run"].update(run_id="node-1"))
    built = make(folder)
    assert json.loads((built.path / "manifest.json").read_text())["run_id"] == "atl1node212"
    assert json.loads((built.path / "report.json").read_text())["run"]["run_id"] == "atl1node212"


def test_the_same_results_make_the_same_bytes(folder, tmp_path):
    first = make(folder)
    before = contents(first.path)
    times = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    again = make(folder)
    assert (first.changed, again.changed) == (True, False)
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == times
    (first.path / "report.md").write_text("touched")
    (first.path / "stray").write_text("not ours")
    assert make(folder).changed
    assert contents(first.path) == before
    assert not [path for path in first.path.parent.iterdir() if path.name.endswith((".draft", ".scratch", ".old"))]


@pytest.mark.parametrize("form", ["tar.gz", "zip"])
def test_an_archive_is_the_same_bytes_too(folder, form, tmp_path):
    first = make(folder, form)
    data = first.path.read_bytes()
    assert not make(folder, form).changed
    first.path.unlink()
    assert make(folder, form).changed
    assert first.path.read_bytes() == data
    plain = contents(make(folder).path)
    if form == "zip":
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            assert packed.testzip() is None
            files = {name: packed.read(name) for name in packed.namelist()}
    else:
        with tarfile.open(fileobj=io.BytesIO(data)) as packed:
            entries = packed.getmembers()
            files = {entry.name: packed.extractfile(entry).read() for entry in entries}
            assert {(entry.mtime, entry.uid, entry.uname, entry.mode) for entry in entries} == {(0, 0, "", 0o644)}
        assert gzip.decompress(data) and data[4:8] == b"\0\0\0\0", "no time in the archive"
    assert files == {f"acceptance/{name}": text for name, text in plain.items()}
    sums = first.path.with_name(f"{first.path.name}.sha256").read_text()
    assert sums == f"{hashlib.sha256(data).hexdigest()}  {first.path.name}\n"


def test_what_stands_for_what_is_for_the_operator_alone(folder):
    built = make(folder)
    path = built.path.parent / "acceptance.names.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = json.loads(path.read_text())
    assert told["ids"] == IDS
    assert "10.20.30.40" in told["placeholders"].values()
    assert path.name not in {file.path for file in built.files}


def test_links_in_the_results_are_not_followed(folder, tmp_path):
    (tmp_path / "private").write_text("of the controller")
    log = folder.evidence_file("node-1", "training", "logs")
    log.unlink()
    log.symlink_to(tmp_path / "private")
    assert b"of the controller" not in (make(folder).path / "logs/training/atl1node212.log").read_bytes()


def test_what_is_left_in_it_stops_the_delivery(folder, monkeypatch):
    monkeypatch.setattr(SecretRedactor, "__call__", lambda self, text: text)  # as a fault of ours would
    with pytest.raises(DeliveryError) as error:
        make(folder)
    assert "a secret" in str(error.value) and SECRET not in str(error.value)
    assert not (folder.path / "delivery/acceptance").exists()


def test_a_secret_that_the_scan_alone_reads_stops_the_delivery(folder):
    folder.evidence_file("node-1", "loading", "logs").write_text("careless: only-the-scan-knows\n")
    request = Request(folder, "acceptance", "folder", IDS, ScanTargets(secrets={"only-the-scan-knows"}))
    with pytest.raises(DeliveryError, match=r"logs/loading/atl1node212\.log: a secret"):
        build(request, sensitive_data())


def test_a_folder_as_destination(folder, tmp_path):
    built = make(folder)
    there = tmp_path / "handover"
    first = destination.send_to_folder(built.path, built.path, built.files, there)
    assert (first.sent, first.there) == (len(built.files), 0)
    assert contents(there) == contents(built.path)
    (there / "report.md").write_text("damaged")
    again = destination.send_to_folder(built.path, built.path, built.files, there)
    assert (again.sent, again.there) == (1, len(built.files) - 1)
    with pytest.raises(DeliveryError):
        destination.send_to_folder(built.path, built.path, built.files, built.path / "inside")


@pytest.mark.parametrize(
    "wrong", ["http://x/y", "s3://", "s3:///x", "s3://key@bucket/x", "s3://bucket/../x", "s3://b/x?y=1"]
)
def test_destinations_that_are_none(wrong):
    with pytest.raises(DeliveryError):
        destination.parse(wrong)


def test_destinations():
    assert destination.parse("s3://bucket/some/where/") == ("s3", "bucket", "some/where")
    assert destination.parse("/srv/handover") == ("folder", "/srv/handover", "")


def test_a_log_that_is_too_long_is_cut_at_lines(folder, monkeypatch):
    monkeypatch.setattr(build_module, "MAX_LOG_BYTES", 1000)
    lines = "".join(f"line {number:04} with {SECRET}\n" for number in range(1000))
    folder.evidence_file("node-1", "training", "logs").write_text(lines)
    _, parts = read_stage_file((make(folder).path / "logs/training/atl1node212.log").read_bytes())
    text = parts["log"].decode()
    assert text.startswith("line 0000 with ***\n") and text.endswith("line 0999 with ***\n")
    assert "left out here" in text
    assert leaks({"secret": SECRET}, parts["log"]) == []


def test_no_half_of_a_secret_is_left_where_a_log_without_line_ends_is_cut(folder, monkeypatch):
    monkeypatch.setattr(build_module, "MAX_LOG_BYTES", 1000)
    end = f"{SECRET[len(SECRET) // 2 :]} and 10 %\r20 %".rjust(500, "x")
    log = folder.evidence_file("node-1", "training", "logs")
    log.write_text("x" * 900 + SECRET[: len(SECRET) // 2] + end.lstrip("x").ljust(500, "."), newline="")
    _, parts = read_stage_file((make(folder).path / "logs/training/atl1node212.log").read_bytes())
    text = parts["log"].decode()
    assert SECRET[len(SECRET) // 2 :] not in text and "20 %" in text


ODD = ("x", 5, [5], {"x": [[]]})
PLACES = ("environment", "environment.os", "environment.os.hostname", "environment.nics", "environment.engines",
          "environment.gpus", "metrics")  # fmt: skip


def change_facts(folder, place, value):
    path = folder.evidence_file("node-10", "facts")
    document = json.loads(path.read_text())
    *way, last = place.split(".")
    inner = document
    for key in way:
        inner = inner.setdefault(key, {})
    inner[last] = value
    path.write_text(json.dumps(document))


def of_others(built):
    """What is delivered of the other nodes; they name this one's host, which is known by its facts alone."""
    return {
        name: data.replace(b"gpu-host-17", b"atl1node342")
        for name, data in contents(built.path).items()
        if name.startswith("logs/") and "atl1node342" not in name
    }


@pytest.mark.parametrize("place", PLACES)
def test_odd_facts_of_one_node_change_nothing_for_the_others(folder, place):
    before = of_others(make(folder))
    for value in ODD:
        change_facts(folder, place, value)
        assert of_others(make(folder)) == before, value


@pytest.mark.parametrize(
    "claimed",
    ["samples", "report", "json", "PASS", "required", "sha256", "h200", "training_tokens_per_second", "atl1node212"],
)
def test_a_host_name_that_is_a_word_of_the_report_or_an_id_is_no_alias(folder, claimed):
    before = of_others(make(folder))
    change_facts(folder, "environment.os.hostname", claimed)
    assert of_others(make(folder)) == before


def test_a_host_name_that_is_a_word_of_other_nodes_does_not_stop_the_delivery(folder):
    rewrite(folder, lambda report: report["nodes"][0]["metrics"].update(wild=[]))
    change_facts(folder, "environment.os.hostname", "wild")
    built = make(folder)
    assert "wild" in built.within


@pytest.mark.parametrize("kind", ["member", "header"])
def test_an_archive_that_unpacks_to_more_than_it_may_ends_there(folder, monkeypatch, kind):
    monkeypatch.setattr(stage_file, "MAX_UNPACKED_BYTES", 1 << 20)
    read = []
    limited = stage_file._Limited.read
    monkeypatch.setattr(stage_file._Limited, "read", lambda self, size: read.append(size) or limited(self, size))
    entry = tarfile.TarInfo("x")
    entry.size = 64 << 20
    if kind == "header":
        entry.type = tarfile.XHDTYPE  # read whole into memory before anything of it is looked at
    archive = log_bundle.archive_file(folder.path, "node-10")
    with gzip.open(archive, "wb", compresslevel=1) as packed:
        packed.write(entry.tobuf())
        for _ in range(64):
            packed.write(b"\0" * (1 << 20))
    assert stage_file.GatheredOutput(archive).texts == {}
    assert sum(read) < 4 << 20
    make(folder)


def test_a_damaged_archive_of_one_node_does_not_stop_the_delivery(folder):
    archive = log_bundle.archive_file(folder.path, "node-10")
    member = tarfile.TarInfo(stage_file.SHORT[0])
    member.size = 1 << 20
    with tarfile.open(archive, "w:gz") as packed:
        packed.addfile(member, io.BytesIO(random.Random(1).randbytes(member.size)))
    data = bytearray(archive.read_bytes())
    data[len(data) // 2 :: 16] = bytes(len(data[len(data) // 2 :: 16]))
    archive.write_bytes(data)
    make(folder)


def test_many_long_logs_of_one_node_are_cut_shorter(folder, monkeypatch):
    monkeypatch.setattr(build_module, "MAX_LOGS_BYTES_OF_A_NODE", 3000)
    monkeypatch.setattr(build_module, "MIN_LOG_BYTES", 500)
    for stage in STAGES:
        folder.evidence_file("node-1", stage, "logs").write_text("a line of a log\n" * 125)
    built = make(folder)
    sizes = [
        len(read_stage_file((built.path / f"logs/{stage}/atl1node212.log").read_bytes())[1]["log"]) for stage in STAGES
    ]
    assert sizes[0] == 2000
    assert 900 < sizes[1] < 1100
    assert all(size < 600 for size in sizes[2:])


def test_addresses_beyond_number_share_a_placeholder(monkeypatch):
    monkeypatch.setattr(conversion, "MAX_PLACEHOLDERS", 2)
    converter = InternalDataConverter(InternalData(names={}))
    assert converter.text("10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.1") == "address-1 address-2 address-other address-1"


def test_the_delivery_names_the_root_digest_of_the_evidence_bundle_of_its_verdict(folder):
    judged_at = run_folder.read_report(folder)["run"]["judged_at"]
    statement = folder.path / "evidence_bundle/statement.dsse.json"
    statement.parent.mkdir()
    for told_at, is_named in ((judged_at, True), ("2020-01-01T00:00:00Z", False)):
        payload = json.dumps({"predicate": {"judged_at": told_at}}).encode()
        statement.write_text(json.dumps({"payload": base64.b64encode(payload).decode()}))
        built = make(folder)
        digest = hashlib.sha256(payload).hexdigest()
        manifest = json.loads((built.path / "manifest.json").read_text())
        schemas.validate("delivery", manifest, what="manifest.json")
        assert manifest.get("evidence_root_digest") == (digest if is_named else None)
        assert (digest in (built.path / "README.md").read_text()) == is_named
    statement.write_text("{}")
    assert "root digest" not in (make(folder).path / "README.md").read_text()


def test_the_manifest_has_every_file(folder):
    built = make(folder)
    manifest = json.loads((built.path / "manifest.json").read_text())
    assert {file["path"] for file in manifest["files"]} == set(contents(built.path)) - {"manifest.json", "SHA256SUMS"}
    assert [file.path for file in built.files][-2:] == [pack.MANIFEST, pack.SUMS], "they are sent last"
    assert manifest["replaced"]["address"] >= 2
