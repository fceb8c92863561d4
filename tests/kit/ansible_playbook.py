"""`ansible-playbook` for a fifth less CPU: with bytecode that is kept, and without looks for garbage.

Ansible compiles each file of a collection in every process, and looks a dozen times through the objects of its modules.
"""

import gc
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionPkgLoaderBase as Loader

PROGRAM = [sys.executable, "-P", __file__]  # -P: modules beside this one have names that others have, too


def keep_bytecode():
    """Collections have `__pycache__`, as other packages do."""
    compiled = Loader.get_code

    def get_code(self, fullname):
        path = self._source_code_path
        return SourceFileLoader(fullname, path).get_code(fullname) if path else compiled(self, fullname)

    Loader.get_code = get_code


if __name__ == "__main__":
    gc.disable()
    sys.dont_write_bytecode = False
    sys.argv[0] = str(Path(sys.executable).with_name("ansible-playbook"))
    keep_bytecode()
    from ansible.cli.playbook import main

    main()
