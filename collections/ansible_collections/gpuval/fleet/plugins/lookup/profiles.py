# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

DOCUMENTATION = r"""
name: profiles
short_description: Profiles that ship, and those of gpuval_extensions
version_added: 2.0.0
author: gpuval contributors (@gpuval)
description:
  - A profile is a file C(profiles/NAME.yml).
options:
  _terms:
    description: Which part of each profile - C(stages), C(gang_stages) or C(settings).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
gpuval_profiles: "{{ lookup('gpuval.fleet.profiles', 'stages') }}"
"""

RETURN = r"""
_raw:
  description: The part of each profile, by name.
  type: list
  elements: dict
"""

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError


class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        extensions.use_setting(self._templar, variables)
        try:
            known = stages.profiles()
        except GpuvalError as error:
            raise AnsibleLookupError(str(error)) from error
        return [{name: getattr(profile, part) for name, profile in known.items()} for part in terms]
