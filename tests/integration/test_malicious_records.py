"""A node, or whoever holds its signed URLs, writes what it should not: nothing happens, and it is named."""

import json
import sys
from xml.etree import ElementTree

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store, StoreError

EVIL = (
    "\x1b]0;owned\x07\x1b[31mred\x1b[0m <script>alert(1)</script> <img src=x onerror=alert(2)> "
    "![x](javascript:y) \u202eabc"
)
FEINT = f"""
import json, os, time
path = os.environ["GPUVAL_RESULT_FILE"]
text = json.dumps(dict(state="success", message={EVIL!r}, environment={{"<b>" + {EVIL!r}: {EVIL!r}}}))
print({EVIL!r}, flush=True)
open(path + ".new", "w").write(text)
os.rename(path + ".new", path)
"""
PAUSE = """
import json, os, time
deadline = time.monotonic() + 1200
while not os.path.exists(os.environ["SIGN"]) and time.monotonic() < deadline:
    time.sleep(0.1)
path = os.environ["GPUVAL_RESULT_FILE"]
open(path + ".new", "w").write(json.dumps(dict(state="success", message="waited")))
os.rename(path + ".new", path)
"""
TERMINAL = ("\x1b", "\x07", "\u202e")
MARKUP = ("<script", "<img", "](javascript:")


@pytest.fixture(scope="module")
def run(new_fleet):
    """The fleet after the run, how the run ended, and what lay around the results before it."""
    with new_fleet("malicious") as fleet:
        sign = fleet.root / "sign"
        fleet.settings.update(
            gpuval_stages=["facts", "feint", "pause"],
            feint_workload={"command": [sys.executable, "-c", FEINT]},
            pause_workload={"command": [sys.executable, "-c", PAUSE], "environment": {"SIGN": str(sign)}},
        )
        playing = fleet.start()
        playing.expect("node-1 pause: running")
        plant(fleet)
        playing.expect("refused: .*ghost")
        sign.touch()
        yield fleet, playing.wait()


def plant(fleet):
    """What the store would hold after an attack: written over S3, and as files where S3 refuses such a key."""
    writer = json.loads((fleet.root / "state/store/store.json").read_text())["writer"]
    keys = {"access_key": writer["access_key"], "secret_key": writer["secret_key"]}
    store = Store(Connection(bucket="gpuval", endpoint=f"http://127.0.0.1:{writer['port']}", **keys))
    records = f"{fleet.run_id}/records"
    good = json.loads((fleet.node_directory("node-1") / "records/facts.json").read_text())

    def put(key, document):
        store.put(key, document if isinstance(document, bytes) else json.dumps(document).encode())

    put(f"{records}/facts/node-1.json", {**good, "node": "node-2", "message": EVIL})
    put(f"{records}/feint/node-1.json", b'{"schema": "' + b"x" * (20 << 20) + b'"}')
    put(f"{records}/facts/ghost.json", {**good, "node": "ghost"})
    put(f"{records}/facts/<script>alert(3)</script>.json", {**good, "message": EVIL})
    put(f"{records}/facts/..%2f..%2f..%2f..%2fescaped.json", {**good, "node": "../../../../escaped"})
    with pytest.raises(StoreError):  # the store takes no such key; a file below it cannot have that name either
        put(f"{records}/../../escaped/node-1.json", good)
    put(f"{fleet.run_id}/logs/facts/ghost.log", EVIL.encode())
    series = {
        "schema": "gpuval.series/1",
        "run_id": EVIL,
        "node": "node-1",
        "stage": "facts",
        "attempt": 1,
        "series": [],
    }
    put(f"{fleet.run_id}/series/facts/node-1.json", series)


def test_the_run_is_not_disturbed(run):
    fleet, done = run
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert fleet.verdict("node-1")["verdict"] == "PASS"
    assert [node["name"] for node in fleet.report()["nodes"]] == ["node-1"]
    states = {stage["name"]: stage["state"] for stage in fleet.verdict("node-1")["stages"]}
    assert states == {"facts": "success", "feint": "success", "pause": "success"}
    assert "owned" not in fleet.record("node-1", "facts")["message"]


@pytest.mark.parametrize(
    "words",
    [
        "node is 'node-2', but it was found under 'node-1'",
        "over the limit of 1,048,576",
        "a record of the node 'ghost', which is not part of the run",
        "script",
        "escaped",
        "an object that is not expected: ",
        "series refused: series: run_id: '",
    ],
)
def test_each_is_named(run, words):
    fleet, _ = run
    reasons = [problem["reason"] for problem in fleet.report()["fleet"]["problems"]]
    assert any(words in reason for reason in reasons), reasons


def test_it_is_named_in_the_report_and_on_the_console(run):
    fleet, done = run
    text = (fleet.run_folder / "report.md").read_text()
    assert "which is not part of the run" in text
    assert "over the limit of 1,048,576" in text
    assert "Problems of the evidence:" in done.output.partition("FINAL ACCEPTANCE")[2]


def test_nothing_of_it_comes_to_life(run):
    fleet, done = run
    status = fleet.play("gpuval.fleet.status")
    assert "ghost" in status.output
    for text in (done.output, status.output):
        assert not any(character in text for character in TERMINAL)
    for path in fleet.results.rglob("*"):
        assert not any(word in path.name for word in ("ghost", "escaped", "script", "owned"))
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        assert not any(character in text for character in TERMINAL), path
        if path.suffix in (".md", ".xml"):
            assert not any(word in text for word in MARKUP), path
    junit = ElementTree.parse(fleet.run_folder / "junit.xml")
    assert junit.getroot().tag in ("testsuites", "testsuite")


def test_nothing_is_written_outside_the_results(run):
    fleet, _ = run
    assert all(fleet.store_data in path.parents for path in fleet.root.rglob("*escaped*"))
    assert not list(fleet.root.parent.glob("*escaped*"))
    assert sorted(path.name for path in (fleet.run_folder / "nodes").iterdir()) == ["node-1"]
    assert sorted(path.name for path in fleet.root.iterdir()) == [
        "engines",
        "home",
        "hosts.json",
        "node",
        "results",
        "sign",
        "state",
    ]
