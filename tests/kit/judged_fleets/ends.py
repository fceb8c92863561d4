"""Ends of stages: every state, fault and message, of stages that ship, of datasets, of users' own work and of gangs."""

import itertools

from tests.kit.builders import check, make_record, metric, training_metrics
from tests.kit.judged_fleets.fleet import Fleet, fleet

STATES = ("success", "failure", "crash", "timeout", "skipped", "cancelled", "pending", "running")
FAULTS = ("delivery", "no_image", "no_rclone", "no_server", "store_incomplete", "store_away", "another")
MESSAGES = {
    "nothing": "",
    "disk": "exit code 1: OSError: [Errno 28] No space left on device",
    "read-only": "[Errno 30] Read-only file system: '/var/lib/gpuval'",
    "digest": "dataset cifar10: wrong checksum: a/b.bin did not match SHA256SUMS",
    "engine": "no container engine: Cannot connect to the Docker daemon",
    "package": "multi-node stages need Python packages that the node's image lacks: torch",
    "image": "cannot start: image pytorch:2.11 is not on this node: pull it",
    "other-run": "run run-0 is at work on this node",
    "foreign": "gave way: others use this node's accelerators or run here: python (pid 7)",
    "store": "exit code 3 without a result: the store refuses the read-only key",
    "signal": "killed by SIGKILL; probably out of memory: the kernel killed it",
}
OF_STAGES = ("image", "loading", "inference", "training", "dataset_cifar10", "my_job")
LOST = {"class": "lost_contact", "message": "no sign for 300 s", "remedy": "look at {node}, then validate again"}
POD = {"class": "preempted", "message": "a pod of higher priority", "remedy": "wait, then validate again", "pod": "p"}
BUSY_USERS = {"accelerator_users": [{"process": "python (pid 7)"}]}


def _ended(stage, name, *, of_gang=False, checks=None, **run_fields):
    ended = Fleet(name, stages=["facts", stage], checks=[] if checks is None else checks, **run_fields)
    for node in name:
        ended.node(node)["gang_stages"] = [stage] if of_gang else []
    return ended


def _of_each_stage(stage, *, of_gang=False):
    cases = {
        f"{state}-{fault}".replace("_", "-"): (state, fault)
        for state, fault in itertools.product(("failure", "crash", "timeout", "cancelled"), FAULTS)
    }
    states = {f"only-{state}": state for state in STATES}
    messages = {
        f"{state}-says-{word}": (state, text)
        for state, (word, text) in itertools.product(("failure", "crash", "cancelled", "skipped"), MESSAGES.items())
    }
    odd = ("no-record", "refused", "lost", "lost-crash", "pod-cancelled", "pod-running", "beside-others",
           "beside-others-running", "not-begun", "signal", "exit-code", "runner-ended", "runner-memory")  # fmt: skip
    ended = _ended(stage, [*cases, *states, *messages, *odd], of_gang=of_gang)
    gang = {"gang": {"name": "all", "nodes": 2}} if of_gang else {}
    for node, (state, fault) in cases.items():
        ended.replace(node, stage, state=state, environment={**gang, "fault": fault}, message=f"says {fault}")
    for node, state in states.items():
        ended.replace(node, stage, state=state, environment={**gang})
    for node, (state, text) in messages.items():
        ended.replace(node, stage, state=state, message=text, environment={**gang})
    ended.drop("no-record", stage)
    ended.drop("refused", stage)
    ended.evidence.add_problem("record refused: 2 bytes", node="refused", stage=stage)
    ended.drop("lost", stage)
    for node in ("lost", "lost-crash"):
        ended.launch(node, "started", contact=LOST)
    ended.replace("lost-crash", stage, state="crash")
    ended.replace("pod-cancelled", stage, state="cancelled", message="SIGTERM")
    ended.replace("pod-running", stage, state="running", finished_at=None)
    for node in ("pod-cancelled", "pod-running"):
        ended.launch(node, "started", contact=POD)
    ended.replace("beside-others", stage, state="crash", environment={**gang, **BUSY_USERS})
    ended.replace("beside-others-running", stage, state="running", environment={**gang, **BUSY_USERS})
    no_image = {**gang, "fault": "no_image"}
    ended.replace("not-begun", stage, state="crash", environment=no_image, exit_code=None, started_at=None)
    ended.replace("signal", stage, state="crash", environment=no_image, exit_code=None, signal="SIGKILL")
    ended.replace("exit-code", stage, state="crash", environment=no_image, exit_code=1)
    ended.replace("runner-ended", stage, state="running")
    ended.launch("runner-ended", "finished", ended="the runner ended with exit code 1")
    ended.drop("runner-memory", stage)
    ended.launch("runner-memory", "finished", ended="the kernel killed the runner: out of memory")
    return ended


