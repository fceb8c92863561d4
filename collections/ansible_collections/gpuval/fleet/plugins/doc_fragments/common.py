# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation that modules share: author, support of check mode and of diff mode."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
author:
  - gpuval contributors (@gpuval)
attributes:
  check_mode:
    support: full
    description: Changes nothing, and says what would be changed.
  diff_mode:
    support: none
    description: The result says what changed.
"""
