"""Datasets from folders, archives and the bucket; what archives may hold; their way into the store."""

import bz2
import gzip
import hashlib
import io
import lzma
import stat
import tarfile
import zipfile

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import dataset_source
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.datasets import DatasetError, DatasetSource
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

from tests.kit.actions import run_action

FILES = {"batches/data_batch_1": b"\x01" * 5000, "batches/sub/labels.pkl": b"labels", "readme.txt": b"real"}
ROOM = 1 << 20


def write(root, files=FILES):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def read(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def member(name, kind=tarfile.REGTYPE, data=b"", **changes):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, io.BytesIO(data)


def tar_of(path, *members):
    with tarfile.open(path, "w") as packed:
        for info, data in members:
            packed.addfile(info, data if info.isreg() else None)
    return path


def good_tar(path, opened=open):
    plain = tar_of(path.with_name("plain"), *(member(name, data=data) for name, data in FILES.items()))
    with opened(path, "wb") as stream:
        stream.write(plain.read_bytes())
    return path


def zip_of(path, *members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as packed:
        for name, data, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, compression
            packed.writestr(info, data)
    return path


@pytest.mark.parametrize("opened", [open, gzip.open, bz2.open, lzma.open])
def test_a_tar_is_unpacked_whatever_packs_it(tmp_path, opened):
    dataset_source.unpack("x", good_tar(tmp_path / "data.bin", opened), tmp_path / "to", ROOM)
    assert read(tmp_path / "to") == FILES


def test_a_zip_is_unpacked_and_a_tar_with_a_zip_in_it_is_a_tar(tmp_path):
    entries = [(name, data, 0o644 | stat.S_IFREG) for name, data in FILES.items()]
    packed = zip_of(tmp_path / "data", ("batches/", b"", 0o755 | stat.S_IFDIR), *entries)
    dataset_source.unpack("x", packed, tmp_path / "to", ROOM)
    assert read(tmp_path / "to") == FILES
    outer = tar_of(tmp_path / "outer", member("inner.zip", data=packed.read_bytes()))
    dataset_source.unpack("x", outer, tmp_path / "outer_to", ROOM)
    assert list(read(tmp_path / "outer_to")) == ["inner.zip"]


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([member("../out", data=b"x")], "'../out' is no valid path below"),
        ([member("a/../../out", data=b"x")], "is no valid path below"),
        ([member("/etc/cron.d/x", data=b"x")], "'/etc/cron.d/x' is no valid path below"),
        ([member("a\\b", data=b"x")], "is no valid path below"),
        ([member("a\nb", data=b"x")], "is no valid path below"),
        ([member("link", tarfile.SYMTYPE, linkname="/etc")], "'link' is a link: pack plain files"),
        ([member("a", data=b"x"), member("hard", tarfile.LNKTYPE, linkname="a")], "'hard' is a link"),
        ([member("null", tarfile.CHRTYPE, devmajor=1, devminor=3)], "'null' is a device, a pipe"),
        ([member("disk", tarfile.BLKTYPE)], "'disk' is a device"),
        ([member("pipe", tarfile.FIFOTYPE)], "'pipe' is a device, a pipe"),
        ([member("a", data=b"x"), member("a", data=b"y")], "the name 'a' stands twice"),
        ([member("a", data=b"x"), member("a/b", data=b"y")], "the name '.*' stands twice"),
        ([member("a", data=b"x" * (ROOM + 1))], "more than 100000 files or 1.05 MB"),
        ([member("a", data=b"x" * (ROOM // 2)), member("b", data=b"x" * (ROOM // 2 + 1))], "more than"),
    ],
)
def test_a_tar_that_does_more_than_hold_files_is_refused(tmp_path, members, problem):
    with pytest.raises(DatasetError, match=f"dataset cifar10: .*{problem}"):
        dataset_source.unpack("cifar10", tar_of(tmp_path / "data.tar", *members), tmp_path / "a/to", ROOM)
    assert {path.name for path in tmp_path.iterdir()} <= {"data.tar", "a"}, "nothing beside the folder"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (("../out", b"x", 0o644), "is no valid path below"),
        (("/abs", b"x", 0o644), "is no valid path below"),
        (("link", b"/etc/passwd", 0o777 | stat.S_IFLNK), "'link' is a link"),
        (("pipe", b"", 0o644 | stat.S_IFIFO), "'pipe' is a device or a pipe"),
        (("bomb", bytes(8 * ROOM), 0o644), "more than 100000 files or"),
    ],
)
def test_a_zip_that_does_more_than_hold_files_is_refused(tmp_path, entry, problem):
    with pytest.raises(DatasetError, match=problem):
        dataset_source.unpack("x", zip_of(tmp_path / "data.zip", entry), tmp_path / "to", ROOM)


def test_many_files_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_source, "MAX_FILES", 2)
    with pytest.raises(DatasetError, match="more than 2 files"):
        dataset_source.unpack("x", good_tar(tmp_path / "data.tar"), tmp_path / "to", ROOM)


def cut_short(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def with_a_huge_header(path):
    """A pax header that claims 2 GB, which compresses to nothing."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2 << 30
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(info.tobuf() + bytes(1 << 20))
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda path: cut_short(good_tar(path, gzip.open)),
        lambda path: cut_short(tar_of(path, member("a", data=b"x" * 20000))),
        lambda path: path.write_bytes(b"no archive" * 100) and path,
        lambda path: path.write_bytes(b"PK no archive") and path,
        lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(500)) and path,
        with_a_huge_header,
    ],
)
def test_what_is_no_whole_archive_is_named_with_what_can_be_given(tmp_path, make):
    with pytest.raises(DatasetError, match=r"dataset x: .*data.*(cannot be unpacked|ends early)"):
        dataset_source.unpack("x", make(tmp_path / "data"), tmp_path / "to", ROOM)


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_a_folder_is_taken_as_it_is_and_its_digest_is_that_of_its_sums(tmp_path, scratch):
    root = write(tmp_path / "data")
    sums = "".join(f"{hashlib.sha256(FILES[name]).hexdigest()}  {name}\n" for name in sorted(FILES))
    right = hashlib.sha256(sums.encode()).hexdigest()
    found = dataset_source.resolve(DatasetSource("x", str(root), right), scratch, None)
    assert (found.folder, set(found.files)) == ("datasets--gpuval--x", set(FILES)), "pickles are data here"
    with pytest.raises(DatasetError, match=f"dataset x: wrong digest: SHA256SUMS of folder .* has sha256 {right}"):
        dataset_source.resolve(DatasetSource("x", str(root), "0" * 64), scratch, None)
    (root / "gone").symlink_to(root / "nowhere")
    with pytest.raises(DatasetError, match=r"dataset x: .*gone is a link that leads nowhere"):
        dataset_source.resolve(DatasetSource("x", str(root)), scratch, None)


def test_an_archive_with_another_digest_is_not_opened(tmp_path, scratch):
    path = good_tar(tmp_path / "data.tar")
    with pytest.raises(
        DatasetError, match=r"dataset x: wrong digest: .*data.tar has sha256 .*, gpuval_datasets says 00"
    ):
        dataset_source.resolve(DatasetSource("x", str(path), "0" * 64), scratch, None)
    assert not list(scratch.iterdir())


def test_a_missing_source_and_an_empty_one_are_named(tmp_path, scratch):
    with pytest.raises(DatasetError, match="gpuval_datasets: x: /no/such does not exist on the controller"):
        dataset_source.check([{"name": "x", "source": "/no/such"}])
    dataset_source.check([{"name": "x", "source": "store:anything"}])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="has 0 files"):
        dataset_source.resolve(DatasetSource("x", str(tmp_path / "empty")), scratch, None)


@pytest.fixture
def embedded(tmp_path):
    store = EmbeddedStore(tmp_path / "store", "gpuval")
    store.start()
    yield store
    store.stop()


def test_datasets_come_into_the_store_once_and_are_listed(embedded, tmp_path):
    archive = good_tar(tmp_path / "data.tgz", gzip.open)
    for name, data in FILES.items():
        embedded.store().put(f"mine/texts/{name}", data)
    declared = [
        {"name": "cifar10", "source": str(archive), "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()},
        {"name": "texts", "source": "store:mine/texts/"},
        {"name": "other", "source": str(write(tmp_path / "other"))},
    ]
    options = {"store": {"bucket": "gpuval", "state_dir": str(tmp_path)}, "datasets": declared}
    options["stages"] = ["facts", "dataset_cifar10", "dataset_texts"]
    first = run_action("preload_model", options)
    assert not first.failed, first.text
    assert "dataset cifar10: in the store, 3 files" in first.text
    for name in ("cifar10", "texts"):
        kept = read(embedded.objects / f"models/datasets--gpuval--{name}")
        sums = kept.pop("SHA256SUMS").decode()
        assert kept == FILES
        assert len(sums.splitlines()) == 3
    assert not (embedded.objects / "models/datasets--gpuval--other").exists(), "no stage of the run names it"
    assert not (embedded.objects / "models/models--gpuval--tiny-llama").exists()

    assert run_action("preload_model", options).result["changed"] is False
    embedded.store().delete_prefix("models/datasets--gpuval--texts/readme.txt")
    again = run_action("preload_model", options)
    assert again.result["changed"] is True
    assert "uploading to the store from store:mine/texts/" in again.text
    assert not list((tmp_path / "store").glob("download-*"))

    listed = run_action("preload_model", {**options, "list": True})
    cifar10, texts, count = listed.lines
    assert cifar10.startswith("dataset cifar10: 3 files, 5.01 kB, sha256 ")
    assert texts.endswith(", from store:mine/texts/")
    assert count == "0 model(s) and 2 dataset(s) in bucket gpuval"

    wrong = [{**declared[0], "sha256": "0" * 64}]
    failed = run_action("preload_model", {**options, "datasets": wrong})
    assert failed.failed and "uploading" not in failed.text
    assert "dataset cifar10: wrong digest" in failed.text
    gone = [{"name": "texts", "source": "store:mine/textz"}]
    failed = run_action("preload_model", {**options, "datasets": gone})
    assert failed.failed
    assert "textz" in failed.text
