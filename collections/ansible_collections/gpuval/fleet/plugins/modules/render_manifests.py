#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: render_manifests
short_description: Write everything that a run makes in a Kubernetes cluster into one file
version_added: 1.0.0
description:
  - Writes namespace, ConfigMaps, Secrets, volumes and Jobs of all nodes as one YAML file, to apply by other means.
  - The objects and their names are those that a run creates in the cluster. A validation of the same run finds them
    there and continues with them.
  - The cluster is not contacted. What is known of the nodes comes from the inventory, and nodes that it misses are
    left out.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
attributes:
  diff_mode:
    support: full
    description: Lists kinds and names, and never what is in them.
options:
  run:
    description: The run (gpuval.run/1), where it was not written, as in check mode.
    type: dict
    default: {}
  namespace:
    description: Namespace of the objects.
    type: str
    default: gpuval
  make_namespace:
    description: Put the namespace into the file as well, with the Pod Security Standard that the pods need.
    type: bool
    default: true
  path:
    description:
      - The file. It holds signed URLs and the models' reading key, and has mode 0600.
      - Empty is C(manifests.yml) in the folder of the run's results.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Write the manifests
  gpuval.fleet.render_manifests:
    run_id: "{{ run_opened.run.run_id }}"
    store: "{{ gpuval_store }}"
  run_once: true
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
  sample: /srv/gpuval/results/20261120-201500-3f2a/manifests.yml
nodes:
  description: Nodes that have a Job in it.
  returned: success
  type: list
  elements: str
missing:
  description: Nodes that the cluster does not have.
  returned: success
  type: list
  elements: str
"""
