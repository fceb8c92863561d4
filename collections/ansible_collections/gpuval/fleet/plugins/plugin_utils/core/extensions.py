"""Stages, profiles, schedulers and engines by name: those that ship, and those in the folders of ``gpuval_extensions``.

A folder of an extension has ``stages/NAME/``, ``profiles/NAME.yml``, ``schedulers/NAME/`` and ``engines/NAME.py``. It
is code: its owner and its modes are checked before anything of it is read.
"""

import hashlib
import importlib
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

from .errors import SettingError
from .paths import COLLECTION, ROLES, project_path
from .text import listed, meant

SETTING = "gpuval_extensions"
#: By kind what a file's name ends with; what has no end is a folder.
KINDS: Mapping[str, str] = {"stages": "", "profiles": ".yml", "schedulers": "", "engines": ".py"}
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PACKAGE = "ansible_collections.gpuval.fleet"
#: How a file of what ships names its scheduler.
_NAMED = re.compile(r'^    name = "([a-z][a-z0-9_]*)"$', re.MULTILINE)
_PARENTS = {"schedulers": f"{_PACKAGE}.plugins.plugin_utils.", "engines": f"{_PACKAGE}.plugins.module_utils.engines."}
_Interface = TypeVar("_Interface")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

#: The folders that this process uses, and those that none of them may lie in: results and state.
_in_use: dict[str, tuple[Path, ...]] = {"folders": (), "forbidden": ()}
_clear_caches: list[Callable[[], None]] = []


def use(folders: Iterable[str | Path], forbidden: Iterable[str | Path] = ()) -> None:
    """Set the folders of this process: of an action, a lookup or a test. They are checked at the first use of one."""
    chosen = {"folders": tuple(map(project_path, folders)), "forbidden": tuple(map(project_path, forbidden))}
    if chosen != _in_use:
        _in_use.update(chosen)
        for clear in _clear_caches:
            clear()


def use_setting(templar: Any, values: Mapping[str, Any]) -> None:
    """Set the folders to those of ``gpuval_extensions``. A template that fails is found where settings are checked."""
    from ansible.errors import AnsibleError  # noqa: PLC0415 - a look at a run does without Ansible

    try:
        folders, *forbidden = (
            templar.template(values.get(name)) for name in (SETTING, "gpuval_results_dir", "gpuval_state_dir")
        )
    except AnsibleError:
        folders, forbidden = (), []
    use(listed(folders), [str(path) for path in forbidden if path])


