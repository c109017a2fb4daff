"""Pages of other sites: a browser asks for them, with its cookies, but here they get nothing."""

from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
from starlette.types import Scope
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.sites import Sites
from slimwhisper.app.service.settings import Settings
from tests.support.live import Begin, Live, connected
from tests.support.spoken import SAMPLES

FILES = {"file": (SAMPLES / "phone-number.wav").read_bytes()}
EVIL = {"Origin": "http://evil.example"}
OTHER_SITES = (
    EVIL,
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {**EVIL, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://user@127.0.0.1"},
)
POSTS = (
    *("/v1/audio/transcriptions", "/v1/realtime/client_secrets", "/inference", "/login"),
    *("/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/cancel", "/page/live/key"),
    *("/page/edit/x", "/page/live/transcript.srt"),
)
READS = ("/config", "/gradio_api/heartbeat/x", "/gradio_api/info", "/page/result/x.txt")
FOLLOWED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}


@pytest.mark.parametrize("headers", OTHER_SITES, ids=str)
def test_other_sites_are_refused(keyless: Live, headers: dict[str, str]) -> None:
    asked = {**EVIL, **headers, "Access-Control-Request-Method": "POST"}
    with httpx.Client(base_url=keyless.url) as client:
        for path in (*POSTS, *READS):
            given = {} if path in READS else {"files": FILES}
            method = "GET" if path in READS else "POST"
            answer = client.request(method, path, headers=headers, **given)
            assert answer.status_code == 403 and "pages of other sites" in answer.text, path
            preflight = client.options(path, headers=asked)
            assert preflight.status_code == 400, path
            for each in (answer, preflight):
                assert "access-control-allow-origin" not in each.headers


def test_links_from_other_sites_lead_to_the_page(keyless: Live) -> None:
    for path, kind, status in (
        *(("/", "document", 200), ("/", "iframe", 403), ("/", "empty", 403)),
        *(("/page/result/x.txt", "document", 404), ("/config", "document", 403)),
    ):
        headers = {**FOLLOWED, "Sec-Fetch-Dest": kind}
        assert httpx.get(keyless.url + path, headers=headers).status_code == status, (path, kind)


@pytest.mark.slow
def test_programs_and_the_own_page_are_served(keyless: Live, keyed: Live) -> None:
    own = {"Origin": keyless.url, "Sec-Fetch-Site": "same-origin"}
    for headers in ({}, own, {"Origin": keyless.url}, {"Sec-Fetch-Site": "none"}):
        answer = httpx.post(f"{keyless.url}/inference", files=FILES, headers=headers)
        assert answer.status_code == 200, headers
        assert httpx.get(f"{keyless.url}/config", headers=headers).status_code == 200
    key = {**EVIL, "Sec-Fetch-Site": "cross-site", "Authorization": "Bearer s3cret"}
    assert httpx.post(f"{keyed.url}/inference", files=FILES, headers=key).status_code == 200


