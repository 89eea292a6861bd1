"""The addresses of this machine, and which of them a setting means that is the same on every machine.

    10.0.0.7          this number
    10.0.0.0/8        a network: the machine's address in it
    eth0              an interface: its address
    hostname          the name of the machine: what it stands for
    mq.example        a name: what it stands for here; each machine's hosts file may have its own address

Of several addresses the one with the lowest number counts, IPv4 first.

Features: S3, S7, R15 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping

from spark_jms.store.errors import SettingInvalidError

HOSTNAME = "hostname"


def interfaces() -> dict[str, list[str]]:
    """interface -> its IP numbers."""
    import psutil

    return {
        name: [a.address.split("%")[0] for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
        for name, addresses in psutil.net_if_addrs().items()
    }


def numbers_of(name: str) -> list[str]:
    """The numbers that a name stands for on this machine; [] when it is not known."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(one[4][0]).split("%")[0] for one in found))
    return []


def address_here(setting: str, host: str) -> str:
    """The number of this machine that `host` means. SettingInvalidError, which names `setting`, when it means none, or that of
    another machine."""
    if is_number(host):
        check_own(setting, host, host)
        return host
    own = interfaces()
    every = [number for numbers in own.values() for number in numbers]
    if "/" in host:
        found, what = _in_network(setting, host, every), "no address of this machine is in it"
    elif host in own:
        found, what = _usable(own[host]), "the interface has no address"
    else:
        name = socket.gethostname() if host == HOSTNAME else host
        stands_for = numbers_of(name)
        found = [
            number for number in stands_for if number in every and (host == "localhost" or not _is_loopback(number))
        ]
        known = (
            f"stands for {', '.join(stands_for)}" if stands_for else "is no interface, and no name that is known here"
        )
        what = f"{name} {known}, which is no address by which others reach this machine"
    if not found:
        raise SettingInvalidError(setting, host, f"{what}; it has {_shown(own)}")
    return min(found, key=_order)


def check_own(setting: str, host: str, number: str) -> None:
    """SettingInvalidError when no process of this machine can listen at the number."""
    family = socket.AF_INET6 if ":" in number else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((number, 0))
    except OSError as error:
        raise SettingInvalidError(
            setting, host, f"this machine cannot listen there ({error.strerror}); it has {_shown(interfaces())}"
        ) from error


def is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _in_network(setting: str, host: str, numbers: Iterable[str]) -> list[str]:
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError as error:
        raise SettingInvalidError(setting, host, f"not a network: {error}") from error
    inside = [number for number in numbers if ipaddress.ip_address(number) in network]
    return [number for number in inside if network.is_loopback or not _is_loopback(number)]


def _usable(numbers: Iterable[str]) -> list[str]:
    """A link-local address means nothing without its interface."""
    return [number for number in numbers if not ipaddress.ip_address(number).is_link_local]


def _is_loopback(number: str) -> bool:
    return ipaddress.ip_address(number).is_loopback


def _order(number: str) -> tuple[int, int]:
    found = ipaddress.ip_address(number)
    return found.version, int(found)


def _shown(own: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{name} {number}" for name, numbers in own.items() for number in numbers) or "no address"
