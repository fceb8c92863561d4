"""Pack the wheels for nodes without internet into one archive, and put it into the store."""

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...module_utils.image_archive import sha256_of
from ...module_utils.store import Store
from ..artifacts import image_upload, images
from ..core.errors import SettingError
from ..core.paths import project_path
from ..core.step_options import StoreOptions
from ..runs.action import RunAction
from ..store.access import open_store


def pack_wheels(action: RunAction, *, folder: Path, store: StoreOptions) -> dict[str, Any]:
    """Returns as `wheels` SHA-256, bytes and key of the archive. `folder`: on the controller, with the wheels."""
    access, paths = open_store(store), sorted(folder.glob("*.whl"))
    if not paths:
        raise SettingError(f"{folder} has no wheels: correct environment_wheels, or make them with `make bundle`")
    if not access.reachable_from_nodes("ssh"):
        raise SettingError(
            "nodes get wheels from the store, and do not reach it: set gpuval_store_address, or an S3 service"
        )
    archive = images.archive_file(project_path(store["state_dir"]), "wheels")
    archive.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pack(paths, archive)
    sha256, size = sha256_of(archive), archive.stat().st_size
    key = f"wheels/{sha256}.tar"
    objects = Store(access.connection(), timeout=image_upload.ANSWER_SECONDS)
    if size not in [stored.size for stored in objects.list(key)]:
        entry = {"key": key, "bytes": size, "reference": "wheels"}
        image_upload.upload(objects, archive, entry, action.display.display, in_parts=access.takes_parts)
    archive.unlink()
    return {"changed": False, "wheels": {"sha256": sha256, "bytes": size, "key": key}}


def pack(paths: Iterable[Path], archive: Path) -> None:
    """Write files into an archive without their times and owners: equal wheels make equal archives."""
    with tarfile.open(archive, "w") as tar:
        for path in paths:
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            with path.open("rb") as stream:
                tar.addfile(member, stream)
