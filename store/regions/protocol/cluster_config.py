"""rs_daemons.cfg: the daemons of a cluster, and which of them are on this machine. Pure.

The caller reads the file, knows the machine's own addresses, and resolves names. Two addresses are equal when their texts are
equal, apart from upper and lower case and the spelling of an IP number, or when their names stand for one number here. Only the
syntax of an address is checked, not whether it can be reached (the reference's own example has numbers that no network has).

Features: R1, R2, R11 (docs/FEATURES.md)
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from spark_jms.store.errors import DaemonConfigError, NoLocalDaemonError

MIN_PORT, MAX_PORT = 1024, 49151
MAX_SHMKEY = 0xFFFF_FFFF
MAX_DAEMONS = 1000  # a daemon's number has three digits in the names of its log files
MAX_MEMORY_LIMIT_BYTES = 1 << 50
MAX_LOCALINDEX = 2**31 - 1
DEFAULT_MEMORY_LIMIT_BYTES = 1 << 30  # for a line with three fields

_MIB = 1 << 20
_UNITS = {"M": _MIB, "MB": _MIB, "G": 1 << 30, "GB": 1 << 30}
_LIMIT = re.compile(r"([0-9]{1,12})(M|MB|G|GB)")
_DECIMAL = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,12}")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MAX_NAME_CHARACTERS = 253


@dataclass(frozen=True)
class DaemonSpec:
    """One line of rs_daemons.cfg; `index` is the daemon's number, from 0 in the order of the file. `numbers`: what the name in
    `address` stands for on this machine; empty of a number, and of a name that is not known here."""

    index: int
    address: str
    port: int
    shmkey: int
    memory_limit_bytes: int
    numbers: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def nodes(self) -> frozenset[str]:
        """All that tells its machine from others."""
        return frozenset(map(normal_address, (self.address, *self.numbers)))


@dataclass(frozen=True)
class ClusterConfig:
    """All of rs_daemons.cfg. Daemons and clients with another `checksum` belong to another cluster and are refused."""

    daemons: tuple[DaemonSpec, ...]
    checksum: str

    def __post_init__(self) -> None:
        if [daemon.index for daemon in self.daemons] != list(range(len(self.daemons))):
            raise ValueError("daemons must be numbered from 0 in the order of the file")


def checksum_of(data: bytes) -> str:
    """Of the bytes as they are, so an edited comment changes it."""
    return hashlib.sha256(data).hexdigest()


def unresolved(name: str) -> Collection[str]:
    """Names stand for nothing."""
    return ()


def parse(text: str, file: str, resolve: Callable[[str], Collection[str]] = unresolved) -> ClusterConfig:
    """`text` is the file as UTF-8, with surrogate escapes for undecodable bytes and line ends untouched. `resolve` gives the
    numbers of a name. Raises DaemonConfigError, with file and line, for the first violation."""
    daemons: list[DaemonSpec] = []
    places: dict[tuple[str, int], int] = {}  # (address, port) -> line
    keys: dict[tuple[str, int], int] = {}  # (address, key) -> line
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        if len(daemons) == MAX_DAEMONS:
            raise DaemonConfigError(file, number, f"more than {MAX_DAEMONS} daemons")
        try:
            daemon = _daemon(len(daemons), fields, resolve)
            _unique(daemon, number, places, keys)
        except ValueError as error:
            raise DaemonConfigError(file, number, str(error)) from None
        daemons.append(daemon)
    if not daemons:
        raise DaemonConfigError(file, 0, "names no daemon")
    return ClusterConfig(tuple(daemons), checksum_of(text.encode("utf-8", "surrogateescape")))


def _daemon(index: int, fields: list[str], resolve: Callable[[str], Collection[str]]) -> DaemonSpec:
    if len(fields) not in (3, 4):
        raise ValueError(f"{len(fields)} fields, expected 3 or 4: address port shared-memory-key [memory-limit]")
    limit = parse_memory_limit(fields[3]) if len(fields) == 4 else DEFAULT_MEMORY_LIMIT_BYTES
    address = _address(fields[0])
    numbers = frozenset() if _is_number(address) else frozenset(resolve(address))
    return DaemonSpec(index, address, _port(fields[1]), _shmkey(fields[2]), limit, numbers)


def _unique(
    daemon: DaemonSpec, line: int, places: dict[tuple[str, int], int], keys: dict[tuple[str, int], int]
) -> None:
    for node in sorted(daemon.nodes):
        shown = repr(daemon.address) if node == normal_address(daemon.address) else f"{daemon.address!r} ({node})"
        first = places.setdefault((node, daemon.port), line)
        if first != line:
            raise ValueError(f"address {shown} and port {daemon.port} are already taken by line {first}")
        first = keys.setdefault((node, daemon.shmkey), line)
        if first != line:
            raise ValueError(
                f"shared memory key {daemon.shmkey:#x} is already taken on {shown} by line {first}; "
                "daemons on one machine need different keys"
            )


def _address(word: str) -> str:
    if ":" in word:  # names have none
        try:
            ipaddress.IPv6Address(word)
        except ValueError:
            raise ValueError(f"address {word!r} is neither a host name nor an IP number") from None
        return word
    labels = word.removesuffix(".").split(".")
    if len(word) > _MAX_NAME_CHARACTERS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"address {word!r} is neither a host name nor an IP number")
    return word


def _port(word: str) -> int:
    if not _DECIMAL.fullmatch(word) or not MIN_PORT <= int(word) <= MAX_PORT:
        raise ValueError(f"port {word!r}, allowed are {MIN_PORT} to {MAX_PORT}")
    return int(word)


def _shmkey(word: str) -> int:
    if _DECIMAL.fullmatch(word):
        key = int(word)
    elif _HEX.fullmatch(word):
        key = int(word, 16)
    else:
        raise ValueError(f"shared memory key {word!r} is neither a decimal number nor 0x and a hexadecimal one")
    if not 1 <= key <= MAX_SHMKEY:
        raise ValueError(f"shared memory key {word!r}, allowed are 1 to {MAX_SHMKEY} ({MAX_SHMKEY:#x})")
    return key


def parse_memory_limit(word: str) -> int:
    """An integer directly followed by M or MB (2**20 bytes), or G or GB (2**30 bytes). Raises ValueError."""
    match = _LIMIT.fullmatch(word)
    if match is None:
        raise ValueError(f"memory limit {word!r}, expected an integer and M, MB, G or GB, as in 512M or 2G")
    limit = int(match[1]) * _UNITS[match[2]]
    if not 1 <= limit <= MAX_MEMORY_LIMIT_BYTES:
        raise ValueError(f"memory limit {word!r}, allowed are 1M to {MAX_MEMORY_LIMIT_BYTES >> 30}G")
    return limit


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _is_loopback(number: str) -> bool:
    return ipaddress.ip_address(number).is_loopback


def normal_address(address: str) -> str:
    """The same text for every spelling of an address."""
    try:
        return ipaddress.ip_address(address).compressed
    except ValueError:
        return address.removesuffix(".").lower()


def local_daemons(config: ClusterConfig, addresses: Collection[str]) -> tuple[DaemonSpec, ...]:
    """The daemons on the machine with these addresses (names and numbers), in the order of the file. A name that stands for a
    loopback number is one of this machine."""
    here = {normal_address(address) for address in addresses}
    return tuple(
        daemon
        for daemon in config.daemons
        if not here.isdisjoint(daemon.nodes) or any(map(_is_loopback, daemon.numbers))
    )


def pick_local(config: ClusterConfig, addresses: Collection[str], localindex: int) -> DaemonSpec:
    """The local daemon number `localindex`, modulo the number of local daemons."""
    if not 0 <= localindex <= MAX_LOCALINDEX:
        raise ValueError(f"localindex {localindex}, allowed are 0 to {MAX_LOCALINDEX}")
    daemons = local_daemons(config, addresses)
    if not daemons:
        listed = ", ".join(sorted({daemon.address for daemon in config.daemons}))
        raise NoLocalDaemonError(f"none of {listed} is an address of this machine")
    return daemons[localindex % len(daemons)]
