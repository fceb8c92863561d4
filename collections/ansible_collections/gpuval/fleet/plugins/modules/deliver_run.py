#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: deliver_run
short_description: Make the customer's copy of a run, and send it
version_added: 1.0.0
description:
  - Writes C(delivery/NAME) into the results, a folder or an archive with one file for each node and stage, the report,
    and checksums. The same results make the same bytes.
  - Workers' names become the unique ids of C(gpuval_node_ids). Secrets, internal addresses and names of other machines
    are replaced.
    The result is searched again, and not delivered if any of these are left.
  - C(NAME.names.json) beside it, mode 0600, maps the new names to the original ones. It is never sent.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
attributes:
  check_mode:
    description: Checks the mapping against the run, and writes nothing.
options:
  name:
    description: Name of the delivery; empty is the run's id.
    type: str
    default: ''
  format:
    description: Form of the delivery.
    type: str
    choices: [folder, tar.gz, zip]
    default: folder
  unmapped:
    description: Whether a node without a unique id stops the delivery, or keeps its own name.
    type: str
    choices: [fail, keep]
    default: fail
  destination:
    description: C(s3://bucket/prefix), or the path of a folder. Empty sends nothing.
    type: str
    default: ''
  s3_endpoint:
    description: URL of the destination's S3 service; empty is AWS.
    type: str
    default: ''
  s3_region:
    description: Its region.
    type: str
    default: us-east-1
  s3_access_key:
    description: Access key of the destination. Keys of the run's store are refused.
    type: str
    default: ''
  s3_secret_key:
    description: Secret of O(s3_access_key).
    type: str
    default: ''
  s3_session_token:
    description: Session token of O(s3_access_key).
    type: str
    default: ''
  s3_ca_file:
    description: Certificate authority of the service, where it is not a public one.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Deliver the latest run as an archive
  gpuval.fleet.deliver_run:
    store: "{{ gpuval_store }}"
    format: tar.gz
    destination: s3://acceptance/batch-1
    s3_endpoint: https://s3.customer.example
  run_once: true
"""

RETURN = r"""
path:
  description: The folder or the archive.
  returned: success
  type: str
unmapped:
  description: Nodes of the run without a unique id.
  returned: success
  type: list
  elements: str
unknown:
  description: Workers of the mapping that are not in the run.
  returned: success
  type: list
  elements: str
files:
  description: How many files there are to send; of an archive one.
  returned: success, outside check mode
  type: int
bytes:
  description: Their size.
  returned: success, outside check mode
  type: int
sent:
  description: How many files were sent.
  returned: success, outside check mode
  type: int
there:
  description: How many files the destination had already, with the same checksum.
  returned: success, outside check mode
  type: int
"""
