"""What must not leave a node is taken out, whatever it stands in; what tells of the machine stays."""

import json
import re
import time
from urllib.parse import quote, quote_plus

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import redaction
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import HIDDEN, SecretRedactor, secrets_of_run
from hypothesis import given
from hypothesis import strategies as st

SECRET = "s3cr3t-Value/+of9any"
IN_URL = quote(SECRET, safe="")


@pytest.mark.parametrize(
    "text",
    [
        f"https://192.0.2.1:9000/b/records/x.json?X-Amz-Algorithm=AWS4&X-Amz-Signature={SECRET}&x=1 said",
        f"PUT https://s3.example/b?X-Amz-Security-Token={SECRET}",
        f"http://user:{IN_URL}@proxy.example:3128",
        f"HTTP Proxy: http://{IN_URL}@proxy.example:3128",
        f"Authorization: Basic {SECRET}",
        f"authorization = AWS4-HMAC-SHA256 Credential=A/b, Signature={SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}'",
        f"Bearer {SECRET}",
        f"password={SECRET}",
        f"DB_PASSWORD: {SECRET}",
        f'"hub_token": "{SECRET}",',
        f"secret_access_key = {SECRET}",
        f"'api_key': '{SECRET}'",
        f"--token={SECRET} --next",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\ncut off",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text):
    shown = SecretRedactor()(text)
    assert SECRET not in shown
    assert IN_URL not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize("secret", ["AKIA" + "A1B2" * 4, "hf_" + "aB3" * 12, "ghp_" + "aB3" * 12])
def test_keys_are_known_by_their_form(secret):
    assert secret not in SecretRedactor()(f"found {secret} there")


def test_known_secrets_are_hidden_in_any_form():
    shown = SecretRedactor([SECRET])(f"a {SECRET} b s3cr3t-Value%2F%2Bof9any c")
    assert shown == f"a {HIDDEN} b {HIDDEN} c"


def test_too_short_a_secret_would_hide_everything():
    assert SecretRedactor(["a", ""])("a banana") == "a banana"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:9d:00): 79, pid=1234, GPU has fallen off the bus.",
        '{"name": "training_tokens_per_second", "value": 1234.5, "unit": "tokens/s", "scope": "node"}',
        "max_tokens: 8, tokenizer: llama",
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "https://192.0.2.1:9000/gpuval/models/m?list-type=2",
        "Basic information of the node",
        "mail to root@localhost",
    ],
)
def test_what_tells_of_the_machine_stays(text):
    assert SecretRedactor()(text) == text


PIECES = [
    *(
        "token",
        "Password",
        "api_key",
        "SECRET",
        "credentials",
        "Authorization",
        "bearer ",
        "hf_" + "aB3" * 12,
        "AKIA" + "A1B2" * 4,
    ),
    *(
        "https://h/p?sig=",
        "https://me:pw@h",
        "=",
        ": ",
        '"',
        "'",
        "\n",
        " ",
        "\t",
        "\u0130",
        "value-1",
        "\r\n",
        ",",
        "{",
        "*",
    ),
]


@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_looking_at_suspicious_lines_alone_finds_what_looking_at_all_does(text):
    assert SecretRedactor()(text) == redaction._hide_patterns(text)


@pytest.mark.parametrize("encode", [quote, quote_plus, lambda text: quote(quote(text, safe=""), safe="")])
@pytest.mark.parametrize("case", [str, lambda text: re.sub("%[0-9A-F]{2}", lambda found: found.group().lower(), text)])
def test_url_encoded_secrets_are_hidden_in_either_case(encode, case):
    assert SecretRedactor([SECRET])(f"a {case(encode(SECRET))} b") == f"a {HIDDEN} b"


def test_json_stays_json():
    shown = SecretRedactor()(json.dumps({"token": SECRET, "environment": {"SECRET": "quoted"}, "n": 1}))
    assert json.loads(shown) == {"token": HIDDEN, "environment": {"SECRET": HIDDEN}, "n": 1}


@pytest.mark.parametrize("piece", ["a", "a.", "://", "token ", "secret=", "-----BEGIN ", "https://a?", '"', "Bearer "])
def test_long_lines_cost_no_more_than_their_length(piece):
    begun = time.process_time()
    SecretRedactor()(piece * (1_000_000 // len(piece)))
    assert time.process_time() - begun < 10


def test_the_secrets_of_a_run_are_found(tmp_path):
    url = f"https://192.0.2.1/b/x?X-Amz-Credential=KEY%2F20260101&X-Amz-Signature={SECRET}"
    (tmp_path / "store.json").write_text(json.dumps({"put": {"records/a": url}, "downloads": [{"u": url}]}))
    (tmp_path / "rclone.conf").write_text(
        "[models]\naccess_key_id = GVACCESS\nsecret_access_key = rclone%secret\nregion = r\n"
    )
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/job.json").write_text(json.dumps({"HUB_TOKEN": "of a job"}))
    assert secrets_of_run(tmp_path) == {SECRET, "KEY%2F20260101", "GVACCESS", "rclone%secret", "of a job"}


@pytest.mark.parametrize("content", ["", "{", "[", "no = section"])
def test_damaged_files_hide_nothing_and_break_nothing(tmp_path, content):
    for name in ("store.json", "rclone.conf"):
        (tmp_path / name).write_text(content)
    assert secrets_of_run(tmp_path) == set()
    assert secrets_of_run(tmp_path / "none") == set()
