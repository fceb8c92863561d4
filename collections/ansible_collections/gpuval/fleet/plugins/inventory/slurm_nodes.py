# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

DOCUMENTATION = r"""
name: slurm_nodes
short_description: Nodes of a Slurm cluster
version_added: 1.0.0
author: gpuval contributors (@gpuval)
description:
  - Lists the nodes of slurmctld, once, by C(scontrol) on this machine, and makes each a host.
  - With O(expected), the nodes of that list are the hosts, also those that Slurm does not have (yet).
  - Every host has C(gpuval_placement) V(slurm), and C(slurm_node) with what Slurm says of it, such as C(exists),
    C(state), C(reason), C(reason_by), C(partitions), C(features) and C(gres).
  - Nodes that are down, drained or reserved are hosts, too. The run reports each with Slurm's own reason.
  - Groups are those of O(group), C(partition_gpu) for a partition, C(feature_ib) for a feature, C(gres_h200) for a type
    of GPU and C(sku_h200) for a SKU.
  - C(gpuval_sku) is set for the group of the SKU. C(gpuval_gpu_count) is set for the group of the gres, to the most
    GPUs that one node has. Both give way to any C(group_vars), which is where to state what was ordered.
options:
  plugin:
    description: Name of this plugin.
    required: true
    choices: [gpuval.fleet.slurm_nodes]
  partitions:
    description: Only nodes of one of these partitions; empty is all.
    type: list
    elements: str
    default: []
  features:
    description: Only nodes with all of these features.
    type: list
    elements: str
    default: []
  reservation:
    description:
      - Only nodes of this reservation.
      - Set as C(gpuval_slurm_reservation) for all hosts, so that jobs run in it.
    type: str
    default: ""
  states:
    description: Only nodes in one of these states, such as V(IDLE) or V(MIXED); empty is all.
    type: list
    elements: str
    default: []
  expected:
    description:
      - The nodes that were ordered, as a list of names or the path of a list, relative to this file, in the form that
        P(gpuval.fleet.node_list#inventory) reads. Ranges are possible, V(node-[001:100]).
      - They need not match what the other options choose. Other nodes that these choose are named in a warning and left
        out.
    type: raw
  others:
    description: Also take nodes that the other options choose but O(expected) lacks.
    type: bool
    default: false
  skus:
    description:
      - For each SKU, what its nodes have. The first that fits counts; all of its patterns must match.
      - Keys are V(type) (of the GPUs in the gres), V(gres), V(partition) and V(feature); values are shell patterns in
        which case does not count.
      - A node that none fits has the type of its GPUs as SKU, V(nvidia_h200) as V(h200), else V(auto).
    type: dict
    default: {}
  group:
    description: A group for all nodes.
    type: str
    default: nodes
"""

EXAMPLES = r"""
# hosts.yml: a partition
plugin: gpuval.fleet.slurm_nodes
partitions: [gpu]
# exactly the nodes that were ordered, also those that Slurm does not have
expected: ["gpu-[001:100]"]
skus:
  h200: {type: "*h200*"}
"""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import NODE_NAME
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.source import ClusterSource
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.commands import Slurm, SlurmError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.nodes import SlurmHosts


class InventoryModule(ClusterSource):
    NAME = "gpuval.fleet.slurm_nodes"
    sku_keys = 'type, gres, partition or feature (as in {type: "*h200*"})'
    chosen_by = "the options partitions, features, reservation and states choose"
    others_are = "the other options choose"
    hosts = SlurmHosts

    def settings(self, base):
        return {"gpuval_slurm_reservation": self.get_option("reservation")}

    def find(self, base, expected):
        slurm = Slurm()
        nodes = [one for one in slurm.nodes() if NODE_NAME.fullmatch(one["name"])]
        partitions, features = set(self.get_option("partitions")), set(self.get_option("features"))
        states, reservation = {one.upper() for one in self.get_option("states")}, self.get_option("reservation")
        try:
            reserved = slurm.reserved(reservation) if reservation else None
        except SlurmError as error:
            if "not found" not in str(error):
                raise
            reserved = None  # `make clean` and `make report` work without the reservation; Slurm refuses new jobs
            self.display.warning(f"Slurm has no reservation {reservation}: nodes are chosen without it")
        chosen = {
            one["name"]
            for one in nodes
            if (not partitions or partitions & set(one["partitions"]))
            and features <= set(one["features"])
            and (not states or states & set(one["state"]))
            and (reserved is None or one["name"] in reserved)
        }
        return [one for one in nodes if one["name"] in chosen | expected], chosen
