# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node measures of the network to others. The module does it; what it answers is checked here."""

from __future__ import annotations

from ..plugin_utils.core.action import NodeAction


class ActionModule(NodeAction):
    pass
