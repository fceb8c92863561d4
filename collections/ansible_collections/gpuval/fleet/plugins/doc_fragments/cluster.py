# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the actions that work on a Kubernetes cluster."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of the kubeconfig.
      - Empty is E(KUBECONFIG), else C(~/.kube/config), else the service account inside a cluster.
    type: path
    default: ''
  context:
    description: Context of the kubeconfig; empty is its current one.
    type: str
    default: ''
  namespace:
    description: Namespace of the runs.
    type: str
    default: gpuval
"""
