"""Mappings of worker to unique id, in every form that people keep them in."""

import csv
import io
import json
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import node_ids
from hypothesis import given
from hypothesis import strategies as st

WANTED = {"rs002-pool-sr6zw": "atl1node212", "rs002-pool-spk44": "atl1node342"}
FORMS = {
    "seed.txt": "| id | worker | uniqueid |\n|----|--------|----------|\n"
    "| 1 | rs002-pool-sr6zw | atl1node212 |\n| 2 | rs002-pool-spk44 | atl1node342 |\n",
    "bordered.txt": "+----+---+---+\n| id | worker | uniqueid |\n+----+---+---+\n"
    "| 1 | rs002-pool-sr6zw | atl1node212 |\n| 2 | rs002-pool-spk44 | atl1node342 |\n+----+---+---+\n",
    "database.txt": " id | worker | uniqueid \n----+--------+---------\n"
    "  1 | rs002-pool-sr6zw | atl1node212\n  2 | rs002-pool-spk44 | atl1node342\n(2 rows)\n",
    "page.md": "# Nodes\n\nText.\n\n| Unique ID | Worker |\n| :-- | --: |\n"
    "| `atl1node212` | rs002-pool-sr6zw |\n| **atl1node342** | rs002-pool-spk44 |\n",
    "plain.csv": "worker,uniqueid\nrs002-pool-sr6zw,atl1node212\nrs002-pool-spk44,atl1node342\n",
    "office.csv": "\ufeffuniqueid;id;worker\r\n\"atl1node212\";1;\"rs002-pool-sr6zw\"\r\n"
    "atl1node342;2;rs002-pool-spk44\r\n\r\n",
    "tabs.txt": "unique_id\tnode\natl1node212\trs002-pool-sr6zw\natl1node342\trs002-pool-spk44\n",
    "map.yml": "rs002-pool-sr6zw: atl1node212\nrs002-pool-spk44: atl1node342\n",
    "list.yml": "- {worker: rs002-pool-sr6zw, uniqueid: atl1node212}\n"
    "- {worker: rs002-pool-spk44, uniqueid: atl1node342}\n",
    "map.json": json.dumps(WANTED),
    "map": json.dumps(WANTED),
}  # fmt: skip
FAULTS = {
    "same worker": ("m.csv", "worker,uniqueid\na,x\na,y\n", "the worker a is there twice: x and y"),
    "same id": ("m.csv", "worker,uniqueid\na,x\nb,x\n", "the id x of b is the same, that of a"),
    "same but for case": ("m.csv", "worker,uniqueid\na,x1\nb,X1\n", "but for case the same as x1"),
    "twice in YAML": ("m.yml", "a: x\na: y\n", "the worker a is there twice"),
    "twice in JSON": ("m.json", '{"a": "x", "a": "y"}', "the worker a is there twice"),
    "above": ("m.csv", "worker,uniqueid\na,../x\n", "is not made of letters"),
    "dots": ("m.csv", "worker,uniqueid\na,x..y\n", "has '..' in it"),
    "path": ("m.csv", "worker,uniqueid\na,x/y\n", "is not made of letters"),
    "backslash": ("m.csv", "worker,uniqueid\na,x\\y\n", "is not made of letters"),
    "control": ("m.json", '{"a": "x\\u0007y"}', "is not made of letters"),
    "bidirectional": ("m.json", '{"a": "x\\u202ey"}', "is not made of letters"),
    "too long": ("m.json", json.dumps({"a": "x" * 121}), "is longer than 120"),
    "device": ("m.csv", "worker,uniqueid\na,NUL\n", "keep for devices"),
    "no id": ("m.csv", "worker,uniqueid\na,\n", "is empty"),
    "no worker": ("m.csv", "worker,uniqueid\n,x\n", "has no worker"),
    "no header": ("m.csv", "a,x\n", "its first row must name the columns"),
    "YAML as text": ("m.txt", "a: x\nb: y\n", "Lines of WORKER: ID are YAML: name the file .yml"),
    "nothing": ("m.csv", "", "its first row must name the columns"),
    "torn row": ("m.txt", "| worker | uniqueid |\n| a | x | y |\n", "line 2 has 3 columns"),
    "open quote": ("m.csv", 'worker,uniqueid\n"a,x\n', "is not CSV"),
    "no JSON": ("m.json", "{", "cannot be read"),
    "aliases": ("m.yml", "a: &x [1]\nb: *x\n", "aliases"),
    "nested": ("m.yml", "a: [x]\n", "are text"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_says_the_same(name, tmp_path):
    (tmp_path / name).write_bytes(FORMS[name].encode())
    assert node_ids.read(tmp_path / name) == WANTED


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named(fault):
    name, text, told = FAULTS[fault]
    with pytest.raises(SettingError) as error:
        node_ids.parse(text, name)
    assert told in str(error.value)


def test_all_faults_are_reported_at_once():
    with pytest.raises(SettingError) as error:
        node_ids.parse("worker,uniqueid\na,x\na,y\nb,x\nc,../z\n", "m.csv")
    assert all(word in str(error.value) for word in ("twice", "the same", "../z"))


def test_ids_stay_the_text_that_they_are():
    assert node_ids.parse("a: 0123\nb: 1e5\nc: yes\n", "m.yml") == {"a": "0123", "b": "1e5", "c": "yes"}
    with pytest.raises(SettingError, match=r"in quotes.*42798"):
        node_ids.NodeIdReader(Path)(yaml.safe_load("a: 0123456"))
    with pytest.raises(SettingError, match=r"in quotes.*10"):
        node_ids.NodeIdReader(Path)(yaml.safe_load("1_0: atl"))
    assert node_ids.NodeIdReader(Path)(yaml.safe_load("a: '0123456'")) == {"a": "0123456"}
    assert node_ids.parse('{"a": 12345678901234567890123}', "m.json") == {"a": "12345678901234567890123"}


def test_a_variable_is_a_mapping_or_a_path(tmp_path):
    (tmp_path / "m.csv").write_text("worker,uniqueid\na,x\n")
    reader = node_ids.NodeIdReader(lambda path: tmp_path / path)
    assert reader("m.csv") == reader({"a": "x"}) == {"a": "x"}
    assert reader("m.csv") is reader("m.csv"), "it is read once"
    assert reader("") == reader(None) == reader({}) == {}
    for wrong in (["a"], 5, "missing.csv"):
        with pytest.raises(SettingError):
            reader(wrong)


def test_several_mappings_may_agree_and_not_differ():
    assert node_ids.merged([{"a": "x"}, {"a": "x", "b": "y"}]) == {"a": "x", "b": "y"}
    with pytest.raises(SettingError):
        node_ids.merged([{"a": "x"}, {"a": "y"}])


IDS = st.from_regex(node_ids.ID, fullmatch=True).filter(lambda text: not node_ids.unsafe(text))
WORKERS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,30}", fullmatch=True)
MAPPINGS = st.dictionaries(WORKERS, IDS, min_size=1, max_size=20).filter(
    lambda mapping: len({identity.casefold() for identity in mapping.values()}) == len(mapping)
)


@given(MAPPINGS, st.sampled_from(",;\t"), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_mapping_survives_csv(mapping, delimiter, mark, end, turned):
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end)
    rows = [("worker", "uniqueid"), *mapping.items()]
    writer.writerows(row[::-1] if turned else row for row in rows)
    assert node_ids.parse("\ufeff" * mark + stream.getvalue(), "m.csv") == mapping


@given(MAPPINGS)
def test_any_mapping_survives_yaml_json_and_a_table(mapping):
    assert node_ids.parse(yaml.safe_dump(mapping), "m.yml") == mapping
    assert node_ids.parse(json.dumps(mapping), "m.json") == mapping
    table = "| id | worker | uniqueid |\n" + "".join(
        f"| {n} | {a} | {b} |\n" for n, (a, b) in enumerate(mapping.items())
    )
    assert node_ids.parse(table, "m.txt") == mapping


@given(st.text(max_size=300), st.sampled_from(["m.csv", "m.txt", "m.yml", "m.json"]))
def test_any_text_is_a_mapping_or_a_clear_error(text, name):
    try:
        mapping = node_ids.parse(text, name)
    except SettingError as error:
        assert str(error).startswith(name) or name in str(error) or "aliases" in str(error)
    else:
        assert all(not node_ids.unsafe(identity) for identity in mapping.values())


@pytest.mark.parametrize("worker", ["gpu[08-10]", "gpu[08:10]"])
def test_a_range_of_workers_has_a_range_of_ids(worker):
    ids = {"gpu08": "SN-1", "gpu09": "SN-2", "gpu10": "SN-3", "x": "SN-9"}
    assert node_ids.parse(f"worker,uniqueid\n{worker},SN-[1-3]\nx,SN-9\n", "m.csv") == ids
    assert node_ids.NodeIdReader(Path)({worker: "SN-[1:3]", "x": "SN-9"}) == ids


def test_a_range_of_workers_with_one_id_is_refused():
    with pytest.raises(SettingError, match=r"^m.csv: 3 worker\(s\) gpu\[1-3\], 1 id\(s\) SN-1: ranges must agree$"):
        node_ids.parse("worker,uniqueid\ngpu[1-3],SN-1\n", "m.csv")
