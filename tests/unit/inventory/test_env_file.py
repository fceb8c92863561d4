"""A `.env` beside the inventory: what python-dotenv reads of it, which settings it gives, and what is wrong with it."""

import re

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import ROLES
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory import env_file


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for key in (*env_file.KEYS, "GPUVAL_ENV_FILE"):
        monkeypatch.delenv(key, raising=False)


@pytest.fixture
def read(tmp_path, monkeypatch):
    """The settings of a file with this content beside the inventory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yml").touch()

    def settings(content):
        path = tmp_path / ".env"
        path.touch(mode=0o600)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return env_file.read([str(tmp_path / "hosts.yml")])

    return settings


def test_the_example_of_the_first_seed(read):
    env = read("""
# The token to download private and gated models in Hugging Face.
HF_TOKEN="hf_abc"
DO_TOKEN="***********************"
BUCKET=rs-validation-test
AWS_ENDPOINT_URL=atl1.digitaloceanspaces.com
AWS_ACCESS_KEY_ID="DO00"
AWS_SECRET_ACCESS_KEY="s3c=ret"
AWS_REGION=atl1
FOLDER=test20251213
MODEL=meta-llama/Llama-3.1-8B-Instruct
MODEL_FOLDER=models--meta-llama--Llama-3.1-8B-Instruct
NODE_NAME=local
""")
    assert env.values == {
        "HF_TOKEN": "hf_abc",
        "BUCKET": "rs-validation-test",
        "AWS_ENDPOINT_URL": "https://atl1.digitaloceanspaces.com",
        "AWS_ACCESS_KEY_ID": "DO00",
        "AWS_SECRET_ACCESS_KEY": "s3c=ret",
        "AWS_REGION": "atl1",
        "FOLDER": "test20251213",
        "MODEL": "meta-llama/Llama-3.1-8B-Instruct",
        "MODEL_FOLDER": "models--meta-llama--Llama-3.1-8B-Instruct",
        "NODE_NAME": "local",
    }
    assert env.remarks == [".env:4: DO_TOKEN is the placeholder of an example: set it, or remove the line"]
    assert env.problems == []
    assert env.places["BUCKET"] == ".env:5"


#: As python-dotenv 1.2.4 reads them, without interpolation.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("BUCKET=a", "a"),
        ("export BUCKET = a # why", "a"),
        ("export\tBUCKET=a", "a"),
        ("exportBUCKET=a", None),
        ("export\nBUCKET=a", "a"),
        ("export # BUCKET\nBUCKET=a", "a"),
        ("  'BUCKET'=a", "a"),
        ("BUCKET=a#b", "a#b"),
        ("BUCKET=#b", "#b"),
        ("BUCKET= # b", None),
        ("BUCKET=", None),
        ("BUCKET=''", None),
        ("BUCKET", None),
        ("BUCKET=a b  ", "a b"),
        ("BUCKET=a=b==", "a=b=="),
        ("BUCKET='a # b' # c", "a # b"),
        (r"BUCKET='a\'b\n'", r"a'b\n"),
        (r'BUCKET="a\"b\n"', 'a"b\n'),
        (r'BUCKET="a\\"', "a\\"),
        ('BUCKET="a\nb"', "a\nb"),
        ("BUCKET=a$b${HOME}{{ 1 }}", "a$b${HOME}{{ 1 }}"),
        ('BUCKET="${HOME}"', "${HOME}"),
        ("BUCKET=a\r\nFOLDER=b\r\n", "a"),
        ("\ufeffBUCKET=a", "a"),
        ("BUCKET=a\nBUCKET=b", "b"),
        ("BUCKET=a\nBUCKET=", None),
        ("# BUCKET=a", None),
    ],
)
def test_a_value_is_what_python_dotenv_makes_of_it(read, text, value):
    env = read(text)
    assert env.values.get("BUCKET") == value
    assert env.problems == []


def test_a_line_that_is_no_statement_stops_and_the_others_are_read(read):
    env = read('FOLDER="s3cret\nBUCKET=a\nset -e x\nAWS_REGION=r\n')
    assert env.values == {"BUCKET": "a", "AWS_REGION": "r"}
    wrong = "not KEY=VALUE, or a quote is not closed: correct the line"
    assert env.problems == [f".env:1: {wrong}", f".env:3: {wrong}"]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("BUKET=s3cret", ".env:1: BUKET is not read; is it BUCKET?"),
        ("bucket=s3cret", ".env:1: bucket is not read; is it BUCKET?"),
        ("AWS_ENDPIONT_ULR=s3cret", ".env:1: AWS_ENDPIONT_ULR is not read; is it AWS_ENDPOINT_URL?"),
        ("BUCKET=a\nBUCKET=s3cret", ".env:2: BUCKET stands in .env:1, too: the value in .env:2 counts"),
    ],
)
def test_what_may_be_a_mistake_is_remarked_without_its_value(read, text, remark):
    assert read(text).remarks == [remark]


@pytest.mark.parametrize(
    "key", ["DATABASE_URL", "GH_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION", "DEBUG", "MODEL_NAME"]
)
def test_keys_of_other_programs_are_left_alone(read, key):
    env = read(f"{key}=x")
    assert (env.values, env.problems, env.remarks) == ({}, [], [])


def test_every_single_mistake_in_a_key_is_named(read):
    """A letter missing, wrong, doubled, or swapped with the next: all of each key."""
    mistakes = set()
    for key in env_file.KEYS:
        for position in range(len(key)):
            head, letter, tail = key[:position], key[position], key[position + 1 :]
            mistakes |= {(key, head + tail), (key, f"{head}X{tail}"), (key, head + letter * 2 + tail)}
            mistakes |= {(key, head + tail[:1] + letter + tail[1:])}
    mistakes = {(key, word) for key, word in mistakes if word not in env_file.KEYS and not word.startswith("#")}
    assert len(mistakes) > 700
    for key, word in mistakes:
        (remark,) = read(f"{word}=x").remarks
        assert remark == f".env:1: {word} is not read; is it {key}?"


def test_the_environment_wins_and_a_credential_is_of_one_place(read, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu")
    monkeypatch.setenv("FOLDER", "")
    monkeypatch.setenv("HF_TOKEN", "not in the file, so of no concern here")
    text = "AWS_REGION=us\nFOLDER=a\nBUCKET=b\nAWS_ACCESS_KEY_ID=i\nAWS_SECRET_ACCESS_KEY=s\n"
    credential = {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "s"}
    env = read(text)
    assert env.values == {"AWS_REGION": "eu", "BUCKET": "b", **credential}
    assert env.places["AWS_REGION"] == "the environment"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "temporary")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "its token")
    assert read(text).values == {
        "AWS_REGION": "eu",
        "BUCKET": "b",
        "AWS_ACCESS_KEY_ID": "temporary",
        "AWS_SESSION_TOKEN": "its token",
    }


@pytest.mark.parametrize(
    ("text", "model", "problems"),
    [
        ("MODEL_FOLDER=models--acme--rocket--2", "acme/rocket--2", 0),
        ("MODEL=acme/rocket@v1\nMODEL_FOLDER=models--acme--rocket", "acme/rocket@v1", 0),
        ("MODEL=acme/rocket\nMODEL_FOLDER=models--acme--rockets", "acme/rocket", 1),
        ("MODEL=tiny", "tiny", 0),
    ],
)
def test_the_folder_is_that_of_the_model(read, text, model, problems):
    env = read(text)
    assert env.values["MODEL"] == model
    told = [".env:2: MODEL_FOLDER is not that of MODEL, models--acme--rocket"]
    assert env.problems == told[:problems]


def test_a_file_that_others_may_read_is_remarked(read, tmp_path):
    (tmp_path / ".env").touch()
    (tmp_path / ".env").chmod(0o640)
    path = tmp_path / ".env"
    assert read("BUCKET=a").remarks == [f"{path}: its mode 0640 lets other users in: chmod 600 {path}"]
    path.chmod(0o600)
    assert read("BUCKET=a").remarks == []


@pytest.mark.parametrize("content", [b"\xff\xfeB\0U\0", b"BUCKET=\xff\n"])
def test_a_file_that_is_not_utf_8_is_named(read, content):
    with pytest.raises(GpuvalError, match=r"\.env cannot be read: 'utf-8' codec can't decode"):
        read(content)


def test_each_source_has_its_own_and_the_last_wins(tmp_path, monkeypatch):
    for name, text in (("a", "BUCKET=a\nFOLDER=fa\n"), ("b", "BUCKET=b\n"), ("c", "")):
        (tmp_path / name / "group_vars").mkdir(parents=True)
        (tmp_path / name / "hosts.yml").touch()
        (tmp_path / name / ".env").write_text(text)
    (tmp_path / "c" / ".env").unlink()
    (tmp_path / "c" / ".env").mkdir()  # a virtual environment
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert env_file.read([a]).values == {"BUCKET": "a", "FOLDER": "fa"}
    assert env_file.read([f"{a}/hosts.yml", b]).values == {"BUCKET": "b", "FOLDER": "fa"}
    assert env_file.read([b, a]).values["BUCKET"] == "a"
    monkeypatch.chdir(a)
    for sources in ([c], ["host,"], ["host-1,host-2"], []):
        assert env_file.read(sources).values == {}
    monkeypatch.setenv("GPUVAL_ENV_FILE", f"{b}/.env")
    assert env_file.read([a]).values == {"BUCKET": "b"}
    monkeypatch.setenv("GPUVAL_ENV_FILE", f"{b}/none")
    with pytest.raises(GpuvalError, match=r"b/none cannot be read: No such file"):
        env_file.read([a])


def test_every_key_is_the_default_of_a_setting():
    defaults = "".join(path.read_text() for path in ROLES.glob("*/defaults/main.yml"))
    keys = set(re.findall(r"gpuval_env\.(\w+)", defaults))
    assert keys | {"MODEL_FOLDER"} == env_file.KEYS
    parsed = yaml.safe_load((ROLES / "gpuval/defaults/main.yml").read_text())
    places = env_file.EnvSettings(values={"BUCKET": "b"}, places={"BUCKET": "x"}).places_of(parsed)
    assert places == {"gpuval_bucket": "x"}
