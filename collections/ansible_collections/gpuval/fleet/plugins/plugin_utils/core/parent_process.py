# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether ansible-playbook is still there: its workers are in sessions of their own, and outlive one that is killed."""

from __future__ import annotations

import os

from ansible.errors import AnsibleError


class AbandonedError(AnsibleError):
    """ansible-playbook is gone: no process reads a result, and the next command may be running already."""


class Parent:
    """The process that this one was started by."""

    def __init__(self) -> None:
        self._pid = os.getppid()

    def check(self) -> None:
        """Raise AbandonedError once it is gone."""
        if os.getppid() != self._pid:
            raise AbandonedError("ansible-playbook has ended without its worker")
