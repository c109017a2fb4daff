"""Announces the Wyoming port on the local network by mDNS, so that Home Assistant finds it."""

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from slimwhisper.errors import OptionError
from slimwhisper.text import error_line

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

SERVICE = "_wyoming._tcp.local."


async def announce(listeners: Iterable[socket.socket]) -> "AsyncZeroconf":
    """Announce a port, at the addresses at which it listens, until `async_close` is awaited.

    Raises OptionError if the network does not allow it.
    """
    from zeroconf import Error
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    names = [listener.getsockname()[:2] for listener in listeners]
    addresses = reachable([address for address, _ in names])
    host = socket.gethostname().partition(".")[0][:40]
    service = AsyncServiceInfo(
        SERVICE, f"slimwhisper-{host}.{SERVICE}", names[0][1], parsed_addresses=addresses
    )
    try:
        if not addresses:
            raise OSError("this machine is not connected to a network")
        announcer = AsyncZeroconf(interfaces=addresses)
        await announcer.async_register_service(service, allow_name_change=True)
    except (Error, OSError) as error:
        raise OptionError(f"--discover: {error_line(error, kind=True)}; drop the flag") from error
    return announcer


def reachable(addresses: list[str]) -> list[str]:
    """The same addresses; for "all", this machine's, as others reach them."""
    from zeroconf import get_all_addresses

    if not any(ip_address(address).is_unspecified for address in addresses):
        return addresses
    return [address for address in get_all_addresses() if not ip_address(address).is_loopback]
