#!/usr/bin/env python3
"""The steps of a release, in one list for this machine and for the forge: `make release DRY_RUN=1` rehearses them all.

    tools/release.py --dry-run [STEP ...]     # all steps, or these and what they need; into dist/release/
    tools/release.py STEP ...                 # on the forge alone: .github/workflows/release.yml

A step that fails says what to do; steps that do not need it go on. What only the forge can do (signatures and
attestations, uploads to Galaxy and to the releases) is checked in its workflow and described.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "collections/ansible_collections/gpuval/fleet"
LOCKED = ROOT / "requirements/locked"
WORKFLOW = ROOT / ".github/workflows/release.yml"
FORGE = "GITHUB_ACTIONS"
#: Base of the images and of the bare containers of a rehearsal: made from the Debian mirror, without a registry.
BASE = "gpuval-debian:bookworm"
#: Images that a rehearsal builds; the others need bases of gigabytes from their registries.
REHEARSED = [("cpu", "loading")]
VENDORS, IMAGES = ("cpu", "nvidia", "amd", "gaudi"), ("loading", "training", "inference")
#: The importer notes files that skip sanity tests; each of their lines has its reason.
NOTED = "Ignore files skip ansible-test sanity tests"
PORT = 5055


class StepError(Exception):
    """A step failed; the message says what to do."""


@dataclass
class Release:
    """A release, or its rehearsal: folders, version, and the files that steps made for later ones."""

    is_rehearsal: bool
    folder: Path = ROOT / "dist/release"
    log: Path = Path(os.devnull)
    deadline: float = 0.0
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def version(self) -> str:
        version = re.search(r"^version: ([\d.]+)$", (SOURCE / "galaxy.yml").read_text(encoding="utf-8"), re.MULTILINE)
        if not version:
            raise StepError("galaxy.yml has no line `version: 1.2.3`: add it")
        return version[1]

    @property
    def collection(self) -> Path:
        """The collection to build: in a rehearsal a copy, whose changelog and images are those of the release."""
        return self.folder / "source" if self.is_rehearsal else SOURCE

    def run(self, *words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
        """Run a command within the step's deadline, its output in the step's log. Returns the output."""
        seconds = self.deadline - time.monotonic()
        command = [str(word) for word in words]
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            begin = self.log.stat().st_size
            with subprocess.Popen(
                command, cwd=cwd, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
            ) as process:
                try:
                    code = process.wait(max(1.0, seconds))
                except BaseException as error:
                    os.killpg(process.pid, signal.SIGKILL)
                    if isinstance(error, subprocess.TimeoutExpired):
                        raise StepError(f"{command[0]} took longer than the step may: see {self.log}") from None
                    raise
        output = self.log.read_bytes()[begin:].decode(errors="replace")
        if code:
            last = "; ".join(line.strip() for line in output.splitlines()[-3:])
            raise StepError(f"{' '.join(command[:4])} ended with {code}: {last}: see {self.log}")
        return output

    def environment(self, *names: str) -> Path:
        """The folder of programs of a Python environment with these lists of locked packages; made once."""
        folder = self.folder / "environments" / names[0]
        mark, text = folder / ".locked", "".join((LOCKED / f"{name}.txt").read_text(encoding="utf-8") for name in names)
        if not mark.is_file() or mark.read_text(encoding="utf-8") != text:
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            for name, part in zip(names, (".ready", *names[1:])):
                self.run(sys.executable, ROOT / "tools/install.py", folder / part, name)
            mark.write_text(text, encoding="utf-8")
        return folder / "bin"

    def search_path(self, programs: Path) -> str:
        """PATH with these programs first."""
        return f"{programs}{os.pathsep}{os.environ['PATH']}"

    def galaxy(self, *words: str | Path) -> None:
        """Run ansible-galaxy outside of the checkout, whose ansible.cfg names its own collections."""
        program = shutil.which("ansible-galaxy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if not program:
            raise StepError("ansible-galaxy is missing: run `make setup`")
        self.run(program, "collection", *words, cwd=self.folder)


def check_versions(release: Release) -> str:
    """Tag, galaxy.yml, changelog and images have one version, and a release has no fragment left."""
    version, problems = release.version, []
    for path in sorted((ROOT / "docker").glob("*/Dockerfile")):
        label = re.search(r"^ARG VERSION=(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        if not label or label[1] != version:
            problems.append(f"{path.relative_to(ROOT)} has VERSION {label[1] if label else 'missing'}")
    fragments = sorted(path.name for path in (SOURCE / "changelogs/fragments").glob("*.y*ml"))
    will_be_written = release.is_rehearsal and fragments
    changelog = (SOURCE / "changelogs/changelog.yaml").read_text(encoding="utf-8")
    if not will_be_written and not re.search(rf"^  {re.escape(version)}:$", changelog, re.MULTILINE):
        problems.append("changelogs/changelog.yaml has no entry: run antsibull-changelog release")
    if fragments and not release.is_rehearsal:
        problems.append(f"{len(fragments)} changelog fragment(s) are left: run antsibull-changelog release")
    tag = os.environ.get("GITHUB_REF_NAME", "") if not release.is_rehearsal else ""
    if tag and tag != f"v{version}":
        problems.append(f"the tag is {tag}")
    if problems:
        raise StepError(f"galaxy.yml has {version}, but {'; '.join(problems)}: make them agree")
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as stream:
            stream.write(f"version={version}\n")
    return f"version {version}" + (f", {len(fragments)} fragment(s) to release" if fragments else "")


def copy_source(release: Release) -> None:
    shutil.rmtree(release.collection, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.tar.gz", ".plugin-cache.yaml")
    shutil.copytree(SOURCE, release.collection, ignore=ignored, symlinks=True)


def write_changelog(release: Release) -> str:
    """The changelog with all fragments, and its part on this version as notes."""
    if release.is_rehearsal:
        copy_source(release)
        programs = release.environment("release")
        path = release.search_path(programs)
        release.run(programs / "antsibull-changelog", "lint", cwd=release.collection, PATH=path)
        if any((release.collection / "changelogs/fragments").iterdir()):
            release.run(
                programs / "antsibull-changelog", "release", "--update-existing", cwd=release.collection, PATH=path
            )
    text = (release.collection / "CHANGELOG.md").read_text(encoding="utf-8")
    version = re.escape(release.version.replace(".", "\\."))
    notes = re.search(rf"(?ms)^## v{version}\n(.*?)(?=^## v|\Z)", text)
    if not notes or not notes[1].strip():
        raise StepError(f"CHANGELOG.md has no part on {release.version}: run antsibull-changelog release")
    release.files["notes"] = release.folder / "notes.md"
    release.files["notes"].write_text(notes[1], encoding="utf-8")
    return f"{len(notes[1].splitlines())} lines of notes"


@contextlib.contextmanager
def serve_registry(release: Release) -> Iterator[str]:
    """A registry on the loopback: Debian's docker-registry."""
    program = shutil.which("docker-registry")
    if not program:
        raise StepError("docker-registry is missing: apt-get install docker-registry")
    settings = release.folder / "registry.yml"
    settings.write_text(
        f"version: 0.1\nstorage:\n  filesystem: {{rootdirectory: {release.folder / 'registry'}}}\n"
        f"http: {{addr: '127.0.0.1:{PORT}'}}\n",
        encoding="utf-8",
    )
    with release.log.open("a") as log, subprocess.Popen([program, "serve", settings], stdout=log, stderr=log) as server:
        try:
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v2/", timeout=5).close()
                    break
                if server.poll() is not None or time.monotonic() > release.deadline:
                    raise StepError(f"docker-registry does not answer at port {PORT}: see {release.log}")
                time.sleep(0.1)
            yield f"127.0.0.1:{PORT}/gpuval"
        finally:
            server.terminate()