def test_a_site_that_is_allowed_uses_the_api_and_not_the_page(keyless: Live) -> None:
    site = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    asked = {
        **site,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-lang",
    }
    answer = httpx.options(f"{keyless.url}/v1/audio/transcriptions", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == site["Origin"]
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    answer = httpx.post(f"{keyless.url}/v1/audio/transcriptions", files=FILES, headers=site)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == site["Origin"]
    for path in ("/login", "/gradio_api/upload", "/gradio_api/queue/join"):
        assert httpx.post(keyless.url + path, files=FILES, headers=site).status_code == 403, path
    other = {"Origin": "https://app.example.evil.example"}
    assert httpx.post(f"{keyless.url}/inference", files=FILES, headers=other).status_code == 403


def test_a_login_does_not_help_other_sites(begin: Begin, folder: Path) -> None:
    """A browser sends a saved password along."""
    live = begin(login=("ann", "pass"))
    url, auth = f"{live.url}/v1/audio/transcriptions", ("ann", "pass")
    assert httpx.post(url, files=FILES, auth=auth, headers=EVIL).status_code == 403
    assert httpx.post(url, files=FILES, auth=auth).status_code == 200
    answer = httpx.get(f"{live.url}/v1/models")
    assert answer.headers["www-authenticate"] == "Basic"
    for scheme in ("basic", "BASIC"):
        headers = {"Authorization": f"{scheme} YW5uOnBhc3M="}
        assert httpx.get(f"{live.url}/v1/models", headers=headers).status_code == 200


def test_the_scheme_of_a_key_is_in_any_case(keyed: Live) -> None:
    for scheme, status in (("bearer", 200), ("BEARER", 200), ("Token", 401), ("s3cret", 401)):
        headers = {"Authorization": f"{scheme} s3cret"}
        answer = httpx.get(f"{keyed.url}/v1/models", headers=headers)
        assert answer.status_code == status
        assert status == 200 or answer.headers["www-authenticate"] == "Bearer"


def test_other_names_for_this_machine_are_refused(keyless: Live, keyed: Live) -> None:
    """A site may give its own name the address 127.0.0.1."""
    own = {"Host": "evil.example:7860", "Origin": "http://evil.example:7860"}
    headers = {**own, "Sec-Fetch-Site": "same-origin"}
    for path in (*READS, "/", "/v1/models", "/metrics"):
        answer = httpx.get(keyless.url + path, headers=headers)
        assert answer.status_code == 403 and "--allow_host" in answer.text, path
    assert httpx.post(f"{keyless.url}/inference", files=FILES, headers=headers).status_code == 403
    assert httpx.get(f"{keyless.url}/health", headers=headers).status_code == 200
    for host in ("localhost", "LOCALHOST:7860", "127.0.0.1", "[::1]:7860", "127.8.8.8:1"):
        answer = httpx.get(f"{keyless.url}/v1/models", headers={"Host": host})
        assert answer.status_code == 200, host
    key = {"Authorization": "Bearer s3cret", "Host": "speech.example"}
    assert httpx.get(f"{keyed.url}/v1/models", headers=key).status_code == 200


def test_a_websocket_of_another_host_is_refused(keyless: Live) -> None:
    with pytest.raises(InvalidStatus, match="403"), connected(keyless) as sock:
        connect("ws://evil.example/v1/realtime", sock=sock, origin="http://evil.example")


@pytest.mark.parametrize(
    ("settings", "host", "known"),
    [
        (Settings(), "speech.example", False),
        (Settings(), "", False),
        (Settings(), "[::1", False),
        (Settings(api_key="k"), "speech.example", True),
        (Settings(host="0.0.0.0"), "speech.example", True),
        (Settings(allow_hosts=("speech.example",)), "Speech.Example:443", True),
        (Settings(allow_hosts=("speech.example",)), "other.example", False),
        (Settings(host="0.0.0.0", allow_hosts=("a.example",)), "b.example", False),
        (Settings(host="0.0.0.0", allow_hosts=("a.example",)), "localhost", True),
    ],
)
def test_which_hosts_are_known(settings: Settings, host: str, known: bool) -> None:
    scope: Scope = {"type": "http", "headers": [(b"host", host.encode())]}
    refused = pytest.raises(APIError, match="start it with --allow_host")
    with nullcontext() if known else refused:
        Sites(settings).check_host(scope)


@pytest.mark.parametrize(
    ("origin", "host", "foreign", "calls"),
    [
        ("https://speech.example", "speech.example", False, True),
        ("https://speech.example", "speech.example:443", False, True),
        ("http://speech.example:80", "speech.example", False, True),
        ("http://speech.example:8080", "speech.example", True, False),
        ("https://proxy.example", "10.0.0.1:7860", False, True),
        ("https://app.example", "10.0.0.1:7860", True, True),
        ("http://app.example", "10.0.0.1:7860", True, False),
        ("null", "", True, False),
        ("http://[", "speech.example", True, False),
    ],
)
def test_which_origins_are_foreign(origin: str, host: str, foreign: bool, calls: bool) -> None:
    settings = Settings(allow_hosts=("proxy.example",), allow_origins=("https://app.example",))
    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    sites, scope = Sites(settings), {"type": "http", "headers": headers}
    assert (sites.is_foreign(scope), sites.may_call(scope)) == (foreign, calls)
