# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write down what gpuval needs to be allowed on a cluster, see that it is, and make its namespace when asked."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible_collections.gpuval.fleet.plugins.plugin_utils import files
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import manifests, permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterError, Forbidden
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.options import CLUSTER_OPTIONS, access_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.paths import project_path


class ActionModule(ControllerAction):
    OPTIONS = {
        **CLUSTER_OPTIONS,
        "make_namespace": {"type": "bool", "default": False},
        "marks": {"type": "bool", "default": False},
        "volumes": {"type": "bool", "default": False},
        "role_file": {"type": "path", "required": True},
    }

    def work(self, options, task_vars):
        path = project_path(options["role_file"])
        role = permissions.printed(options["namespace"])
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if not self.check_mode and role != before:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.replace(path, role.encode())
        hint = f"an administrator of the cluster grants it with: kubectl apply -f {path}"
        needed = permissions.needed(
            makes_namespace=options["make_namespace"], marks_nodes=options["marks"], makes_volumes=options["volumes"]
        )
        try:
            with Cluster(access_of(options)) as cluster:
                made = options["make_namespace"] and not self.check_mode
                if made:
                    cluster.create(manifests.namespace(options["namespace"]))
                cluster.check(needed)
        except Forbidden as error:
            raise AnsibleActionFail(f"{error}\n{hint}") from None
        except ClusterError as error:
            raise AnsibleActionFail(str(error)) from None
        return {
            "changed": role != before or made,
            "role_file": str(path),
            "diff": {"before": before, "after": role, "after_header": str(path), "before_header": str(path)},
            "msg": f"everything that gpuval asks of the cluster is allowed; the Role is in {path}",
        }
