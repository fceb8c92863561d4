"""What the collection's inventory plugins share."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible.plugins.inventory import BaseInventoryPlugin


class NamedSource(BaseInventoryPlugin):
    """A YAML file is a plugin's own when it names the plugin, whatever the file is called."""

    def verify_file(self, path):
        if not super().verify_file(path) or not path.endswith((".yml", ".yaml")):
            return False
        try:
            document = yaml.safe_load(Path(path).read_text())
        except (OSError, ValueError, yaml.YAMLError):
            return False
        return isinstance(document, dict) and document.get("plugin") == self.NAME
