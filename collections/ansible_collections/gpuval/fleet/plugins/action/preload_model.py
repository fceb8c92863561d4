# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""See that the model is in the store, whole, before a hundred nodes ask for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store_access import (
    STORE_OPTION,
    StoreAccess,
    models_prefix,
    rclone_config,
)


class ActionModule(ControllerAction):
    OPTIONS = {
        "store": STORE_OPTION,
        "model": {"type": "str", "default": "tiny"},
        "revision": {"type": "str", "default": ""},
        "token": {"type": "str", "default": "", "no_log": True},
        "transfers": {"type": "int", "default": 8},
        "round_trip": {"type": "bool", "default": False},
        "python": {"type": "str", "default": "python3"},
    }

    def work(self, options, task_vars):
        pass
