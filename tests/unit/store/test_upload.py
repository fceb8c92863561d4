"""Files put below a prefix of a real store: what is new or differs, and nothing else."""

from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store, upload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    store = EmbeddedStore(tmp_path_factory.mktemp("store"), "bucket")
    store.start()
    yield store.connection()
    store.stop()


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "report"
    (folder / "nodes").mkdir(parents=True)
    (folder / "report.json").write_text('{"verdict": "PASS"}')
    (folder / "nodes" / "node-1.md").write_text("fine")
    return folder


def there(connection, prefix):
    return {entry.key for entry in Store(connection).list(f"{prefix}/")}


def test_a_folder_goes_up_below_its_name_once_and_again_what_differs(connection, report):
    keys = ["first/report/report.json", "first/report/nodes/node-1.md"]
    done = upload(connection, [str(report)], "/first/", check_mode=False)
    assert (done["changed"], sorted(done["uploaded"]), done["unchanged"]) == (True, sorted(keys), [])
    again = upload(connection, [str(report)], "first", check_mode=False)
    assert (again["changed"], again["uploaded"], sorted(again["unchanged"])) == (False, [], sorted(keys))
    (report / "report.json").write_text('{"verdict": "FAIL"}')
    differs = upload(connection, [str(report)], "first", check_mode=False)
    assert (differs["changed"], differs["uploaded"], differs["unchanged"]) == (True, keys[:1], keys[1:])
    assert Store(connection).get(keys[0], max_bytes=100) == b'{"verdict": "FAIL"}'


def test_check_mode_tells_and_puts_nothing(connection, report):
    done = upload(connection, [str(report / "report.json")], "checked", check_mode=True)
    assert (done["changed"], done["uploaded"]) == (True, ["checked/report.json"])
    assert there(connection, "checked") == set()


def test_what_cannot_be_read_fails_by_name_and_tells_what_is_there(connection, report):
    sources = [str(report / "report.json"), str(report / "gone")]
    done = upload(connection, sources, "partly", check_mode=False)
    assert done["failed"]
    assert done["msg"] == f"{report / 'gone'} cannot be read: No such file or directory"
    assert there(connection, "partly") == {"partly/report.json"}


def test_a_store_that_refuses_is_reported(connection, report):
    done = upload(replace(connection, secret_key="wrong"), [str(report)], "refused", check_mode=False)
    assert done["failed"]
    assert done["msg"].startswith("the store cannot be used: ")
