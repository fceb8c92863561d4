"""Which machine a node was in each run, and which GPU was where."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history import cache


@pytest.fixture
def resolved(tmp_path):
    """Machines by (run, node) and GPUs by (run, node, index), from facts by run: node -> (machine id, serial, GPUs)."""
    connection = cache.connect(tmp_path)

    def resolve(*runs):
        execute = connection.execute
        execute("CREATE OR REPLACE TEMP TABLE runs (folder VARCHAR, no INTEGER)")
        execute(
            "CREATE OR REPLACE TEMP TABLE nodes (folder VARCHAR, node VARCHAR, stages VARCHAR[], sku VARCHAR, "
            "machine_id VARCHAR, serial VARCHAR, kind VARCHAR, gpu_count INTEGER, "
            'gpus STRUCT("index" INTEGER, serial VARCHAR, uuid VARCHAR)[])'
        )
        for number, nodes in enumerate(runs):
            folder = f"run-{number}"
            execute("INSERT INTO runs VALUES (?, ?)", [folder, number])
            for node, facts in nodes.items():
                machine_id, serial, gpus = facts or (None, None, [])
                kind, count = ("h200", 2) if facts else (None, None)
                listed = [{"index": index, "serial": gpu, "uuid": uuid} for index, (gpu, uuid) in enumerate(gpus)]
                row = [folder, node, machine_id, serial, kind, count, listed]
                execute("INSERT INTO nodes VALUES (?, ?, ['facts'], 'auto', ?, ?, ?, ?, ?)", row)
        for name in ("machines", "parts"):
            connection.execute(cache.statement(name))
        machines = {(no, node): machine for no, node, machine in
                    execute("SELECT no, node, machine FROM machines").fetchall()}  # fmt: skip
        gpus = {(no, node, index): gpu for no, node, index, gpu in
                execute('SELECT no, node, "index", gpu FROM parts').fetchall()}  # fmt: skip
        assert len(machines) == sum(map(len, runs))
        return machines, gpus

    yield resolve
    connection.close()


def test_a_renamed_node_is_the_same_machine(resolved):
    machines, _ = resolved({"a": ("m1", None, [])}, {"b": ("m1", None, [])}, {"b": ("m1", "S1", [])})
    assert set(machines.values()) == {"serial S1"}


def test_a_machine_that_was_installed_again_keeps_its_serial(resolved):
    machines, _ = resolved({"a": ("m1", "S1", [])}, {"a": ("m2", "S1", [])})
    assert set(machines.values()) == {"serial S1"}


def test_a_name_that_moved_to_another_machine_is_another(resolved):
    machines, _ = resolved({"a": ("m1", "S1", [])}, {"a": ("m2", "S2", [])}, {"a": None})
    assert [machines[no, "a"] for no in range(3)] == ["serial S1", "serial S2", "serial S2"]


def test_a_machine_id_of_a_cloned_disk_joins_no_node(resolved):
    machines, _ = resolved({"a": ("m", None, []), "b": ("m", None, [])}, {"a": ("m", None, [])}, {"c": ("m", None, [])})
    assert machines == {(0, "a"): "node a", (0, "b"): "node b", (1, "a"): "node a", (2, "c"): "node c"}


def test_a_disk_that_moved_joins_no_machines(resolved):
    machines, _ = resolved({"a": ("m", "S1", [])}, {"b": ("m", "S2", []), "a": ("n", "S1", [])})
    assert machines[0, "a"] == machines[1, "a"] == "serial S1"
    assert machines[1, "b"] == "serial S2"


def test_a_run_without_facts_takes_what_the_name_had_unless_that_is_elsewhere(resolved):
    machines, _ = resolved(
        {"a": None}, {"a": ("m", "S1", [])}, {"a": None, "b": ("m", "S1", [])}, {"a": None, "b": None}
    )
    assert machines[0, "a"] == "serial S1"
    assert machines[2, "a"] == "node a" and machines[2, "b"] == "serial S1"
    assert {machines[3, "a"], machines[3, "b"]} == {"node a", "node b"}, "two cannot both be it"


def test_a_gpu_is_followed_by_its_serial_and_its_uuid(resolved):
    _, gpus = resolved(
        {"a": ("m1", "S1", [("g1", "U1"), ("g2", "U2")]), "b": ("m2", "S2", [("g3", "U3")])},
        {"a": ("m1", "S1", [("g3", "U3"), (None, "U2")]), "b": ("m2", "S2", [(None, "U9"), (None, None)])},
    )
    assert gpus[0, "b", 0] == gpus[1, "a", 0] == "g3"
    assert gpus[0, "a", 1] == gpus[1, "a", 1] == "g2", "its UUID tells its serial"
    assert gpus[1, "b", 0] == "U9"
    assert gpus[1, "b", 1] == "serial S2 gpu:1"


def test_a_serial_that_several_gpus_have_is_none(resolved):
    _, gpus = resolved({"a": ("m1", "S1", [("1", None), ("1", None)])}, {"b": ("m2", "S2", [("1", None)])})
    assert gpus == {(0, "a", 0): "serial S1 gpu:0", (0, "a", 1): "serial S1 gpu:1", (1, "b", 0): "serial S2 gpu:0"}