def push_images(release: Release) -> str:
    """Images are built, tried, listed in SBOMs and pushed by digest; here to a registry of this machine."""
    make_base(release)
    wheels = fetch_wheels(release, *(ROOT / f"docker/{image}/requirements.txt" for _vendor, image in REHEARSED))
    output = release.folder / "images"
    shutil.rmtree(output, ignore_errors=True)
    with serve_registry(release) as registry:
        for vendor, image in REHEARSED:
            release.run(
                sys.executable, ROOT / "tools/publish_images.py", vendor, "--registry", registry, "--tag",
                release.version, "--image", image, "--base", BASE, "--wheels", wheels, "--push",
                "--output", output,
            )  # fmt: skip
            found = re.search(rf"{image}: (\S+@sha256:[0-9a-f]{{64}})", (output / f"{vendor}.yml").read_text())
            if not found:
                raise StepError(f"{output / vendor}.yml names no digest of {image}: see {release.log}")
            release.run("docker", "pull", "--quiet", found[1])
            release.run("docker", "image", "rm", "--force", found[1].partition("@")[0] + f":{release.version}-{vendor}")
    target = release.collection / "images/published.yml"  # of the copy that is built
    release.run(sys.executable, ROOT / "tools/publish_images.py", "--merge", "--output", output, "--published", target)
    rest = [f"{vendor}/{name}" for vendor in VENDORS for name in IMAGES if (vendor, name) not in REHEARSED]
    return f"{found[1]} pushed and pulled; only on the forge: {', '.join(rest)}"


