"""Which models tags select, and with which arguments."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import repository
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.documents import MadError

from tests.kit import mad_repository


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return repository.read(mad_repository.write(tmp_path_factory.mktemp("mad")))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("tiny_train", ["tiny_train"]),
        ("pyt", ["tiny_train", "tiny_infer"]),
        ("inference", ["tiny_infer", "extra/chat"]),
        ("extra/inference", ["extra/chat"]),
        ("extra/chat", ["extra/chat"]),
        ("extra/all", ["extra/chat"]),
        ("multi,pyt", ["tiny_multi", "tiny_train", "tiny_infer"]),
        (["multi", "multi", "tiny_multi"], ["tiny_multi"]),
        ("all", ["tiny_train", "tiny_infer", "tiny_multi", "tiny_data", "tiny_gang", "extra/chat"]),
    ],
)
def test_any_match_selects(found, given, names):
    assert [one.name for one in repository.select(found, given)] == names


@pytest.mark.parametrize(
    ("given", "args"),
    [
        ("tiny_train:batch=8:fp16", "--epochs 2 --batch 8 --fp16"),
        ("multi:batch=8", "--batch 8"),
        ("extra/chat:stream", "--stream"),
        ("tiny_train:", "--epochs 2"),
        ("tiny_train:lr=a=b", "--epochs 2 --lr a=b"),
    ],
)
def test_options_are_appended_to_the_arguments(found, given, args):
    assert [one.args for one in repository.select(found, given)] == [args]


def test_one_model_with_two_sets_of_arguments_runs_twice(found):
    assert [one.args for one in repository.select(found, "multi:batch=1 multi:batch=2")] == ["--batch 1", "--batch 2"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tiny_trian", "tag 'tiny_trian' selects no model; nearest: tiny_train"),
        ("inferense", "tag 'inferense' selects no model; nearest: inference"),
        ("exta/chat", "tag 'exta/chat' selects no model; nearest: extra/chat"),
        ("chat", "tag 'chat' selects no model; nearest: extra/chat"),
        ("extra/pyt", "tag 'extra/pyt' selects no model; nearest: "),
        ("pyt,nothing-like-it", "'nothing-like-it' selects no model; the repository has "),
        ("no1,no2", "tag 'no1' selects no model"),
        ("no1,no2", "tag 'no2' selects no model"),
        ("programmed/all", "get_models_json.py is a program"),
        ("nowhere", "not searched: scripts/programmed"),
        ("", "gpuval_mad_tags is empty"),
        ([], "gpuval_mad_tags is empty"),
        (":batch=8", "':batch=8' has no tag before the colon"),
        ("extra/", "'extra/' has no tag after the slash: write extra/all"),
        ("multi:=8", "'=8' is no option"),
        ("multi:batch=", "'batch=' is no option"),
        ("multi:a;id", "'a;id' is no option"),
        ("multi:text='a", 'model tiny_multi: args with "multi:text=\'a": "--text \'a": no closing quotation'),
    ],
)
def test_a_mistyped_tag_is_an_error_with_the_nearest_names(found, given, message):
    with pytest.raises(MadError) as caught:
        repository.select(found, given)
    assert message in str(caught.value)
