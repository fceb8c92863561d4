# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Criteria of the operator's own."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  criteria:
    description: Criteria files of your own, after the shipped ones.
    type: list
    elements: path
    default: []
"""
