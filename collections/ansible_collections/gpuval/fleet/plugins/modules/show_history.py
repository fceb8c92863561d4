#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: show_history
short_description: Show a node, a serial, a SKU or the fleet over all runs in the bucket
version_added: 1.0.0
description:
  - Shows the verdict, failed checks, figures, driver and firmware of each run.
  - Shows which machines are flaky, which figures drift, and what changed between the runs.
  - Reads changes of the bucket since the last time into a cache below C(state_dir) of O(store).
  - The cache may be deleted at any time.
  - Needs the Python package C(duckdb) on the controller.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.store
attributes:
  check_mode:
    description: Writes no O(output); the cache is brought up to date all the same.
options:
  node:
    description: Name of a node. Other names of its machine are shown too.
    type: str
    default: ''
  serial:
    description: Serial or machine id of a machine, or serial or UUID of a GPU, wherever it was.
    type: str
    default: ''
  sku:
    description: A SKU of the catalogue, or models of GPUs as the history names them.
    type: str
    default: ''
  metric:
    description:
      - Names of metrics, separated by commas, with C(*) for any text; C(stage/metric) chooses those of one stage.
      - By default the speeds that required checks judge.
    type: str
    default: ''
  since:
    description: Show only runs that began on or after this date, such as V(2026-11-01).
    type: str
    default: ''
  output:
    description:
      - File for the same as data, C(.json) or C(.csv), or for all chosen records, C(.jsonl) for MongoDB or C(.parquet).
      - A relative path starts at the folder of C(ansible.cfg).
    type: str
    default: ''
  criteria:
    description: Files of criteria beside the shipped ones; metrics of required checks are shown.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Show where a GPU was, and how fast
  gpuval.fleet.show_history:
    store: "{{ gpuval_store }}"
    serial: "1654922001234"
    metric: training_model_tflops
  run_once: true
"""

RETURN = r"""
history:
  description: What was printed.
  returned: success
  type: list
  elements: str
files:
  description: Files of O(output) that were written, or would be.
  returned: success
  type: list
  elements: str
runs:
  description: Runs in the bucket.
  returned: success
  type: int
listed:
  description: Objects that were looked at in listings.
  returned: success
  type: int
read:
  description: Objects that were read, since they changed.
  returned: success
  type: int
forgotten:
  description: Runs that left the cache, since they are gone from the bucket.
  returned: success
  type: int
flaky:
  description: How many machines are flaky.
  returned: success
  type: int
drifts:
  description: How many figures drift.
  returned: success
  type: int
"""
