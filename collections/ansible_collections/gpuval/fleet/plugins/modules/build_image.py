#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: build_image
short_description: Make container images, and put them into the store
version_added: 1.0.0
description:
  - Builds an image with docker or podman, unless the engine has it from the same context and the same base already.
  - Saves it as an archive that both engines load, and returns its SHA-256, and the id and architecture of the image.
  - The role P(gpuval.fleet.container_image#role) calls it through the action plugin of the same name. That checks what
    hosts declare as C(gpuval_images), and makes each image after those that it is built on.
  - The action copies the context to the builder and the archive back, or uses an archive on the controller. It puts
    the archive below C(images/) of the store, unless it is complete there, and records it in C(images.json).
extends_documentation_fragment: [gpuval.fleet.common]
attributes:
  check_mode:
    support: partial
    description: Says which images would be made.
    details: Does not ask the store, and so says of all that they would be put there.
options:
  reference:
    description: Reference of the image.
    type: str
    required: true
  way:
    description: V(build) the image, or V(copy) it from the registry of its reference.
    type: str
    choices: [build, copy]
    default: build
  engine:
    description: Build engine; V(auto) is docker if it answers, else podman.
    type: str
    choices: [auto, docker, podman]
    default: auto
  base:
    description: Image to build on.
    type: str
    default: ''
  arguments:
    description: Further build arguments. They stay in the history of the build stage, so no secrets.
    type: dict
    default: {}
  digest:
    description: Identifies this build; kept as a label of the image.
    type: str
    default: ''
  built_base:
    description: Id of the base of the archive that the store has already.
    type: str
    default: ''
  base_digest:
    description: Required digest of the base if it is from a registry; empty accepts any.
    type: str
    default: ''
  context:
    description: Archive with the build's files on the builder; empty only says whether a build is needed.
    type: str
    default: ''
  dockerfile:
    description: The Dockerfile in the context.
    type: str
    default: Dockerfile
  archive:
    description: Path to save the image to; empty saves nothing.
    type: str
    default: ''
  no_cache:
    description: Rebuild even if nothing changed, without the engine's cache.
    type: bool
    default: false
  push:
    description: Push the image to the registry of its reference.
    type: bool
    default: false
  log:
    description: File for the engine's build output; empty keeps none.
    type: str
    default: ''
  timeout_seconds:
    description: Time limit of each pull, build and save.
    type: float
    default: 7200
"""

EXAMPLES = r"""
- name: Build what gpuval_images asks for
  ansible.builtin.import_role:
    name: gpuval.fleet.container_image
"""

RETURN = r"""
needed:
  description: Whether a build is needed.
  returned: success
  type: bool
engine:
  description: The engine that was used.
  returned: success
  type: str
image_id:
  description: Id of the image as the engine says it; empty where the engine does not have it.
  returned: success
  type: str
base_id:
  description: Id of the base on the builder; empty where it is not there.
  returned: success
  type: str
base_digest:
  description: Digest of the base in its registry; empty where it is not from one.
  returned: success
  type: str
archive:
  description: What was saved.
  returned: when an archive was asked for
  type: dict
  contains:
    sha256:
      description: SHA-256 of the archive.
      type: str
    bytes:
      description: Size of the archive.
      type: int
    id:
      description: Digest of the image's configuration.
      type: str
    architecture:
      description: Architecture of the image.
      type: str
listing:
  description: Packages in the image, a line each.
  returned: when an archive was asked for
  type: str
pushed:
  description: Digest by which the registry has the image.
  returned: when it was pushed
  type: str
build_duration_seconds:
  description: How long the build took.
  returned: when it was built
  type: float
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils import image_archive
from ansible_collections.gpuval.fleet.plugins.module_utils.image_builder import Builder, BuildError


def work(module):
    """What `main` does once the parameters are there."""
    parameters = module.params
    builder = Builder(parameters["engine"], parameters["timeout_seconds"])
    reference, base = parameters["reference"], parameters["base"]
    here = builder.image(reference)
    result = {"changed": False, "engine": builder.command, "image_id": here.id if here else ""}
    result.update(base_id="", base_digest="")
    if parameters["way"] == "copy":
        result["needed"] = here is None
        if here is None and not module.check_mode:
            builder.pull(reference)
            result.update(changed=True, image_id=builder.image(reference).id)
    else:
        base_here = builder.image(base)
        result.update(_base(base_here))
        result["needed"] = parameters["no_cache"] or builder.outdated(
            here, base_here, parameters["digest"], parameters["built_base"]
        )
        if result["needed"] and parameters["context"] and not module.check_mode:
            began = time.monotonic()
            image, base_here = builder.build(
                parameters["context"],
                parameters["dockerfile"],
                reference,
                base,
                parameters["arguments"],
                parameters["digest"],
                parameters["log"],
                parameters["base_digest"],
                parameters["no_cache"],
            )
            result.update(changed=True, image_id=image.id, **_base(base_here))
            result["build_duration_seconds"] = round(time.monotonic() - began, 1)
    if module.check_mode:
        result["changed"] = result["needed"]
    elif parameters["archive"]:
        result["archive"] = save(builder, reference, parameters["archive"], parameters["timeout_seconds"])
        result["listing"] = builder.listing(reference)
    elif parameters["push"]:
        result.update(changed=True, pushed=builder.push(reference))
    return result


def _base(here):
    return {"base_id": here.id, "base_digest": here.digest} if here else {"base_id": "", "base_digest": ""}


def save(builder, reference, path, seconds):
    """Save the image and say what is in the archive."""
    try:
        sha256, count = image_archive.save(builder.save_command(reference), path, seconds)
        image = image_archive.image_of(path, reference)
    except image_archive.ArchiveError:
        Path(path).unlink(missing_ok=True)
        raise
    Path(path).chmod(0o644)
    return {"sha256": sha256, "bytes": count, "id": image["id"], "architecture": image["architecture"]}


def main():
    module = AnsibleModule(
        argument_spec={
            "reference": {"type": "str", "required": True},
            "way": {"type": "str", "choices": ["build", "copy"], "default": "build"},
            "engine": {"type": "str", "choices": ["auto", "docker", "podman"], "default": "auto"},
            "base": {"type": "str", "default": ""},
            "arguments": {"type": "dict", "default": {}},
            "digest": {"type": "str", "default": ""},
            "built_base": {"type": "str", "default": ""},
            "base_digest": {"type": "str", "default": ""},
            "context": {"type": "str", "default": ""},
            "dockerfile": {"type": "str", "default": "Dockerfile"},
            "archive": {"type": "str", "default": ""},
            "no_cache": {"type": "bool", "default": False},
            "push": {"type": "bool", "default": False},
            "log": {"type": "str", "default": ""},
            "timeout_seconds": {"type": "float", "default": 7200},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**work(module))
    except (BuildError, image_archive.ArchiveError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}: make room, or correct the path")


if __name__ == "__main__":
    main()
