"""Who a client is, for limits that each has of its own."""

import ipaddress

from starlette.requests import HTTPConnection


def network_of(connection: HTTPConnection) -> str:
    """A client's address; of IPv6 the network, because a client has 2**64 addresses there."""
    host = connection.client.host if connection.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((int(address), 64), strict=False))
