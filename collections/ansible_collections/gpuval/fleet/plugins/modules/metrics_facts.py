#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: metrics_facts
short_description: What a run measured on a host, as facts
version_added: 1.0.0
description:
  - Reads the report of a validation run on the controller and returns the verdict, the stages and every figure of the
    host that the task runs for.
  - The host itself is not contacted, so that the facts of a node that is down can be read too.
  - This module has a corresponding action plugin, which does all of the work.
extends_documentation_fragment: [gpuval.fleet.common]
attributes:
  action:
    support: full
    description: Works on the controller.
  connection:
    support: none
    description: Makes no connection to the host.
  facts:
    support: full
    description: Returns facts.
options:
  run_id:
    description: The run to read; V(latest) is the run that was started last.
    type: str
    default: latest
  results_dir:
    description:
      - Folder of the results.
      - A relative path starts at the folder of the C(ansible.cfg) in use, or at the working directory.
    type: path
    default: results
  node:
    description: Name of the node in the run, where it is not the name of the host.
    type: str
"""

EXAMPLES = r"""
- name: Read what the last run measured
  gpuval.fleet.metrics_facts:

- name: Show the training speed
  ansible.builtin.debug:
    msg: "{{ ansible_facts.gpuval.metrics.training_tokens_per_second }} tokens/s"

- name: Let only accepted nodes join the cluster
  ansible.builtin.assert:
    that: ansible_facts.gpuval.verdict == 'PASS'

- name: Read the GPUs one by one
  ansible.builtin.debug:
    msg: "{{ item.key }}: {{ item.value }} TFLOP/s"
  loop: "{{ ansible_facts.gpuval.parts.training_model_tflops | dict2items }}"

- name: Compare with an earlier run
  gpuval.fleet.metrics_facts:
    run_id: 20261102-101500-a1b2
    results_dir: /srv/acceptance/results
"""

RETURN = r"""
ansible_facts:
  description: Facts of the host.
  returned: success
  type: complex
  contains:
    gpuval:
      description: What the run found on the host.
      type: complex
      contains:
        run_id:
          description: The run that was read.
          type: str
          sample: 20261102-101500-a1b2
        run_verdict:
          description: Verdict on the run as a whole, V(PASS), V(PARTIAL), V(FAIL) or V(INCOMPLETE).
          type: str
          sample: PASS
        verdict:
          description: Verdict on the host, V(PASS), V(FAIL) or V(INCOMPLETE).
          type: str
          sample: PASS
        class:
          description: One word for what decided against the node; none for PASS.
          type: str
        action:
          description: What to do with the host, such as V(reboot) or V(replace_gpu); none for PASS.
          type: str
        flaky:
          description: Whether a stage passed only on a retry.
          type: bool
        accelerator:
          description: Vendor of the accelerators, V(cpu), or V(unknown).
          type: str
          sample: nvidia
        metrics:
          description: Figures of the whole host by name. A figure that was not a number is null.
          type: dict
          sample: {training_tokens_per_second: 449900.0, loading_bytes_per_second: 723750000.0}
        parts:
          description: Figures of single GPUs, ranks and links, by name and then by part.
          type: dict
          sample: {training_model_tflops: {"gpu:0": 395.1, "gpu:1": 394.8}}
        units:
          description: Unit of each figure by name.
          type: dict
          sample: {training_tokens_per_second: tokens_per_second}
        stages:
          description: State, message, attempt, times (RFC 3339, UTC) and duration in seconds of each stage by name.
          type: dict
          sample: {training: {state: success, message: "", attempt: 1, duration_seconds: 811.93}}
        failed_checks:
          description: Required checks that failed or whose evidence is missing, with reason and remedy.
          type: list
          elements: dict
"""