def _register(stage, of_gang):
    def ends(_folder):
        return _of_each_stage(stage, of_gang=of_gang).judged()

    ends.__name__ = f"ends_of_{stage}" + ("_together" if of_gang else "")
    ends.__doc__ = f"Every end of the stage {stage}{', which nodes run together' if of_gang else ''}."
    fleet(ends)


for _stage in OF_STAGES:
    _register(_stage, of_gang=False)
for _stage in ("collective", "my_job"):
    _register(_stage, of_gang=True)


@fleet
def ends_of_cleaned_runs(_folder):
    """A clean ended the run: by the whole evidence, then by problems of some stages."""
    states = {f"clean-{state}": state for state in STATES}
    cleaned = _ended("training", [*states, "gone", "lost"])
    for node, state in states.items():
        cleaned.replace(node, "training", state=state)
    cleaned.drop("gone", "training")
    cleaned.drop("lost", "training")
    cleaned.launch("lost", "started", contact=LOST)
    cleaned.evidence.cleaned = True
    whole = cleaned.judged()
    cleaned.evidence.cleaned = False
    for node in ("clean-running", "gone", "lost"):
        cleaned.evidence.add_problem("the run was ended by another command (clean)", node=node, stage="training")
    return {"whole": whole, "some": cleaned.judged()}


@fleet
def ends_of_open_runs(_folder):
    """The controller of the run is gone, and may resume it."""
    states = {f"open-{state}": state for state in STATES}
    open_run = _ended("training", [*states, "gone", "lost", "refused-launch", "not-launched", "bad-and-open"])
    for node, state in states.items():
        open_run.replace(node, "training", state=state)
    open_run.drop("gone", "training")
    open_run.drop("lost", "training")
    open_run.launch("lost", "started", contact=LOST)
    open_run.never_started("refused-launch", "refused", "no container engine")
    open_run.never_started("not-launched")
    open_run.replace("bad-and-open", "training", state="running")
    open_run.replace("bad-and-open", "facts", state="crash")
    open_run.evidence.resume = "`make validate` resumes it"
    return open_run.judged()


