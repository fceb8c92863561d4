# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The store, as the actions take it."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  store:
    description: The store. The role P(gpuval.fleet.gpuval#role) builds it from its variables.
    type: dict
    required: true
    suboptions:
      bucket:
        description: Name of the bucket.
        type: str
        required: true
      create_bucket:
        description: Create the bucket if it does not exist.
        type: bool
        default: false
      endpoint:
        description: URL of the S3 service; empty is the embedded store.
        type: str
        default: ''
      region:
        description: Region of the service.
        type: str
        default: us-east-1
      access_key:
        description: Access key with write permission.
        type: str
        default: ''
      secret_key:
        description: Secret of O(store.access_key).
        type: str
        default: ''
      session_token:
        description: Session token of O(store.access_key).
        type: str
        default: ''
      read_access_key:
        description: Read-only access key, with which nodes load models.
        type: str
        default: ''
      read_secret_key:
        description: Secret of O(store.read_access_key).
        type: str
        default: ''
      secrets:
        description: Values of job secrets by variable.
        type: dict
        default: {}
      secrets_file:
        description: File with more secrets; C(KEY) of an object C(NAME) is C(NAME_KEY).
        type: str
        default: ''
      ca_file:
        description: Certificate authority of the service.
        type: str
        default: ''
      state_dir:
        description: Folder of the controller's state.
        type: str
        default: .gpuval
      results_dir:
        description: Folder of the controller's runs; one at work keeps the embedded store at its address and port.
        type: str
        default: ''
      address:
        description: Address that the embedded store listens on; empty is loopback.
        type: str
        default: ''
      port:
        description: Port of the embedded store; V(0) chooses one.
        type: int
        default: 0
"""
