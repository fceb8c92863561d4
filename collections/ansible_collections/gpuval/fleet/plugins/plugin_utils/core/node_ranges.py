"""Ranges in names of nodes: `gpu[01-16]`, and as Ansible writes them `gpu[001:100]`, `gpu[a:f]`, `gpu[0:8:2]`."""

import re

from .errors import SettingError

_RANGE = re.compile(r"\[([A-Za-z0-9]+)[:-]([A-Za-z0-9]+)(:\d+)?\]")


def with_colons(text: str) -> str:
    """The text with each range in Ansible's form: `gpu[01:16]` for `gpu[01-16]`."""
    return _RANGE.sub(r"[\1:\2\3]", text)


def is_range(text: str) -> bool:
    return _RANGE.search(text) is not None


def names_of(text: str) -> list[str]:
    """The node names of a range such as `gpu[01-16]`; the text itself if it has no range. Raises SettingError."""
    if not is_range(text):
        return [text]
    from ansible.plugins.inventory import expand_hostname_range  # noqa: PLC0415 - some commands have no Ansible

    try:
        names: list[str] = expand_hostname_range(with_colons(text))
    except Exception as error:  # Ansible raises several kinds of errors
        raise SettingError(f"{text!r} is no range such as [001:100]: {error}") from None
    if not names:
        raise SettingError(f"the range {text!r} is empty")
    return names
