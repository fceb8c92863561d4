# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

DOCUMENTATION = r"""
name: kubernetes_nodes
short_description: Nodes of a Kubernetes cluster
version_added: 1.0.0
author: gpuval contributors (@gpuval)
description:
  - Lists the nodes of the API server, once, and makes each a host.
  - With O(expected), the nodes of that list are the hosts, also those that the cluster does not have (yet).
  - Every host has C(gpuval_placement) V(kubernetes), and C(kubernetes_node) with what the cluster says of it, such as
    C(exists), C(ready), C(unschedulable), C(taints), C(conditions), C(labels), C(addresses), C(capacity),
    C(allocatable), C(kubelet_version) and C(dra) (GPUs published by dynamic resource allocation).
  - C(kubernetes_labels) of a host are the labels of O(label_groups), by their prefix; the analysis groups nodes by
    them, as by C(gpuval_labels).
  - C(kubernetes_selector), C(kubernetes_skus) and C(kubernetes_label_groups) are O(selector), O(skus) and
    O(label_groups), by which nodes join a run that is open (C(gpuval_accept_new_nodes)).
  - Groups are those of O(group), O(label_groups), C(type_p5_48xlarge) for an instance type and C(sku_h200) for a SKU.
  - C(gpuval_sku) is set for the group of the SKU. C(gpuval_gpu_count) is set for the group of nodes of one kind, to the
    most GPUs that one of them has. Both give way to any C(group_vars), which is where to state what was ordered.
  - Text from the cluster is data, never a template.
requirements:
  - kubernetes (Python library)
options:
  plugin:
    description: Name of this plugin.
    required: true
    choices: [gpuval.fleet.kubernetes_nodes]
  kubeconfig:
    description:
      - The kubeconfig, relative to this file. Empty is C(KUBECONFIG), C(~/.kube/config), or the service account of the
        pod that this runs in.
      - Set as C(gpuval_kubeconfig) for all hosts. C(-e gpuval_kubeconfig=...) wins.
    type: str
    default: ""
  context:
    description: Context of the kubeconfig; empty is its current one. Set as C(gpuval_kube_context); C(-e) wins.
    type: str
    default: ""
  selector:
    description:
      - Label selector of the nodes. Nodes that O(expected) lists need not match it.
    type: str
    default: "!node-role.kubernetes.io/control-plane"
  expected:
    description:
      - The nodes that were ordered, as a list of names or the path of a list, relative to this file, in the form that
        P(gpuval.fleet.node_list#inventory) reads. Ranges are possible, V(node-[001:100]).
      - Of a CSV file C(sku), C(gpu_count), C(rack), C(unique_id) and further columns count; how SSH would reach a node
        does not.
      - Other nodes that match O(selector) are named in a warning and left out.
    type: raw
  others:
    description: Also take nodes that match O(selector) but are not in O(expected).
    type: bool
    default: false
  skus:
    description:
      - For each SKU, what its nodes have. The first that fits counts; all of its patterns must match.
      - Keys are labels of the node, or V(product) (the GPU model that a label names), V(instance_type) and V(resource)
        (the node offers it); values are shell patterns in which case does not count.
      - A node that none fits has the GPU model as SKU if a label names it, V(NVIDIA-H100-80GB-HBM3) as
        V(h100-80gb-hbm3), else V(auto).
    type: dict
    default: {}
  label_groups:
    description:
      - Labels that make groups, and the prefix of the group's name. Default are the node pools of GKE, EKS, DOKS, AKS
        and Karpenter as C(pool), and V(topology.kubernetes.io/zone) as C(zone).
    type: dict
  group:
    description: A group for all nodes.
    type: str
    default: nodes
"""

EXAMPLES = r"""
# hosts.yml: every node with an NVIDIA GPU
plugin: gpuval.fleet.kubernetes_nodes
context: training-cluster
selector: nvidia.com/gpu.present=true
# exactly the nodes that were ordered, also those that never joined
expected: ["gpu-[001:100]"]
skus:
  h200: {product: "*H200*"}
  mi300x: {resource: amd.com/gpu, doks.digitalocean.com/gpu-model: mi300x}
"""

import contextlib
from pathlib import Path

from ansible.errors import AnsibleError, AnsibleParserError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import dra, permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import (
    Cluster,
    ClusterAccess,
    ClusterError,
    Forbidden,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.named_nodes import list_named
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.nodes import KubernetesHosts, describe, has_plugin
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import NODE_NAME
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.source import ClusterSource


class InventoryModule(ClusterSource):
    NAME = "gpuval.fleet.kubernetes_nodes"
    sku_keys = 'labels, product, instance_type or resource (as in {product: "*H200*"})'
    others_are = "match `selector`"

    @property
    def chosen_by(self):
        return f"matches {self.get_option('selector')!r} (`selector`)"

    def hosts(self, rules):
        return KubernetesHosts(rules, self.get_option("label_groups"))

    def read(self, path):
        try:
            super().read(path)
        except Forbidden as error:
            raise AnsibleParserError(f"{path}: {error}\n{self._write_role(Path(path).absolute().parent)}") from None
        except (ClusterError, SettingError) as error:
            raise AnsibleParserError(f"{path}: {error}") from None

    def settings(self, base):
        return {
            "gpuval_kubeconfig": self._kubeconfig(base),
            "gpuval_kube_context": self.get_option("context"),
            # settings for nodes that join while a run is watched
            "kubernetes_selector": self.get_option("selector"),
            "kubernetes_skus": self.get_option("skus"),
            "kubernetes_label_groups": self.get_option("label_groups"),
        }

    def find(self, base, expected):
        extra = self._vars or {}
        kubeconfig = str(extra.get("gpuval_kubeconfig", self._kubeconfig(base)))  # empty: the pod's service account
        context = str(extra.get("gpuval_kube_context", self.get_option("context")))
        with Cluster(ClusterAccess(kubeconfig, context)) as cluster:
            items, _version = cluster.list("Node", selector=self.get_option("selector"))
            matching = {node["metadata"]["name"] for node in items}
            items += list_named(cluster, expected - matching).values()  # expected nodes need no labels
            devices = dra.read(cluster)
        if devices.warning and not all(map(has_plugin, items)):
            self.display.warning(devices.warning)
        descriptions = [describe(node, devices) for node in items]
        return [one for one in descriptions if NODE_NAME.fullmatch(one["name"])], matching

    def _write_role(self, base: Path) -> str:
        """Write the Kubernetes Role that gpuval needs to a file, and return how to grant it. (`make prepare` writes it,
        too, but only once this inventory has nodes.) `base`: folder of the inventory."""
        settings, extra = {}, self._vars or {}
        for file in sorted((base / "group_vars").glob("all.y*ml")):
            with contextlib.suppress(AnsibleError):  # encrypted, or reported by Ansible
                settings |= self.loader.load_from_file(str(file)) or {}
        settings |= extra
        role_file = project_path(settings.get("gpuval_state_dir") or ".gpuval") / "role.yml"
        namespace = str(settings.get("gpuval_namespace") or ClusterAccess.namespace)
        try:
            permissions.write_role(role_file, namespace)
        except OSError as error:
            return f"{role_file} cannot be written: {error}"
        return permissions.how_to_grant(role_file, namespace)

    def _kubeconfig(self, base: Path) -> str:
        option = self.get_option("kubeconfig")
        return str(base / Path(option).expanduser()) if option else ""