def make_base(release: Release) -> None:
    release.run("sh", "-c", f"docker image inspect {BASE} >/dev/null || {ROOT}/roles/testbed/files/make-base {BASE}")


def build_archive(release: Release) -> str:
    """The archive of the collection, and its checksum."""
    if (
        release.is_rehearsal and "notes" not in release.files
    ):  # without the step changelog: a copy may be an earlier one
        copy_source(release)
    archive = release.files["archive"] = release.folder / f"gpuval-fleet-{release.version}.tar.gz"
    archive.unlink(missing_ok=True)  # one of an earlier rehearsal does not count
    release.galaxy("build", "--output-path", release.folder, release.collection)
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    leftovers = [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".tar.gz"))]
    if leftovers:
        raise StepError(f"the archive has {leftovers[0]}: add it to build_ignore in galaxy.yml")
    return f"{archive.name}, {archive.stat().st_size / 1e6:.1f} MB, {len(names)} files"


def import_archive(release: Release) -> str:
    """Galaxy's own importer accepts the archive without a finding; ansible-lint, which it gives two minutes, alone."""
    programs = release.environment("release")
    settings = release.folder / "galaxy-importer.cfg"
    settings.write_text(
        f"[galaxy-importer]\nCHECK_REQUIRED_TAGS=True\nRUN_ANSIBLE_DOC=True\nRUN_ANSIBLE_LINT=False\n"
        f"RUN_FLAKE8=False\nRUN_ANSIBLE_TEST=False\nANSIBLE_LOCAL_TMP={release.folder / 'importer-tmp'}\n",
        encoding="utf-8",
    )
    output = release.run(
        programs / "python", "-m", "galaxy_importer.main", release.files["archive"], cwd=release.folder,
        PATH=release.search_path(programs), GALAXY_IMPORTER_CONFIG=str(settings),
    )  # fmt: skip
    findings = [line for line in output.splitlines() if re.match("ERROR|WARNING", line) and NOTED not in line]
    if findings or "Importer processing completed successfully" not in output:
        raise StepError(f"galaxy-importer: {'; '.join(findings[:3]) or 'it did not complete'}: see {release.log}")
    return "galaxy-importer has no finding"


