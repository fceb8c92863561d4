"""Send images over the management connection to a node that does not reach the store."""

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ..artifacts import images
from ..core.escape import one_line
from ..core.paths import project_path
from ..runs.action import RunAction, RunOptions
from ..store.access import open_store
from ..watch import launch_inputs
from ..watch.launch_inputs import ProbeOptions

PIECE_BYTES = 32 << 20
PROGRESS_SECONDS = 10.0
TRIES = 3
DD = "bs=1M iflag=fullblock conv=notrunc status=none"


class SendImageOptions(RunOptions, ProbeOptions):
    directory: str = ""
    #: `gpuval_images`, by name; and the references of the images that the node's stages use.
    images: Mapping[str, Any]
    references: Sequence[str] = ()
    runtime: str = "auto"
    #: `auto` sends over the connection where the node does not reach the store, `ssh` always.
    transfer: Literal["auto", "store", "ssh"] = "auto"
    #: Time limit for all images together.
    timeout_seconds: float = 3600.0


def send_image(action: RunAction, options: SendImageOptions) -> dict[str, Any]:
    """Send images to a node. A node that is unreachable or has no space is no failure: its image stage reports it."""
    reachable = open_store(options.store).reachable_from_nodes(action._connection.transport)
    if options.transfer == "store" or (options.transfer == "auto" and reachable):
        return {"changed": False, "msg": "the node gets its images from the store"}
    node = action.task_vars["inventory_hostname"]
    if launch_inputs.still_unreachable(action.folder(options), node, options, action.task_vars, action.connection):
        return {"changed": False, "brought": False, "msg": "the node does not answer"}
    state = project_path(options.store["state_dir"])
    plan = images.image_plan(options.images, options.runtime, images.read_catalogue(state), options.references)
    deadline = time.monotonic() + options.timeout_seconds
    sent = {}
    try:
        for reference, image in plan.items():
            if image["archive"]:
                sent[reference] = _send(action, options, state, image, deadline)
    except (AnsibleConnectionFailure, AnsibleError, images.ImagesError) as error:
        message = one_line(f"its images could not be brought over the connection: {error}", 1000)
        action.display.warning(f"{node}: {message}")
        return {"changed": any(sent.values()), "brought": False, "sent_bytes": sum(sent.values()), "msg": message}
    return {"changed": any(sent.values()), "brought": True, "sent_bytes": sum(sent.values())}


def _send(action, options, state, image, deadline):
    """Send the archive of an image in a plan, unless the node has the image; return how many bytes were sent. `state`:
    the controller's state folder; `deadline`: monotonic."""
    archive = image["archive"]
    path = images.archive_file(state, archive["sha256"])
    arguments = {
        "directory": options.directory,
        "sha256": archive["sha256"],
        "size_bytes": archive["bytes"],
        "image_id": image["id"] or "",
        "runtime": options.runtime,
    }
    sent = 0
    for _ in range(TRIES):
        node_state = _look(action, arguments)
        if action.check_mode or node_state["state"] != "missing":
            return sent
        if not path.is_file():
            raise images.ImagesError(f"{path} is gone: run the playbook gpuval.fleet.build again")
        sent += _append(action, path, node_state["part"], node_state["have"], archive["bytes"], deadline)
    if _look(action, arguments)["state"] == "missing":
        raise images.ImagesError(f"an image's archive arrived damaged {TRIES} times")
    return sent


def _look(action, arguments):
    outcome = action.ask_node("send_image", arguments)
    if outcome.get("failed") or outcome.get("unreachable"):
        raise images.ImagesError(outcome.get("msg") or outcome.get("module_stderr") or "the node does not answer")
    if not 0 <= outcome.get("have", -1) <= arguments["size_bytes"] or not outcome.get("part") or "state" not in outcome:
        raise images.ImagesError("the node's answer does not say how much of the image is there")
    return outcome


def _append(action, path, part, have, size, deadline):
    """Send an archive's bytes from `have` on to the file `part` on the node; return how many of `size` were sent. Each
    piece has its offset, so sending it twice does no harm. `deadline`: monotonic."""
    if not getattr(action._connection, "has_pipelining", False):  # without input, send the file as a whole
        action._connection.put_file(str(path), part)
        return size
    at, shown_at = have, time.monotonic()
    with path.open("rb") as stream:
        stream.seek(have)
        while piece := stream.read(PIECE_BYTES):
            if time.monotonic() > deadline:
                raise images.ImagesError(
                    f"{at / 1e9:.1f} of {size / 1e9:.1f} GB came in time and are kept: run again, or give "
                    "run_send_seconds more"
                )
            command = f"dd of={shlex.quote(part)} oflag=seek_bytes seek={at} {DD}"
            outcome = action._low_level_execute_command(command, in_data=piece)
            if outcome["rc"] != 0:
                raise images.ImagesError(f"the node cannot write {part}: {outcome['stderr'] or outcome['stdout']}")
            at += len(piece)
            if time.monotonic() - shown_at > PROGRESS_SECONDS:
                shown_at = time.monotonic()
                action.display.display(f"{action._task.name}: {at / 1e9:.1f} of {size / 1e9:.1f} GB")
    return at - have
