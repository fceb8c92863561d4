# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

DOCUMENTATION = r"""
name: workloads
short_description: What stages declare, as a host's variables make it
version_added: 2.0.0
author: gpuval contributors (@gpuval)
description:
  - Stages that ship, and those of C(gpuval_extensions), have defaults that every variable of the host overrides.
  - The variable C(x_workload) declares any other stage C(x).
options:
  _terms:
    description: Names of stages. Without any, the names of all stages that ship or that an extension has are returned.
    type: list
    elements: str
"""

EXAMPLES = r"""
run_workloads: "{{ lookup('gpuval.fleet.workloads', ['facts', 'training']) }}"
"""

RETURN = r"""
_raw:
  description: By name the declaration of each stage, empty for one that is not declared; or names.
  type: list
  elements: raw
"""

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError


class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        extensions.use_setting(self._templar, variables)
        try:
            if not terms:
                return list(extensions.found("stages"))
            values = stages.with_variables(self._templar, variables)
        except GpuvalError as error:
            raise AnsibleLookupError(str(error)) from error
        templar = self._templar.copy_with_new_env(available_variables=values)
        declarations = {name: values.get(f"{name}{stages.WORKLOAD}", {}) for name in self._flatten(terms)}
        return [templar.template(declarations)]
