"""The script beside a bundle, and hostile folders: links, devices, names, sizes, depth, files that change."""

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import statement, verify_bundle

from .conftest import FILES, PREDICATE, add_signature, write_bundle

STATEMENT = statement.STATEMENT


def run_script(script, *arguments):
    """Run the script alone: without the collection, the user's packages and the variables of Python."""
    command = [sys.executable, "-I", script.__file__, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")


def problems(folder):
    return verify_bundle.FolderReader(folder).problems


def test_the_script_needs_150_lines_the_standard_library_and_cryptography(script):
    text = Path(script.__file__).read_text()
    assert len(text.splitlines()) <= 150
    imported = {
        line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported - sys.stdlib_module_names == {"cryptography"}


def test_the_script_verifies_a_bundle_on_its_own(script, bundle, parties):
    done = run_script(script, bundle, *parties.files.values())
    assert done.returncode == 0 and not done.stderr, done
    assert done.stdout.splitlines()[-1] == f"verified: root digest {statement.seal(bundle, PREDICATE)}"
    (bundle / "run.json").write_text("{}")
    done = run_script(script, bundle, *parties.files.values())
    assert done.returncode == 1
    assert "run.json: changed" in done.stdout and "NOT VERIFIED" in done.stdout


def test_what_is_mistyped_is_named_and_verifies_nothing(script, bundle, parties, tmp_path):
    no_key = tmp_path / "no_key"
    no_key.write_text("ssh-ed25519 AAAA")
    for arguments in [
        (),
        (bundle / "x", parties.files["vendor"]),
        (bundle, "x.pem"),
        (bundle, no_key),
        (no_key, no_key),
    ]:
        done = run_script(script, *arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr, arguments
        assert done.stderr.startswith("NOT VERIFIED: ") and "python3 verify_bundle.py FOLDER" in done.stderr
    assert run_script(script, bundle).returncode == 1, "without a key nothing is verified"


def test_the_script_tells_apart_whose_signature_is_there(script, tmp_path, parties, capsys):
    folder = write_bundle(tmp_path / "bundle")
    vendor, customer = (str(parties.files[name]) for name in ("vendor", "customer"))
    assert script.main([str(folder), vendor]) == 1
    assert "not signed" in capsys.readouterr().out
    add_signature(folder, parties.keys["vendor"])
    assert script.main([str(folder), vendor]) == 0
    assert script.main([str(folder), vendor, customer]) == 1, "each of the keys must have signed"
    assert script.main([str(folder), customer]) == 1
    assert "signed by an unknown key" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\u202eb", "a\\b", "a\x7f", os.fsdecode(b"a\xff"), "RUN.JSON"])
def test_names_that_are_not_portable_are_refused_and_printed_escaped(script, bundle, parties, capsys, name):
    (bundle / name).write_text("x")
    (problem,) = problems(bundle).values()
    assert problem.startswith("a name that is not printable")
    assert script.main([str(bundle), *map(str, parties.files.values())]) == 1
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.splitlines()) and printed.isascii()


def test_links_devices_and_fifos_are_refused_and_not_opened(bundle, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("secret")
    os.utime(outside, ns=(1, 1))
    (bundle / "link").symlink_to(outside)
    (bundle / "absolute").symlink_to("/etc/passwd")
    (bundle / "loop").symlink_to("..")
    (bundle / "dangling").symlink_to("nowhere")
    (bundle / "hard").hardlink_to(outside)
    os.mkfifo(bundle / "fifo")
    expected = ["link", "absolute", "loop", "dangling", "hard", "fifo"]
    if os.geteuid() == 0:
        os.mknod(bundle / "zero", 0o20600, os.makedev(1, 5))
        expected.append("zero")
    reader = verify_bundle.FolderReader(bundle, tmp_path / "copy")
    assert reader.problems == dict.fromkeys(expected, "a link, a device, or a folder too deep")
    assert outside.stat().st_atime_ns == 1, "it was not read"
    assert not {*expected} & {path.name for path in (tmp_path / "copy").iterdir()}


def test_a_link_that_takes_the_place_of_a_file_is_not_followed(bundle, monkeypatch):
    """Between the look at a file and its opening."""
    opened = os.open

    def replace_and_open(path, *arguments, **options):
        if path == "run.json":
            (bundle / path).unlink()
            (bundle / path).symlink_to("/etc/passwd")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", replace_and_open)
    with pytest.raises(OSError, match=r"symbolic links: 'run\.json'"):
        verify_bundle.FolderReader(bundle)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    (tmp_path / "grows").write_bytes(b"x" * (8 << 20))
    ended = threading.Event()

    def write():
        with (tmp_path / "grows").open("ab") as file:
            while not ended.is_set():
                file.write(b"y")
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert problems(tmp_path) == {"grows": "changed while it was read"}
    finally:
        ended.set()
        writer.join()


def test_huge_and_sparse_files_are_not_read(bundle):
    with (bundle / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    assert problems(bundle) == {"sparse": "larger than the limit for a file or a bundle"}
    with (bundle / STATEMENT).open("r+b") as file:
        file.truncate(1 << 42)
    with pytest.raises(ValueError, match="missing, damaged"):
        verify_bundle.check_bundle(bundle, {})


def test_limits_hold_for_the_whole_bundle(bundle, monkeypatch):
    monkeypatch.setattr(verify_bundle, "MAX_BUNDLE_BYTES", sum(map(len, FILES.values())) // 2)
    reader = verify_bundle.FolderReader(bundle)
    assert {*reader.problems.values()} == {"larger than the limit for a file or a bundle"} and reader.digests
    monkeypatch.setattr(verify_bundle, "MAX_ENTRIES", 5)
    with pytest.raises(ValueError, match="more than 5 files and folders"):
        verify_bundle.FolderReader(bundle)


def test_a_payload_over_the_limit_is_not_parsed(bundle, monkeypatch):
    monkeypatch.setattr(verify_bundle, "MAX_STATEMENT_BYTES", 100)
    with pytest.raises(ValueError, match="missing, damaged"):
        verify_bundle.check_bundle(bundle, {})


def test_a_deep_tree_is_not_descended(bundle):
    (bundle / "/".join("d" * 60)).mkdir(parents=True)
    (problem,) = problems(bundle).items()
    assert problem == ("/".join("d" * 17), "a link, a device, or a folder too deep")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "nodes/../run.json", "", ".", "./run.json", 5, None])
def test_signed_names_that_leave_the_folder_are_missing_files(bundle, parties, name):
    """A hostile signer may write anything: names are compared, never opened."""
    payload, _signatures, _digests, predicate = verify_bundle.read_envelope((bundle / STATEMENT).read_bytes())
    document = json.loads(payload)
    document["subject"].append({"name": name, "digest": {"sha256": None}})
    payload = verify_bundle.encode(document)
    (bundle / STATEMENT).write_bytes(verify_bundle.encode_envelope(payload, {}))
    add_signature(bundle, parties.keys["vendor"])
    found, _states, _payload, _predicate = verify_bundle.check_bundle(bundle, parties.known().keys)
    assert found == {str(name): "missing"}
    assert predicate == PREDICATE


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b"null", b"5", b'"x"', b"[" * 100_000, b"\xff\xfe", b"1" * 5000, b'{"payload": NaN}',
        b'{"payload":"","payloadType":"","signatures":[]}', b'{"payload":"e30=","payload":"e30="}',
        b'{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":{"keyid":"x"}}',
        b'{"payload":5,"payloadType":"application/vnd.in-toto+json","signatures":[5]}',
    ],
    ids=lambda text: ascii(text[:30]),
)  # fmt: skip
def test_what_is_no_envelope_is_refused(text):
    with pytest.raises(ValueError, match="missing, damaged"):
        verify_bundle.read_envelope(text)


def test_keys_and_subjects_that_stand_twice_are_refused(bundle):
    text = (bundle / STATEMENT).read_bytes()
    payload, signatures, *_ = verify_bundle.read_envelope(text)
    document = json.loads(payload)
    twice = [
        payload.replace(b'"verdict":"PASS"', b'"verdict":"FAIL","verdict":"PASS"'),
        payload.replace(b'"_type":', b'"_type":"x","_type":'),
        verify_bundle.encode({**document, "subject": [*document["subject"], document["subject"][0]]}),
    ]
    for edited in twice:
        assert edited != payload
        with pytest.raises(ValueError, match="missing, damaged"):
            verify_bundle.read_envelope(verify_bundle.encode_envelope(edited, signatures))
    with pytest.raises(ValueError, match="missing, damaged"):
        verify_bundle.read_envelope(text.replace(b'{"payload":', b'{"payload":"","payload":'))


def test_copies_are_what_was_digested(bundle, tmp_path, parties):
    copy = tmp_path / "copy"
    checked = statement.check(bundle, parties.known(), copy=copy)
    assert checked.is_verified and copy.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(bundle)
    copied = {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    copied.pop(STATEMENT)
    assert copied == FILES


def test_the_signed_bytes_are_those_of_dsse():
    """The example in DSSE's protocol.md has this form."""
    assert verify_bundle.signed_bytes(b"hello world") == b"DSSEv1 28 application/vnd.in-toto+json 11 hello world"


def test_the_statement_is_one_of_in_toto(bundle):
    envelope = json.loads((bundle / STATEMENT).read_bytes())
    assert set(envelope) == {"payload", "payloadType", "signatures"}
    document = json.loads(base64.b64decode(envelope["payload"]))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert set(document) == {"_type", "subject", "predicateType", "predicate"}
    assert [subject["name"] for subject in document["subject"]] == sorted(FILES)
