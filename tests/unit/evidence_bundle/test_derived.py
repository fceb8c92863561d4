"""Bundles that are derived under other names, from runs that 1.0.0 left and from made-up documents."""

import json
from pathlib import PurePosixPath

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import derived, renaming, replay
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.sensitive import Sensitive
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit.bundled_runs import PLACES, judged_run, make
from tests.kit.renamed_fleets import comparable, differences, renamer_of

pytestmark = pytest.mark.usefixtures("shipped_proofs")

KEY = b"k" * 32


@pytest.mark.parametrize("place", PLACES)
def test_the_derived_bundle_is_judged_alike_and_has_no_name(place, tmp_path):
    run = judged_run(place, tmp_path)
    assert not make(run).failed
    bundle, target = run.path / "evidence_bundle", tmp_path / "derived"
    renamer = derived.renamer_of(bundle, Sensitive(), KEY)
    originals = derived.derive(bundle, target, renamer)
    assert replay.replay(target).problem() == ""
    names = set(run.read_run()["nodes"])
    assert originals["nodes"].keys() == names
    first, second = (run_folder.read_report(RunFolder(folder / "run")) for folder in (bundle, target))
    assert {node["name"] for node in second["nodes"]} == set(originals["nodes"].values())
    renamed = renamer.document(first)
    for node in renamed["nodes"]:
        node["name"] = renamer.ids.get(node["name"], node["name"])  # a word, where the test's own machine was validated
    for report in (renamed, second):
        del report["run"]["bucket"]
        for stage in (stage for node in report["nodes"] for stage in node["stages"]):
            stage.get("setup", {}).pop("arguments", None)  # a digest
    assert list(differences(comparable(second), comparable(renamed))) == []
    for path in target.rglob("*"):
        assert not names & set(path.relative_to(target).parts)


def test_an_edited_name_is_found_before_the_bundle_is_made(tmp_path):
    run = judged_run("ssh", tmp_path)
    assert not make(run).failed
    bundle = run.path / "evidence_bundle"
    renamer = derived.renamer_of(bundle, Sensitive(hosts={"jump-7.example"}), KEY)
    renamer.converter.text = lambda text: text  # a fault of the conversion
    record = next((bundle / "run/nodes").glob("*/facts.log"), None) or next((bundle / "run/nodes").glob("*/*.log"))
    record.write_text(record.read_text() + "\nthrough jump-7.example\n")
    with pytest.raises(derived.EvidenceBundleError, match="names are left"):
        derived.derive(bundle, tmp_path / "derived", renamer)


def test_fields_with_names_are_renamed_and_serials_stay():
    run = {"run_id": "run-1", "nodes": {
        "gpu": {"labels": {"rack": "12"}}, "n01": {"labels": {"rack": "r2", "example.com/row": "A"}},
    }}  # fmt: skip
    renamer = renamer_of(run, run["nodes"], KEY)
    gpu, node = renamer.ids["gpu"], renamer.ids["n01"]
    renamed = renamer.document(run)["nodes"]
    assert renamed.keys() == {gpu, node}
    rack = renamed[node]["labels"]["rack"]
    assert rack.startswith("rack-")
    assert renamed[node]["labels"]["example.com/row"].startswith("row-")
    found = {
        "nodes": {"gpu": "healthy", "n01": "bad"},
        "bad_links": [["gpu", "n01"]],
        "bad_boundaries": [{"kind": "rack", "names": ["12", "r2"], "scope": "between"}],
        "evidence": {"gpu": ["rack r2 is slow beside n01"], "gpu - n01": ["all gpu ranks"]},
    }
    renamed = renamer.document(found)
    assert renamed["nodes"] == {gpu: "healthy", node: "bad"}
    assert renamed["bad_links"] == [[gpu, node]]
    assert renamed["bad_boundaries"][0]["names"][1] == rack
    assert renamed["evidence"][gpu] == [f"rack {rack} is slow beside {node}"]
    facts = {"serial": "S-1", "machine_id": "4F2A", "gpus": [{"uuid": "GPU-1", "serial": "16"}]}
    renamed = renamer.document(facts)
    assert (renamed["serial"], renamed["gpus"]) == ("S-1", facts["gpus"])
    faults = renamer.document([{"of": "machine_id 4f2a"}, {"of": "name n01"}, {"of": "serial S-1"}])
    assert faults == [{"of": f"machine_id {renamed['machine_id']}"}, {"of": f"name {node}"}, {"of": "serial S-1"}]
    assert renamer.document({"machine_id": "00000000"}) == {"machine_id": "00000000"}


@pytest.mark.parametrize("raw", [b'{"node": "n01", "node": "n01"}', b"{", b'{"node": "n01\xff"}', b'{"value": NaN}'])
def test_what_no_reader_accepts_stays_so(raw):
    renamer = renamer_of({"run_id": "run-1", "nodes": {"n01": {}}}, ["n01"], KEY)
    renamed = renamer.file(raw, is_document=True)
    assert b'"n01' not in renamed or b"\xff" in renamed
    with pytest.raises(ValueError):
        json.loads(renamed, object_pairs_hook=renaming._object, parse_constant=lambda _: int("none"))


def test_paths_of_nodes_and_rounds_are_renamed():
    renamer = renamer_of({"run_id": "run-1", "nodes": {"training": {}}}, ["training"], KEY)
    node = renamer.ids["training"]
    for path, renamed in {
        "nodes/training/training.json": f"nodes/{node}/training.json",
        "gangs/all/.state/launches/training.json": f"gangs/all/.state/launches/{node}.json",
        ".state/digests/training.json": f".state/digests/{node}.json",
        "run.json": "run.json",
    }.items():
        assert str(renamer.path(PurePosixPath(path))) == renamed


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path):
    key = renaming.read_key(tmp_path)
    assert renaming.read_key(tmp_path) == key
    path = tmp_path / renaming.KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(SettingError, match="chmod 600"):
        renaming.read_key(tmp_path)
    path.chmod(0o600)
    path.write_bytes(key[:-1])
    with pytest.raises(SettingError, match="restore it"):
        renaming.read_key(tmp_path)
