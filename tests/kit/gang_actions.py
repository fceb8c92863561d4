"""Actions that open a run of gangs and write its hostfile, in this process."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import find

from tests.kit.actions import run_action, vars_of
from tests.kit.options import run_options


def hosts_of(names):
    return vars_of({name: {"ansible_host": f"10.0.0.{place}"} for place, name in enumerate(names, 1)})


def open_run(results, run_id, hosts, *, alone, **options):
    """Open a run of one stage of a node and one of gangs; returns the outcome, and the run where there is one."""
    of_gangs = {
        "gang_stages": ["fabric"],
        "gangs_alone": alone,
        "workloads": {"facts": {"command": ["true"]}, "fabric": {"command": ["true"], "needs": ["facts"]}},
        "deadline_seconds": 60,
    }
    options = run_options(results, run_id, **{**of_gangs, **options})
    done = run_action("open_run", options, task_vars=hosts_of(hosts))
    return done, None if done.failed else find(results, run_id).read_run()


def write_hostfile_of(bed, *, check_mode=False, **options):
    options = {"run_id": bed.folder.path.name, "results_dir": str(bed.folder.path.parent), **options}
    return run_action("write_hostfile", options, task_vars=hosts_of(bed.gang.nodes), check_mode=check_mode)
