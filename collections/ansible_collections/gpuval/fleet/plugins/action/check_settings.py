# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the settings of all nodes in one task: Ansible's own check of a role takes a process per node."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.executor.process import worker as ansible_worker
from ansible_collections.gpuval.fleet.plugins.plugin_utils import settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import ControllerAction

MOST_NAMED = 5


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        known = settings.declared()
        wrong: dict[str, list[str]] = {}
        strange: set[str] = set()
        seen = {}
        for node in task_vars["ansible_play_hosts"]:
            values = self._values(node, task_vars)
            strange.update(name for name in values if name.startswith(settings.PREFIX))
            chosen = settings.changed(values, known)
            key = repr(sorted(chosen.items()))
            plain = "{{" not in key and "{%" not in key
            if not (plain and key in seen):
                seen[key] = self._problems(values, chosen, known)
            for problem in seen[key]:
                wrong.setdefault(problem, []).append(node)
        for name in settings.unknown(strange, known):
            self._display.warning(f"no setting of gpuval: {name}")
        if wrong:
            lines = [f"{_shown(nodes)}: {problem}" for problem, nodes in wrong.items()]
            raise AnsibleActionFail("the settings are wrong, nothing was started: " + "; ".join(lines))
        return {"changed": False, "msg": f"settings of {len(task_vars['ansible_play_hosts'])} node(s) checked"}

    def _values(self, node, task_vars):
        """All variables of a node, untemplated."""
        worker = ansible_worker.current_worker
        if worker is None:  # not one of ansible-playbook's: the variables of the first node stand for all
            return task_vars
        manager = worker._variable_manager
        return manager.get_vars(
            play=self._task.get_play(),
            host=manager._inventory.get_host(node),
            task=self._task,
            _hosts=task_vars["ansible_play_hosts"],
            _hosts_all=task_vars["ansible_play_hosts_all"],
        )

    def _problems(self, values, chosen, known):
        templar = self._templar.copy_with_new_env(available_variables=values)
        told, templated = [], {}
        for name, raw in chosen.items():
            try:
                templated[name] = templar.template(raw)
            except AnsibleError as error:
                told.append(f"{name} cannot be made out: {error.message}")
        return told + settings.problems(templated, known)


def _shown(nodes):
    more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
    return ", ".join(nodes[:MOST_NAMED]) + more
