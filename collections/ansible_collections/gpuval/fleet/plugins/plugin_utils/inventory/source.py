"""Base classes of the collection's inventory plugins, and checks of inventories before Ansible parses them."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml
from ansible import constants, context
from ansible.errors import AnsibleError, AnsibleFileNotFound, AnsibleParserError
from ansible.inventory.manager import InventoryManager, split_host_pattern
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.context_objects import CLIArgs
from ansible.utils.vars import load_extra_vars

from ..core import yaml_file
from ..core.ansible_internal import Origin
from ..core.errors import GpuvalError, SettingError, reason_of
from ..core.node_ranges import names_of
from ..core.text import meant, some_of
from ..core.yaml_file import SafeLoader
from .node_list import ClusterHosts, ListedNode, parse

PLUGINS = ("gpuval.fleet.node_list", "gpuval.fleet.kubernetes_nodes", "gpuval.fleet.slurm_nodes")
#: Names of the folders of variables beside an inventory.
VARIABLES = ("group_vars", "host_vars")
GROUP_KEYS = ("hosts", "children", "vars")
YAML = (".yml", ".yaml")
#: Suffixes of inventories that Ansible reads as INI; others may be anything.
INI = ("", ".ini")
#: Exit code of ansible-playbook for an inventory that cannot be parsed.
PARSER_ERROR = 4


class NamedSource(BaseInventoryPlugin):
    """Base of inventory plugins whose YAML file names the plugin; the file may have any name."""

    NAME = ""

    def verify_file(self, path: str) -> bool:
        return super().verify_file(path) and path.endswith(YAML) and _plugin_of(path) == self.NAME

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        try:
            self.read(path)
        except (AnsibleError, GpuvalError) as error:
            text = str(getattr(error, "message", error))
            self.refuse(text if text.startswith("/") else f"{path}: {text}")

    def read(self, path: str) -> None:
        """Add the hosts and groups of the source at `path`. Raises AnsibleError or GpuvalError."""
        raise NotImplementedError

    def read_options(self, path: str) -> None:
        """Read the plugin's options from the file. Raises AnsibleError, also for an unknown option."""
        options = constants.config.get_configuration_definitions("inventory", self._load_name)
        for key in self.loader.load_from_file(path, cache="none"):
            if key not in options:
                raise AnsibleParserError(f"unknown option {key}{meant(key, options)}")
        self._read_config_data(path)

    def add_nodes(self, nodes: Iterable[ListedNode], group: str) -> str:
        """Add hosts to a group. Returns the group's name in Ansible."""
        group = self.inventory.add_group(group)
        for node in nodes:
            self.inventory.add_host(node.name, group=group)
            for name in node.groups:
                self.inventory.add_child(self.inventory.add_group(name), node.name)
            for key, value in node.variables.items():
                self.inventory.set_variable(node.name, key, value)
        return group

    def refuse(self, text: str) -> NoReturn:
        """End the program with one line if a partial inventory is not allowed: Ansible would go on to show errors of
        unrelated plugins. Otherwise raises AnsibleParserError, and other sources are read."""
        if constants.INVENTORY_ANY_UNPARSED_IS_FAILED:
            self.display.error(text, wrap_text=False)
            raise SystemExit(PARSER_ERROR)
        raise AnsibleParserError(text) from None