def cached(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Keep what a function returns for as long as this process uses the same folders."""
    kept = lru_cache(maxsize=1 << 14)(function)
    _clear_caches.append(kept.cache_clear)
    return cast("Callable[_Arguments, _Result]", kept)


@cached
def found(kind: str) -> Mapping[str, Path]:
    """By name the folder or file of each of a kind, shipped ones first. Raises SettingError for an unusable one."""
    shipped = _SHIPPED[kind]()
    named = dict(shipped)
    for folder in folders():
        for path in (path for path in sorted((folder / kind).glob("*")) if not _is_ignored(path)):
            name, end = path.name.removesuffix(KINDS[kind]), KINDS[kind]
            is_right = path.suffix == end and path.is_file() if end else path.is_dir()
            if not is_right or not NAME.fullmatch(name):
                pattern = f"a file NAME{end}" if end else "a folder NAME"
                raise SettingError(
                    f"{SETTING} {path}: {kind} has {pattern}, of small letters, digits and '_': rename or move it"
                )
            reserved = {*shipped, *(role.name for role in ROLES.iterdir())} if kind == "stages" else shipped.keys()
            if name in named or name in reserved:
                clash = f"{named[name]} exists" if name in named and name not in shipped else "gpuval ships one"
                raise SettingError(f"{SETTING} {path}: {clash} by the name {name}: rename it")
            named[name] = path
    return named


def own(kind: str) -> dict[str, Path]:
    """As `found`, those of extensions alone."""
    return {name: path for name, path in found(kind).items() if not is_shipped(path)}


def check() -> None:
    """Raises SettingError for an extension that cannot be used."""
    for kind in KINDS:
        found(kind)


@cached
def files(kind: str, pattern: str, *, shipped: bool = True) -> tuple[Path, ...]:
    """Files in the folder of each stage or scheduler, such as ``files/stage.yml``: those of extensions first, then of
    what ships unless ``shipped`` is false. Raises SettingError."""
    paths = sorted(found(kind).values(), key=is_shipped)
    used = [path if path.is_dir() else path.parent for path in paths if shipped or not is_shipped(path)]
    return tuple(path for folder in used for path in sorted(folder.glob(pattern)))


def digests() -> dict[str, str]:
    """By the folder's name the SHA-256 of all that an extension has, sorted by path. Raises SettingError."""
    totals = {folder: hashlib.sha256() for folder in folders()}
    for folder, total in totals.items():
        for path in filter(Path.is_file, _contents(folder)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return {folder.name: total.hexdigest() for folder, total in totals.items()}


def load_class(kind: str, name: str, interface: type[_Interface]) -> type[_Interface]:
    """The class that implements the interface by this name (its attribute `name`), of the file or folder of the kind.
    One that ships needs no extension: nodes are cleaned although another user can write to one. Raises SettingError."""
    shipped = _SHIPPED[kind]()
    paths = shipped if name in shipped else found(kind)
    if name not in paths:
        raise SettingError(f"{name}: must be one of {', '.join(paths)}{meant(name, paths)}")
    path = paths[name]
    for value in vars(_load_module(path)).values():
        if isinstance(value, type) and issubclass(value, interface) and getattr(value, "name", "") == name:
            return value
    raise SettingError(f"{SETTING} {path}: no class has name = {name!r} and implements {interface.__name__}: add it")


def short_path(path: Path) -> str:
    """The path of a stage's file as a report names it: within the collection, or within its extension."""
    return path.relative_to(COLLECTION if is_shipped(path) else path.parents[3]).as_posix()


def is_shipped(path: Path) -> bool:
    """Whether a folder or file is the collection's own."""
    return COLLECTION in path.parents


@cached
def folders() -> Sequence[Path]:
    """The folders in use, links resolved. Raises SettingError for one whose code others could change."""
    resolved: list[Path] = []
    for source in _in_use["folders"]:
        if not source.is_dir():
            raise SettingError(f"{SETTING} {source}: there is no such folder on the controller")
        folder = source.resolve()
        for above in (folder, *folder.parents):
            if any(above == place.resolve() for place in _in_use["forbidden"]) or (above / "run.json").is_file():
                raise SettingError(
                    f"{SETTING} {source}: {above} holds what nodes reported: move the extension elsewhere"
                )
            _check_owner(above, is_way=above != folder)
        kinds = [entry.name for entry in folder.iterdir() if entry.is_dir() and not _is_ignored(entry)]
        for name in kinds:
            if name not in KINDS and (remark := meant(name, KINDS, 0.8)):
                raise SettingError(f"{SETTING} {folder / name}: no kind of extension{remark}")
        if not set(kinds) & KINDS.keys():
            raise SettingError(f"{SETTING} {source}: no folder {', '.join(KINDS)} in it: name the folder above those")
        for path in _contents(folder, with_bytecode=True):
            _check_owner(path)
        if folder.name in (other.name for other in resolved):
            raise SettingError(f"{SETTING} {source}: two extensions have the name {folder.name}: rename one")
        resolved.append(folder)
    return tuple(resolved)


def _check_owner(path: Path, *, is_way: bool = False) -> None:
    """Raises SettingError for what another user can change; ``is_way``: a folder above, which may be as /tmp is."""
    status = path.lstat()
    if not is_way and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise SettingError(f"{SETTING} {path}: neither a file nor a folder: replace the link by what it leads to")
    if status.st_uid not in (0, os.geteuid()):
        raise SettingError(f"{SETTING} {path}: another user (uid {status.st_uid}) owns it: chown it to yours or root")
    if status.st_mode & _OTHERS_WRITE and not (is_way and status.st_mode & stat.S_ISVTX):
        raise SettingError(f"{SETTING} {path}: others can write it, and it is code: chmod go-w {path}")


def _contents(folder: Path, *, with_bytecode: bool = False) -> Iterator[Path]:
    """All folders and files of the kinds, sorted by their path; Python runs bytecode in place of the code beside it."""
    is_left_out = _is_hidden if with_bytecode else _is_ignored
    for kind in sorted(KINDS):
        for path in sorted((folder / kind, *(folder / kind).rglob("*"))):
            if os.path.lexists(path) and not any(map(is_left_out, (path, *path.relative_to(folder).parents[:-1]))):
                yield path


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _is_ignored(path: Path) -> bool:
    return _is_hidden(path) or path.name == "__pycache__" or path.suffix == ".pyc"


@cache
def _load_module(path: Path) -> ModuleType:
    """The module of a file, or of the package in a folder: the collection's by its name, others by a private one."""
    if is_shipped(path):
        return importlib.import_module(".".join((_PACKAGE, *path.relative_to(COLLECTION).with_suffix("").parts)))
    file = path / "__init__.py" if path.is_dir() else path
    package = _PARENTS.get(path.parent.name, "")  # so that relative imports lead where those of what ships lead
    name = f"{package}gpuval_extension_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(path)] if path.is_dir() else None
    )
    if spec is None or spec.loader is None or not file.is_file():
        raise SettingError(f"{SETTING} {path}: no Python in it: add {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # its folder may be open to a group
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise SettingError(f"{SETTING} {file}: {type(error).__name__}: {error}: correct it") from error
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
    return module


@cache
def _shipped_stages() -> Mapping[str, Path]:
    """By stage its role: those that declare what they run."""
    roles = ((path.parents[1], path.read_text()) for path in sorted(ROLES.glob("*/defaults/main.yml")))
    return {role.name: role for role, text in roles if f"\n{role.name}_workload:" in text}


@cache
def _shipped_schedulers() -> Mapping[str, Path]:
    """By name the files of `plugin_utils` with one."""
    files = (COLLECTION / "plugins/plugin_utils").glob("*/*scheduler.py")
    names = ((_NAMED.search(path.read_text()), path) for path in sorted(files))
    return {match[1]: path for match, path in names if match}


def _shipped_files(folder: str, end: str) -> Callable[[], Mapping[str, Path]]:
    return lambda: {path.stem: path for path in sorted((COLLECTION / folder).glob(f"[a-z]*{end}"))}


#: By kind what finds those that ship.
_SHIPPED: Mapping[str, Callable[[], Mapping[str, Path]]] = {
    "stages": _shipped_stages,
    "profiles": _shipped_files("profiles", ".yml"),
    "schedulers": _shipped_schedulers,
    "engines": _shipped_files("plugins/module_utils/engines", ".py"),
}
