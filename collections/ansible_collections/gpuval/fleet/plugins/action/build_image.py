# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of build_image: the context goes to the builder, the archive into the store and the catalogue."""

from __future__ import annotations

import posixpath
import tempfile
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure

from ..module_utils import image_archive
from ..plugin_utils.artifacts import build_context, image_upload, images
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.store.access import open_store

PASSED_ON = ("reference", "way", "engine", "base", "arguments", "timeout_seconds")
HERE = ("local",)
#: Of an entry of the catalogue, beside name and reference; all null where nodes build the image for themselves.
MADE = ("id", "sha256", "bytes", "key", "architecture", "context", "base", "base_id", "base_digest", "engine_id")

DOCUMENTATION = r"""
module_options: [reference, engine, base, arguments, timeout_seconds]
extends_documentation_fragment:
  - gpuval.fleet.store
options:
  name:
    description: What the image is for; the archive's log has the name.
    type: str
    required: true
  way:
    description: V(build) it, take a V(copy) of what the reference stands for, or take in O(archive).
    type: str
    choices: [build, copy, archive]
    default: build
  archive:
    description: An archive on the controller, of C(docker save) or C(podman save --format docker-archive).
    type: str
    default: ''
  build_folder:
    description: Folder of the Dockerfile; empty is O(name).
    type: str
    default: ''
  folder:
    description: Folder with the build folders.
    type: str
    default: docker
  wheels:
    description: Folder of wheels to install from instead of an index.
    type: str
    default: ''
  ca_file:
    description: Certificate authority of the package index.
    type: str
    default: ''
  pip_conf:
    description: Configuration of pip for the build.
    type: str
    default: ''
  new_base:
    description: Whether the base may be another image than at the last build.
    type: bool
    default: false
  publish:
    description: Whether to save the image and put it into the store. Else each node builds it for itself.
    type: bool
    default: true
"""


class ActionModule(ControllerAction):
    _requires_connection = True

    def work(self, options, task_vars):
        reference, state = options["reference"], project_path(options["store"]["state_dir"])
        try:
            result = (self._take if options["way"] == "archive" else self._build)(options, state, task_vars)
        except AnsibleConnectionFailure as error:
            if not options["publish"]:
                raise
            # a play that ignores what is unreachable would go on without the image
            raise images.ImagesError(f"{reference} was not made, the builder cannot be reached: {error}") from error
        if self.check_mode:
            what = f"check mode: {reference} would be made, and put into the store if it is not there"
            return {"changed": result["changed"] or options["publish"], "msg": what}
        entry = {"name": options["name"], "reference": reference, **dict.fromkeys(MADE)}
        sent = False
        if options["publish"]:
            entry |= {key: result["image"].get(key) for key in MADE}
            entry["key"] = images.object_keys(options["name"], entry["id"])[0]
            sent = image_upload.publish(open_store(options["store"]), state, entry, self._display.display)
        changed = images.remember(state, entry) or sent or result["changed"]
        return {**result, "changed": changed, "image": entry, "uploaded": sent}

    def _take(self, options, state, _task_vars):
        if self.check_mode:
            return {"changed": False}
        path = project_path(options["archive"])
        return {"changed": False, "image": image_upload.take_archive(path, options["reference"], state)}

    def _build(self, options, state, task_vars):
        """Make the image, unless it is there. Returns what is known of it, and how long each step took."""
        known = images.read_catalogue(state).get(options["reference"], {})
        kept = bool(known.get("sha256")) and images.archive_file(state, known["sha256"]).is_file()
        arguments = {name: options[name] for name in PASSED_ON}
        context = None
        if options["way"] == "build":
            context = _context(options)
            arguments["digest"] = context.digest(options["base"], options["arguments"])
            arguments["dockerfile"] = context.dockerfile
            if kept and options["publish"] and known.get("context") == arguments["digest"]:
                arguments["built_base"] = known.get("base_id") or ""
            if known.get("base") == options["base"] and not options["new_base"]:
                arguments["base_digest"] = known.get("base_digest") or ""
        looked = self._module(arguments, task_vars)
        made = {
            "context": arguments.get("digest"),
            "base": options["base"] or None,
            "base_id": looked["base_id"] or None,
            "base_digest": looked["base_digest"] or known.get("base_digest"),
        }
        needed = looked["needed"] and not (
            options["way"] == "copy" and kept
        )  # the store has it, though the builder has not
        if self.check_mode:
            return {"changed": needed}
        saved = (
            kept
            and known.get("context") == made["context"]
            and (not looked["image_id"] or known.get("engine_id") == looked["image_id"])
        )
        if not needed and (saved or not options["publish"]):
            return {"changed": False, "image": known, "msg": f"{options['reference']} is up to date"}
        outcome = self._make(options, arguments, context if needed else None, state, task_vars)
        base_digest = outcome["base_digest"] or None
        made.update(base_id=outcome["base_id"] or None, base_digest=base_digest, engine_id=outcome["image_id"])
        if base_digest and "@" not in options["base"]:
            self._display.display(f"{options['reference']} is built on {options['base']}@{base_digest}")
        seconds = {key: outcome[key] for key in outcome if key.endswith("_seconds")}
        image = {**made, **outcome.get("archive", {})}
        return {"changed": outcome["changed"] or not saved, "image": image, "engine": outcome["engine"], **seconds}

    def _make(self, options, arguments, context, state, task_vars):
        """Build on the builder, save there, and bring the archive into the controller's folder."""
        folder = state / "images"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        local = self._connection.transport in HERE
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
            here, there = Path(scratch), scratch if local else self._make_tmp_path()
            try:
                if context is not None:
                    context.write(here / "context.tar")
                    arguments["context"] = posixpath.join(there, "context.tar")
                    if not local:
                        self._transfer_file(str(here / "context.tar"), arguments["context"])
                        self._fixup_perms2([there, arguments["context"]], execute=False)
                if options["publish"]:
                    arguments["archive"] = posixpath.join(there, "archive.tar")
                if local:
                    arguments["log"] = str(folder / f"{options['name']}.log")
                outcome = self._module(arguments, task_vars)
                if options["publish"]:
                    self._keep(outcome["archive"], arguments["archive"], here / "archive.tar", state, local)
            finally:
                if not local:
                    self._remove_tmp_path(there)
        return outcome

    def _keep(self, archive, there, here, state, local):
        if not local:
            self._display.display(f"fetching {archive['bytes'] / 1e9:.1f} GB from the builder")
            self._connection.fetch_file(there, str(here))
            if image_archive.sha256_of(here) != archive["sha256"]:
                raise images.ImagesError("the archive arrived damaged from the builder: run again")
        here.chmod(0o600)
        here.replace(images.archive_file(state, archive["sha256"]))

    def _module(self, arguments, task_vars):
        outcome = self.ask_node("build_image", arguments, task_vars)
        if outcome.get("failed"):
            raise images.ImagesError(outcome.get("msg") or outcome.get("module_stderr") or "the build failed")
        return outcome


def _context(options):
    def path(name):
        return project_path(options[name]) if options[name] else None

    folder = options["build_folder"] or options["name"]
    return build_context.gather(
        project_path(options["folder"]), folder, path("wheels"), path("ca_file"), path("pip_conf")
    )