def list_packages(release: Release) -> str:
    """SBOMs of the locked packages of controller and nodes, in CycloneDX."""
    programs, counts = release.environment("release"), []
    for name in ("controller", "node"):
        path = release.folder / f"{name}.cdx.json"
        locked = LOCKED / f"{name}.txt"
        release.run(programs / "cyclonedx-py", "requirements", locked, "--output-file", path, "--of", "JSON")
        components = json.loads(path.read_text(encoding="utf-8")).get("components", [])
        expected = len(re.findall(r"^[A-Za-z0-9]\S*==", locked.read_text(encoding="utf-8"), re.MULTILINE))
        if len(components) != expected:
            raise StepError(f"{path} lists {len(components)} of {expected} packages: see {release.log}")
        counts.append(f"{name} {len(components)}")
    return f"components: {', '.join(counts)}"


def build_docs(release: Release) -> str:
    """The documentation builds without a warning."""
    programs, site = release.environment("docs", "controller"), release.folder / "site"
    words = ("build", "--strict", "--site-dir", site)
    release.run(programs / "mkdocs", *words, PATH=release.search_path(programs), NO_MKDOCS_2_WARNING="1")
    return f"{sum(1 for _ in site.rglob('*.html'))} pages"


def without_comments(path: Path) -> str:
    return re.sub(r"(^|\s)#.*", "", path.read_text(encoding="utf-8"))


def describe_signatures(release: Release) -> str:
    """The workflow signs what it publishes: checked in its text, since its identity is the forge's alone."""
    text = without_comments(WORKFLOW) + without_comments(WORKFLOW.parent / "images.yml")
    needs = {
        "attest-build-provenance": "provenance of the archive, SBOMs and checksums, by the identity of the workflow",
        "attest-sbom": "SBOM of each image by its digest, pushed beside it",
        "id-token: write": "a token of the forge in place of a key: nothing to keep, nothing to steal",
        "SHA256SUMS": "checksums of all files",
    }
    lacking = [name for name in needs if name not in text]
    if lacking:
        raise StepError(f"{WORKFLOW.relative_to(ROOT)} lacks {', '.join(lacking)}: add the step")
    with release.log.open("a", encoding="utf-8") as log:
        log.writelines(f"{name}: {what}\n" for name, what in needs.items())
        log.write("to check one: gh attestation verify FILE --repo gpuval/gpuval\n")
    return f"described: {', '.join(needs)}"


def describe_publication(release: Release) -> str:
    """The workflow publishes the archive to Galaxy and to the releases, on tags alone."""
    text = without_comments(WORKFLOW)
    for needed in ("ansible-galaxy collection publish", "secrets.GALAXY_TOKEN", "gh release create", "tags:"):
        if needed not in text:
            raise StepError(f"{WORKFLOW.relative_to(ROOT)} lacks {needed!r}: add the step")
    return "described: ansible-galaxy collection publish, gh release create"


#: In a container of the base image, with wheels for it: pip is one of them, since Debian's Python has none.
SETUP = """set -eu
export HOME=/root ANSIBLE_NOCOLOR=1 LC_ALL=C.UTF-8
install() { PYTHONPATH="$(echo /wheels/pip-*.whl)" python3 -m pip install --quiet --no-index --find-links /wheels \\
  --break-system-packages --root-user-action=ignore --no-compile "$@"; }
installed=/root/.ansible/collections/ansible_collections/gpuval/fleet
mkdir -p /site && cd /site
cat >inventory <<'END'
localhost ansible_connection=local ansible_python_interpreter="{{ ansible_playbook_python }}"
[all:vars]
gpuval_node_dir=/site/node
END
"""
STAGES = '-e \'{"gpuval_stages": ["facts", "loading"]}\''
#: What a reader of the collection's README does, with ansible-core alone until the archive names more.
INSTALL = f"""install ansible-core==@CORE@
ansible-galaxy collection install --offline /archives/@ARCHIVE@
install -r $installed/requirements.txt
cp $installed/ansible.cfg .
echo COMMAND doctor; ansible-playbook gpuval.fleet.doctor -i inventory {STAGES}
echo COMMAND validate; ansible-playbook gpuval.fleet.validate -i inventory {STAGES}
echo COMMAND clean; ansible-playbook gpuval.fleet.clean -i inventory
"""
UPGRADE = f"""install ansible-core==@CORE@
ansible-galaxy collection install --offline /archives/@EARLIER@
install -r $installed/requirements.txt
cp $installed/ansible.cfg .
echo COMMAND earlier validate; ansible-playbook gpuval.fleet.validate -i inventory {STAGES} -e gpuval_run_id=earlier
ansible-galaxy collection install --offline --upgrade /archives/@ARCHIVE@
install --upgrade -r $installed/requirements.txt
cp $installed/ansible.cfg .
echo COMMAND runs; ansible-playbook gpuval.fleet.runs -i inventory | tee runs.txt
grep -q '^earlier .*judged: P' runs.txt
echo COMMAND report; ansible-playbook gpuval.fleet.report -i inventory -e gpuval_run_id=earlier
echo COMMAND validate; ansible-playbook gpuval.fleet.validate -i inventory {STAGES}
echo COMMAND clean; ansible-playbook gpuval.fleet.clean -i inventory
"""


