# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the actions that connect to a node which a probe may have found unreachable."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  probe_timeout_seconds:
    description: Time limit of each step of a probe.
    type: float
    default: 4.0
  accept_new_host_keys:
    description: Pin the host key of a node that has none pinned yet.
    type: bool
    default: true
"""