@fleet
def attempts(_folder):
    """Earlier attempts that crashed, lacked memory or disk, were cut off, were wrong, or were of other rounds."""
    causes = {
        "crashed": ("crash", "exit code 1"),
        "timed-out": ("timeout", ""),
        "said-no": ("failure", "3 requests failed"),
        "memory-runner": ("crash", "killed by SIGKILL; out of memory: the kernel killed 2 of its processes"),
        "memory-pod": ("crash", "OOMKilled: the kernel killed the container"),
        "disk": ("crash", MESSAGES["disk"]),
        "cut-off": ("crash", "cut off (last seen 2026-11-20T10:00:00Z); running"),
        "pod-ended": ("crash", "its container ended without a final record (killed)"),
        "cancelled": ("cancelled", "SIGTERM"),
        "running": ("running", ""),
        "pending": ("pending", ""),
        "skipped": ("skipped", ""),
        "success": ("success", ""),
    }
    odd = ("same-attempt-crash", "same-attempt-running", "same-attempt-cut-off", "unrelated", "twice", "worst-first",
           "wrong-then-right", "slow-then-fast", "slow-twice", "wrong-while-running", "not-a-count-while-running",
           "of-round", "failed-at-last", "flaky-and-failed")  # fmt: skip
    checks = [
        *Fleet(["a"]).checks,
        check("errors", metric="training_error_count", kind="max", value=0, where_reported=True),
        check("loss", metric="training_loss_last", kind="max", value=5),
        check("seen", metric="training_seen_count", kind="min", value=1, where_reported=True),
    ]
    tried = Fleet([*causes, *odd], checks=checks)
    for node, (state, message) in causes.items():
        tried.attempt(node, "training", state=state, message=message, metrics=[])
    for node in ("same-attempt-crash", "same-attempt-running", "same-attempt-cut-off"):
        state = node.removeprefix("same-attempt-")
        text = "cut off (last seen 2026)" if state == "cut-off" else ""
        tried.attempt(node, "training", state="crash" if text else state, message=text, metrics=[], attempt=2)
    tried.attempt("unrelated", "training", state="crash", unrelated=True, metrics=[])
    tried.attempt("twice", "training", state="cancelled", metrics=[])
    tried.attempt("twice", "training", state="crash", message="exit code 1", metrics=[])
    tried.attempt("worst-first", "training", state="crash", message="exit code 1", metrics=[])
    tried.attempt("worst-first", "training", state="crash", message=MESSAGES["disk"], metrics=[])
    wrong = [*training_metrics(), metric("training_error_count", 2), metric("training_seen_count", 0)]
    tried.attempt("wrong-then-right", "training", state="failure", metrics=wrong)
    tried.attempt("wrong-while-running", "training", state="running", metrics=wrong)
    lost = [metric("training_loss_last", 9.0, "loss"), metric("training_error_count", None)]
    tried.attempt("not-a-count-while-running", "training", state="running", metrics=lost)
    tried.attempt("of-round", "training", state="failure", metrics=wrong, of_round="all")
    tried.attempt("slow-then-fast", "training", metrics=training_metrics(tflops=100.0))
    tried.record("slow-twice", "training", metrics=training_metrics(tflops=100.0))
    tried.attempt("slow-twice", "training")
    tried.attempt("failed-at-last", "training", state="crash", metrics=[])
    tried.record("failed-at-last", "training", state="crash", metrics=[])
    tried.attempt("flaky-and-failed", "training", state="crash", metrics=[])
    tried.replace("flaky-and-failed", "inference", state="crash")
    return tried.judged()


@fleet
def faults_before_the_end(_folder):
    """Stages that never ended: what they counted stays, whatever is unknown of the node."""
    nodes = ("counted", "not-counted", "earlier", "no-facts", "not-a-number", "gave-way", "gave-way-slow",
             "beside-others-slow", "beside-others-fine", "cancelled-for-another-reason", "no-record")  # fmt: skip
    checks = [
        *Fleet(["a"]).checks,
        check("errors", metric="training_error_count", kind="max", value=0),
        check("per_gpu", metric="gpu_error_count", scope="gpu", kind="max", value=0, where_reported=True),
        check("on_gpus", metric="gpu_error_count", scope="gpu", kind="max", value=0, where_reported=True,
              applies={"accelerator": ["gpu"]}),
        check("told", metric="training_error_count", kind="max", value=0, tells_message=True),
        check("advice", metric="training_error_count", kind="max", value=0, severity="advisory"),
    ]  # fmt: skip
    broken = Fleet(nodes, stages=["facts", "training"], checks=checks)
    errors = [metric("training_error_count", 2), metric("gpu_error_count", 1, scope="gpu:3")]
    for node in ("counted", "no-facts"):
        broken.replace(node, "training", state="running", metrics=errors, message="at step 7")
    broken.replace("not-counted", "training", state="running")
    broken.replace("earlier", "training", state="pending")
    broken.attempt("earlier", "training", state="crash", metrics=errors)
    broken.drop("no-facts", "facts")
    broken.replace("not-a-number", "training", state="running", metrics=[metric("training_error_count", None)])
    gave_way = {"state": "cancelled", "message": MESSAGES["foreign"]}
    broken.record("gave-way", "training", **gave_way)
    broken.record("gave-way-slow", "training", **gave_way, metrics=[*training_metrics(tflops=9.0), *errors])
    broken.record("cancelled-for-another-reason", "training", state="cancelled", metrics=training_metrics(tflops=9.0))
    slow = training_metrics(tflops=9.0)
    broken.record("beside-others-slow", "training", metrics=slow, environment=BUSY_USERS)
    broken.record("beside-others-fine", "training", environment=BUSY_USERS)
    broken.drop("no-record", "training")
    return broken.judged()


