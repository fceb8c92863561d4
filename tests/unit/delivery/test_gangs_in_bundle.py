"""The archive of `make logs` has what the gangs did, and none of their keys."""

import tarfile

from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import log_bundle
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

WANTED = [
    "gangs/gangs.json",
    "gangs/all/run.json",
    "gangs/all/nodes/node-1/collective.json",
    "gangs/all/nodes/node-1/collective.log",
    "gangs/all/.state/launches/node-1.json",
    "gangs/all/.state/problems.json",
    "gangs/search-01/nodes/node-2/fabric.log",
]


def test_gangs_are_part_of_the_archive_and_their_keys_are_not(tmp_path):
    folder = tmp_path / "results" / "run-1"
    for name in WANTED:
        run_folder.write_bytes(folder / name, b"{}")
    keys.make(run_folder.RunFolder(folder / "gangs/all"))
    made = run_folder.read_json(folder / "gangs/all/.state" / keys.FILE)
    found = log_bundle.bundle(folder, "run-1", [], tmp_path / "store", set())
    with tarfile.open(found["path"]) as archive:
        held = {member.name: archive.extractfile(member).read() for member in archive.getmembers()}
    names = {name.split("/results/")[1] for name in held if "/results/" in name}
    assert set(WANTED) <= names
    assert not any(keys.FILE in name for name in held)
    assert not any(secret.encode() in data for data in held.values() for secret in made.values())
