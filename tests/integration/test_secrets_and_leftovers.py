"""A whole run, told as much as can be (-vvv): no secret in anything that it says or writes, and nothing left of it."""

import json
import secrets
import stat
import subprocess
import sys

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store

from tests.kit.box import Box
from tests.kit.fleet import ONE_RANK, until
from tests.kit.planted_secrets import CommandLines, forms, leaks, plant
from tests.kit.s3_service import S3Service

STAGES = ["facts", "diagnostics", "training", "loading", "inference"]
LEAVE = """
import socket, time
server = socket.create_server(("127.0.0.1", 4321))
open("/var/tmp/left", "w").close()
time.sleep(600)
"""
PRIVATE = ("store.json", "rclone.conf")  # on the node, mode 0600


def variables_of(names):
    return {name: plant(name.rpartition("gpuval_")[2]) for name in names}


def on_the_node(fleet):
    """Signatures and keys that lie in the node's private files."""
    directory = fleet.node_directory("node-1")
    urls = json.loads((directory / "store.json").read_text())["put"]
    found = {f"URL of {key}": url for key, url in urls.items()}
    found |= {
        f"signature of {key}": url.partition("X-Amz-Signature=")[2].partition("&")[0] for key, url in urls.items()
    }
    for line in (directory / "rclone.conf").read_text().splitlines():
        name, _, value = line.partition(" = ")
        if name in ("secret_access_key", "session_token"):
            found[f"rclone.conf {name}"] = value
    assert len(found) > 2 * len(STAGES)
    assert all(len(value) > 20 for value in found.values())
    return found


def assert_nowhere(fleet, planted, done, seen):
    assert leaks(planted, done.output.encode()) == []
    assert seen.samples > 50
    assert leaks(planted, seen.text) == []
    looked_at = 0
    for folder in (fleet.results, fleet.root / "state", fleet.root / "node", fleet.home):
        for path in folder.rglob("*"):
            if not path.is_file() or "models" in path.parts or path.suffix in (".pyz", ".zip"):
                continue
            private = path.name in PRIVATE and fleet.results not in path.parents
            if private:
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            else:
                assert leaks(planted, path.read_bytes()) == [], path
            looked_at += 1
    assert looked_at > 20


def left_in(fleet):
    """What a run might leave on a node: files of its own, and in the home of its user (Ansible's own folder aside)."""
    home = [path for path in fleet.home.rglob("*") if path.relative_to(fleet.home).parts[0] != ".ansible"]
    return sorted(str(path) for path in [*home, *fleet.node_base("node-1").rglob("*")])


def files_of_the_run(fleet):
    folder = fleet.run_folder
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_forms_find_a_secret_inside_other_encoded_text():
    import base64

    secret = plant("any")
    for before in range(4):
        text = base64.b64encode(b"x" * before + secret.encode() + b"and more")
        assert leaks({"it": secret}, text) == ["it"]
    assert leaks(
        {"it": secret},
        f"https://host/?key={secret.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}".encode(),
    )
    assert leaks({"it": secret}, b"nothing of it") == []
    assert all(len(form) > 20 for form in forms(secret))


def test_a_box_shows_what_is_left_in_it(tmp_path, as_root):
    box = Box(tmp_path)
    try:
        before = (box.processes(), box.ports(), box.temporary_files())
        assert before == ([], [], [])
        subprocess.Popen([*box.prefix, sys.executable, "-c", LEAVE], start_new_session=True)
        until(box.ports, "the port")
        assert box.ports() == [4321]
        assert until(box.temporary_files, "the file") == ["/var/tmp/left"]
        assert [line.split()[0] for line in box.processes()] == [sys.executable]
    finally:
        box.close()


@pytest.fixture(scope="module")
def boxed(new_fleet, as_root):
    """A whole run inside a box: the fleet, the box, its state before, the run's end, its secrets and what was seen."""
    with new_fleet("boxed", settings={**ONE_RANK, "gpuval_stages": STAGES}) as fleet:
        fleet.home.mkdir()
        box = Box(fleet.root)
        try:
            fleet.prefix = box.prefix
            before = (box.processes(), box.ports(), box.temporary_files(), left_in(fleet))
            planted = variables_of(
                [
                    "gpuval_hf_token",
                    "gpuval_s3_secret_key",
                    "gpuval_s3_session_token",
                    "gpuval_s3_read_secret_key",
                    "gpuval_webhook_key",
                ]
            )
            token = planted["path of the webhook"] = secrets.token_urlsafe(24)
            fleet.settings.update({name: planted[name] for name in planted if name.startswith("gpuval_")})
            fleet.settings.update(gpuval_webhook_url=f"http://127.0.0.1:9/{token}")
            fleet.settings["gpuval_health_file"] = str(fleet.root / "shared/health.json")
            with CommandLines() as seen:
                done = fleet.play("gpuval.fleet.validate", "-vvv")
            state = json.loads((fleet.root / "state/store/store.json").read_text())
            planted |= {f"secret of the {name}": state[name]["secret_key"] for name in ("writer", "reader", "signer")}
            planted |= on_the_node(fleet)
            yield fleet, box, before, done, planted, seen
            fleet.prefix = box.prefix
            fleet.play("gpuval.fleet.clean")
        finally:
            box.close()
            fleet.prefix = ()


