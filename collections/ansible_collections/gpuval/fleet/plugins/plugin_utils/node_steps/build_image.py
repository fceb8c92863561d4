"""Make container images: the build context goes to the builder, the archive into store and catalogue."""

import json
import posixpath
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ansible.errors import AnsibleConnectionFailure

from ...module_utils import image_archive
from ..artifacts import build_context, image_upload, images, sbom
from ..core.action import ControllerAction
from ..core.paths import project_path
from ..core.step_options import StepOptions, StoreOptions
from ..store.access import open_store

HERE = ("local",)
#: Keys of an image in the catalogue, beside name and reference; all null if nodes build the image for themselves.
MADE = (
    "id",
    "sha256",
    "bytes",
    "key",
    "architecture",
    "context",
    "base",
    "base_id",
    "base_digest",
    "engine_id",
    "build_seconds",
)


class BuildImageOptions(StepOptions):
    store: StoreOptions
    engine: Literal["auto", "docker", "podman"] = "auto"
    #: Time limit of each pull, build and save.
    timeout_seconds: float = 7200.0
    #: `gpuval_images` of each host. An image is made after those that it is built on.
    images: Sequence[Mapping[str, Any]]
    #: Kinds of images that are made: built, copied from a registry, or from an archive of the controller.
    ways: Sequence[Literal["build", "copy", "archive"]] = ("build", "copy", "archive")
    #: Folder of the Dockerfiles and bases.yml.
    folder: Path = Path("docker")
    #: Vendor of the accelerators for images that declare none.
    vendor: Literal["", "nvidia", "amd", "gaudi", "cpu"] = ""
    #: Folder of wheels to install from instead of an index; the index's certificate authority; the file pip.conf.
    wheels: str = ""
    ca_file: str = ""
    pip_conf: str = ""
    #: Allow a base that is another image than at the last build.
    new_base: bool = False
    #: Build again although nothing changed, without the engine's cache.
    no_cache: bool = False
    #: Display a message if there is no image to make, as in the playbook `build`.
    required: bool = False
    #: Save the images and put them into the store. Else each node builds them for itself.
    publish: bool = True
    #: Put the images that are built into the registries of their references, in place of the store.
    push: bool = False


def build_image(action: ControllerAction, options: BuildImageOptions) -> dict[str, Any]:
    return ImageMaker(action, replace(options, publish=options.publish and not options.push)).make()


