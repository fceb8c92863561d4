"""Which models a repository has, and what is said of a malformed one."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import repository
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.documents import MadError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.models import timeout_seconds

from tests.kit import mad_repository
from tests.kit.mad_repository import SECRET, model


@pytest.fixture
def read(tmp_path):
    def read(**changed):
        return repository.read(mad_repository.write(tmp_path / "repository", **changed))

    return read


def named(found, name):
    return next(one for one in found.models if one.name == name)


def test_models_of_the_root_and_of_folders(read):
    found = read()
    names = ["tiny_train", "tiny_infer", "tiny_multi", "tiny_data", "tiny_gang", "extra/chat"]
    assert [one.name for one in found.models] == names
    chat = named(found, "extra/chat")
    assert (chat.scope, chat.file) == ("extra", "scripts/extra/models.json")
    assert chat.dockerfile == "scripts/extra/docker/chat"
    assert chat.scripts == "scripts/extra/run.sh"
    assert chat.dockercontext == "scripts/extra"


def test_fields_have_types_and_defaults(read):
    found = read()
    train, infer, multi, data = (named(found, name) for name in ("tiny_train", "tiny_infer", "tiny_multi", "tiny_data"))
    assert (train.n_gpus, infer.n_gpus, multi.n_gpus, data.n_gpus) == (-1, 1, 2, -1)
    assert train.tags == ("pyt", "tiny") and infer.tags == ("pyt", "inference")
    assert multi.skip_gpu_arch == ("gfx908", "H100")
    assert data.data == ("images", "generated")
    assert (infer.args, infer.url, infer.multiple_results, infer.dockercontext) == ("", "", "", "docker")


@pytest.mark.parametrize(
    ("name", "asked", "multiplier", "seconds"),
    [
        ("tiny_train", -1, 1, 7200),
        ("tiny_infer", -1, 1, 60),
        ("tiny_infer", -1, 2.5, 150),
        ("tiny_infer", 10, 1, 10),
        ("tiny_infer", 0, 1, 0),
        ("tiny_multi", -1, 1, 0),
        ("tiny_multi", 30, 1, 30),
        ("tiny_data", -1, 1, 7200),
    ],
)
def test_the_time_limit_is_the_users_then_the_models_then_two_hours(read, name, asked, multiplier, seconds):
    assert timeout_seconds(named(read(), name), asked, multiplier) == seconds


def test_unknown_fields_are_kept_and_reported(read):
    found = read()
    assert named(found, "tiny_infer").extra == {"team": "vision"}
    assert "models.json: unknown field 'team' of model tiny_infer is kept and has no effect" in found.remarks


def test_a_program_that_lists_models_is_not_executed(read):
    found = read()
    assert list(found.refused) == ["programmed"]
    assert any("get_models_json.py is a program" in remark for remark in found.remarks)


def test_models_of_folders_are_enough(read):
    assert [one.name for one in read(**{"models.json": None}).models] == ["extra/chat"]


DEEP = "[" * 100_000
MALFORMED = {
    "no list": ({"models.json": {"name": "x"}}, "models.json: holds no list of models"),
    "an entry that is no object": ({"models.json": [3]}, "models.json: entry 1: "),
    "an entry that is null": ({"models.json": [model(), None]}, "models.json: entry 2: "),
    "no name": ({"models.json": [{"dockerfile": "d", "scripts": "s"}]}, "models.json: entry 1: "),
    "an empty name": ({"models.json": [model(name="")]}, "models.json: entry 1: name"),
    "a name that is a number": ({"models.json": [model(name=7)]}, "models.json: entry 1: name"),
    "a name with a slash": ({"models.json": [model(name="a/b")]}, "models.json: model a/b: name"),
    "a name with a colon": ({"models.json": [model(name="a:b")]}, "models.json: model a:b: name"),
    "no scripts": (
        {"models.json": [{"name": "m", "dockerfile": "d"}]},
        'models.json: model m: "scripts" is a required property',
    ),
    "no dockerfile": (
        {"models.json": [{"name": "m", "scripts": "d"}]},
        'models.json: model m: "dockerfile" is a required property',
    ),
    "empty scripts": ({"models.json": [model(scripts="")]}, "model tiny_train: scripts"),
    "scripts outside": ({"models.json": [model(scripts="../x")]}, "model tiny_train: scripts: '../x' is outside"),
    "an absolute script": ({"models.json": [model(scripts="/x")]}, "model tiny_train: scripts: '/x' is outside"),
    "a dockerfile outside": (
        {"models.json": [model(dockerfile="docker/../../x")]},
        "model tiny_train: dockerfile: 'docker/../../x' is outside",
    ),
    "an absolute dockerfile of a folder": (
        {"scripts/extra/models.json": [model(dockerfile="/x")]},
        "scripts/extra/models.json: model tiny_train: dockerfile: '/x' is outside",
    ),
    "a context outside": ({"models.json": [model(dockercontext="..")]}, "model tiny_train: dockercontext: '..' is out"),
    "GPUs as words": ({"models.json": [model(n_gpus="all")]}, "model tiny_train: n_gpus"),
    "fewer GPUs than none": ({"models.json": [model(n_gpus=-2)]}, "model tiny_train: n_gpus"),
    "half a GPU": ({"models.json": [model(n_gpus=1.5)]}, "model tiny_train: n_gpus"),
    "GPUs as truth": ({"models.json": [model(n_gpus=True)]}, "model tiny_train: n_gpus"),
    "a time limit in words": ({"models.json": [model(timeout="2h")]}, "model tiny_train: timeout"),
    "a negative time limit": ({"models.json": [model(timeout=-5)]}, "model tiny_train: timeout"),
    "tags that are an object": ({"models.json": [model(tags={"a": 1})]}, "model tiny_train: tags"),
    "a tag that is a number": ({"models.json": [model(tags=["a", 1])]}, "model tiny_train: tags"),
    "arguments that are a list": ({"models.json": [model(args=["--x"])]}, "model tiny_train: args"),
    "an open quotation": (
        {"models.json": [model(args="--text 'a")]},
        'models.json: model tiny_train: args: "--text \'a": no closing quotation',
    ),
    "a line feed in arguments": ({"models.json": [model(args="a\nrm -rf /")]}, "model tiny_train: args"),
    "a control character": ({"models.json": [model(owner="a\x1b[2J")]}, "model tiny_train: owner"),
    "an address that is an option": (
        {"models.json": [model(url="--upload-pack=x")]},
        "model tiny_train: url: '--upload-pack=x' is no address",
    ),
    "an address without a host": ({"models.json": [model(url="https://[x/y")]}, "url: 'https://[x/y' is no address"),
    "an address on the controller's disk": (
        {"models.json": [model(url="file:///etc")]},
        "url: 'file:///etc' is no add",
    ),
    "a path on the controller's disk": ({"models.json": [model(url="/etc")]}, "url: '/etc' is no address"),
    "an address in clear": ({"models.json": [model(url="http://h/x")]}, "'http://h/x' is no address of a repository"),
    "an address of git's daemon": ({"models.json": [model(url="git://h/x")]}, "url: 'git://h/x' is no address"),
    "an address of a helper": ({"models.json": [model(url="ext::sh -c id")]}, "model tiny_train: url"),
    "a token in an address": (
        {"models.json": [model(url=f"https://me:{SECRET}@host/x")]},
        "model tiny_train: url: credentials in an address",
    ),
    "results that are a list": ({"models.json": [model(multiple_results=["a"])]}, "model tiny_train: multiple_results"),
    "distributed as text": ({"models.json": [model(distributed="torchrun")]}, "model tiny_train: distributed"),
    "malformed JSON": ({"models.json": '[\n {"name": "x",}\n]'}, "models.json: line 2, column 15: malformed JSON"),
    "malformed JSON of a folder": (
        {"scripts/extra/models.json": "[{]"},
        "scripts/extra/models.json: line 1, column 3: malformed JSON",
    ),
    "an empty file": ({"models.json": ""}, "models.json: line 1, column 1: malformed JSON"),
    "no text": ({"models.json": b"\xff\xfe\x00"}, "models.json: byte 0 is not UTF-8"),
    "a key twice": ({"models.json": '[{"name": "a", "name": "b"}]'}, "models.json: key 'name' is given twice"),
    "no JSON number": ({"models.json": '[{"timeout": NaN}]'}, "models.json: NaN is no JSON number"),
    "a number without end": ({"models.json": "[" + "1" * 6000 + "]"}, "models.json: a number is too long"),
    "brackets without end": ({"models.json": DEEP}, "models.json: "),
    "too long": ({"models.json": "[" + " " * (9 << 20) + "]"}, "models.json: longer than"),
    "both lists in a folder": (
        {"scripts/extra/get_models_json.py": ""},
        "scripts/extra: has both models.json and get_models_json.py",
    ),
    "data that is a list": ({"data.json": []}, "data.json: holds no data sets"),
    "data that is text": ({"data.json": {"a": "/srv/a"}}, "data.json: a: holds no providers by name"),
    "a provider that is not known": (
        {"data.json": {"a": {"loacl": {}}}},
        "data.json: a: unknown provider 'loacl'; is it local?",
    ),
    "a provider without a path": ({"data.json": {"a": {"aws": {}}}}, 'data.json: a.aws: "path" is a required'),
    "data of the node's system": (
        {"data.json": {"a": {"local": {"path": "/etc/ssl"}}}},
        "data.json: a.local.path: '/etc/ssl'",
    ),
    "the node's root as data": ({"data.json": {"a": {"local": {"path": "/x/.."}}}}, "data.json: a.local.path: '/x/..'"),
    "a relative folder as data": (
        {"data.json": {"a": {"local": {"path": "x"}}}},
        "data.json: a.local.path: 'x' is no abs",
    ),
    "a data script outside": (
        {"data.json": {"a": {"custom": {"path": "../x"}}}},
        "data.json: a.custom.path: '../x' is out",
    ),
    "a home that is a command": (
        {"data.json": {"a": {"aws": {"path": "x", "home": "/a;id"}}}},
        "data.json: a.aws: home",
    ),
}


def problem_of(read, changed):
    """What is said where all models are asked for, with their data."""
    try:
        found = read(**changed)
    except MadError as error:
        return str(error)
    for data in (found.data or {}).values():
        if data.problem:
            return data.problem
    with pytest.raises(MadError) as caught:
        repository.select(found, "all")
        raise MadError("; ".join(found.remarks))
    return str(caught.value)


@pytest.mark.parametrize(("changed", "message"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_named_by_file_model_and_field(read, changed, message):
    problem = problem_of(read, changed)
    assert message in problem
    assert len(problem) < 1400 and problem.isprintable()
    assert SECRET not in problem


def test_all_that_is_wrong_is_said_at_once(read):
    wrong = [model(n_gpus="all", url="file:///etc", args="'"), model(name="other", timeout="2h", scripts="../x"), 3]
    found = read(**{"models.json": [*wrong, model(name="good")]})
    assert [one.name for one in repository.select(found, "good")] == ["good"]
    with pytest.raises(MadError) as caught:
        repository.select(found, "tiny_train,other,nothing-like-it")
    for text in ("n_gpus", "url", "args", "timeout", "scripts", "selects no model"):
        assert text in str(caught.value)
    assert sum(remark.startswith("left out: models.json: ") for remark in found.remarks) == len(wrong)


def test_a_malformed_model_refuses_no_other(read):
    found = read(**{"models.json": [model(timeout="2h"), model(name="good")]})
    assert [one.name for one in repository.select(found, "pyt")] == ["good"]
    assert [one.name for one in repository.select(found, "extra/chat")] == ["extra/chat"]
    with pytest.raises(MadError, match="model tiny_train: timeout"):
        repository.select(found, "good,tiny_train")
    alone = read(**{"models.json": [model(timeout="2h")]})
    with pytest.raises(MadError, match="model tiny_train: timeout"):
        repository.select(alone, "pyt")


def test_a_malformed_list_of_models_refuses_what_may_be_in_it(read):
    found = read(**{"scripts/extra/models.json": "["})
    assert [one.name for one in repository.select(found, "multi")] == ["tiny_multi"]
    with pytest.raises(MadError, match=r"tag 'extra/chat': scripts/extra/models\.json: line 1"):
        repository.select(found, "extra/chat")
    found = read(**{"models.json": "["})
    with pytest.raises(MadError, match=r"tag 'inference': models\.json: line 1, column 2: malformed JSON"):
        repository.select(found, "inference")


def test_more_models_than_a_repository_may_have_are_refused_before_the_first_is_read(read, monkeypatch):
    monkeypatch.setattr(repository, "from_entry", None)
    found = read(**{"models.json": [3] * 70_000, "scripts/extra/models.json": None})
    assert found.refused[""] == "models.json: more than 10000 models in the repository: remove some"


def test_no_folder_and_no_models(tmp_path):
    with pytest.raises(MadError, match=r"no such folder: set gpuval_mad_repository"):
        repository.read(tmp_path / "nowhere")
    with pytest.raises(MadError, match=r"no models\.json, and none in scripts"):
        repository.read(tmp_path)


@pytest.mark.parametrize("name", ["models.json", "data.json"])
def test_a_link_out_of_the_repository_is_not_followed(read, tmp_path, name):
    (tmp_path / "outside").write_text(json.dumps([]))
    root = tmp_path / "repository"
    root.mkdir()
    (root / name).symlink_to(tmp_path / "outside")
    assert f"{name}: a link leads out of the repository" in problem_of(read, {name: None})


@pytest.mark.parametrize("path", ["/var", "/var/lib/x", "/home", "/home/me", "/home/me/.ssh", "/data/.secrets"])
def test_folders_of_the_system_and_of_users_are_no_data(read, path):
    found = read(**{"data.json": {"a": {"local": {"path": path}}}})
    assert "belongs to the node's system or a user" in found.data["a"].problem


@pytest.mark.parametrize("path", ["/tmp", "/data", "/var/data", "/home/me/data", "/nas/a.b/v1.0"])
def test_other_folders_are(read, path):
    assert read(**{"data.json": {"a": {"local": {"path": path}}}}).data["a"].providers[0].path == path


def test_null_is_not_specified(read):
    (found, *_others) = read(**{"models.json": [model(url=None, data=None, timeout=None, n_gpus=None)]}).models
    assert (found.url, found.data, found.timeout, found.n_gpus) == ("", (), -1, -1)
    (malformed,) = read(**{"models.json": [model(dockerfile=None)]}).malformed
    assert "dockerfile" in malformed.problem
