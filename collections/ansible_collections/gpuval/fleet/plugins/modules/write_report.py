#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: write_report
short_description: Write the report in the forms that people and programs read
version_added: 0.1.0
description:
  - C(report.html), C(report.md), C(junit.xml), C(perf.csv) and C(failed_nodes.txt), from C(report.json); curves and
    versions in C(report.html) from the evidence beside it.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
"""

EXAMPLES = r"""
- name: Write the report
  ansible.builtin.import_role:
    name: gpuval.fleet.report
"""

RETURN = r"""
files:
  description: What was written.
  returned: success
  type: list
  elements: str
run_file:
  description: Path of run.json.
  returned: success
  type: str
run_files:
  description: Paths of what the store is to have of the run itself.
  returned: success
  type: list
  elements: str
from_store:
  description: Whether the run is another controller's, brought from the store.
  returned: success
  type: bool
folder:
  description: Folder of the run in the bucket.
  returned: success
  type: str
"""
