"""Make text that nodes wrote safe for the places people read it: terminal, Markdown, XML, CSV and file names.

Nodes are not trusted: a message may carry terminal escapes, HTML, a spreadsheet formula or characters that reorder the
text around them. Text is cleaned once, on intake, and escaped again for the format that it is written to.
"""

import hashlib
import re
import sys
from pathlib import Path

if __package__:
    from ...module_utils.visible_text import visible
else:  # run as a program: the filter in watch/reach.py
    sys.path.insert(0, str(Path(__file__).parents[2] / "module_utils"))
    from visible_text import visible  # type: ignore[no-redef]

_SURROGATE = re.compile("[\ud800-\udfff]")
#: Starts a command to the CI system in a log (GitHub, Azure, TeamCity): ``::error::``, ``##[error]``, ``##vso[``.
_CI_COMMAND = re.compile(r"(?<!\S)::(?=[a-z][^\n]*?::)|##(?=(?:vso|teamcity)?\[)", re.IGNORECASE)
#: Maximum bytes of a line in a stream; a longer line is cleaned in parts.
MAX_LINE_BYTES = 1 << 16
#: A node's name: safe as a file name and as an object key.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_XML_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
#: A word that Markdown turns into a link or a mention, without characters that end code or a table cell.
_ADDRESS = re.compile(r"[\w.,:;=/+%@(){}-]*(?:@|://)[\w.,:;=/+%@(){}?#-]*")
#: Starts a heading, a quotation or a list in Markdown.
_BLOCK_START = re.compile(r"^(\d{0,9})([#>+=-]|(?<=\d)[.)])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_MARKDOWN_SPECIAL = re.compile(r"([\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_]))")


def clean_text(text: str) -> str:
    """Text without terminal escapes, control, invisible and bidirectional characters; line feeds and tabs stay."""
    if text.isprintable():
        return text
    text = visible(text).replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return _SURROGATE.sub("\ufffd", text)


def one_line(text: str, limit: int = 400) -> str:
    """The cleaned text with white space collapsed, shortened in the middle to at most ``limit`` characters."""
    line = " ".join(clean_text(text).split())
    if len(line) <= limit:
        return line
    head = (limit - 5) * 2 // 3
    return f"{line[:head]} ... {line[len(line) - (limit - 5 - head) :]}"


def console_line(text: str) -> str:
    """The cleaned text as one line for a terminal or a CI job's log, without commands to the CI system."""
    return _CI_COMMAND.sub(lambda match: " ".join(match.group()), clean_text(text).replace("\n", " "))


def markdown(text: str, limit: int = 400) -> str:
    """Untrusted text escaped for one Markdown line or table cell: no markup, HTML, link or mention takes effect.
    Addresses become code, which stays readable. ``limit``: maximum characters before escaping."""
    words = [f"`{word}`" if _ADDRESS.fullmatch(word) else _escaped(word) for word in one_line(text, limit).split(" ")]
    return _BLOCK_START.sub(r"\1\\\2", " ".join(words))


def _escaped(word: str) -> str:
    word = _MARKDOWN_SPECIAL.sub(r"\\\1", word)
    word = _ENTITY.sub("&amp;", word).replace("<", "&lt;")
    return word.replace("://", ":\\//").replace("www.", "www\\.").replace("@", "\\@")


def xml_text(text: str) -> str:
    """Text without the characters that XML 1.0 forbids even when escaped."""
    return _XML_FORBIDDEN.sub("", text)


def csv_cell(value: object) -> str:
    """A value as a CSV cell that no spreadsheet runs as a formula; None is empty, numbers keep their sign."""
    text = "" if value is None else str(value)
    if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def safe_name(name: str) -> str:
    """The name of a node made safe for paths and object keys. A name that must be changed gets a digest, which keeps it
    unique. Raises ValueError for an empty name."""
    if not name:
        raise ValueError("a node needs a name")
    if NODE_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return f"{safe[:200] or 'node'}-{digest}"


if __name__ == "__main__":  # the last program of a pipe in watch/reach.py: cleans a node's output for the terminal
    try:
        while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
            sys.stdout.buffer.write(clean_text(line.decode("utf-8", "replace")).encode())
            sys.stdout.buffer.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()
        sys.exit(130)
