#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: store_upload
short_description: Upload files into the object store
version_added: 1.0.0
description:
  - Puts files and folders under a prefix of a bucket. What is there already with the same content is left alone.
  - In a playbook the O(store) of the roles may be given instead of a connection. It finds the embedded store too, and
    the files are the controller's, wherever the task is sent.
extends_documentation_fragment: [gpuval.fleet.common]
requirements:
  - boto3
attributes:
  check_mode:
    description: Compares, and uploads nothing.
options:
  src:
    description: Files and folders; a folder is uploaded with what is in it, below its own name.
    type: list
    elements: path
    required: true
  prefix:
    description: Key prefix in the bucket.
    type: str
    required: true
  store:
    description: The store as the role P(gpuval.fleet.gpuval#role) describes it. Used by the action plugin.
    type: dict
  bucket:
    description: The bucket.
    type: str
  endpoint:
    description: URL of the S3 service; empty is AWS.
    type: str
  region:
    description: Region of the service.
    type: str
    default: us-east-1
  access_key:
    description: Access key; empty uses boto3's credential chain.
    type: str
  secret_key:
    description: Secret of the key.
    type: str
  session_token:
    description: Session token of the key.
    type: str
  ca_file:
    description: Certificate authority of the service.
    type: path
  direct:
    description: Bypass the proxies of the environment.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Keep a log with the run
  gpuval.fleet.store_upload:
    src: [/var/log/dmesg]
    prefix: acceptance/extra
    bucket: gpuval
    endpoint: https://s3.example.com
    access_key: "{{ my_access_key }}"
    secret_key: "{{ my_secret_key }}"
"""

RETURN = r"""
uploaded:
  description: Keys that were written.
  returned: success
  type: list
  elements: str
unchanged:
  description: Keys that held the same content already.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, upload


def main():
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "list", "elements": "path", "required": True},
            "prefix": {"type": "str", "required": True},
            "store": {"type": "dict", "no_log": True},
            "bucket": {"type": "str"},
            "endpoint": {"type": "str"},
            "region": {"type": "str", "default": "us-east-1"},
            "access_key": {"type": "str", "no_log": True},
            "secret_key": {"type": "str", "no_log": True},
            "session_token": {"type": "str", "no_log": True},
            "ca_file": {"type": "path"},
            "direct": {"type": "bool", "default": False},
        },
        required_one_of=[("store", "bucket")],
        supports_check_mode=True,
    )
    parameters = module.params
    keys = ("bucket", "endpoint", "region", "access_key", "secret_key", "session_token", "ca_file", "direct")
    connection = Connection(**{key: parameters[key] for key in keys})
    result = upload(connection, parameters["src"], parameters["prefix"], check_mode=module.check_mode)
    if result.get("failed"):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
