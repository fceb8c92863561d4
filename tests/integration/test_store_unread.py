"""A store that the controller cannot read, or that refuses nodes: the run ends with its nodes, and the verdict stands
on what they answer."""

import json
import re

import pytest

from tests.integration.test_store_away import work_until
from tests.kit.fleet import Fleet, until
from tests.kit.s3_service import S3Service
from tests.kit.spoiling_proxy import SpoilingProxy

KEYS = ("controller", "secret-of-the-controller")
STAGES = ["facts", "work"]
NODES = ["node-1", "node-2"]
#: The watch ends long before that: with its nodes.
DEADLINE_SECONDS = 1800


def by_controller(_method, path):
    return "X-Amz-Signature" not in path


def content_for_controller(method, path):
    return method == "GET" and "/records/" in path


def by_nodes(method, path):
    return method == "PUT" and "X-Amz-Signature" in path


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A fleet, and the proxy in front of its store; its runs follow each other."""
    root = tmp_path_factory.mktemp("unread")
    with S3Service(root, KEYS) as service, SpoilingProxy(int(service.endpoint.rpartition(":")[2])) as proxy:
        settings = {
            "gpuval_stages": STAGES,
            "run_pull_seconds": 2,
            "gpuval_deadline_seconds": DEADLINE_SECONDS,
            "gpuval_s3_access_key": KEYS[0],
            "gpuval_s3_secret_key": KEYS[1],
            "gpuval_s3_endpoint": f"http://127.0.0.1:{proxy.port}",
            "gpuval_create_bucket": True,
        }
        fleet = Fleet(root / "fleet", settings=settings, nodes={name: {} for name in NODES})
        fleet.root.mkdir()
        try:
            yield fleet, proxy
        finally:
            proxy.spoil("")
            fleet.close()


@pytest.fixture
def spoiled(proxied, tmp_path):
    """The fleet with new work, its proxy, which spoils nothing yet, and the file that ends the work."""
    fleet, proxy = proxied
    proxy.spoil("")
    proxy.seconds_ahead = 0.0
    fleet.settings["work_workload"] = work_until(tmp_path / "go-on")
    return fleet, proxy, tmp_path / "go-on"


def at_work(fleet):
    playing = fleet.start()
    for name in NODES:
        playing.expect(f"{name} work: running")
    return playing


def assert_complete(fleet, done):
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert "the deadline" not in done.output
    for name in NODES:
        assert {stage["name"]: stage["state"] for stage in fleet.verdict(name)["stages"]} == dict.fromkeys(
            STAGES, "success"
        )
        assert "ended: success" in fleet.log(name, "work")


@pytest.mark.parametrize(
    ("how", "applies", "name", "words"),
    [
        ("403", by_controller, "store_denied", "(AccessDenied)"),
        ("500", by_controller, "store_away", "(500)"),
        ("away", by_controller, "store_away", "Could not connect|Connection was closed"),
        ("truncate", content_for_controller, "store_away", "read, but total bytes expected is"),
        ("reset", content_for_controller, "store_away", "Connection broken|ended prematurely|error"),
    ],
)
def test_a_store_that_cannot_be_read_costs_no_verdict(spoiled, how, applies, name, words):
    fleet, proxy, go_on = spoiled
    playing = at_work(fleet)
    proxy.spoil(how, applies)
    go_on.touch()
    done = playing.wait()

    assert_complete(fleet, done)
    playing.expect(rf"the store does not answer; nodes continue and keep their records: .*(?:{words})")
    playing.expect(rf"^- Store: the store cannot be read: .* \({name}\): ")


def test_a_store_that_fails_after_the_watch_costs_no_verdict(spoiled):
    fleet, proxy, go_on = spoiled
    go_on.touch()
    playing = fleet.start()
    playing.expect(r"nodes 2/2 done")
    proxy.spoil("403", by_controller)
    done = playing.wait()

    assert_complete(fleet, done)
    playing.expect(r"^- Store: the store cannot be read: .*\(AccessDenied\).* \(store_denied\): let the key of ")


@pytest.mark.parametrize(("how", "name"), [("403", "store_denied"), ("507", "store_full")])
def test_uploads_that_the_store_refuses_are_named_at_once(spoiled, how, name):
    fleet, proxy, go_on = spoiled
    playing = fleet.start()
    playing.expect("preflight: the store takes uploads")
    proxy.spoil(how, by_nodes)
    playing.expect(rf"the store answers an upload by signed URL with HTTP {how}: nodes keep their records")
    assert playing.running
    go_on.touch()
    done = playing.wait()

    assert_complete(fleet, done)
    playing.expect(rf"^- Store: the store answers an upload by signed URL with HTTP {how} at .* \({name}\): ")


def test_a_clock_that_is_off_is_named_with_its_seconds(spoiled):
    fleet, proxy, go_on = spoiled
    playing = at_work(fleet)
    proxy.seconds_ahead = 1200.0
    proxy.spoil("skewed", by_controller)
    go_on.touch()
    done = playing.wait()

    assert_complete(fleet, done)
    playing.expect(
        r"^- Store: the store cannot be read: the clock of this controller is 1[12]\d\d s behind the store's "
        r"\(RequestTimeTooSkewed\); 2 of 2 node\(s\) agree with this controller: the store's clock is wrong "
        r"\(store_clock\): set the wrong clock"
    )
    assert "gpuval_s3_read_access_key" not in done.output


def test_what_neither_store_nor_node_answers_is_the_stores_class_and_the_same_command_resumes(spoiled):
    fleet, proxy, go_on = spoiled
    playing = at_work(fleet)
    run_id = fleet.run_id
    proxy.spoil("403", by_controller)
    playing.expect("the store does not answer")
    playing.kill()
    go_on.touch()
    until(lambda: "ended: success" in read_log(fleet, "node-2"), "the work of node-2")
    hidden = fleet.node_directory("node-2").rename(fleet.root / "hidden")
    first = fleet.play("gpuval.fleet.report")
    assert "FINAL ACCEPTANCE: INCOMPLETE" in first.output, first

    hidden.rename(fleet.node_directory("node-2"))
    proxy.spoil("")
    done = fleet.play()
    assert fleet.run_id == run_id
    assert_complete(fleet, done)
    assert fleet.report()["fleet"]["problems"] == []


@pytest.mark.parametrize(
    ("how", "applies", "name"),
    [
        ("away", by_controller, "store_away"),
        ("403", by_controller, "store_denied"),
        ("403", by_nodes, "store_denied"),
        ("507", by_nodes, "store_full"),
        ("skewed", by_controller, "store_clock"),
        ("truncate", by_controller, "store_away"),
    ],
)
def test_a_store_that_fails_before_anything_starts_ends_with_a_verdict_and_the_same_command_resumes(
    spoiled, how, applies, name
):
    fleet, proxy, go_on = spoiled
    go_on.touch()
    proxy.seconds_ahead = 1200.0 if how == "skewed" else 0.0
    proxy.spoil(how, applies)
    first = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=new")

    assert first.code != 0
    verdict = first.output.split("FINAL ACCEPTANCE: INCOMPLETE")[1]
    assert f"launch: failed ({name}): the store cannot be read: " in verdict, first
    assert "then validate again: it resumes this run" in verdict, first
    assert "- The run has not ended: the same command resumes the run" in verdict and "make rerun" not in verdict, first
    run_id = first.output.split("run ", 1)[1].split(":")[0]
    assert re.search(rf"^- Store: the store cannot be read: .* \({name}\): ", verdict, re.MULTILINE), first
    assert not (fleet.node_base("node-1") / run_id).exists()

    proxy.spoil("")
    done = fleet.play()
    assert fleet.run_id == run_id
    assert_complete(fleet, done)
    assert fleet.report()["fleet"]["problems"] == []


@pytest.mark.parametrize("how", ["contradicts", "unreadable"])
def test_the_node_is_asked_for_a_final_record_that_the_store_holds_damaged(spoiled, how):
    fleet, proxy, go_on = spoiled

    def alter(body):
        record = json.loads(body)
        if record["state"] != "success":
            return body
        return json.dumps({**record, "exit_code": 3}).encode() if how == "contradicts" else body[: len(body) // 2]

    proxy.altered = alter
    proxy.spoil("alter", lambda method, path: method == "PUT" and "/records/work/node-1" in path)
    go_on.touch()
    done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=new")

    assert_complete(fleet, done)
    assert "refused: 'node-1': record refused: " in done.output, done
    assert "the runner exited" not in done.output, done


def read_log(fleet, name):
    return (fleet.node_directory(name) / "logs/work.log").read_text()
