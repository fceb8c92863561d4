"""Finds the runs that `make clean` handles: those of an inventory and namespace that may have left something."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.text import natural_order
from ..records.documents import LAUNCHED
from . import folder as run_folder
from . import origin, state


@dataclass
class Cleanable:
    """Ids of runs. Of the inventory and namespace to clean: `latest`, `all`, and `left` for those that may have left
    something. `active`: runs of any inventory that need the store. Runs that this clean does not handle and that may
    have left something: `others` by inventory, `elsewhere` by namespace."""

    latest: str = ""
    left: list[str] = field(default_factory=list)
    all: list[str] = field(default_factory=list)
    active: list[str] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    elsewhere: dict[str, list[str]] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Lines on runs of other inventories and namespaces, which this clean leaves, and how to clean them."""
        notes = []
        if self.others:
            notes.append(f"runs of other inventories stay: {origin.others_line(self.others, 'clean', most=8)}")
        for namespace, run_ids in sorted(self.elsewhere.items()):
            notes.append(f"in {namespace or 'SSH hosts'} stay {', '.join(run_ids)}: clean there, with the settings "
                         "that they had (gpuval_namespace, gpuval_kubeconfig, SLURM_CONF)")  # fmt: skip
        return notes


def find(results: Path, inventory: Sequence[str], places: Sequence[str], store: str) -> Cleanable:
    """Sort the runs of this controller for a clean. `places`: names of the cluster and namespace to clean, the exact
    one first; `store`: description of the store, as run.json has it."""
    cleanable, times = Cleanable(active=[folder.path.name for folder in active(results, store)]), []
    for folder in run_folder.known_runs(results):
        run_id, run = folder.path.name, run_folder.read_object(folder.run_file)
        run_origin = run.get("origin") or {}
        has_keys = (folder.state / "ssh").exists()  # `make keys` may add SSH keys after a clean
        open_ended = "finished_at" not in run or has_keys or state.to_clean(run)
        inventory_of_it = folder.inventory
        if not origin.is_same(inventory_of_it, inventory):
            if open_ended:
                cleanable.others.setdefault(origin.shown(inventory_of_it), []).append(run_id)
        elif run_origin.get("namespace", places[0]) not in places:
            if open_ended:
                cleanable.elsewhere.setdefault(run_origin["namespace"], []).append(run_id)
        else:
            times.append((state.opened_at(run), run_id))
            cleanable.all.append(run_id)
            if open_ended:
                cleanable.left.append(run_id)
    cleanable.latest = max(times)[-1] if times else ""
    return cleanable


def active(results: Path, store: str = "") -> Iterator[run_folder.RunFolder]:
    """Active runs that need the store. `store`: end of its description in run.json; empty: any store."""
    for folder in run_folder.known_runs(results):
        store_name = (run_folder.read_object(folder.run_file).get("origin") or {}).get("store") or store
        if store_name.endswith(store) and needs_store(folder):
            yield folder


def needs_store(folder: run_folder.RunFolder) -> bool:
    """Whether a run is unfinished, within its deadline, and did not fail before a node began."""
    try:
        return run_folder.goes_on(folder, folder.read_run()) and not folder.seen().never_started
    except (run_folder.RunError, ValueError):
        return False


def launched(folder: run_folder.RunFolder) -> list[str]:
    """Names of the nodes on which the run was launched."""
    return [name for name, launch in folder.read_launches().items() if launch.get("state") in LAUNCHED]


def at_work(results: Path, cleaned: Collection[str], nodes: Iterable[str]) -> dict[str, list[str]]:
    """{run id: nodes} of active runs that still use some of `nodes`, without the runs in `cleaned`."""
    busy = {one.path.name: sorted({*launched(one)} & {*nodes}, key=natural_order) for one in active(results)}
    return {run_id: on for run_id, on in busy.items() if on and run_id not in cleaned}


def beside(folder: run_folder.RunFolder, node: str, run_id: str, remedy: str) -> str:
    """Complete the remedy of a launch that `node` refused, since it is busy with the run `run_id`: add the inventory
    for `make clean`, and how to resume that run if its controller is gone. A run of this controller is named only if it
    was launched on the node: a node must not choose which run is ended."""
    run_path = folder.path.parents[1] if (folder.path.parent / "gangs.json").exists() else folder.path  # a round's run
    results, short = run_folder.RunFolder(run_path).results, f"`make clean RUN={run_id}`"
    blocking_run = run_folder.find(results, run_id)
    if not blocking_run.run_file.exists():
        return remedy.replace(short, command(results, run_id, of=run_path.name))
    if not (needs_store(blocking_run) and blocking_run.read_launch(node).get("state") in LAUNCHED):
        return remedy.replace(short, "`make clean RUN=ID`")
    if resume := blocking_run.seen().resume.removesuffix(" resumes it"):
        remedy = remedy.replace("wait for that run", f"resume that run ({resume}), wait for it", 1)
    return remedy.replace(short, command(results, run_id))


def command(results: Path, run_id: str, *, of: str = "") -> str:
    """The `make clean` command for one run; `of`: id of another run whose inventory to name."""
    inventory = origin.shown(run_folder.find(results, of or run_id).inventory)
    return f"`make clean{f' INVENTORY={shlex.quote(inventory)}' if inventory else ''} RUN={run_id}`"
