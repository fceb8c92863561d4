import base64
import hashlib
import json

from tests.kit.runner import SUCCEED, stage


def contents(answer):
    for entry in answer["files"].values():
        assert hashlib.sha256(base64.b64decode(entry["base64"])).hexdigest() == entry["digest"]
    return {key: base64.b64decode(entry["base64"]) for key, entry in answer["files"].items()}


def test_only_what_changed_is_fetched(node):
    node.put_plan(stage("a"), stage("b", "exit 1"))
    node.call("run")
    first = node.ask("fetch")
    assert set(contents(first)) == {"records/a", "records/b", "logs/a", "logs/b"}
    assert contents(first)["records/a"] == node.files.record("a").read_bytes()
    assert (first["more"], first["running"]) == (False, False)
    held = {key: entry["digest"] for key, entry in first["files"].items()}
    assert node.ask("fetch", "--since", json.dumps(held))["files"] == {}
    node.put_plan(stage("b"), attempt=2)
    node.call("run")
    changed = node.ask("fetch", "--since", "-", text=json.dumps(held))
    assert set(changed["files"]) == {"records/b", "logs/b"}


def test_batches_are_bounded_and_lead_to_the_end(node):
    node.put_plan(*(stage(f"s{i}", f"head -c 5000 /dev/zero; {SUCCEED}") for i in range(4)))
    node.call("run")
    held, rounds = {}, 0
    while True:
        answer = node.ask("fetch", "--limit-bytes", "6000", "--since", json.dumps(held))
        assert answer["files"]
        assert len(answer["files"]) == 1 or sum(map(len, contents(answer).values())) <= 6000
        held.update({key: entry["digest"] for key, entry in answer["files"].items()})
        rounds += 1
        if not answer["more"]:
            break
    assert len(held) == 8
    assert rounds >= 4


def test_what_the_store_has_need_not_be_fetched(node, store):
    node.put_store(store.url, ["a"])
    node.put_plan(stage("a"), stage("b"))
    assert node.call("run").returncode == 0
    assert set(node.ask("fetch", "--not-uploaded")["files"]) == {"records/b", "logs/b"}
    node.files.result("logs/a").write_text("changed since")
    assert set(node.ask("fetch", "--not-uploaded")["files"]) == {"records/b", "logs/a", "logs/b"}


def test_the_digests_of_files_and_of_last_uploads_are_stated(node, store):
    node.put_store(store.url, ["a"])
    node.put_plan(stage("a"), stage("b"))
    node.call("run")
    logs = {name: node.files.result(f"logs/{name}").read_bytes() for name in ("a", "b")}
    digest_of = {name: hashlib.sha256(log).hexdigest() for name, log in logs.items()}
    answer = node.ask("fetch", "--since", json.dumps({"records/a": "*", "logs/b": digest_of["b"]}))
    assert set(answer["files"]) == {"logs/a", "records/b"}, "* stands for any digest"
    assert answer["digests"].keys() == {"records/a", "records/b", "logs/a", "logs/b"}
    assert (answer["digests"]["logs/a"], answer["digests"]["logs/b"]) == ([digest_of["a"]], [digest_of["b"]])

    node.files.result("logs/a").write_text("changed since")
    changed = hashlib.sha256(b"changed since").hexdigest()
    assert node.ask("fetch")["digests"]["logs/a"] == sorted([changed, digest_of["a"]])
    node.files.result("logs/a").unlink()
    small = node.ask("fetch", "--limit-bytes", "1")
    assert (small["more"], len(small["files"])) == (True, 1)
    assert small["digests"].keys() == answer["digests"].keys(), "also of what waits, and of what only the store has"
    assert small["digests"]["logs/a"] == [digest_of["a"]]


def test_since_must_be_an_object(node):
    for text in ("[", "[]"):
        done = node.call("fetch", "--since", text)
        assert done.returncode == 2
        assert "--since" in done.stderr
