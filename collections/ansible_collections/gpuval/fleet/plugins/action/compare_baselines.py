# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Say what changed from one baseline to another."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.action import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import baseline


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        before, after = (baseline.read(Path(options[key])) for key in ("before", "after"))
        changes = baseline.diff(before, after)
        return {
            "changed": False,
            "told": [f"from {before.title} to {after.title}:", *baseline.told(changes)],
            "clear": sum(one.clear for one in changes),
        }
