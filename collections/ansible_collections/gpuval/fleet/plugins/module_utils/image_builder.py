"""Builds, pulls and pushes images by a container engine; every call has a deadline."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .engines import of_runtime
from .image_archive import extract

CONTEXT_LABEL = "gpuval.context"
BASE_LABEL = "gpuval.base"
BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
ANSWER_SECONDS = 30
MAX_LISTING_BYTES = 4 << 20
LISTING_SECONDS = 300
#: Script that prints an image's packages, one a line: kind, name, version and more, separated by tabs.
LISTING = r"""
(. /etc/os-release; printf 'os\t%s\t%s\n' "$ID" "${VERSION_ID:-$VERSION_CODENAME}")
dpkg-query -W -f 'deb\t${Package}\t${Version}\t${Architecture}\n' 2>/dev/null || true
cat /opt/gpuval-tools/sources.tsv 2>/dev/null || true
for python in /opt/gpuval-*/bin/python python3; do
  "$python" -c 'import importlib.metadata as m
for d in m.distributions(): print("pypi", d.metadata["Name"], d.version, sep="\t")' 2>/dev/null || true
done
"""


class BuildError(Exception):
    """A container image cannot be built, pulled or pushed; the message says what to do."""


@dataclass(frozen=True)
class BuiltImage:
    """An image in an engine's storage. `digests`: of its manifest in registries, empty for an image built here."""

    id: str
    labels: dict
    digests: tuple = ()

    @property
    def digest(self):
        return self.digests[0] if self.digests else ""


class Builder:
    """A container engine as a builder of images. `seconds`: time limit of each pull, build and push. Raises
    ``BuildError`` if no engine answers."""

    def __init__(self, engine="auto", seconds=7200):
        self._seconds = seconds
        reasons = []
        for self.engine in of_runtime(engine):
            self.command = self.engine.command
            answer = self.engine.run(self.command, *self.engine.answer_words, timeout=ANSWER_SECONDS)
            if answer.ok:
                return
            reasons.append(answer.complaint)
        raise BuildError(
            f"images cannot be built here: {'; '.join(reasons)}. Install docker or podman here, start it, and "
            "let this user use it (group docker, or ansible_become), or build elsewhere (container_image_build_on)"
        )

    def image(self, reference):
        """Return the image with a reference in the engine's storage, or None."""
        done = self._call([self.command, "image", "inspect", reference], ANSWER_SECONDS)
        if done.returncode != 0:
            return None
        try:
            image = json.loads(done.stdout)[0]
            identity = image["Id"] if image["Id"].startswith("sha256:") else f"sha256:{image['Id']}"
            labels = image.get("Labels") or (image.get("Config") or {}).get("Labels") or {}
            # Engines also give a digest to images that were built here: each build has another.
            named = () if CONTEXT_LABEL in labels else image.get("RepoDigests") or ()
            return BuiltImage(identity, dict(labels), tuple(name.rpartition("@")[2] for name in named if "@" in name))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BuildError(f"{self.command} image inspect prints no usable JSON on {reference}: {error}") from error

    @staticmethod
    def outdated(image, base_image, digest, built_base):
        """Whether a build is needed: the image, or its archive, was made from another context than that of `digest`, or
        on another base. `built_base`: image id of the base of the archive in the store; empty without an archive."""
        base_id = base_image.id if base_image else ""
        if image is None:  # removed from this machine, but the store has its archive
            return not built_base or base_id not in ("", built_base)
        return image.labels.get(CONTEXT_LABEL) != digest or base_id not in ("", image.labels.get(BASE_LABEL))

    def pull(self, reference):
        """Pull an image from its registry."""
        done = self._call([self.command, "pull", reference], self._seconds)
        if done.returncode != 0:
            raise BuildError(
                f"{self.command} cannot pull {reference}: {_end(done.stdout)}. Correct the reference, log in to its "
                f"registry ({self.command} login), or bring the image here by hand ({self.command} load)"
            )

    def push(self, reference):
        """Push an image to the registry in its reference. Returns the image's digest in the registry."""
        with tempfile.TemporaryDirectory(prefix="gpuval-push-") as folder:
            path = Path(folder) / "digest"
            done = self._call([self.command, "push", *self.engine.push_options(str(path)), reference], self._seconds)
            printed = path.read_text(encoding="utf-8") if path.exists() else done.stdout.rpartition("digest: ")[2]
        digest = re.match(r"sha256:[0-9a-f]{64}", printed)
        if done.returncode != 0 or not digest:
            raise BuildError(
                f"{self.command} cannot push {reference}: {_end(done.stdout)}. Log in to its registry "
                f"({self.command} login), or name one that this user may push to"
            )
        return digest[0]

    def build(self, context, dockerfile, reference, base, arguments, digest, log="", base_digest="", no_cache=False):
        """Build image `reference` on image `base` from the tar archive `context`; its `digest` becomes a label. A base
        with another digest than `base_digest`, unless that is empty, is an error. Returns the image and its base."""
        if self.image(base) is None:
            self.pull(base)
        base_image = self.image(base)
        if base_digest and base_image.digests and base_digest not in base_image.digests:
            raise BuildError(
                f"{base} has moved: it is {base_image.digest} now, and was {base_digest} when {reference} was built. "
                "Check why; then set container_image_new_base: true, or name the base with @sha256:..."
            )
        labels = {CONTEXT_LABEL: digest, BASE_LABEL: base_image.id}
        labels |= {BASE_DIGEST_LABEL: base_image.digest} if base_image.digest else {}
        with tempfile.TemporaryDirectory(prefix="gpuval-build-", dir=Path(context).parent) as folder:
            extract(context, folder)
            command = [self.command, "build", "--file", str(Path(folder) / dockerfile), "--tag", reference]
            command += ["--no-cache"] if no_cache else []
            command += self.engine.build_options
            for option, values in (("--build-arg", {**arguments, "BASE": base}), ("--label", labels)):
                command += [word for name, value in sorted(values.items()) for word in (option, f"{name}={value}")]
            done = self._call([*command, folder], self._seconds)
        if log:
            Path(log).write_text(done.stdout, encoding="utf-8")
        if done.returncode != 0:
            raise BuildError(f"{self.command} cannot build {reference}: {_end(done.stdout, 1500)}")
        return self.image(reference), base_image

    def listing(self, reference):
        """Return the text with an image's packages, as its dpkg and Pythons list them; empty if it has no shell."""
        command = [self.command, "run", "--rm", "--network", "none", "--entrypoint", "sh", reference, "-c", LISTING]
        done = self._call(command, LISTING_SECONDS)
        return done.stdout[:MAX_LISTING_BYTES] if done.returncode == 0 else ""

    def _call(self, argv, seconds):
        environment = dict(os.environ, BUILDX_NO_DEFAULT_ATTESTATIONS="1")
        if argv[1] == "build":
            environment.update(self.engine.build_environment())
        try:
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if argv[1] != "image" else subprocess.DEVNULL,
                timeout=seconds,
                env=environment,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            remedy = "see why, or give container_image_timeout_seconds more"
            raise BuildError(f"{argv[0]} {argv[1]} was not done after {seconds:.0f} s: {remedy}") from error


def _end(text, limit=400):
    return " ".join(text.split())[-limit:] or "no output"
