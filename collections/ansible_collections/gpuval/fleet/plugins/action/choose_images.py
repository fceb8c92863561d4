# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which images the controller has to make for the nodes of a play, in an order that can be built."""

from __future__ import annotations

import yaml

from ..plugin_utils.artifacts import images
from ..plugin_utils.core import schemas
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        wanted = images.merge(options["images"])
        bases = {"vendors": {}}
        if any(item.way == "build" for item in wanted):
            bases = read_bases(project_path(options["folder"]) / "bases.yml")
        ordered = images.with_bases(wanted, bases, options["vendor"])
        pulled = [item.reference for item in wanted if item.way == "registry"]
        return {
            "changed": False,
            "make": [{**vars(item), "arguments": dict(item.arguments)} for item in ordered],
            "pulled": pulled,
        }


def read_bases(path):
    """What each image is built on. Raises ``ImagesError``."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise images.ImagesError(
            f"{path} cannot be read ({error}): set container_image_folder to the folder docker/ of the project"
        ) from error
    schemas.validate("bases", document, what=str(path))
    return document
