# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the settings of all nodes in one task: Ansible's own check of a role takes a process per node."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail, AnsibleError, AnsibleUndefinedVariable, AnsibleValueOmittedError
from ansible.module_utils.parsing.convert_bool import boolean

from ..plugin_utils.core.action import ControllerAction, injected_settings
from ..plugin_utils.core.host_values import templar_of, values_of
from ..plugin_utils.core.text import some_of
from ..plugin_utils.runs import settings

MOST_NAMED = 5
#: What says which cluster, and where on it.
CLUSTER = ("gpuval_kubeconfig", "gpuval_kube_context", "gpuval_namespace")


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        known = settings.declared()
        wrong: dict[str, list[str]] = {}
        placed: set[str] = set()
        clusters: set[str] = set()
        names: set[str] = set()
        seen = {}
        for node in task_vars["ansible_play_hosts"]:
            values = values_of(self, node, task_vars)
            names.update(name for name in values if name.startswith(settings.PREFIX))
            for name in injected_settings(values):
                wrong.setdefault(
                    f"{name} comes from the node's own facts: set inject_facts_as_vars = false", []
                ).append(node)
            chosen = settings.changed(values, known)
            placed.add(str(values.get("gpuval_placement")))
            clusters.add(repr([values.get(name) for name in CLUSTER]))
            key = repr(sorted(chosen.items()))
            plain = "{{" not in key and "{%" not in key
            if not (plain and key in seen):
                seen[key] = self._problems(values, chosen, known)
            for problem in seen[key]:
                wrong.setdefault(problem, []).append(node)
        for name in settings.unknown(names, known):
            self._display.warning(f"no setting of gpuval: {name}")
        count = len(task_vars["ansible_play_hosts"])
        if placed == {"kubernetes"} and len(clusters) > 1:
            wrong[f"{', '.join(CLUSTER)} are not the same for all: validate one cluster after the other"] = task_vars[
                "ansible_play_hosts"
            ]
        if len(placed) > 1:
            wrong[
                "gpuval_placement is not the same for all: validate SSH hosts and clusters one after the other, "
                "with gpuval_hosts or --limit"
            ] = task_vars["ansible_play_hosts"]
        if wrong:
            by_nodes: dict[str, list[str]] = {}
            for problem, nodes in wrong.items():
                by_nodes.setdefault(_shown(nodes, count), []).append(problem)
            lines = [f"{nodes}: {'; '.join(problems)}" for nodes, problems in by_nodes.items()]
            message = "the settings are wrong, nothing was started. " + ". ".join(lines)
            if options["fatal"]:
                raise AnsibleActionFail(message)
            self._display.warning(message.replace(", nothing was started", ""))
        return {"changed": False, "msg": f"settings of {count} node(s) checked"}

    def _problems(self, values, chosen, known):
        templar = templar_of(self, values)
        found, templated = [], {}
        for name, raw in chosen.items():
            try:
                value = templar.template(raw)
            except AnsibleValueOmittedError:
                continue
            except AnsibleUndefinedVariable as error:
                if name in known.shared:  # others may stand on facts, or on roles that this playbook leaves out
                    found.append(f"{name} cannot be made out: {error.message}")
                continue
            except AnsibleError as error:
                found.append(f"{name} cannot be made out: {error.message}")
                continue
            if value is not None:
                templated[name] = value
        seconds = _search_round_seconds(templar, values) if "gpuval_gang_search_seconds" in templated else 0.0
        return found + settings.problems(templated, known) + settings.gang_problems(templated, known, seconds)


def _search_round_seconds(templar, values):
    """What a round of the search for a gang's bad node may take; 0 where the playbook, or the profile, has none."""
    try:
        searches = boolean(templar.template(values["gpuval_gang_search"]), strict=False)
        if not searches and "fabric" not in templar.template(values["run_gang_stages"]):
            return 0.0
        if templar.template(values["run_gang_workloads"]).get("fabric"):
            return float(templar.template(values["run_gang_search_round_seconds"]))
    except (AttributeError, KeyError, TypeError, ValueError, AnsibleError):  # the gangs say it when they begin
        pass
    return 0.0


def _shown(nodes, count):
    if len(nodes) == count:
        return "all nodes"
    return some_of(nodes, MOST_NAMED)