def test_the_whole_road_passes(boxed):
    fleet, _, _, done, *_ = boxed
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PASS" in done.output
    fleet.assert_evidence("node-1", dict.fromkeys(STAGES, "success"))
    assert "the webhook 127.0.0.1 did not accept the end of the run" in done.told
    entry = json.loads((fleet.root / "shared/health.json").read_text())["nodes"]["node-1"]
    assert (entry["verdict"], entry["run_id"]) == ("PASS", fleet.run_id)
    assert (
        'gpuval_health_verdict{node="node-1",verdict="PASS"} 1\n'
        in (fleet.root / "shared/health.json.prom").read_text()
    )


def test_no_secret_is_printed_or_written(boxed):
    fleet, _, _, done, planted, seen = boxed
    assert b"gpuval_workloads.training" in seen.text, "the sampling sees the processes in the box"
    assert_nowhere(fleet, planted, done, seen)


def test_clean_leaves_nothing_and_the_second_time_changes_nothing(boxed):
    fleet, box, before, *_ = boxed
    kept = files_of_the_run(fleet)
    assert len(box.ports()) == 2, "the embedded store"
    first = fleet.play("gpuval.fleet.clean")
    assert first.code == 0, first
    assert first.recap("node-1")["changed"] > 0
    assert (box.processes(), box.ports(), box.temporary_files(), left_in(fleet)) == before
    assert not fleet.node_base("node-1").exists()
    second = fleet.play("gpuval.fleet.clean")
    assert second.code == 0, second
    assert second.recap("node-1")["changed"] == 0, second
    assert (box.processes(), box.ports(), box.temporary_files(), left_in(fleet)) == before
    results = files_of_the_run(fleet)
    assert set(json.loads(results.pop(".state/cleaned.json"))) == {"node-1"}, "clean notes whom it cleaned"
    run = json.loads(results.pop("run.json"))
    assert run["state"].pop("cleaned_at"), "and when"
    assert run == json.loads(kept.pop("run.json"))
    assert results == kept
    assert not (fleet.root / "state/store/store.json").exists(), "the keys are gone"
    assert list((fleet.store_data / "models").iterdir()), "models are kept"


@pytest.fixture
def s3_service(tmp_path):
    """An S3 service that is not ours to start: its endpoint, and two pairs of keys."""
    keys = {
        "gpuval_s3_access_key": "WRITER" + secrets.token_hex(6),
        "gpuval_s3_read_access_key": "READER" + secrets.token_hex(6),
        **variables_of(["gpuval_s3_secret_key", "gpuval_s3_read_secret_key"]),
    }
    pairs = [[keys[f"gpuval_s3_{side}{part}"] for part in ("access_key", "secret_key")] for side in ("", "read_")]
    with S3Service(tmp_path, *pairs) as service:
        yield {"gpuval_s3_endpoint": service.endpoint, "gpuval_create_bucket": True, **keys}


def store_of(service):
    """The bucket `acceptance` of the S3 service, with its writer's keys."""
    keys = {key: service[f"gpuval_s3_{key}"] for key in ("access_key", "secret_key")}
    return Store(Connection("acceptance", service["gpuval_s3_endpoint"], **keys))


