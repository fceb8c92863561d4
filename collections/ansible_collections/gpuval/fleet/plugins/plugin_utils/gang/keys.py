"""Secrets of one round of a multi-node test, sent with its launch: a token for the control channel, and a pair of SSH
keys. Only the controller's user can read them, and they never enter the store."""

import secrets

from ..core import files
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from ..ssh.run_keys import make_pair
from . import document

TOKEN_BYTES = 32
FILE = "gang_keys.json"


def make(folder: RunFolder) -> None:
    """Make the round's keys unless they exist. Raises RunKeysError if the library for keys is missing."""
    path = folder.state / FILE
    if path.exists():
        return
    pair = make_pair()
    keys = {
        "token": secrets.token_hex(TOKEN_BYTES),
        "id_ed25519": pair.private,
        "id_ed25519.pub": f"{pair.public} gpuval\n",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, run_folder.json_bytes(keys), files.PRIVATE)


def files_for(folder: RunFolder, node: str) -> dict[str, str]:
    """The key files for a node's `ssh` folder, by name; none if the node is in no gang."""
    path = folder.state / FILE
    if not path.exists():
        return {}
    mark = run_folder.json_bytes(
        {"schema": "gpuval.keys/1", "run_id": folder.read_run()["run_id"], "node": node}
    ).decode()
    return {"gpuval.json": mark, **run_folder.read_json(path)}


def forget(folder: RunFolder) -> None:
    """Delete the keys of a round that has ended."""
    (folder.state / FILE).unlink(missing_ok=True)


def forget_all(run: RunFolder) -> None:
    """Delete the keys of all rounds of a finished run."""
    for below in document.known_folders(run):
        forget(below)
