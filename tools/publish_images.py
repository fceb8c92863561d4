#!/usr/bin/env python3
"""Build the images of docker/ for one vendor as `make build` does, try them, list what is in them, and push them.

    python3 tools/publish_images.py cpu --registry registry.example/gpuval --tag 2.0.0 [--push] [--image loading]

Writes into dist/images/: an SBOM for each image (CycloneDX), and VENDOR.yml (gpuval.published/1), which `--merge` joins
into images/published.yml of the collection. Only images that were pushed have a digest, and are in it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))
from ansible_collections.gpuval.fleet.plugins.module_utils.image_builder import Builder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import build_context, images, sbom
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION

#: Controller and node in one. No stage runs in it, so it is not in published.yml, whose images its collection names.
VALIDATE = "validate"
NAMES = ("loading", "training", "inference", VALIDATE)
#: Each must exit with 0 in the image: programs that the stages start, without a GPU.
TRIALS = {
    "loading": "python3 -c 'import ssl' && rclone version",
    "training": "python3 -c 'import torch, deepspeed' && command -v fio ib_write_bw nvme smartctl mpirun sshd",
    "inference": "python3 -c 'import importlib.metadata as m; m.version(\"vllm\")' || python3 -c 'import transformers'",
    VALIDATE: "python3 -c 'import torch, deepspeed, transformers' && command -v rclone fio ib_write_bw ssh && "
    "ansible-doc --type module gpuval.fleet.gpu_facts",
}
VENDOR_TRIALS = {
    ("nvidia", "training"): "command -v dcgmi all_reduce_perf",
    ("nvidia", VALIDATE): "command -v dcgmi all_reduce_perf",
    ("amd", "training"): "{ command -v rvs || test -x /opt/rocm/bin/rvs; } && command -v all_reduce_perf",
}
TRIAL_SECONDS = 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vendor", nargs="?", choices=images.VENDORS)
    parser.add_argument("--registry", help="registry and folder: each image is REGISTRY/NAME:TAG-VENDOR")
    parser.add_argument("--tag")
    parser.add_argument("--image", action="append", choices=NAMES, help="only this one")
    parser.add_argument("--base", default="", help="build on this image in place of that of bases.yml")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--wheels", type=Path, help="take Python packages from this folder alone")
    parser.add_argument("--certificate", type=Path, help="authority of an index, which is asked after --wheels")
    parser.add_argument("--push", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "images")
    parser.add_argument("--merge", action="store_true", help="join OUTPUT/*.yml into --published, and end")
    parser.add_argument("--published", type=Path, default=images.PUBLISHED, help="by default of the collection")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.merge:
        merge(options.output, options.published)
        return 0
    if not (options.vendor and options.registry and options.tag):
        parser.error("give a vendor, --registry and --tag")
    publish(options)
    return 0


def publish(options: argparse.Namespace) -> None:
    bases = yaml.safe_load((ROOT / "docker/bases.yml").read_text(encoding="utf-8"))["vendors"]
    declared = {
        name: {
            "reference": f"{options.registry}/{name}:{options.tag}-{options.vendor}",
            "build": True,
            "base": options.base,
        }
        for name in options.image or bases[options.vendor]
    }
    builder, pushed = Builder(options.engine), {}
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    items = images.to_make([declared], ROOT / "docker", options.vendor)
    for item in sorted(items, key=lambda item: item.name == VALIDATE):  # when the digests of the others are known
        arguments = {**item.arguments, "VERSION": options.tag, "REVISION": revision}
        with tempfile.TemporaryDirectory(prefix="gpuval-image-") as folder:
            pip_conf = Path(folder) / "pip.conf" if options.wheels and not options.certificate else None
            if pip_conf:
                pip_conf.write_text("[global]\nno-index = true\n", encoding="utf-8")
            context = build_context.gather(ROOT / "docker", item.folder, options.wheels, options.certificate, pip_conf)
            if item.name == VALIDATE:
                vendors = {options.vendor: pushed} if pushed else {}
                context = replace(context, files={**context.files, **controller_files(Path(folder), vendors)})
            archive = Path(folder) / "context.tar"
            context.write(archive)
            digest = context.digest(item.base, arguments)
            image, _ = builder.build(archive, context.dockerfile, item.reference, item.base, arguments, digest)
        try_out(builder.command, item.reference, TRIALS[item.name])
        if (options.vendor, item.name) in VENDOR_TRIALS:
            try_out(builder.command, item.reference, VENDOR_TRIALS[options.vendor, item.name])
        document = sbom.document(item.reference, image.id, builder.listing(item.reference))
        if not document["components"]:
            raise SystemExit(f"{item.reference} cannot list what is in it")
        path = options.output / f"{item.name}-{options.vendor}.cdx.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{item.reference}: {image.id}, {len(document['components'])} components in {path}", flush=True)
        if options.push:
            digest = images.by_digest(item.reference, builder.push(item.reference))
            if item.name == VALIDATE:
                (options.output / f"{VALIDATE}-{options.vendor}.txt").write_text(
                    f"{VALIDATE}: {digest}\n", encoding="utf-8"
                )
            else:
                pushed[item.name] = digest
    if pushed:
        write(options.output / f"{options.vendor}.yml", {options.vendor: pushed})


def controller_files(folder: Path, vendors: Mapping[str, Mapping[str, str]]) -> dict[str, Path]:
    """What the image `validate` has besides docker/, by name in the context: the locked packages of the controller, and
    the collection, which names the published images of `vendors`."""
    source = folder / "fleet"
    shutil.copytree(COLLECTION, source, symlinks=True)
    write(source / "images/published.yml", vendors)
    galaxy = [
        str(Path(sys.executable).with_name("ansible-galaxy")),
        "collection",
        "build",
        "--output-path",
        str(folder),
    ]
    subprocess.run([*galaxy, str(source)], check=True, timeout=TRIAL_SECONDS, stdout=subprocess.DEVNULL)
    return {
        f"{VALIDATE}/controller.txt": ROOT / "requirements/locked/controller.txt",
        f"{VALIDATE}/gpuval-fleet.tar.gz": next(folder.glob("gpuval-fleet-*.tar.gz")),
    }


def try_out(engine: str, reference: str, command: str) -> None:
    subprocess.run(
        [engine, "run", "--rm", "--network", "none", "--entrypoint", "sh", reference, "-c", command],
        check=True,
        timeout=TRIAL_SECONDS,
        stdout=subprocess.DEVNULL,
    )


def merge(folder: Path, target: Path) -> None:
    """Join the files of vendors. A release without any published image is refused: its default would be a promise."""
    vendors: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.yml")):
        vendors.update(yaml.safe_load(path.read_text(encoding="utf-8"))["vendors"])
    if not vendors:
        raise SystemExit(f"{folder} names no published image")
    write(target, vendors)


def write(path: Path, vendors: dict[str, dict[str, str]]) -> None:
    document = {"schema": "gpuval.published/1", "vendors": vendors}
    schemas.validate("published", document, what=str(path))
    path.write_text(f"---\n{yaml.safe_dump(document)}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