def core_version() -> str:
    text = (SOURCE / "requirements.txt").read_text(encoding="utf-8")
    return re.search(r"^ansible-core==(\S+)$", text, re.MULTILINE)[1]


def fetch_wheels(release: Release, *requirements: Path) -> Path:
    """A folder with pip, ansible-core and what these files name: the containers have no network."""
    wheels = release.folder / "wheels"
    programs = release.environment("release")
    words = [word for path in requirements for word in ("-r", str(path))]
    python = "3.11"  # of the base image
    for names in (["pip", f"ansible-core=={core_version()}"], words):
        release.run(
            programs / "pip", "download", "--quiet", "--dest", wheels, "--only-binary", ":all:", "--python-version",
            python, *names,
        )  # fmt: skip
    return wheels


def run_bare(release: Release, script: str, wheels: Path, archives: Path) -> list[str]:
    """Run a script in a container of the base image without network. Returns the commands that it ran."""
    make_base(release)
    path = release.folder / "script.sh"
    path.write_text(SETUP + script.replace("@CORE@", core_version()), encoding="utf-8")
    name = f"gpuval-release-{os.getpid()}"
    try:
        output = release.run(
            "docker", "run", "--rm", "--name", name, "--network", "none", "--volume", f"{wheels}:/wheels:ro",
            "--volume", f"{archives}:/archives:ro", "--volume", f"{path}:/script.sh:ro", BASE, "bash", "/script.sh",
        )  # fmt: skip
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False, timeout=60)
    if "FINAL ACCEPTANCE: P" not in output:
        raise StepError(f"no node passed in the container: see {release.log}")
    return re.findall(r"^COMMAND (.*)$", output, re.MULTILINE)


def install_archive(release: Release) -> str:
    """The archive, installed into a bare container with ansible-core alone, accepts that container as a node."""
    wheels = fetch_wheels(release, SOURCE / "requirements.txt")
    archive = release.files["archive"]
    commands = run_bare(release, INSTALL.replace("@ARCHIVE@", archive.name), wheels, archive.parent)
    return f"in a bare container: {', '.join(commands)}"


def earlier_release(release: Release) -> tuple[str, str]:
    """Version and commit of the last release: its tag, or else the last commit that had another version."""
    path = str((SOURCE / "galaxy.yml").relative_to(ROOT))
    commits = release.run("git", "log", "--format=%H", "--", path).split()
    for commit in commits:
        with contextlib.suppress(StepError):
            text = release.run("git", "show", f"{commit}^:{path}")
            version = re.search(r"^version: (\S+)$", text, re.MULTILINE)[1]
            if version != release.version:
                with contextlib.suppress(StepError):
                    return version, release.run("git", "rev-parse", "--verify", f"v{version}^{{commit}}").strip()
                return version, f"{commit}^"
    raise StepError("git has no earlier version: fetch its whole history")


