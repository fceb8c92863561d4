"""`ansible-playbook` for a fifth less CPU: with bytecode that is kept, and without looks for garbage.

Ansible looks a dozen times through the objects of its modules.
With the modules imported before a fork (``Fleet``) it takes half of the rest.
"""

import gc
import importlib
import os
import sys
import warnings
from pathlib import Path

PROGRAM = [sys.executable, "-P", __file__]  # -P: modules beside this one have names that others have, too
ROOT = Path(__file__).resolve().parents[2]
#: What Ansible reads when it is imported.
SETTINGS = {
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests/kit/callback"),
    "ANSIBLE_CALLBACKS_ENABLED": "recap,gpuval.fleet.acceptance",
    "ANSIBLE_NOCOLOR": "1",
}


def be_quick():
    """Keep the bytecode that the collection writes, and never look for garbage."""
    gc.disable()
    sys.dont_write_bytecode = False


def preload():
    """For processes that tests/kit/fork_server.py forks, with SETTINGS."""
    os.environ.update(SETTINGS)
    be_quick()
    importlib.import_module("ansible.cli.playbook")
    importlib.import_module("ansible.plugins.loader").init_plugin_loader()
    warnings.filterwarnings("ignore", "AnsibleCollectionFinder has already been configured")
    plugins = "ansible_collections.gpuval.fleet.plugins"
    for package in ("action", "plugin_utils.steps"):
        for path in (ROOT / "collections" / f"{plugins}.{package}".replace(".", "/")).glob("*.py"):
            importlib.import_module(f"{plugins}.{package}.{path.stem}")
    importlib.import_module(f"{plugins}.plugin_utils.watch.launch_inputs").archives()  # kept by the function


if __name__ == "__main__":
    if preloaded := sys.modules.get("ansible.constants"):
        importlib.reload(preloaded)  # with this process's environment
    else:
        be_quick()
    sys.argv[0] = str(Path(sys.executable).with_name("ansible-playbook"))
    from ansible.cli.playbook import main

    main()