@fleet
def busy_nodes(_folder):
    """A run of idle nodes: what others use is no verdict; what an earlier run left, or what is away, is one."""
    words = {
        "foreign": "others use this node's accelerators or run here: python (pid 7)",
        "leftover": "others use this node's accelerators or run here: python (pid 7) of gpuval run r0",
        "other-run": MESSAGES["other-run"],
        "away": "No route to host",
    }
    waits = {"priority": "(Priority)", "resources": "(Resources)", "quota": "(AssocGrpGRES)"}
    nodes = ["idle", *words, *waits, "preempted", "gave-way", "gave-way-bad", "idle-failed"]
    busy = Fleet(nodes, only_idle=True, gpu_count=8)
    for node, message in words.items():
        busy.never_started(node, "unreachable" if node == "away" else "refused", message)
    for node, reason in waits.items():
        message = f"job 7 is pending {reason}"
        busy.never_started(node, "failed", message, **{"class": "slurm_pending", "remedy": "wait"})
    busy.drop("preempted", "training")
    busy.launch("preempted", "started", contact=POD)
    for node in ("gave-way", "gave-way-bad"):
        busy.replace(node, "training", state="cancelled", message=MESSAGES["foreign"])
    busy.set("gave-way-bad", "facts", "gpu_count", 7)
    busy.replace("idle-failed", "training", state="crash")
    whole = busy.judged()
    only = Fleet(["foreign"], only_idle=True)
    only.never_started("foreign", "refused", words["foreign"])
    busy.run["only_idle"] = False
    return {"idle": whole, "only": only.judged(), "without": busy.judged(alone=False)}


@fleet
def runs_of_few(_folder):
    """No node, no stage, narrowed, shortened, exempt stages, records of stages and nodes that no one asked for."""
    empty = Fleet([])
    no_stage = Fleet(["node-1"], stages=[])
    narrowed = Fleet(["node-1"], narrowed_by=["limit"], shortened=["training"])
    tags = Fleet(["node-1", "node-2"], stages=["facts", "training"], narrowed_by=["tags"], gang_stages=["collective"])
    tags.node("node-2")["exempt"] = {"collective": "no other node of the inventory has its SKU"}
    alone = Fleet(["node-1"], stages=["facts"], gang_stages=["collective"])
    more = Fleet(["node-1"], stages=["facts", "training"])
    more.evidence.records["node-1"]["loading"] = make_record(stage="loading")
    more.evidence.records["stranger"] = {"facts": make_record("stranger", "facts")}
    more.evidence.add_problem("something else")
    more.evidence.add_problem("of a node", node="node-1")
    no_facts = Fleet(["node-1", "cpu-1"], stages=["training"])
    no_facts.node("cpu-1")["sku"] = "cpu"
    return {
        "empty": empty.judged(), "no_stage": no_stage.judged(), "narrowed": narrowed.judged(), "tags": tags.judged(),
        "alone": alone.judged(), "more": more.judged(), "no_facts": no_facts.judged(),
    }  # fmt: skip


@fleet
def changed_evidence(_folder):
    """Records that are not those that were judged."""
    changed = Fleet(["was-pass", "was-fail", "was-incomplete", "many"])
    changed.evidence.changed = {
        "was-pass": (["training"], "PASS"),
        "was-fail": (["training"], "FAIL"),
        "was-incomplete": (["training", "loading"], "INCOMPLETE"),
        "many": ([f"stage_{number}" for number in range(30)], "PASS"),
    }
    return changed.judged()
