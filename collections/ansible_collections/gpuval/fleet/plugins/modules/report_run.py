#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: report_run
short_description: Write the report of a judged run, or announce its verdict
version_added: 1.0.0
description:
  - O(state=written) writes C(report.html), C(report.md), C(junit.xml), C(ctrf-report.json), C(gpuval.prom), C(perf.csv)
    and C(failed_nodes.txt) from C(report.json) and the evidence beside it. With O(store) it uploads them, unless the
    run is another controller's.
  - Of a MAD repository's models, C(perf.csv) has the columns of MAD, and C(perf.html) shows it.
  - O(state=announced) prints the FINAL ACCEPTANCE block and fails unless the verdict is V(PASS), or V(PARTIAL) of a run
    that was narrowed by C(--limit), C(--tags) or stages. In GitHub Actions it adds the verdict to the job's summary.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
options:
  state:
    description: What to do with the report.
    type: str
    choices: [written, announced]
    default: written
  store:
    description: The store to upload the report to; without it nothing is uploaded.
    required: false
  perf_file:
    description: The C(perf.csv) of the models of all runs; empty is that beside the runs.
    type: str
    default: ''
  health_file:
    description:
      - With O(state=written) the verdicts on nodes of a run that has ended go into this file, too.
      - V(FAIL) stays there until a later run passes what had failed.
      - A relative path starts at the folder of C(ansible.cfg).
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Write and upload the report of the latest run
  gpuval.fleet.report_run:
    store: "{{ gpuval_store }}"
  run_once: true

- name: Fail unless the run passed
  gpuval.fleet.report_run:
    state: announced
  run_once: true
"""

RETURN = r"""
files:
  description: Paths of the report.
  returned: O(state=written)
  type: list
  elements: str
verdict:
  description: V(PASS), V(PARTIAL), V(FAIL) or V(INCOMPLETE).
  returned: O(state=announced)
  type: str
acceptance_report:
  description: Path of report.json.
  returned: O(state=announced)
  type: str
"""