class ClusterSource(NamedSource):
    """Base of inventory plugins for a cluster: its nodes, compared with a list of expected nodes."""

    #: Words for messages: keys of rules in the option `skus`, how nodes are chosen, which nodes `others` adds.
    sku_keys = chosen_by = others_are = ""

    def hosts(self, rules: Mapping[str, Mapping[str, str]]) -> ClusterHosts:
        """How nodes become inventory hosts. `rules`: SKU rules of the option `skus`."""
        raise NotImplementedError

    def find(self, base: Path, expected: Collection[str]) -> tuple[list[dict[str, Any]], set[str]]:
        """Descriptions of the nodes that the options choose and of the `expected` ones, and the names of the chosen.
        `base`: the inventory's folder. Raises GpuvalError."""
        raise NotImplementedError

    def settings(self, base: Path) -> dict[str, Any]:
        """Variables of all hosts; empty ones are not set. `base`: the inventory's folder."""
        raise NotImplementedError

    def read(self, path: str) -> None:
        self.read_options(path)
        base = Path(path).absolute().parent
        expected = self.expected(base)
        descriptions, chosen = self.find(base, {node.name for node in expected or ()})
        hosts = self.hosts(self._sku_rules())
        fleet = hosts.fleet(descriptions, expected, chosen if self.get_option("others") else ())
        if not fleet.hosts:
            remedy = "correct that choice, or name the nodes in `expected`"
            raise AnsibleParserError(f"{hosts.TITLE} has no node that {self.chosen_by}: {remedy}")
        if fleet.beyond:
            self.display.warning(
                f"{path}: {len(fleet.beyond)} node(s) of {hosts.TITLE} are not in `expected` and left out "
                f"(`others: true` takes those that {self.others_are}): {some_of(fleet.beyond)}"
            )
        if fleet.missing:
            self.display.warning(
                f"{path}: {hosts.TITLE} lacks {len(fleet.missing)} expected node(s): {some_of(fleet.missing)}"
            )
        settings = {key: value for key, value in self.settings(base).items() if value}
        group = self.add_nodes(fleet.hosts, self.get_option("group"))
        for name, variables in ((group, settings), *fleet.group_variables.items()):
            for key, value in variables.items():
                self.inventory.set_variable(name, key, value)

    def expected(self, base: Path) -> list[ListedNode] | None:
        """The nodes in the option `expected`, None if it is not set. Raises SettingError."""
        option = self.get_option("expected")
        if option is None:
            return None
        if isinstance(option, str):
            file = base / Path(option).expanduser()
            try:
                return parse(file.read_text(encoding="utf-8"), str(file))
            except (OSError, UnicodeDecodeError) as error:
                raise SettingError(f"the list of expected nodes, {file}, cannot be read: {reason_of(error)}") from None
        if not isinstance(option, list) or not all(isinstance(name, (str, int)) for name in option):
            raise SettingError("`expected` is a list of names, or the path of a list")
        return parse("\n".join(str(name) for name in option), "expected")

    def _sku_rules(self) -> dict[str, dict[str, str]]:
        skus = self.get_option("skus") or {}
        for sku, rule in skus.items():
            if not isinstance(rule, dict) or not rule:
                raise AnsibleParserError(f"skus.{sku} maps {self.sku_keys} to patterns")
        return {str(sku): {str(key): str(value) for key, value in rule.items()} for sku, rule in skus.items()}


def problem_of(path: str) -> str:
    """What is wrong with an inventory source, whichever plugin parses it; empty if nothing is."""
    try:
        _expand_limit()
    except SettingError as error:
        return f"--limit: {error}"
    if not Path(path).exists() and "," not in path:
        configured, chosen_by = constants.config.get_config_value_and_origin("DEFAULT_HOST_LIST")
        if chosen_by == "default" and path in configured:
            return (
                "no inventory was given: name one with -i (with make: INVENTORY=PATH), or as `inventory` in ansible.cfg"
            )
        return f"{path}: there is no such inventory: correct -i (with make: INVENTORY=PATH)"
    files = (file for name in VARIABLES for file in sorted(Path(path).parent.glob(f"{name}/**/*")))
    problem = _problem_of_extra_variables() or next(filter(None, map(_problem_of_yaml, (Path(path), *files))), "")
    name = ""
    if not problem and path.endswith(YAML):
        name = _plugin_of(path)
        if name.startswith("gpuval.") and name not in PLUGINS:
            return f"{path}: unknown plugin {name}{meant(name, PLUGINS)}"
        line = "" if name else _problem_of_groups(yaml.compose(Path(path).read_text("utf-8"), Loader=SafeLoader))
        problem = f"{path}:{line}" if line else ""
    problem = problem or _problem_of_ini(Path(path))
    is_program = os.access(path, os.X_OK) and not path.endswith(YAML)
    return problem or ("" if is_program else _problem_of_limit(str(context.CLIARGS.get("subset") or ""), name))


def _expand_limit() -> None:
    """Replace gpu[01-16] in --limit by the names. Numbers without a leading zero are left to Ansible, which takes them
    for places in a group. Raises SettingError."""
    words = split_host_pattern(str(context.CLIARGS.get("subset") or ""))
    ranges = [word for word in words if re.match(r"(?!&|@|!?~).*\[0\d+[:-]\d+\]", word)]
    if ranges:
        names = [name for word in words for name in (names_of(word) if word in ranges else [word])]
        context.CLIARGS = CLIArgs({**context.CLIARGS, "subset": ",".join(names)})


#: Not empty while an inventory is read only to compare --limit with its hosts.
_reading: list[str] = []


