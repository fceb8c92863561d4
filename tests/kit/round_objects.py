"""All objects of a round of gangs, as the placement on a cluster makes them one after the other."""

from dataclasses import dataclass, field

from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import config_maps, gangs, manifests


@dataclass(frozen=True)
class Together:
    of: gangs.GangRound
    keys: dict[str, str] = field(repr=False)


def of_gang(gang):
    """What all plans of a gang have in common, of one plan's: the members, their ports."""
    return {key: value for key, value in gang.items() if key not in ("name", "index")}


def round_objects(run_id, archives, placements, together):
    found = {item.plan["gang"]["name"]: item.plan["gang"] for item in placements if item.plan.get("gang")}
    common = {name: of_gang(gang) for name, gang in found.items()}
    shared, members = manifests.shared_by_round(run_id, "gpuval", together.keys, common) if together else ([], {})
    code = config_maps.code_config_map(run_id, "gpuval", archives)
    run = manifests.ClusterRun(run_id, "gpuval", code["metadata"]["name"], members)
    maps, places = config_maps.plan_config_maps(run_id, "gpuval", [item.plan for item in placements])
    jobs = [manifests.job_of(run, item, places[item.plan["node"], item.plan["attempt"]]) for item in placements]
    own = [code, *maps, *shared, *(manifests.secret_of(run, item) for item in placements), *jobs]
    return [gangs.labelled(item, together.of if together else None) for item in own]
