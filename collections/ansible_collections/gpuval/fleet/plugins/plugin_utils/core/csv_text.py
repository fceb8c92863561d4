"""Reads CSV files as people and spreadsheets write them: UTF-8 with or without a byte order mark, any line ends,
comma, semicolon or tab between cells, spaces around cells, comments and empty lines."""

import csv
import io
from pathlib import Path

from . import files
from .errors import SettingError, reason_of

MAX_FILE_BYTES = 16 << 20


def read(path: Path, what: str) -> str:
    """The text of a CSV file. ``what``: what the file holds, for messages. Raises SettingError."""
    try:
        data = files.read(path, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingError(f"the {what}, {path}, cannot be read: {reason_of(error)}") from None
    if len(data) > MAX_FILE_BYTES:
        raise SettingError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB, which no {what} is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingError(f"{path} is not UTF-8: save it again as CSV in UTF-8") from None


def is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def rows(text: str, name: str) -> list[tuple[int, list[str]]]:
    """(line number, stripped cells) of each row of a CSV text that is neither empty nor a comment. ``name``: of the
    file, for messages. Raises SettingError."""
    first = next((line for line in text.splitlines() if line.strip() and not is_comment(line)), "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    numbered = []
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped) and not is_comment(stripped[0]):
                numbered.append((reader.line_num, stripped))
    except csv.Error as error:
        raise SettingError(f"{name} line {reader.line_num} is not CSV: {error}") from None
    return numbered
