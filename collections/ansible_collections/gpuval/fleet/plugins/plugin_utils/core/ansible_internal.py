"""What the collection uses of ansible-core and it does not publish. Raises AnsibleError where it has none of it."""

from __future__ import annotations

from ansible.errors import AnsibleError
from ansible.release import __version__

#: As `requires_ansible` in meta/runtime.yml, which Ansible itself only warns of.
OLDEST = "2.19"

try:
    from ansible._internal._datatag._tags import Origin
    from ansible._internal._templating._jinja_bits import AnsibleEnvironment, _TemplateCompileContext
except ModuleNotFoundError:
    raise AnsibleError(
        f"gpuval needs ansible-core {OLDEST} or newer, and this is {__version__}: in an environment of Python 3.11 or "
        f"newer, pip install 'ansible-core>={OLDEST}'"
    ) from None

__all__ = ["AnsibleEnvironment", "Origin", "_TemplateCompileContext"]
