"""Replaces internal addresses in text: IPv4, IPv6 and hardware addresses. Texts that only look like an address must
stay, above all versions. An IPv4 address is four numbers up to 255 without leading zeros and with no fifth number:
580.159.04.1 and 1.2.3.4.5 are versions. Four such numbers right after a word like `version` or `firmware`, after
`driver=`, `==`, `.so.` or a `v` are a version too, unless a port or a mask follows. After `driver` or `build` alone
they may be an address. Known addresses of the fleet are found in any context."""

import functools
import ipaddress
import re
from collections.abc import Callable, Iterable

#: Function that returns the replacement of an address: arguments are kind (`address`, `mac`) and canonical address.
Replace = Callable[[str, str], str]
ADDRESS, MAC = "address", "mac"
_IPV4 = re.compile(r"(?<![0-9])(?<![0-9]\.)(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?!\d)((?:\.\d+)*)", re.ASCII)
_DASHED = re.compile(r"(?<![0-9A-Za-z])ip-(\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3})(?![0-9A-Za-z])", re.ASCII | re.IGNORECASE)
_IPV6 = re.compile(
    r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:|:)(?:[0-9A-Fa-f]{0,4}:){1,8}(?:[0-9A-Fa-f]{0,4}|\d{1,5})"
    r"(?![0-9A-Za-z])(?!:[0-9A-Fa-f]{0,4}(?![0-9A-Za-z]))(?:%[\w.-]+)?",
    re.ASCII,
)
_HEX = "[0-9A-Fa-f]"
_MAC = re.compile(rf"(?<![\w:-]){_HEX}{{2}}([:-]){_HEX}{{2}}(?:\1{_HEX}{{2}}){{4,18}}(?![0-9A-Za-z]|[:-]\w)", re.ASCII)
_DOTTED_MAC = re.compile(rf"(?<![\w.]){_HEX}{{4}}\.{_HEX}{{4}}\.{_HEX}{{4}}(?![0-9A-Za-z]|\.\w)", re.ASCII)
_GUID = re.compile(rf"(?<![\w:]){_HEX}{{4}}(?::{_HEX}{{4}}){{3}}(?![\w:])", re.ASCII)
#: MAC addresses without separators, and GUIDs of InfiniBand as its tools print them.
_BARE_MAC = re.compile(rf"(?<!{_HEX})(?:0x)?{_HEX}{{12}}(?:{_HEX}{{4}})?(?!{_HEX})", re.ASCII)
#: Numbers of octets in hardware addresses: Ethernet, EUI-64, InfiniBand.
_OCTETS = (6, 8, 20)
_VERSION_BEFORE = re.compile(
    r"(?:(?<![A-Za-z])(?:(?:version|ver|release|firmware|vbios|bios|cuda|rocm|toolkit)s?[\"']?\s?[:=]?"
    r"|(?:driver|build)s?[\"']?\s?=)\s?[\"']?v?"
    r"|==|\.so\.|(?<![0-9A-Za-z])v)$",
    re.ASCII | re.IGNORECASE,
)
_LONGEST_BEFORE = 24
_PORT_OR_MASK = re.compile(r":\d{1,5}(?!\d)|/\d{1,2}(?!\d)", re.ASCII)
_INTERNAL = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "198.18.0.0/15",
                    "fc00::/7", "fe80::/10", "fec0::/10")
)  # fmt: skip


@functools.lru_cache(maxsize=1 << 14)
def canonical(text: str) -> str | None:
    """The canonical form of an IP address; None for any other text."""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0].strip("[]")))
    except ValueError:
        return None


def canonical_mac(text: str) -> str | None:
    """A MAC address as lower-case hexadecimal digits; None for any other text, and for all zeros or ones."""
    digits = re.sub(r"^0x|[:.-]", "", text.lower())
    octets, odd = divmod(len(digits), 2)
    if odd or octets not in _OCTETS or re.search("[^0-9a-f]", digits) or set(digits) in ({"0"}, {"f"}):
        return None
    return digits


def is_own(address: str) -> bool:
    """Whether an IP address identifies a machine: loopback, multicast and the unspecified address do not."""
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast)


class Addresses:
    """Replaces internal addresses in text; those in ``addresses`` (IP) and ``macs`` even if they are public."""

    def __init__(self, replace: Replace, addresses: Iterable[str] = (), macs: Iterable[str] = ()) -> None:
        spelled = (canonical(address) for address in addresses)
        self.known = frozenset(address for address in spelled if address and is_own(address))
        self.macs = frozenset(mac for mac in map(canonical_mac, macs) if mac)
        self._replace = replace

    def hide(self, text: str) -> str:
        """The text with each internal or known address replaced by what ``replace`` returns."""
        if ":" in text or "-" in text:
            text = _MAC.sub(self._mac, text)
        if ":" in text:
            text = _IPV6.sub(self._ipv6, text)
            text = _GUID.sub(lambda match: self._replace(MAC, match.group().replace(":", "").lower()), text)
        text = _IPV4.sub(self._ipv4, text)
        text = _DASHED.sub(self._dashed, text)
        text = _DOTTED_MAC.sub(self._mac, text)
        return _BARE_MAC.sub(self._bare, text) if self.macs else text

    def _mac(self, match: re.Match[str]) -> str:
        mac = canonical_mac(match.group())
        if mac is None or ("-" in match.group() and mac.isdecimal() and mac not in self.macs):
            return match.group()  # numbers between dashes are a date and a time
        return self._replace(MAC, mac)

    def _bare(self, match: re.Match[str]) -> str:
        mac = match.group().lower().removeprefix("0x")
        return self._replace(MAC, mac) if mac in self.macs else match.group()

    def _ipv6(self, match: re.Match[str]) -> str:
        """Replace the longest part of the match that is an internal address: a port or colon may follow it."""
        text = match.group()
        before, _colon, _port = text.rpartition(":")
        for form in (text, before.rstrip(":") or text):
            address = canonical(form)
            if address and (address in self.known or _internal(address)):
                return self._replace(ADDRESS, address) + text[len(form) :]
        return text

    def _dashed(self, match: re.Match[str]) -> str:
        address = canonical(match.group(1).replace("-", "."))
        if address is None or not (address in self.known or _internal(address)):
            return match.group()
        return self._replace(ADDRESS, address)

    def _ipv4(self, match: re.Match[str]) -> str:
        address, more = match.group(1), match.group(2)
        if canonical(address) is None:
            return match.group()
        if address not in self.known:
            if more or not _internal(address):
                return match.group()
            before = match.string[max(0, match.start() - _LONGEST_BEFORE) : match.start()]
            if _VERSION_BEFORE.search(before) and not _PORT_OR_MASK.match(match.string, match.end()):
                return match.group()
        return self._replace(ADDRESS, address) + more


@functools.lru_cache(maxsize=1 << 14)
def _internal(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return any(parsed in network for network in _INTERNAL)
