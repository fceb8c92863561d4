"""Finds stages, profiles, schedulers and engines by name: shipped ones, and those of extensions (gpuval_extensions).

An extension is a folder with ``stages/NAME/``, ``profiles/NAME.yml``, ``schedulers/NAME/`` or ``engines/NAME.py``. It
is code: owners and modes of its files are checked before any is read.
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
#: {kind of extension: suffix of its files}; empty for a folder.
KINDS: Mapping[str, str] = {"stages": "", "profiles": ".yml", "schedulers": "", "engines": ".py"}
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PACKAGE = "ansible_collections.gpuval.fleet"
#: The line by which a shipped file declares the name of its scheduler.
_NAMED = re.compile(r'^    name = "([a-z][a-z0-9_]*)"$', re.MULTILINE)
_PARENTS = {"schedulers": f"{_PACKAGE}.plugins.plugin_utils.", "engines": f"{_PACKAGE}.plugins.module_utils.engines."}
_Interface = TypeVar("_Interface")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: The folders of extensions in use, and those that must not contain extensions: results and state.
_in_use: dict[str, tuple[Path, ...]] = {"folders": (), "forbidden": ()}
_clear_caches: list[Callable[[], None]] = []


def use(folders: Iterable[str | Path], forbidden: Iterable[str | Path] = ()) -> None:
    """Set this process's folders of extensions, and those that must not contain any. The first use checks them."""
    chosen = {"folders": tuple(map(project_path, folders)), "forbidden": tuple(map(project_path, forbidden))}
    if chosen != _in_use:
        _in_use.update(chosen)
        for clear in _clear_caches:
            clear()


def use_setting(templar: Any, values: Mapping[str, Any]) -> None:
    """Use the extensions that ``gpuval_extensions`` names in a host's variables ``values``. A template that fails is no
    error here: the check of settings reports it."""
    from ansible.errors import AnsibleError  # noqa: PLC0415 - commands without Ansible import this file, too

    try:
        folders, *forbidden = (
            templar.template(values.get(name)) for name in (SETTING, "gpuval_results_dir", "gpuval_state_dir")
        )
    except AnsibleError:
        folders, forbidden = (), []
    use(listed(folders), [str(path) for path in forbidden if path])


