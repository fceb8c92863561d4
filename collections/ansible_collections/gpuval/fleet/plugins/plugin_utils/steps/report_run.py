"""Write a judged run's report and upload it, or print the FINAL ACCEPTANCE block and fail unless the run passed."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ansible import constants

from ...module_utils.store import StoreError, upload
from ..artifacts import images
from ..core.errors import GpuvalError
from ..core.paths import project_path
from ..core.step_options import StoreOptions
from ..judge.repairs import withhold_acceptance
from ..report import acceptance, health, write_forms
from ..report.markdown import job_summary
from ..runs import cleanable, origin
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions
from ..store.access import open_store, put_run

CALLBACK = "gpuval.fleet.acceptance"
ACCEPTED = ("PASS", "PARTIAL")


def report_run(
    action: RunAction,
    options: RunOptions,
    *,
    state: Literal["written", "announced"] = "written",
    store: StoreOptions | None = None,
    perf_file: Path | None = None,
    health_file: Path | None = None,
    repairs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    if action.check_mode:
        return {"changed": False, "skipped": True}
    folder = action.folder(options)
    report = run_folder.read_report(folder)
    if state == "announced":
        return _announce(action, folder, report)
    built = images.read_catalogue(project_path(store["state_dir"])) if store else {}
    forms = write_forms(report, folder.path, perf_file, built).values()
    paths = [*(path for path in forms if path.parent == folder.path), folder.path / "report.json"]
    was_judged = run_state.of(folder.read_run())["name"] == run_state.JUDGED
    run = folder.conclude()
    if folder.is_imported:  # only its own controller writes to the store, and marks nodes
        store = health_file = None
    if store is not None:
        if run_folder.goes_on(folder, run):
            action.display.warning(
                f"run {run['run_id']} has not ended: its report is here as it stands, and not in the store. "
                f"{folder.seen().resume or run_state.RESUME}"
            )
        else:
            if run["finished_at"] is None and folder.seen().overdue:
                action.display.warning(
                    f"run {run['run_id']} has not ended: nodes may still send their last records. `make report` "
                    f"ends it from {run_folder.DEADLINE_SLACK_SECONDS:.0f} s after its deadline"
                )
            _upload(action, store, folder, run, [*paths, folder.verdict_file])
            if run["finished_at"] is not None and not was_judged:
                # no node has anything more to write, unless another run is at work with the store
                active = [open_run.path.name for open_run in cleanable.active(folder.results, origin.store_of(store))]
                try:
                    if not {*active} - {folder.path.name}:
                        open_store(store).end_urls()
                except StoreError as error:
                    action.display.warning(f"the signed URLs of nodes stay valid until the run's deadline: {error}")
    if health_file and run["finished_at"]:
        try:
            withhold_acceptance(report, folder, repairs, action.display.warning)
            health.update(health_file, report)
        except (GpuvalError, OSError) as error:  # only a warning: the verdict is announced next
            action.display.warning(f"the verdicts are not in gpuval_health_file: {error}")
    return {"changed": True, "files": [str(path) for path in paths], "msg": f"report in {folder.path}"}


def _upload(action, store, folder, run, report_files):
    """Upload the report files. A failure is only a warning: the results have the report."""
    criteria = [path for path in [folder.criteria_file] if path.exists()]
    warning = "the report was not uploaded: {}"
    try:
        access = open_store(store)
        connection = access.connection()
        with access.held():  # another console of the run may end the nodes' URLs, which restarts the store
            for files, prefix in ((report_files, f"{run['folder']}/report"), (criteria, run["folder"])):
                uploaded = upload(connection, [str(path) for path in files], prefix, check_mode=False)
                if uploaded.get("failed"):
                    action.display.warning(warning.format(uploaded["msg"]))
                    return
            put_run(access.store(), run)
    except StoreError as error:
        action.display.warning(warning.format(error))


def _announce(action, folder, report):
    if CALLBACK not in constants.config.get_config_value("CALLBACKS_ENABLED"):
        action.display.display(*acceptance(folder.path / "report.json").split("\n"))
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):  # in GitHub Actions the verdict is on the page of the job, too
        try:
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(job_summary(report))
        except OSError as error:
            action.display.warning(f"the verdict was not written to the job summary {path}: {error.strerror}")
    verdict = report["verdict"]
    return {
        "changed": False,
        "failed": verdict not in ACCEPTED,
        "acceptance_report": str(folder.path / "report.json"),
        "verdict": verdict,
        "msg": f"FINAL ACCEPTANCE: {verdict}; read {folder.path / 'report.html'}",
    }
