# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
name: model_folder
short_description: Folder of a model in the store
version_added: 0.1.0
author: gpuval contributors (@gpuval)
description:
  - The name the Hugging Face cache gives a repository, C(models--org--name); for a local folder, its name.
options:
  _input:
    description: C(tiny), a hub repository or a folder.
    type: str
    required: true
"""

EXAMPLES = r"""
folder: "{{ 'meta-llama/Llama-3.1-8B-Instruct' | gpuval.fleet.model_folder }}"
"""

RETURN = r"""
_value:
  description: Name of the folder.
  type: str
  sample: models--meta-llama--Llama-3.1-8B-Instruct
"""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.model_source import folder_name


class FilterModule:
    def filters(self):
        return {"model_folder": folder_name}