def _problem_of_limit(limit: str, plugin: str) -> str:
    """A message on the first name in --limit that the inventory lacks; Ansible at most warns. Empty if there is none.

    The inventory of a cluster or a program is not read a second time, so it is not checked.
    """
    words = {re.sub(r"^[!&]|\[-?\d+(?:[:-]\d*)?\]$", "", word): word for word in split_host_pattern(limit)}
    plain = [name for name in words if not re.search(r"^[@~]|[*?\[]", name)]
    if not plain or plugin not in ("", PLUGINS[0]) or _reading:
        return ""
    _reading.append(limit)  # reading the inventory below calls this check again, which then returns at once
    try:
        inventory = InventoryManager(DataLoader(), context.CLIARGS["inventory"])
    except AnsibleError:  # Ansible reports it itself
        return ""
    finally:
        _reading.clear()
    groups = sorted(set(inventory.groups) - {"all", "ungrouped"})
    names = [*inventory.hosts, *groups]
    wrong = next((name for name in plain if name not in {*names, "all", "ungrouped", *constants.LOCALHOST}), "")
    having = meant(wrong, names) or f". It has {some_of(inventory.hosts)}, and the groups {some_of(groups)}"
    return f"--limit {words[wrong].lstrip('!&')}: the inventory has no such host or group{having}" if wrong else ""


def _problem_of_extra_variables() -> str:
    """What is wrong with the variables of ``-e``, reported once, since each plugin would report it."""
    try:
        load_extra_vars(DataLoader())
    except (AnsibleParserError, AnsibleFileNotFound) as error:
        text = error.message.replace("\n", " ").partition(" on the Ansible Controller")[0]
        hint = " A shell removes quotes: write -e '{\"NAME\": VALUE}'" if "YAML" in text else ""
        origin = error.obj if isinstance(error.obj, Origin) and error.obj.path else None
        return f"{origin.path}:{origin.line_num}: {text}" if origin else f"-e: {text}{hint}"
    except AnsibleError:  # encrypted variables need passwords that only Ansible has
        pass
    return ""


def _problem_of_yaml(path: Path) -> str:
    if path.suffix in YAML and path.is_file():
        try:
            yaml_file.parse(path, path.read_text(encoding="utf-8"), yaml_file.AnyTagLoader)
        except yaml_file.YamlError as error:
            return str(error)
        except (OSError, ValueError):  # Ansible reports these itself
            pass
    return ""


def _problem_of_ini(path: Path) -> str:
    """A message on the first host line with spaces around a variable's =, allowed only in [GROUP:vars], or with another
    address than above; or empty."""
    if path.suffix not in INI or not path.is_file() or os.access(path, os.X_OK):
        return ""
    hosts = True
    addresses: dict[str, str] = {}
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            section = re.match(r"\s*\[[^\]:]+(:\w+)?\]", line)
            hosts = hosts if section is None else section[1] is None
            corrected = "" if section or not hosts or line.lstrip().startswith(";") else _joined(line)
            if corrected:
                return f"{path}:{number}: a variable of a host has no spaces around its =: write {corrected}"
            match = re.match(r"\s*([^\s;#]+)\s.*?\bansible_host=(\S+)", line) if hosts and not section else None
            if match and addresses.setdefault(match[1], match[2]) != match[2]:
                first = addresses[match[1]]
                return f"{path}:{number}: {match[1]} has ansible_host={first} above: rename one of the two"
    except (OSError, ValueError):  # Ansible reports these itself
        pass
    return ""


def _joined(line: str) -> str:
    """The first variable of a host line with spaces around its =, written correctly; empty if there is none."""
    words = shlex.split(line, comments=True)
    for index, word in enumerate(words):
        before, after = words[index - 1] if index else "", "".join(words[index + 1 : index + 3])
        if "=" not in word and after.startswith("="):  # written as NAME = VALUE or NAME =VALUE
            value = after[1:] if words[index + 1] == "=" else words[index + 1][1:]
            return f"{word}={value}" if index else f"HOST {word}={value}, or move it under [GROUP:vars]"
        if index > 1 and "=" not in word and before.endswith("="):  # written as NAME= VALUE
            return f"{before}{word}"
    return ""


def _problem_of_groups(node: yaml.Node | None) -> str:
    """The first mistake in a YAML mapping of groups, after its line number; empty if none. `node`: the YAML node."""
    groups = node.value if isinstance(node, yaml.MappingNode) else ()
    for group, content in groups:
        for key, part in content.value if isinstance(content, yaml.MappingNode) else ():
            line = key.start_mark.line + 1
            if key.value not in GROUP_KEYS:
                return f"{line}: the group {group.value} has an unknown key {key.value}{meant(key.value, GROUP_KEYS)}"
            if not (isinstance(part, yaml.MappingNode) or part.value in ("", "null", "~")):
                return f"{line}: {key.value} of the group {group.value} must be a mapping: a colon behind each name"
            problem = _problem_of_groups(part) if key.value == "children" else ""
            if problem:
                return problem
    return ""


def _plugin_of(path: str) -> str:
    """The inventory plugin that a YAML file names; empty if it names none."""
    try:
        document = yaml_file.load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    return str(document.get("plugin", "")) if isinstance(document, dict) else ""
