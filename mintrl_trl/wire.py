"""What all clients of servers share: which addresses are one server, which proxy is between, how long to wait.

Reads text; asks no server and looks no name up. Invariant: spellings of one address (`localhost` and `127.0.0.1`, with
and without `/v1`, a port that goes without saying) count as one.
"""

import ipaddress
import json
import math
import urllib.request
from urllib.parse import urlsplit

LONGEST_TEXT_CHARS = 1000  # of a server's words in a message
_PORTS = {"http": 80, "https": 443}


def is_local(url: str) -> bool:
    """Whether an address is this machine's own, under any network.

    >>> is_local("http://[::1]:8000/v1"), is_local("http://node2:8000")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    found = _ip(host)
    return host == "localhost" or (found is not None and (found.is_loopback or found.is_unspecified))


def machine_of(url: str) -> str:
    """Name of the machine behind an address; one name for this machine."""
    return "localhost" if is_local(url) else urlsplit(url).hostname or ""


def port_of(url: str) -> int:
    """The port, or the one that goes without saying."""
    parts = urlsplit(url)
    return parts.port or _PORTS.get(parts.scheme, 80)


def server_of(url: str) -> tuple[str, int, str]:
    """What tells servers apart: machine, port and path.

    >>> server_of("http://127.0.0.1:8000/v1/") == server_of("http://localhost:8000")
    True
    """
    path = urlsplit(url).path.rstrip("/").removesuffix("/v1").rstrip("/")
    return machine_of(url), port_of(url), path


def listening_host(url: str) -> str:
    """What a server listens on to be found at an address: this machine alone, or all interfaces where it has a name.

    >>> listening_host("http://localhost:8000"), listening_host("http://node2:8000"), listening_host("http://[::1]:80")
    ('127.0.0.1', '0.0.0.0', '::1')
    """
    host = urlsplit(url).hostname or ""
    if is_local(url):
        return "127.0.0.1" if host == "localhost" else host
    return "::" if ":" in host else "0.0.0.0"


def proxy_of(url: str) -> str | None:
    """The proxy by which the environment (`HTTP_PROXY`, `NO_PROXY`, ...) has requests go to an address.

    Host and port alone: what else stands in such a variable may be a password. `None` where there is none.
    """
    if is_local(url):
        return None
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None or urllib.request.proxy_bypass(parts.netloc):
        return None
    return urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2]


def seconds_to_wait(retry_after: str | None) -> float:
    """The seconds of a `Retry-After` header; 0 without one, or where it holds a date.

    >>> seconds_to_wait("3"), seconds_to_wait("Wed, 21 Oct 2026 07:28:00 GMT"), seconds_to_wait(None)
    (3.0, 0.0, 0.0)
    """
    try:
        seconds = float(retry_after or 0.0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def server_words(text: str) -> str:
    """The message inside an error body of vLLM, FastAPI or OpenAI; any other body as it is, shortened."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or body
        text = error if isinstance(error, str) else json.dumps(error)
    text = " ".join(text.split())
    return text[:LONGEST_TEXT_CHARS] or "(no text)"
