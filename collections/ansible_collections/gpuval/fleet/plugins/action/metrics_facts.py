# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return what a run measured on a host as Ansible facts, from the run's report.json; contacts no host."""

from ..plugin_utils.core.escape import safe_name
from ..plugin_utils.report.lookup import find_node, node_facts
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.runs.folder import RunError


class ActionModule(RunAction):
    _supports_check_mode = True
    _supports_async = False

    def work(self, options, task_vars):
        path = self.folder_of(options["results_dir"], options["run_id"]).path / "report.json"
        node = safe_name(options["node"] or task_vars["inventory_hostname"])
        try:
            report, entry = find_node(path.read_text(encoding="utf-8"), node)
        except FileNotFoundError:
            raise RunError(f"{path} is missing: the run was not judged yet, `make report` does it") from None
        except KeyError:
            raise RunError(
                f"{node} is not in {path}: give the run_id of a run that it took part in, or validate it first"
            ) from None
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}): `make report` writes it again") from error
        return {"changed": False, "ansible_facts": {"gpuval": node_facts(report, entry)}}
