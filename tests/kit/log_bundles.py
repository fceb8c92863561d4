"""What a bundle of logs holds, and a node that cannot be reached."""

import hashlib
import io
import tarfile

GONE = {"ansible_connection": "ssh", "ansible_host": "192.0.2.250", "ansible_ssh_timeout": 2}


def members(data):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}


def bundle_of(folder, run_id):
    """Files of the bundle below its top folder, its nodes' archives unpacked; sees that the manifest holds."""
    top = f"logs-{run_id}/"
    packed = members((folder / f"logs-{run_id}.tar.gz").read_bytes())
    files = {name.removeprefix(top): data for name, data in packed.items()}
    listed = dict(reversed(line.split("  ", 1)) for line in files["MANIFEST"].decode().splitlines())
    assert set(listed) == set(files) - {"MANIFEST"}
    for name, digest in listed.items():
        assert hashlib.sha256(files[name]).hexdigest() == digest
    nodes = {name: members(data) for name, data in files.items() if name.endswith(".tar.gz")}
    return files, nodes