class ImageMaker:
    """Makes the images of a task, each after the images that it is built on."""

    def __init__(self, action: ControllerAction, options: BuildImageOptions) -> None:
        self.action, self.options = action, options
        self.state = project_path(options.store["state_dir"])
        self.digests: dict[str, str] = {}

    def make(self):
        options = self.options
        ordered = images.to_make(options.images, options.folder, options.vendor)
        if not ordered and options.required:
            self.action.display.display(
                "nothing to build: gpuval_images names no image to build, copy or take from an archive"
            )
        changed, entries, skipped = False, {}, []
        for item in ordered:
            if item.way not in options.ways:
                skipped.append(item.reference)
                continue
            try:
                image_changed, entries[item.reference] = self._make(item)
            except AnsibleConnectionFailure as error:
                if not options.publish:
                    raise
                # a play that ignores what is unreachable would go on without the image
                raise images.ImagesError(
                    f"{item.reference} was not made, the builder cannot be reached: {error}"
                ) from error
            changed = changed or image_changed
            if options.publish:
                outcome = "made" if image_changed else "is up to date"
                if self.action.check_mode:
                    outcome = "would be made, and put into the store if it is not there"
                self.action.display.display(f"{item.reference}: {outcome}")
        pushed = {  # the images as gpuval_images has them, those that were pushed by digest
            item.name: {"reference": images.by_digest(item.reference, self.digests.get(item.reference, ""))}
            for declared in self.options.images
            for item in images.parse(declared)
        }
        return {"changed": changed, "made": entries, "left": skipped, "pushed": pushed}

    def _make(self, item):
        """Make an image. Returns whether anything changed, and its entry in the catalogue, None in check mode."""
        publish, changed, image_facts = self.options.publish, False, None
        try:
            if item.way != "archive":
                changed, image_facts = self._build(item)
            elif not self.action.check_mode:
                image_facts = image_upload.take_archive(project_path(item.archive), item.reference, self.state)
        except images.ImagesError as error:
            raise images.ImagesError(f"gpuval_images.{item.name}: {error}") from error
        if self.action.check_mode:
            return publish or changed, None
        entry = {"name": item.name, "reference": item.reference, **dict.fromkeys(MADE)}
        if self.options.push:  # nodes have it neither from the store nor from a build of their own
            entry["build_seconds"] = image_facts.get("build_seconds")
            pushed = images.by_digest(item.reference, self.digests[item.reference])
            changed = changed or pushed not in images.read_catalogue(self.state)
            images.remember(self.state, {**entry, "reference": pushed})
            self.action.display.display(
                f"{item.reference}: {'pushed' if changed else 'is in the registry'} as {pushed}"
            )
            return changed, entry
        if publish:
            entry |= {key: image_facts.get(key) for key in MADE}
            entry["key"] = images.object_keys(item.name, entry["id"])[0]
            store = open_store(self.options.store)
            changed = image_upload.publish(store, self.state, entry, self.action.display.display) or changed
        return images.remember(self.state, entry) or changed, entry

    def _build(self, item):
        """Build or copy an image, unless it exists. Returns whether that was needed, and the image's properties."""
        options, catalogued = self.options, images.read_catalogue(self.state).get(item.reference, {})
        ready = bool(catalogued.get("sha256")) and images.archive_file(self.state, catalogued["sha256"]).is_file()
        publish = self.options.publish
        arguments = {
            "reference": item.reference,
            "way": item.way,
            "base": item.base,
            "arguments": dict(item.arguments),
            "engine": self.options.engine,
            "timeout_seconds": self.options.timeout_seconds,
        }
        context = None
        if item.way == "build":
            input_files = (options.wheels, options.ca_file, options.pip_conf)
            paths = [project_path(path) if path else None for path in input_files]
            context = build_context.gather(options.folder, item.folder, *paths)
            arguments["digest"] = context.digest(item.base, arguments["arguments"])
            arguments["dockerfile"] = context.dockerfile
            arguments["no_cache"] = self.options.no_cache
            if ready and publish and catalogued.get("context") == arguments["digest"]:
                arguments["built_base"] = catalogued.get("base_id") or ""
            if catalogued.get("base") == item.base and not self.options.new_base:
                arguments["base_digest"] = catalogued.get("base_digest") or ""
        looked = self._module(arguments)
        build_facts = {
            "context": arguments.get("digest"),
            "base": item.base or None,
            "base_id": looked["base_id"] or None,
            "base_digest": looked["base_digest"] or catalogued.get("base_digest"),
            "build_seconds": catalogued.get("build_seconds"),
        }
        needed = looked["needed"] and not (item.way == "copy" and ready)  # the store has it, though the builder has not
        if self.action.check_mode:
            return needed, None
        saved = (
            ready
            and catalogued.get("context") == build_facts["context"]
            and (not looked["image_id"] or catalogued.get("engine_id") == looked["image_id"])
        )
        push = self.options.push
        if not needed and not push and (saved or not publish):
            return False, catalogued
        doing = "making the image" if needed else "pushing the image" if push else "saving the image"
        self.action.display.display(f"{item.reference}: {doing}")
        arguments["push"] = push
        outcome = self._on_builder(item.name, arguments, context if needed else None)
        self.digests[item.reference] = outcome.get("pushed", "")
        base_digest = outcome["base_digest"] or None
        if "build_duration_seconds" in outcome:
            build_facts["build_seconds"] = outcome["build_duration_seconds"]
        build_facts.update(base_id=outcome["base_id"] or None, base_digest=base_digest, engine_id=outcome["image_id"])
        if base_digest and "@" not in item.base:
            self.action.display.display(f"{item.reference} is built on {item.base}@{base_digest}")
        return outcome["changed"] or (publish and not saved), {**build_facts, **outcome.get("archive", {})}

    def _on_builder(self, name, arguments, context):
        """Build and save an image on the builder, and bring its archive into the controller's folder."""
        folder = self.state / "images"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        local = self.action._connection.transport in HERE
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
            local_folder, builder_folder = Path(scratch), scratch if local else self.action._make_tmp_path()
            try:
                if context is not None:
                    context.write(local_folder / "context.tar")
                    arguments["context"] = posixpath.join(builder_folder, "context.tar")
                    if not local:
                        self.action._transfer_file(str(local_folder / "context.tar"), arguments["context"])
                        self.action._fixup_perms2([builder_folder, arguments["context"]], execute=False)
                if self.options.publish:
                    arguments["archive"] = posixpath.join(builder_folder, "archive.tar")
                if local:
                    arguments["log"] = str(folder / f"{name}.log")
                outcome = self._module(arguments)
                if self.options.publish:
                    self._keep(arguments, outcome, local_folder / "archive.tar", local)
            finally:
                if not local:
                    self.action._remove_tmp_path(builder_folder)
        return outcome

    def _keep(self, arguments, outcome, archive_path, local):
        """Keep an image's archive, and beside it its bill of materials, which an image without a shell lacks."""
        archive, reference = outcome["archive"], arguments["reference"]
        if not local:
            self.action.display.display(f"fetching {archive['bytes'] / 1e9:.1f} GB from the builder")
            self.action._connection.fetch_file(arguments["archive"], str(archive_path))
            if image_archive.sha256_of(archive_path) != archive["sha256"]:
                raise images.ImagesError("the archive arrived damaged from the builder: run again")
        archive_path.chmod(0o600)
        archive_path.replace(images.archive_file(self.state, archive["sha256"]))
        if not outcome.get("listing"):
            self.action.display.warning(f"{reference} cannot list its packages, so there is no SBOM of it")
            return
        document = sbom.document(reference, archive["id"], outcome["listing"])
        path = images.sbom_file(self.state, archive["sha256"])
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def _module(self, arguments):
        outcome = self.action.ask_node("build_image", arguments)
        if outcome.get("failed"):
            raise images.ImagesError(outcome.get("msg") or outcome.get("module_stderr") or "the build failed")
        return outcome
