"""What is wrong with settings of gangs is told before the nodes' own stages."""

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import check_settings

KNOWN = settings.declared()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"gpuval_gang_size": 1}, "gpuval_gang_size 1: a gang has two nodes or more"),
        ({"gpuval_gang_size": "-2"}, "gpuval_gang_size -2"),
        ({"gpuval_gang_slots": 0}, "gpuval_gang_slots 0: a node has one process or more"),
        ({"gpuval_gang_port": 65535}, "gpuval_gang_port 65535: from 1 to 65534"),
        ({"gpuval_gang_port": 0}, "gpuval_gang_port 0"),
        ({"gpuval_gang_ssh_port": 70000}, "gpuval_gang_ssh_port 70000: from 1 to 65535"),
        ({"gpuval_gang_search_seconds": 0}, "gpuval_gang_search_seconds 0: more than 0"),
        ({"gpuval_gang_expected_bytes_per_second": -1}, "gpuval_gang_expected_bytes_per_second -1: a speed"),
    ],
)
def test_a_wrong_setting_is_reported(values, told):
    (problem,) = settings.problems(values)
    assert problem.startswith(told)


@pytest.mark.parametrize(
    ("values", "port"), [({"gpuval_gang_ssh_port": 29501}, 29501), ({"gpuval_gang_port": 3022}, 3022)]
)
def test_ports_that_collide_are_reported(values, port):
    (problem,) = settings.gang_problems(values)
    assert problem.startswith(f"gpuval_gang_ssh_port {port} collides")


@pytest.mark.parametrize(
    ("seconds", "round_seconds", "told"),
    [
        (500, 506, "gpuval_gang_search_seconds 500: a search needs 1518 at least, 3 times what a round of it may take"),
        (1517, 506, "run_gang_search_round_seconds 506"),
        (1518, 506, ""),
        (1, 0, ""),  # no gangs in this run
    ],
)
def test_a_search_that_holds_no_three_rounds_is_reported(seconds, round_seconds, told):
    problems = settings.gang_problems({"gpuval_gang_search_seconds": seconds}, round_seconds)
    assert len(problems) == bool(told)
    assert told in "".join(problems)


@pytest.fixture
def play():
    """Variables of a playbook with the roles' own defaults, and what is set beside them."""

    def of(hosts=4, **variables):
        values = {"ansible_play_hosts_all": [f"node-{number}" for number in range(hosts)]}
        for role in ("gpuval", "run"):
            file = str(settings.ROLES / role / "defaults/main.yml")
            values.update(DataLoader().load_from_file(file, trusted_as_template=True))
        values.update({"run_opens": True, **variables})
        return values, Templar(loader=DataLoader(), variables=values)

    return of


@pytest.mark.parametrize(
    ("variables", "least"),
    [({}, 3060), ({"fabric_seconds": 120}, 4300), ({"run_launch_seconds": 1800}, 12000), ({"hosts": 100}, 3500)],
)
def test_the_time_of_a_search_grows_with_that_of_its_rounds(play, variables, least):
    values, templar = play(**variables)
    names = ("gpuval_gang_search_seconds", "run_gang_search_round_seconds")
    seconds, of_round = (float(templar.template(values[name])) for name in names)
    assert seconds >= max(least, 6 * of_round)
    assert settings.gang_problems({"gpuval_gang_search_seconds": seconds}, of_round) == []


def test_what_a_round_of_the_search_may_take_is_known_before_the_start(play):
    def told(**variables):
        values, templar = play(**variables)
        return check_settings._search_round_seconds(templar, values)

    assert told() == 506
    assert told(fabric_seconds=120) == 842
    assert told(gpuval_profile="quick") == 0  # no gangs
    assert told(gpuval_gang_search=False) == 506, "fabric is one of the stages"
    assert told(gpuval_gang_search=False, gpuval_gang_stages={"standard": ["collective"]}) == 0
    values, templar = play()
    del values["run_opens"]
    # a playbook that is for something else, such as that of the hostfile
    assert check_settings._search_round_seconds(templar, values) == 0


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"gpuval_gang_size": "4", "gpuval_gang_port": 1024},
        {"gpuval_gang_search_seconds": "1518", "gpuval_gang_expected_bytes_per_second": 0},
    ],
)
def test_what_is_right_is_not(values):
    assert settings.problems(values) == []
    assert settings.gang_problems({name: settings.converted(name, value) for name, value in values.items()}) == []
