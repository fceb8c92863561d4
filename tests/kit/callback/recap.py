"""Ansible's counts for each host, which the quiet console leaves out."""

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: recap
type: aggregate
short_description: Counts of tasks for each host
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "recap"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_stats(self, stats):
        names = {"failures": "failed"}
        for host in sorted(stats.processed):
            counts = " ".join(f"{names.get(key, key)}={count}" for key, count in stats.summarize(host).items())
            self._display.display(f"{host} : {counts}")
