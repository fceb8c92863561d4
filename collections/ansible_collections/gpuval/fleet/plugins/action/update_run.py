# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Change the window of a run that is watched, or record the error that ended its gangs."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail

from ..plugin_utils.gang import session
from ..plugin_utils.runs import state
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.watch import window


class ActionModule(RunAction):
    def work(self, options, task_vars):
        return self._set_window(options) if options["gang_error"] is None else self._end_gangs(options)

    def _end_gangs(self, options):
        """The nodes are judged and reported with this error as the reason."""
        if self.check_mode:
            return {"changed": False, "skipped": True}
        reason = session.abort(self.folder(options), options["gang_error"] or "no message")
        self._display.error(f"{reason}. What there is of the run is judged and reported all the same.")
        return {"changed": True, "reason": reason, "msg": reason}

    def _set_window(self, options):
        asked = {name: options[name] for name in ("max_nodes_at_once", "max_transfers")}
        if all(value is None for value in asked.values()):
            raise AnsibleActionFail(
                "nothing to set: give a number of nodes (`make window N=20`), of transfers, or both"
            )
        for name, value in asked.items():
            if value is not None and value < 0:
                raise AnsibleActionFail(f"{name} is {value}: give a whole number, 0 for no limit")
        folder = self.own_folder(options)
        run = folder.read_run()
        if run["finished_at"] is not None:
            raise AnsibleActionFail(f"run {run['run_id']} ended at {run['finished_at']}: it has no window any more")
        seen = folder.seen()
        if seen.overdue:
            raise AnsibleActionFail(f"run {run['run_id']} has no window any more, it is {seen.line()}")
        none = window.Window(-1, -1)
        before = window.read(folder, none)
        nodes, transfers = asked.values()
        after = window.Window(
            before.nodes if nodes is None else nodes, before.transfers if transfers is None else transfers
        )
        if after != before and not self.check_mode:
            window.write(folder, nodes, transfers)
        parts = [
            f"{number or 'all'} {what}"
            for number, what in ((nodes, "node(s) at once"), (transfers, "node(s) loading images at once"))
            if number is not None
        ]
        when = "from the next round of its watch"
        if seen.attended is False:
            when = f"once {seen.resume or state.RESUME}: no controller works on it"
        message = f"run {run['run_id']}: {', '.join(parts)}, {when}"
        self._display.display(message)
        return {"changed": after != before, "msg": message}
