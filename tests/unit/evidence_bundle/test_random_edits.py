"""gpuval and the script find any byte of a bundle that was changed, added or removed: 1,000 random edits."""

import base64
import json
import os
import random
import shutil

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import statement

from .conftest import FILES

EDITS, SEED = 1000, 41
STATEMENT = statement.STATEMENT


def changed_file(draw, folder):
    return folder / draw.choice([*(name for name, content in FILES.items() if content), STATEMENT])


def flip(draw, folder):
    path = changed_file(draw, folder)
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(draw, folder):
    path = changed_file(draw, folder)
    os.truncate(path, draw.randrange(path.stat().st_size))


def append(draw, folder):
    with changed_file(draw, folder).open("ab") as file:
        file.write(draw.choice([b"\n", b" ", b"\0", draw.randbytes(9)]))


def insert(draw, folder):
    path = changed_file(draw, folder)
    content, place = path.read_bytes(), draw.randrange(path.stat().st_size)
    path.write_bytes(content[:place] + draw.randbytes(1) + content[place:])


def add(draw, folder):
    (folder / draw.choice(["", "nodes/node-1"]) / f"new-{draw.randrange(1000)}").write_bytes(
        draw.randbytes(draw.randrange(9))
    )


def add_folder(draw, folder):
    (folder / draw.choice(["", "nodes"]) / f"new-{draw.randrange(1000)}").mkdir()


def remove(draw, folder):
    (folder / draw.choice([*FILES, STATEMENT])).unlink()


def rename(draw, folder):
    path = folder / draw.choice([*FILES, STATEMENT])
    path.rename(path.with_name(draw.choice([path.name.upper(), f"{path.name} ", f".{path.name}", f"{path.name}\n"])))


def move(draw, folder):
    path = folder / draw.choice([*FILES])
    path.rename(folder / "nodes" / f"moved-{path.name}")


def swap(draw, folder):
    first, second = draw.sample([name for name in FILES if not name.endswith("training.log")], 2)
    (folder / first).rename(folder / "swapped")
    (folder / second).rename(folder / first)
    (folder / "swapped").rename(folder / second)


def link(draw, folder):
    """The file by a link of any kind, with the same content."""
    path = folder / draw.choice([*FILES, STATEMENT])
    outside = path.with_name(f"{path.name}.moved") if draw.random() < 0.5 else folder.parent / "outside"
    path.rename(outside)
    draw.choice([path.symlink_to, path.hardlink_to])(outside)


def fifo(draw, folder):
    path = folder / draw.choice([*FILES, STATEMENT])
    path.unlink()
    os.mkfifo(path)


def replace_folder(draw, folder):
    (folder / "nodes/node-1").rename(folder.parent / "node-1")
    (folder / "nodes/node-1").symlink_to(folder.parent / "node-1")


def edit_envelope(draw, folder):
    """Within the envelope: formatting, signatures, keyids, keys of JSON, or the payload."""
    path = folder / STATEMENT
    document, form = json.loads(path.read_bytes()), {"separators": (",", ":"), "sort_keys": True}
    first, second = document["signatures"]
    draw.choice([
        lambda: form.update(sort_keys=False) or document.update(payload=document.pop("payload")),
        lambda: form.update(separators=(", ", ":")),
        lambda: form.update(indent=1),
        document["signatures"].reverse,
        lambda: document["signatures"].pop(draw.randrange(2)),
        lambda: document["signatures"].append(first),
        lambda: document["signatures"].append({"keyid": draw.randbytes(32).hex(), "sig": second["sig"]}),
        lambda: first.update(keyid=second["keyid"]),
        lambda: first.update(keyid=first["keyid"].upper()),
        lambda: first.update(sig=second["sig"]),
        lambda: first.update(sig=base64.b64encode(draw.randbytes(64)).decode()),
        lambda: first.update(sig=first["sig"].rstrip("=")),
        lambda: first.update(note="x"),
        lambda: document.update(note="x"),
        lambda: document.update(payloadType="application/json"),
        lambda: document.update(payload=document["payload"] + "\n"),
        lambda: document.update(payload=edited_payload(draw, document["payload"])),
    ])()  # fmt: skip
    path.write_text(json.dumps(document, **form))


def edited_payload(draw, payload):
    document = json.loads(base64.b64decode(payload))
    draw.choice([
        lambda: document["predicate"].update(verdict="FAIL"),
        lambda: document["predicate"].pop("run_id"),
        document["subject"].pop,
        lambda: document["subject"].append(document["subject"][0]),
        lambda: document.update(predicateType="https://example.org/v1"),
    ])()  # fmt: skip
    return base64.b64encode(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).decode()


KINDS = [
    flip,
    truncate,
    append,
    insert,
    add,
    add_folder,
    remove,
    rename,
    move,
    swap,
    link,
    fifo,
    replace_folder,
    edit_envelope,
]


def is_found_by_gpuval(folder, parties):
    known = parties.required()
    try:
        return not statement.check(folder, known).is_verified
    except statement.EvidenceBundleError:
        return True


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_random_edit_is_found(kind, bundle, parties, script, capsys, tmp_path):
    draw = random.Random(f"{SEED} {kind.__name__}")
    arguments = [str(parties.files[name]) for name in parties.files]
    assert not is_found_by_gpuval(bundle, parties)
    assert script.main([str(bundle), *arguments]) == 0
    for number in range(-(-EDITS // len(KINDS))):
        room = tmp_path / str(number)
        folder = shutil.copytree(bundle, room / "bundle")
        kind(draw, folder)
        assert is_found_by_gpuval(folder, parties), f"edit {number}"
        assert script.main([str(folder), *arguments]) in (1, 2), f"edit {number}"
        assert "NOT VERIFIED" in "".join(capsys.readouterr())
        shutil.rmtree(room)
