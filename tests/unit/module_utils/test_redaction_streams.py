"""Secrets of a stage are hidden in whatever pieces its output comes."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import HIDDEN, SecretRedactor, secrets_of_run
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import clean_text
from gpuval_node.visible_text import visible
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.planted_secrets import leaks, plant

PIN = "4711-abc"


def seen(data):
    """What a reader sees of bytes."""
    lines = data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    return "".join(map(visible, lines)).encode("utf-8", "surrogateescape")


def redacted(secrets, *pieces):
    redactor = SecretRedactor(secrets, shortest=4)
    return b"".join([*map(redactor.feed, pieces), redactor.end()])


@given(
    secrets=st.lists(st.text("abc\n", min_size=4, max_size=8), min_size=1, max_size=3),
    pieces=st.lists(st.text("abc\n", max_size=12).map(str.encode), max_size=12),
)
def test_pieces_make_no_difference_and_no_secret_is_left(secrets, pieces):
    whole = b"".join(pieces)
    found = redacted(secrets, *pieces)
    assert found == redacted(secrets, whole)
    assert not any(secret.strip().encode() in found for secret in secrets if len(secret.strip()) >= 4)


@given(before=st.binary(max_size=80), after=st.binary(max_size=80), cut=st.integers(0, 200))
def test_what_is_no_secret_stays_as_it_is(before, after, cut):
    text = before + PIN.encode() + after
    if before.count(PIN.encode()) + after.count(PIN.encode()) == 0:
        assert redacted([PIN], text[:cut], text[cut:]) == seen(before + HIDDEN.encode() + after)


def test_what_waits_is_bounded_and_little():
    redactor = SecretRedactor(["x" * 1000])
    shown = redactor.feed(b"a" * 100_000 + b"x" * 999)
    assert len(shown) == 100_000
    assert redactor.feed(b"a") == b"x" * 999 + b"a"
    assert redactor.feed(b"line\n") == b"line\n"


@pytest.mark.parametrize("encode", [str.encode, quote, quote_plus, base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", ["", "u", "u:", "me:"])
@pytest.mark.parametrize("after", ["", "\n", "ab", "abc"])
def test_every_form_of_a_secret_is_hidden(encode, before, after):
    planted = {"token": plant("token")}
    text = f"{before}{planted['token']}{after}"
    encoded = encode(text.encode() if getattr(encode, "__module__", "") == "base64" else text)
    encoded = encoded if isinstance(encoded, bytes) else encoded.encode()
    assert leaks(planted, encoded) == ["token"]
    assert leaks(planted, redacted(planted.values(), b"<", encoded, b">")) == []


@pytest.mark.parametrize("secret", ["first line\nsecond line", 'with "quotes" and \\', "it's Gr\u00fcn"])
def test_escaped_and_quoted_values_are_hidden(secret):
    for text in (json.dumps({"a": secret}), json.dumps([secret], ensure_ascii=False), f"\x00\xff{secret}"):
        assert HIDDEN.encode() in redacted([secret], text.encode())
    assert SecretRedactor([secret]).known(json.dumps(secret)) == '"***"'


def test_lines_of_a_value_are_hidden_behind_what_stands_before_each():
    key = "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----\n"
    text = b"".join(b"[rank0]: " + line.encode() + b"\n" for line in key.splitlines())
    assert redacted([key], text) == b"[rank0]: ***\n" * 4


def test_a_traced_shell_shows_no_value():
    assert SecretRedactor(["it's $me"]).known("+ echo 'it'\\''s $me'") == "+ echo '***'"


def test_names_and_texts_of_a_document_are_hidden():
    document = {PIN: [f"at {PIN}", 1, None, {"deep": PIN}], "surrogate": "\ud800"}
    expected = {"***": ["at ***", 1, None, {"deep": "***"}], "surrogate": "\ud800"}
    assert SecretRedactor([PIN]).document(document) == expected


def test_without_secrets_nothing_is_changed():
    assert redacted([], b"abc") == b"abc"
    assert redacted(["me"], b"some") == b"some"


INVISIBLE = [
    *("\x1b[31m", "\x1b[0;1m\x1b[K", "\x1b]0;title\x07", "\x1b]8;;x\x1b\\", "\x1b(B", "\x9b1m", "\x90x\x9c"),
    *("\x00", "\b", "\x7f", "\u00ad", "\u200b", "\u202e", "\u2060", "\ufeff", "\U000e0041"),
]


@pytest.mark.parametrize("within", INVISIBLE)
@pytest.mark.parametrize("cut", [1, 3, 5, 9, 12])
def test_a_secret_that_escapes_hide_is_hidden_before_and_after_they_are_taken_out(within, cut):
    planted = "token+hunter2-TopSecret/9x"  # doubled characters: the next test
    text = f"it is {planted[:9]}{within}{planted[9:11]}{within}{planted[11:]} here\n".encode()
    shown = redacted([planted], text[:cut], text[cut : cut + 8], text[cut + 8 :])
    assert shown == b"it is *** here\n"
    assert SecretRedactor([planted]).known(text.decode()) == "it is *** here\n"
    assert planted in clean_text(text.decode()), "the controller takes out the same"


@pytest.mark.parametrize(
    "printed", ["token+a\bab\bb-hunter2", "token+a\babb-hunter2", "tok\ben+aab\bb-hun\bter2", "token+aa\bbb-hunter2"]
)
@pytest.mark.parametrize("cut", [1, 9, 14, 17])
def test_doubled_characters_that_are_printed_over_each_other_hide_no_secret(printed, cut):
    secret, text = "token+aabb-hunter2", f"it is {printed} here\n"
    assert redacted([secret], text[:cut].encode(), text[cut:].encode()) == b"it is *** here\n"
    assert SecretRedactor([secret]).known(text) == "it is *** here\n"


def test_a_line_waits_from_its_escape_on_and_no_longer_than_it_may():
    redactor = SecretRedactor([PIN])
    assert redactor.feed(b"at \x1b[3") == b"at "
    assert redactor.feed(b"1mwork\r") == b"work\r"
    assert redactor.feed(b"\x1b" + b"x" * (1 << 16)) == b"x" * ((1 << 16) - 1)
    assert redactor.feed(b"a\x1b[") + redactor.end() == b"a"


def test_names_of_users_are_words_of_any_text(tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "mine.json").write_text(
        json.dumps({"HUB_USERNAME": "training", "HUB_PASSWORD": "hunter2hunter2"})
    )
    assert secrets_of_run(tmp_path) == {"hunter2hunter2"}


def test_signatures_of_a_runs_urls_are_hidden(tmp_path):
    signature = "0123456789abcdef" * 4
    url = f"https://store:9000/b/run/records/facts/node-1.json?X-Amz-Expires=60&X-Amz-Signature={signature}"
    (tmp_path / "store.json").write_text(json.dumps({"put": {"records/facts": url}}))
    redactor = SecretRedactor([], secrets_of_run(tmp_path))
    assert signature.encode() not in redactor.feed((tmp_path / "store.json").read_bytes()) + redactor.end()
    kept = SecretRedactor(["a planted secret"])(f"PUT {url} with a planted secret")
    assert kept == "PUT https://store:9000/b/run/records/facts/node-1.json?*** with ***"


HIDING = {
    "bold": lambda secret: "".join(f"{letter}\b{letter}" for letter in secret),
    "underlined": lambda secret: "".join(f"_\b{letter}" for letter in secret),
    "line separator": "\u2028".join,
    "paragraph separator": "\u2029".join,
    "vertical tab": "\x0b".join,
    "next line": "\x85".join,
    "hyperlink": "\x1b]8;;http://x\x1b\\".join,
    "unfinished string": "\x9d0;x\x9c".join,
    "hex": lambda secret: secret.encode().hex(),
    "repr": lambda secret: repr(secret)[1:-1],
}


@pytest.mark.parametrize("way", HIDING)
@pytest.mark.parametrize("secret", ["hunter2-TopSecret", "p\u00e4ss'w\u00f6rd\\n\"9"])
def test_no_reader_sees_a_secret_that_other_signs_hide_on_nodes_and_on_the_controller(way, secret):
    printed = HIDING[way](secret)
    line = f"token: {printed} end\n".encode()
    for size in (2, 3, 1000):
        shown = redacted([secret], *(line[place : place + size] for place in range(0, len(line), size))).decode()
        for seen_text in (shown, clean_text(shown)):
            assert secret not in seen_text and printed not in seen_text, (size, seen_text)
            assert "*** end" in seen_text, (size, seen_text)
    assert SecretRedactor([secret])(clean_text(line.decode())) == "token: *** end\n"