def test_an_s3_service_of_its_own(new_fleet, s3_service):
    settings = {"gpuval_stages": ["facts", "loading"], "gpuval_bucket": "acceptance", **s3_service}
    with new_fleet("external", settings=settings) as fleet:
        with CommandLines() as seen:
            done = fleet.play("gpuval.fleet.validate", "-vvv")
        assert done.code == 0, done
        assert "FINAL ACCEPTANCE: PARTIAL" in done.output
        assert not (fleet.root / "state/store/store.json").exists(), "no embedded store beside it"
        planted = {name: value for name, value in s3_service.items() if name.endswith("secret_key")}
        assert_nowhere(fleet, {**planted, **on_the_node(fleet)}, done, seen)

        store = store_of(s3_service)
        kept = {entry.key for entry in store.list(f"{fleet.run_id}/")}
        assert {f"{fleet.run_id}/records/{stage}/node-1.json" for stage in ("facts", "loading")} <= kept
        assert {f"{fleet.run_id}/logs/{stage}/node-1.log" for stage in ("facts", "loading")} <= kept
        assert f"{fleet.run_id}/report/report.json" in kept
        for key in kept:
            assert leaks(planted, store.get(key, max_bytes=1 << 24)) == [], key

        cleaned = fleet.play("gpuval.fleet.clean", "-e", "gpuval_clean_store=true")
        assert cleaned.code == 0, cleaned
        assert not list(store.list(f"{fleet.run_id}/"))
        assert list(store.list("models/")), "models outlive a run"


def test_the_env_file_of_the_first_seed_beside_the_inventory(new_fleet, s3_service):
    """Doctor says what came from it, validate uses it all, and none of its secrets is anywhere else."""
    keys = {
        "BUCKET": "acceptance",
        "FOLDER": "batch-7",
        "AWS_ENDPOINT_URL": s3_service["gpuval_s3_endpoint"],
        "AWS_ACCESS_KEY_ID": s3_service["gpuval_s3_access_key"],
        "AWS_SECRET_ACCESS_KEY": s3_service["gpuval_s3_secret_key"],
        "GPUVAL_S3_READ_ACCESS_KEY": s3_service["gpuval_s3_read_access_key"],
        "GPUVAL_S3_READ_SECRET_KEY": s3_service["gpuval_s3_read_secret_key"],
        "MODEL": "org/none",
        "HF_TOKEN": plant("hub"),
        "DO_TOKEN": plant("cloud"),
        "NODE_NAME": "local",
    }
    settings = {"gpuval_stages": ["facts", "loading"], "gpuval_create_bucket": True, "gpuval_model": "tiny"}
    with new_fleet("env", settings=settings) as fleet:
        file = fleet.root / ".env"
        file.touch(mode=0o600)
        file.write_text("".join(f'{name}="{value}"\n' for name, value in keys.items()))
        doctor = fleet.play("gpuval.fleet.doctor")
        assert doctor.code == 0, doctor
        (row,) = [line for line in doctor.output.splitlines() if line.startswith("ok       .env ")]
        assert f"gpuval_bucket ({file}:1), " in row and f"gpuval_hf_token ({file}:9)" in row
        assert f"gpuval_model ({file}:8, overridden)" in row and f"provision_token ({file}:10)" in row
        with CommandLines() as seen:
            done = fleet.play("gpuval.fleet.validate", "-vvv")
        assert done.code == 0, done
        assert f"settings from .env: gpuval_runs_folder ({file}:2), gpuval_node_ids ({file}:11), " in done.told
        planted = {name: keys[name] for name in keys if name.endswith(("_TOKEN", "SECRET_ACCESS_KEY", "SECRET_KEY"))}
        assert_nowhere(fleet, {**planted, **on_the_node(fleet)}, done, seen)
        run = fleet.read_run()
        assert (run["bucket"], run["folder"]) == ("acceptance", f"batch-7/{fleet.run_id}")
        assert run["nodes"]["node-1"]["id"] == "local"
        store = store_of(s3_service)
        stored = [entry.key for entry in store.list("batch-7/")]
        assert f"{run['folder']}/report/report.json" in stored
        for key in stored:
            assert leaks(planted, store.get(key, max_bytes=1 << 24)) == [], key
        for playbook in ("status", "report", "clean"):
            assert fleet.play(f"gpuval.fleet.{playbook}").code == 0
        file.write_text(file.read_text().replace("acceptance", "Not_A_Bucket"))
        wrong = fleet.play("gpuval.fleet.models")
        assert f"nothing was started: {file}:1: gpuval_bucket Not_A_Bucket: must be 3 to 63 small" in wrong.told, wrong


def test_wrong_keys_are_reported_before_anything_is_started(new_fleet, s3_service):
    settings = {"gpuval_stages": ["facts"], **s3_service, "gpuval_s3_secret_key": plant("wrong")}
    with new_fleet("refused", settings=settings) as fleet:
        done = fleet.play()
        assert done.code != 0
        assert "Check gpuval_bucket, gpuval_s3_endpoint and the keys" in done.told
        assert not fleet.node_base("node-1").exists()
        assert leaks({"wrong": settings["gpuval_s3_secret_key"]}, done.output.encode()) == []
