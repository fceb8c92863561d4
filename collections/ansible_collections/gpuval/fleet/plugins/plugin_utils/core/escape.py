"""Make text that nodes wrote safe for the places people read it: terminal, Markdown, XML, CSV and file names.

Nodes are not trusted: a message may carry terminal escapes, HTML, a spreadsheet formula or characters that reorder what
stands around them. Text is cleaned once, on intake, and escaped again for the format it is written to.
"""

import hashlib
import re
import sys
from pathlib import Path

if __package__:
    from ...module_utils.visible_text import visible
else:  # a filter of streams, started by its path (watch/reach.py)
    sys.path.insert(0, str(Path(__file__).parents[2] / "module_utils"))
    from visible_text import visible  # type: ignore[no-redef]

_SURROGATE = re.compile("[\ud800-\udfff]")
#: What starts a command of GitHub, Azure or TeamCity: ``::error::``, ``##[error]``, ``##vso[``, ``##teamcity[``.
_CI_COMMAND = re.compile(r"(?<!\S)::(?=[a-z][^\n]*?::)|##(?=(?:vso|teamcity)?\[)", re.IGNORECASE)
#: Bytes of a line of a stream; a longer one is cleaned in parts.
MAX_LINE_BYTES = 1 << 16
#: A node's name: safe as a file name and as an object key.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_XML_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
#: What Markdown makes a link or a mention of, and has no character that ends code or a cell.
_ADDRESS = re.compile(r"[\w.,:;=/+%@(){}-]*(?:@|://)[\w.,:;=/+%@(){}?#-]*")
#: What starts a heading, a quotation or a list.
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
    """Cleaned text with white space collapsed, shortened in the middle to ``limit`` characters."""
    line = " ".join(clean_text(text).split())
    if len(line) <= limit:
        return line
    head = (limit - 5) * 2 // 3
    return f"{line[:head]} ... {line[len(line) - (limit - 5 - head) :]}"


def console_line(text: str) -> str:
    """Text as one line of a terminal, or of a CI job's log: no line of its own, and no command for the CI, is in it."""
    return _CI_COMMAND.sub(lambda match: " ".join(match.group()), clean_text(text).replace("\n", " "))


def markdown(text: str, limit: int = 400) -> str:
    """Untrusted text for one Markdown line or table cell: no markup, HTML, link or mention of it comes to life. It
    stays good to read as it stands: addresses are code, which is not escaped."""
    words = [f"`{word}`" if _ADDRESS.fullmatch(word) else _escaped(word) for word in one_line(text, limit).split(" ")]
    return _BLOCK_START.sub(r"\1\\\2", " ".join(words))


def _escaped(word: str) -> str:
    word = _MARKDOWN_SPECIAL.sub(r"\\\1", word)
    word = _ENTITY.sub("&amp;", word).replace("<", "&lt;")
    return word.replace("://", ":\\//").replace("www.", "www\\.").replace("@", "\\@")


def xml_text(text: str) -> str:
    """Text with the characters removed that XML 1.0 cannot carry, even escaped."""
    return _XML_FORBIDDEN.sub("", text)


def csv_cell(value: object) -> str:
    """A cell that no spreadsheet takes for a formula; numbers keep their sign."""
    text = "" if value is None else str(value)
    if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def safe_name(name: str) -> str:
    """The name of a node for paths and object keys; one that must be changed keeps apart from others by a digest.
    Raises ValueError for an empty name."""
    if not name:
        raise ValueError("a node needs a name")
    if NODE_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return f"{safe[:200] or 'node'}-{digest}"


if __name__ == "__main__":  # the end of a pipe, see watch/reach.py: the output of a node, cleaned for the terminal
    try:
        while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
            sys.stdout.buffer.write(clean_text(line.decode("utf-8", "replace")).encode())
            sys.stdout.buffer.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()
        sys.exit(130)
