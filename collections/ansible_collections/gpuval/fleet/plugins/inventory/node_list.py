# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

DOCUMENTATION = r"""
name: node_list
short_description: Nodes from a CSV file or plain text
version_added: 1.0.0
author: gpuval contributors (@gpuval)
description:
  - Reads nodes from a list, such as one of a spreadsheet or a provisioning system.
  - The first line of a C(.csv) file names its columns, C(name), C(address), C(user), C(port), C(sku), C(rack),
    C(unique_id), C(host_key), C(gpu_count). C(name) or C(address) is required; the separator is comma or semicolon.
    Any other column is a host variable. Empty cells set nothing.
  - Any other file has C(address) or C(name address) in each line.
  - Both take ranges, C(node-[001:100]) or C(node-[001-100]), with C(10.0.0.[1:100]). Lines that begin with C(#) are
    comments.
  - Each SKU and each rack makes a group, C(sku_h200) and C(rack_r12), for C(group_vars).
  - A name or an address that is listed twice is an error that names both lines.
  - Named in C(enable_plugins) of C(ansible.cfg), it takes a C(.csv) file itself as an inventory too, and ranges with
    names separated by commas (C(-i gpu[01-16],)). It makes the YAML and INI inventories of Ansible take C(gpu[01-16]),
    and ends the program in one line for an inventory that is missing or no YAML.
options:
  plugin:
    description: Name of this plugin.
    required: true
    choices: [gpuval.fleet.node_list]
  path:
    description: The list, relative to this file.
    type: str
    required: true
  group:
    description: A group for all nodes of the list.
    type: str
    default: nodes
"""

EXAMPLES = r"""
# hosts.yml
plugin: gpuval.fleet.node_list
path: nodes.csv

# nodes.csv
# name,address,user,port,sku,rack,unique_id,host_key
# node-001,192.0.2.11,ubuntu,22,h200,r1,SN-4711,SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU
# node-[002:009],192.0.2.[12:19],ubuntu,22,h200,r1,,
"""

from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.ansible_internal import accept_dashes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError, reason_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.node_ranges import is_range
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.node_list import parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.source import NamedSource, problem_of


class InventoryModule(NamedSource):
    NAME = "gpuval.fleet.node_list"

    def verify_file(self, path):
        problem = problem_of(path)
        if problem:
            self.refuse(problem)
        accept_dashes()
        return path.endswith(".csv") or ("," in path and is_range(path)) or super().verify_file(path)

    def read(self, path):
        if "," in path:  # not a file but node names with ranges, which Ansible itself would not expand
            return self.add_nodes(parse(path.replace(",", "\n"), "-i"), "ungrouped")
        file, group = Path(path).absolute(), "nodes"
        if not path.endswith(".csv"):
            self.read_options(path)
            file, group = file.parent / Path(self.get_option("path")).expanduser(), self.get_option("group")
        try:
            self.add_nodes(parse(file.read_text(encoding="utf-8"), str(file)), group)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{file} cannot be read: {reason_of(error)}") from None