def cached(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator: cache what a function returns until this process uses other folders of extensions."""
    kept = lru_cache(maxsize=1 << 14)(function)
    _clear_caches.append(kept.cache_clear)
    return cast("Callable[_Arguments, _Result]", kept)


@cached
def found(kind: str) -> Mapping[str, Path]:
    """{name: folder or file} of all stages, profiles, schedulers or engines (``kind``), shipped ones first. Raises
    SettingError for an unusable extension."""
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
    """{name: folder or file} of the given kind, from extensions only."""
    return {name: path for name, path in found(kind).items() if not is_shipped(path)}


def check() -> None:
    """Check all extensions in use. Raises SettingError for one that cannot be used."""
    for kind in KINDS:
        found(kind)


@cached
def files(kind: str, pattern: str, *, shipped: bool = True) -> tuple[Path, ...]:
    """Files that match ``pattern``, such as ``files/stage.yml``, in the folders of all stages or schedulers (``kind``):
    those of extensions first, then shipped ones unless ``shipped`` is false. Raises SettingError."""
    paths = sorted(found(kind).values(), key=is_shipped)
    used = [path if path.is_dir() else path.parent for path in paths if shipped or not is_shipped(path)]
    return tuple(path for folder in used for path in sorted(folder.glob(pattern)))


def digests() -> dict[str, str]:
    """{name of an extension's folder: SHA-256 over the paths and contents of all its files}. Raises SettingError."""
    totals = {folder: hashlib.sha256() for folder in folders()}
    for folder, total in totals.items():
        for path in filter(Path.is_file, _contents(folder)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return {folder.name: total.hexdigest() for folder, total in totals.items()}


def load_class(kind: str, name: str, interface: type[_Interface]) -> type[_Interface]:
    """Load the class for scheduler or engine ``name``: a subclass of ``interface`` with this attribute `name`. A
    shipped one is loaded even if an extension is unusable, so that nodes can be cleaned. Raises SettingError."""
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
    """The path of a stage's file as reports show it, relative to the collection or to its extension."""
    return path.relative_to(COLLECTION if is_shipped(path) else path.parents[3]).as_posix()


def is_shipped(path: Path) -> bool:
    """Whether a folder or file belongs to the collection, not to an extension."""
    return COLLECTION in path.parents


@cached
def folders() -> Sequence[Path]:
    """The folders of extensions in use, links resolved. Raises SettingError for one whose code others could change."""
    resolved: list[Path] = []
    for source in _in_use["folders"]:
        if not source.is_dir():
            raise SettingError(f"{SETTING} {source}: there is no such folder on the controller")
        folder = source.resolve()
        for above in (folder, *folder.parents):
            if any(above == path.resolve() for path in _in_use["forbidden"]) or (above / "run.json").is_file():
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
    """Raise SettingError if another user can change the path. ``is_way``: it is a folder above the extension, which may
    be open to all if it has the sticky bit, like /tmp."""
    status = path.lstat()
    if not is_way and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise SettingError(f"{SETTING} {path}: neither a file nor a folder: replace the link by what it leads to")
    if status.st_uid not in (0, os.geteuid()):
        raise SettingError(f"{SETTING} {path}: another user (uid {status.st_uid}) owns it: chown it to yours or root")
    if status.st_mode & _OTHERS_WRITE and not (is_way and status.st_mode & stat.S_ISVTX):
        raise SettingError(f"{SETTING} {path}: others can write it, and it is code: chmod go-w {path}")


def _contents(folder: Path, *, with_bytecode: bool = False) -> Iterator[Path]:
    """Yield all folders and files of an extension, sorted by path. ``with_bytecode``: with compiled files, too, which
    Python runs in place of the source."""
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
    """Import a file, or a folder as a package. One of an extension gets a private module name."""
    if is_shipped(path):
        return importlib.import_module(".".join((_PACKAGE, *path.relative_to(COLLECTION).with_suffix("").parts)))
    file = path / "__init__.py" if path.is_dir() else path
    package = _PARENTS.get(path.parent.name, "")  # so that its relative imports find what those of shipped files find
    name = f"{package}gpuval_extension_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(path)] if path.is_dir() else None
    )
    if spec is None or spec.loader is None or not file.is_file():
        raise SettingError(f"{SETTING} {path}: no Python in it: add {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a group might write to __pycache__
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
    """{stage: folder of its role} for the roles that declare a workload."""
    roles = ((path.parents[1], path.read_text()) for path in sorted(ROLES.glob("*/defaults/main.yml")))
    return {role.name: role for role, text in roles if f"\n{role.name}_workload:" in text}


@cache
def _shipped_schedulers() -> Mapping[str, Path]:
    """{scheduler: file in `plugin_utils` that declares it}."""
    files = (COLLECTION / "plugins/plugin_utils").glob("*/*scheduler.py")
    names = ((_NAMED.search(path.read_text()), path) for path in sorted(files))
    return {match[1]: path for match, path in names if match}


def _shipped_files(folder: str, suffix: str) -> Callable[[], Mapping[str, Path]]:
    return lambda: {path.stem: path for path in sorted((COLLECTION / folder).glob(f"[a-z]*{suffix}"))}


#: {kind of extension: function that finds the shipped ones by name}
_SHIPPED: Mapping[str, Callable[[], Mapping[str, Path]]] = {
    "stages": _shipped_stages,
    "profiles": _shipped_files("profiles", ".yml"),
    "schedulers": _shipped_schedulers,
    "engines": _shipped_files("plugins/module_utils/engines", ".py"),
}
