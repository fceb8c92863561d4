"""data.json: where a model's data comes from. Providers are tried in a fixed order, not in that of the file."""

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.escape import one_line
from ..core.text import meant
from .documents import MadError, check, shown, within

DATA_FILE = "data.json"
CUSTOM, LOCAL, DATASET, MOUNTED = "custom", "local", "dataset", "docker_mounts"
#: {S3 provider: (name of its account in credential.json, keys that the account must have)}
S3 = {
    "minio": ("MAD_MINIO", ("USERNAME", "PASSWORD", "MINIO_ENDPOINT")),
    "aws": ("MAD_AWS_S3", ("USERNAME", "PASSWORD")),
}
PROVIDERS = (CUSTOM, LOCAL, "minio", "nas", "aws")
DEFAULT_HOME = "/data_dlm"
#: Folders of a node that a repository may not mount; an operator may, with docker_mounts.
FORBIDDEN = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr"),
    *("/var/lib", "/var/run", "/var/spool"),
)


@dataclass(frozen=True)
class Provider:
    """A source of a data set. `kind`: one of PROVIDERS, or DATASET or MOUNTED; `home`: start of the folder's path in
    the container; `args`: of the custom script; `readwrite`: whether a mounted folder is writable."""

    kind: str
    path: str
    home: str = DEFAULT_HOME
    args: str = ""
    readwrite: bool = False

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the variables with the credentials that a download from this provider needs."""
        account, keys = S3.get(self.kind, ("", ()))
        return tuple(f"{account}_{key}" for key in keys)

    def is_usable(self, credentials: Collection[str]) -> bool:
        return self.kind in (CUSTOM, LOCAL) or (self.kind in S3 and set(self.secrets) <= set(credentials))


@dataclass(frozen=True)
class Dataset:
    """A data set of data.json. `providers`: in the order in which they are tried; if empty, the model's script gets the
    data itself. `problem`: what is wrong with the data set's entry in data.json."""

    name: str
    providers: tuple[Provider, ...] = ()
    problem: str = ""

    @property
    def declared(self) -> str:
        """The data set's name in gpuval_datasets."""
        return re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")


@dataclass(frozen=True)
class PlacedDataset:
    """A data set of a run: its provider, and its folder in the container, which MAD_DATAHOME lists."""

    name: str
    provider: Provider
    home: str


def datasets(document: Any) -> dict[str, Dataset]:
    """The data sets of data.json, by name. Raises MadError if `document` is no mapping."""
    if not isinstance(document, Mapping):
        raise MadError(f'{DATA_FILE}: holds no data sets by name: write {{"NAME": {{"local": {{"path": ...}}}}}}')
    return {name: _dataset(name, providers) for name, providers in document.items()}


def _dataset(name: str, providers: Any) -> Dataset:
    where = f"{DATA_FILE}: {one_line(name, 80)}"
    if not isinstance(providers, Mapping):
        return Dataset(name, problem=f"{where}: holds no providers by name: add one of {', '.join(PROVIDERS)}")
    for kind in providers:
        if kind not in PROVIDERS:
            advice = f"{meant(kind, PROVIDERS)}; known are {', '.join(PROVIDERS)}"
            return Dataset(name, problem=f"{where}: unknown provider {shown(kind)}{advice}")
    try:
        return Dataset(name, tuple(_provider(kind, providers[kind], where) for kind in PROVIDERS if kind in providers))
    except MadError as error:
        return Dataset(name, problem=str(error))


def _provider(kind: str, entry: Any, where: str) -> Provider:
    where = f"{where}.{kind}"
    check("mad_provider", entry, subject=where)
    path = entry["path"]
    if kind == CUSTOM:
        path = within(path, subject=f"{where}.path")
    if kind in S3 and not re.fullmatch(r"s3://[^/\s]+/\S+", path):
        raise MadError(f"{where}.path: {shown(path)} is no object or folder of S3: write s3://BUCKET/KEY")
    if kind == LOCAL:
        path = _mountable(path, f"{where}.path")
    readwrite = entry.get("readwrite") in (True, "true")
    return Provider(kind, path, entry.get("home", DEFAULT_HOME), entry.get("args", ""), readwrite)


def _mountable(path: str, subject: str) -> str:
    """The path in normal form. Raises MadError for a folder of a node that a repository may not mount."""
    normal = posixpath.normpath(path)
    if not path.startswith("/") or ":" in path:
        raise MadError(f"{subject}: {shown(path)} is no absolute path without colons")
    below = any(normal == folder or normal.startswith(f"{folder}/") for folder in FORBIDDEN)
    above = any(folder.startswith(f"{normal.rstrip('/')}/") for folder in FORBIDDEN)
    personal = re.match(r"/home(/[^/]+)?$|.*/\.", normal)  # a home folder, or a hidden folder such as /home/me/.ssh
    if below or above or personal:
        raise MadError(
            f"{subject}: {shown(path)} belongs to the node's system or a user: move the data to a folder of its own"
        )
    return normal


def place(
    names: Sequence[str],
    sets: Mapping[str, Dataset] | None,
    loaded: Collection[str],
    *,
    where: str,
    credentials: Collection[str] = (),
    mounted: Collection[str] = (),
) -> list[PlacedDataset]:
    """Decide where each data set of a model comes from: `loaded` (names in gpuval_datasets), a folder `mounted` in the
    container, or the first provider for which `credentials` (names of secrets) suffice. `sets` is None without a
    data.json: then scripts get their data themselves. Raises MadError for a data set without any source."""
    placed = []
    for index, name in enumerate(names):
        if sets is not None and name not in sets:
            raise MadError(f"{where}: data: {DATA_FILE} has no {shown(name)}{meant(name, sets)}: add it")
        dataset = Dataset(name) if sets is None else sets[name]
        if dataset.problem:
            raise MadError(f"{where}: data: {dataset.problem}")
        providers = dataset.providers or (Provider(DATASET, ""),)
        homes = [f"{provider.home.rstrip('/')}_{index}" for provider in providers]
        inside = next((home for home in homes if home in mounted), "")
        usable = [provider for provider in dataset.providers if provider.is_usable(credentials)]
        provider = (usable or providers)[0]
        home = inside or f"{provider.home.rstrip('/')}_{index}"
        if dataset.declared in loaded:
            provider = Provider(DATASET, dataset.declared, provider.home)
        elif inside:
            provider = Provider(MOUNTED, inside)
        elif not dataset.providers:
            continue
        elif not usable:
            raise MadError(
                f"{where}: data: {shown(name)} comes from {' or '.join(one.kind for one in dataset.providers)}: "
                f"{_lacking(dataset)}declare {dataset.declared} in gpuval_datasets, or mount it from the nodes at "
                f"{home} (docker_mounts in gpuval_mad_context)"
            )
        placed.append(PlacedDataset(name, provider, home))
    return placed


def _lacking(dataset: Dataset) -> str:
    return "".join(
        f"give {S3[one.kind][0]} in credential.json {', '.join(S3[one.kind][1])}, "
        for one in dataset.providers
        if one.kind in S3
    )
