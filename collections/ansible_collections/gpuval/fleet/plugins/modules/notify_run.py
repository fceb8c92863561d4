#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: notify_run
short_description: Send the end of a judged run to a webhook
version_added: 1.0.0
description:
  - Sends a CloudEvent 1.0 with the verdict and the nodes that are not PASS, with their actions.
  - The form of its data is C(schemas/event.schema.json).
  - The event is signed with HMAC-SHA256 as Standard Webhooks has it, in the headers C(webhook-id), C(webhook-timestamp)
    and C(webhook-signature).
  - An event that was delivered is not sent again. A run that goes on, and one of another controller, sends none.
  - A webhook that fails is a warning. It changes no verdict, and the task does not fail.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
options:
  url:
    description: URL of the webhook, https:// beyond this machine.
    type: str
    required: true
  key:
    description: Key of the signature, 16 characters or more.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Send the end of the latest run
  gpuval.fleet.notify_run:
    url: https://hooks.example.org/gpuval
    key: "{{ vault_webhook_key }}"
  run_once: true
"""

RETURN = r"""
delivered:
  description: Whether the webhook has received the event, now or earlier.
  returned: success
  type: bool
attempts:
  description: Number of attempts; V(0) where nothing was sent.
  returned: success
  type: int
event_id:
  description: Id of the event; the same content has the same id.
  returned: where the run has ended
  type: str
"""
