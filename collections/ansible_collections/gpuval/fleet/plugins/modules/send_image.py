#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: send_image
short_description: Receive an image archive from the controller over the management connection
version_added: 1.0.0
description:
  - Reports how much of an archive is on the node, and moves it into place once it is complete and verified.
  - The role P(gpuval.fleet.image_stage#role) calls it through the action plugin of the same name, which sends what is
    missing. An interrupted transfer resumes.
extends_documentation_fragment: [gpuval.fleet.common, gpuval.fleet.node_directory]
options:
  sha256:
    description: SHA-256 of the archive.
    type: str
    required: true
  bytes:
    description: Size of the archive.
    type: int
    required: true
  image_id:
    description: Id of the image in it; a node whose engine has it needs no archive.
    type: str
    default: ''
  runtime:
    description: The engine that needs it; another engine's images do not count.
    type: str
    choices: [docker, podman, auto]
    default: auto
"""

EXAMPLES = r"""
- name: Bring the images to nodes that do not reach the store
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: watch
"""

RETURN = r"""
state:
  description: V(loaded) when the engine has the image, V(whole) when the archive is here, V(missing) else.
  returned: success
  type: str
part:
  description: Where the controller sends the archive to.
  returned: success
  type: str
have:
  description: How many bytes of it are there.
  returned: success
  type: int
"""

import os
import re
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.image_archive import sha256_of
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError, base_directory, make_private

ANSWER_SECONDS = 30
#: Beside the archive, an engine needs room for what is in it.
LEAST_FREE_BYTES = 256 << 20


def look(directory, sha256, size, image_id, runtime="auto"):
    """What is here. A part that is whole becomes the archive; one that is wrong is removed."""
    base = base_directory(directory)
    make_private(base)
    folder = base / "images"
    make_private(folder)
    path, part = folder / f"{sha256}.tar", folder / f"{sha256}.tar.part"
    if image_id and loaded(image_id, runtime):
        part.unlink(missing_ok=True)
        return {"changed": False, "state": "loaded", "part": str(part), "have": 0}
    if path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256:
        part.unlink(missing_ok=True)
        return {"changed": False, "state": "whole", "part": str(part), "have": size}
    have = part.stat().st_size if part.is_file() else 0
    if have >= size:
        if have == size and sha256_of(part) == sha256:
            part.chmod(0o600)
            part.replace(path)
            return {"changed": True, "state": "whole", "part": str(part), "have": size}
        part.unlink()
        have = 0
    free = shutil.disk_usage(folder).free
    if free < size - have + LEAST_FREE_BYTES:
        raise NodeError(
            f"{folder} has {free / 1e9:.1f} GB free, and {(size - have) / 1e9:.1f} GB of an image are to come: "
            "make room, or set gpuval_node_dir to a larger disk"
        )
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    return {"changed": False, "state": "missing", "part": str(part), "have": have}


def loaded(image_id, runtime="auto"):
    """Whether the engine that the runner will take has the image."""
    for command in ("docker", "podman") if runtime == "auto" else (runtime,):
        if shutil.which(command) is None:
            continue
        try:
            done = subprocess.run(
                [command, "image", "inspect", "--format", "{{.Id}}", image_id],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ANSWER_SECONDS,
                text=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        found = done.stdout.strip().removeprefix("sha256:")
        return done.returncode == 0 and bool(found) and image_id.endswith(found)
    return False


def main():
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "str", "default": ""},
            "sha256": {"type": "str", "required": True},
            "bytes": {"type": "int", "required": True},
            "image_id": {"type": "str", "default": ""},
            "runtime": {"type": "str", "choices": ["docker", "podman", "auto"], "default": "auto"},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    if not re.fullmatch(r"[0-9a-f]{64}", parameters["sha256"]):
        module.fail_json(msg="sha256 is no SHA-256 in hexadecimal")
    if module.check_mode:
        module.exit_json(changed=True, state="missing", part="", have=0)
    try:
        wanted = (parameters[name] for name in ("directory", "sha256", "bytes", "image_id", "runtime"))
        module.exit_json(**look(*wanted))
    except NodeError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
