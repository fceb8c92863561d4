# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the actions that work on a run."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  run_id:
    description: Identity of the run; empty is the latest.
    type: str
    default: ''
  results_dir:
    description: Where results are kept. A relative path starts at the folder of C(ansible.cfg).
    type: str
    default: results
"""
