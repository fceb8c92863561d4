"""Documentation, messages, comments and names use the words of the field: those of words.yml do not come back."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
HELD = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "SUPPORT.md", "CODE_OF_CONDUCT.md", ".github",
        "Makefile", "benchmarks", "collections", "docker", "docs", "inventories", "molecule", "playbooks",
        "roles/testbed", "tools")  # fmt: skip
ENDINGS = {".py", ".md", ".yml", ".yaml", ".json", ".j2", ".js", ".css", ".html", ".sh", ".sql", ".toml", ".txt", ""}
NOT_OURS = {"__pycache__", "uplot", "LICENSE"}
DATA = yaml.safe_load(Path(__file__).with_name("words.yml").read_text())
PATTERN = re.compile(rf"\b(?:{'|'.join(DATA['words'])})\b".replace(" ", r"\s+"))


def files(*places):
    for place in places:
        path = ROOT / place
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in found:
            if file.is_file() and file.suffix in ENDINGS and not NOT_OURS & set(file.parts):
                yield file


def plain(text):
    """The words of a text, those within names too, each on its own line."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return re.sub(r"[^a-z0-9\n]+", " ", split.lower())


def words_in(text):
    """Line number and words for each place where a word of the list is."""
    split = plain(text)
    for match in PATTERN.finditer(split):
        yield split.count("\n", 0, match.start()) + 1, " ".join(match.group().split())


def found_in(path):
    """`path:line: word: what to write instead` for each word found."""
    name = str(path.relative_to(ROOT))
    for line, word in words_in(path.read_text(errors="replace")):
        if not any(name.startswith(place["path"]) and word == place["word"] for place in DATA["allowed"]):
            advice = next(advice for pattern, advice in DATA["words"].items() if re.fullmatch(pattern, word))
            yield f"{name}:{line}: {word}: write {advice}"


@pytest.mark.parametrize("place", HELD)
def test_no_word_of_the_list_is_used(place):
    found = [line for path in files(place) for line in found_in(path)]
    assert not found, "\n" + "\n".join(found[:200])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def last_told(self):", ["told"]),
        ("class NodeTold:", ["told"]),
        ("MAX_CROWDS = 3", ["crowds"]),
        ("the plan is let\n# go", ["is let go"]),
        ("understood; aforesaid; recommend", []),
    ],
)
def test_words_within_names_are_found(line, words):
    assert [word for _, word in words_in(line)] == words