def upgrade_archive(release: Release) -> str:
    """The last release validates; this one in its place reads that run, reports it, and validates again."""
    version, commit = earlier_release(release)
    folder = release.folder / "earlier"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    source = SOURCE.relative_to(ROOT)
    release.run("git", "archive", "--output", folder / "source.tar", commit, str(source))
    release.run("tar", "-C", folder, "-xf", folder / "source.tar")
    archives = folder / "archives"
    release.galaxy("build", "--output-path", archives, folder / source)
    shutil.copy(release.files["archive"], archives)
    wheels = fetch_wheels(release, SOURCE / "requirements.txt")
    fetch_wheels(release, folder / source / "requirements.txt")
    script = UPGRADE.replace("@ARCHIVE@", release.files["archive"].name)
    script = script.replace("@EARLIER@", f"gpuval-fleet-{version}.tar.gz")
    return f"{version} to {release.version}: {', '.join(run_bare(release, script, wheels, archives))}"


@dataclass(frozen=True)
class Step:
    """A step: what it does, its deadline in seconds, and the steps whose files it needs. ``forge``: also run there."""

    name: str
    work: Callable[[Release], str]
    seconds: int
    needs: tuple[str, ...] = ()
    forge: bool = False
    #: Cheap: seconds, without network or containers; a test runs these.
    cheap: bool = False


STEPS = [
    Step("versions", check_versions, 60, forge=True, cheap=True),
    Step("changelog", write_changelog, 300, ("versions",), forge=True),
    Step("images", push_images, 1200, ("changelog",)),
    Step("archive", build_archive, 300, ("versions",), forge=True, cheap=True),
    Step("importer", import_archive, 900, ("archive",), forge=True),
    Step("sbom", list_packages, 300, forge=True),
    Step("docs", build_docs, 900),
    Step("signatures", describe_signatures, 60, cheap=True),
    Step("publication", describe_publication, 60, cheap=True),
    Step("install", install_archive, 1200, ("archive",)),
    Step("upgrade", upgrade_archive, 1800, ("archive",)),
]
BY_NAME = {step.name: step for step in STEPS}


def chosen_steps(names: list[str], *, with_needs: bool) -> list[Step]:
    """These steps in order, all without names; in a rehearsal with those that they need."""
    chosen = set(names or BY_NAME)
    while with_needs and (more := {need for name in chosen for need in BY_NAME[name].needs} - chosen):
        chosen |= more
    return [step for step in STEPS if step.name in chosen]


def perform(release: Release, steps: list[Step]) -> list[str]:
    """Perform the steps, each with its log. Returns the names of those that failed or were left out."""
    failed: list[str] = []
    logs = release.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for step in steps:
        if lacking := [need for need in step.needs if need in failed]:
            failed.append(step.name)
            print(f"LEFT OUT {step.name:12} needs {', '.join(lacking)}", flush=True)
            continue
        release.log = logs / f"{step.name}.log"
        release.log.unlink(missing_ok=True)
        release.log.touch()
        begun = time.monotonic()
        release.deadline = begun + step.seconds
        try:
            word, message = "ok", step.work(release)
        except (StepError, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            word, message = "FAILED", str(error) or repr(error)
            failed.append(step.name)
        print(f"{word:8} {step.name:12} {time.monotonic() - begun:6.1f} s  {message}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--dry-run", action="store_true", help="rehearse on this machine")
    options = parser.parse_args()
    if unknown := [name for name in options.steps if name not in BY_NAME]:
        parser.error(f"no such step: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    if not options.dry_run and os.environ.get(FORGE) != "true":
        parser.error(
            "a release is made by its tag on the forge (.github/workflows/release.yml): rehearse it here with "
            "`make release DRY_RUN=1`"
        )
    release = Release(options.dry_run)
    steps = chosen_steps(options.steps, with_needs=options.dry_run)
    if not options.dry_run and (local := [step.name for step in steps if not step.forge]):
        parser.error(f"only in a rehearsal: {', '.join(local)}")
    failed = perform(release, steps)
    print(f"{len(steps) - len(failed)} of {len(steps)} steps are good; logs in {release.folder / 'logs'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
