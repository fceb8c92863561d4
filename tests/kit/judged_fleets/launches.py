"""Launches: of every class, with and without records, and what several nodes call one machine."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors

from tests.kit.judged_fleets.fleet import Fleet, fleet

MESSAGES = {
    "disk": "No space left on device",
    "engine": "no container engine was found",
    "foreign": "others use this node's accelerators or run here: python (pid 7)",
    "host-key": "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @ Offending ED25519 key in /root/known_hosts:7",
    "image": "on this node is image a, but the run is for b",
    "no-route": "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.1 port 22: No route to host",
    "nothing": "",
    "other-run": "run run-0 is at work on this node",
    "package": "multi-node stages need Python packages that the node's image lacks: torch",
    "twice": "one machine is listed twice",
    "odd": "it said \x1b[31mred\x1b[0m and went away " + "x" * 900,
}
STATES = ("unreachable", "refused", "failed", "unknown")


@fleet
def launches(_folder):
    """Nodes that never started, and ones whose connection alone was lost."""
    said = {f"{state}-{word}": (state, text) for state in STATES for word, text in MESSAGES.items()}
    named = {f"class-{name}".replace("_", "-"): name for name in launch_errors.NAMED}
    odd = ("no-launch", "lost-after", "lost-after-no-end", "not-begun", "remedy", "remedy-of-a-probe", "started",
           "finished", "started-and-says", "started-no-records", "sku-cpu")  # fmt: skip
    fleet_ = Fleet([*said, *named, *odd], stages=["facts", "training"])
    for node, (state, text) in said.items():
        fleet_.never_started(node, state, text)
    for node, name in named.items():
        fleet_.never_started(node, "failed", "as its class says", **{"class": name})
    fleet_.never_started("no-launch")
    fleet_.launch("lost-after", "unreachable", "timed out")
    fleet_.launch("lost-after-no-end", "unknown", "timed out")
    fleet_.drop("lost-after-no-end", "training")
    fleet_.launch("not-begun", "refused", "timed out")
    fleet_.replace("not-begun", "facts", state="pending", started_at=None)
    fleet_.replace("not-begun", "training", state="skipped", started_at=None)
    fleet_.never_started("remedy", "failed", "x", remedy="turn {node} on and validate again")
    fleet_.never_started("remedy-of-a-probe", "failed", "x", **{"class": "hung", "remedy": "reset it"})
    fleet_.launch("finished", "finished")
    fleet_.launch("started-and-says", "started", "with a warning")
    del fleet_.evidence.records["started-no-records"]
    fleet_.node("sku-cpu")["sku"] = "cpu"
    return fleet_.judged()


@fleet
def launches_of_twins(_folder):
    """Names whose machine said that it is in the run under another name already."""
    documents = {}
    for case, changes in {
        "one": {"b": "a"},
        "mutual": {"b": "a", "a": "b"},
        "host_key": {"b": "a"},
        "other_host_key": {"b": "a"},
        "itself": {"b": "b"},
        "gone": {"b": "stranger"},
        "no_name": {"b": ["a"]},
    }.items():
        twins = Fleet(["a", "b", "c"], stages=["facts", "training"])
        for name, twin in changes.items():
            twins.never_started(name, "refused", "one machine is listed twice", twin=twin)
        if "host_key" in case:
            twins.evidence.launches["a"]["host_key"] = "ssh-ed25519 AAAA"
            twins.evidence.launches["b"]["host_key"] = "ssh-ed25519 " + ("AAAA" if case == "host_key" else "BBBB")
        documents[case] = twins.judged(alone=False)
    began = Fleet(["a", "b"], stages=["facts", "training"])
    began.launch("b", "refused", "one machine is listed twice", twin="a")
    documents["began"] = began.judged(alone=False)
    return documents
