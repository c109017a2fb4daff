"""Pages of other sites: a browser asks for them, with its cookies, but here they get nothing."""

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Scope
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from slimwhisper.app.api.access import HEADERS
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.origins import AllowedOrigins, network_of
from slimwhisper.app.service.settings import ServerSettings
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
    for path in POSTS:
        answer = httpx.post(keyless.url + path, files=FILES, headers=headers)
        assert answer.status_code == 403 and "another site" in answer.text, path
    for path in READS:
        answer = httpx.get(keyless.url + path, headers=headers)
        assert answer.status_code == 403, path
        assert not [name for name in answer.headers if name.startswith("access-control-allow")]
    asked = {**EVIL, **headers, "Access-Control-Request-Method": "POST"}
    for path in (*POSTS, *READS):
        answer = httpx.options(keyless.url + path, headers=asked)
        assert answer.status_code == 400, path
        assert "access-control-allow-origin" not in answer.headers


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
    key = {**EVIL, "Sec-Fetch-Site": "cross-site", "Authorization": "Bearer s3cret"}
    for headers in ({}, own, {"Origin": keyless.url}, {"Sec-Fetch-Site": "none"}):
        assert keyless.post(files=FILES, headers=headers).status_code == 200, headers
        assert httpx.get(f"{keyless.url}/config", headers=headers).status_code == 200
    assert keyed.post(files=FILES, headers=key).status_code == 200


def test_a_site_that_is_allowed_uses_the_api_and_not_the_page(keyless: Live) -> None:
    site = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    asked = {
        **site,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-lang",
    }
    before = httpx.options(f"{keyless.url}/v1/audio/transcriptions", headers=asked)
    answer = keyless.post(files=FILES, headers=site)
    for found in (before, answer):
        assert found.status_code == 200
        assert found.headers["access-control-allow-origin"] == site["Origin"]
    assert "x-stainless-lang" in before.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in before.headers
    for path in ("/login", "/gradio_api/upload", "/gradio_api/queue/join"):
        assert httpx.post(keyless.url + path, files=FILES, headers=site).status_code == 403, path
    other = {"Origin": "https://app.example.evil.example"}
    assert keyless.post(files=FILES, headers=other).status_code == 403


def test_keys_and_logins(begin: Begin, keyed: Live) -> None:
    """A browser sends a saved password along, which does not help other sites."""
    live, auth = begin(login=("ann", "pass")), ("ann", "pass")
    assert live.post(files=FILES, auth=auth, headers=EVIL).status_code == 403
    assert live.post(files=FILES, auth=auth).status_code == 200
    login = "YW5uOnBhc3M="
    for server, scheme, credentials, status in (
        *((live, scheme, login, 200) for scheme in ("basic", "BASIC")),
        *((keyed, scheme, "s3cret", 200) for scheme in ("bearer", "BEARER")),
        *((live, "Bearer", login, 401), (keyed, "Token", "s3cret", 401)),
    ):
        headers = {"Authorization": f"{scheme} {credentials}"}
        answer = httpx.get(f"{server.url}/v1/models", headers=headers)
        assert answer.status_code == status, scheme
        wanted = "Basic" if server is live else "Bearer"
        assert status == 200 or answer.headers["www-authenticate"] == wanted


def test_other_names_for_this_machine_are_refused(keyless: Live) -> None:
    """A site may give its own name the address 127.0.0.1."""
    headers = {"Host": "evil.example:7860", "Origin": "http://evil.example:7860"}
    headers["Sec-Fetch-Site"] = "same-origin"
    for path in (*READS, "/", "/v1/models", "/metrics"):
        answer = httpx.get(keyless.url + path, headers=headers)
        assert answer.status_code == 403 and "--allow_host" in answer.text, path
    assert keyless.post(files=FILES, headers=headers).status_code == 403
    assert httpx.get(f"{keyless.url}/health", headers=headers).status_code == 200
    with pytest.raises(InvalidStatus, match="403"):
        connect("ws://evil.example/v1/realtime", sock=connected(keyless))


def test_no_other_site_shows_the_page_and_no_browser_keeps_a_text(
    keyless: Live, keyed: Live
) -> None:
    url, texts = keyless.url, "/v1/audio/transcriptions"
    answers = [
        httpx.get(f"{url}{path}") for path in ("/", "/health", "/config", "/v1/models", "/x")
    ]
    answers += [httpx.get(f"{keyed.url}{path}") for path in ("/", "/config", "/v1/models")]
    answers += [keyless.post(files=FILES, data={"stream": stream}) for stream in ("true", "false")]
    answers += [keyless.post(), keyed.post(files=FILES)]
    for answer in answers:
        for name, value in HEADERS:
            assert answer.headers.get_list(name.decode()) == [value.decode()], answer.url
        kept = answer.url.path == "/"
        assert answer.headers.get("cache-control") == (None if kept else "no-store"), answer.url
    assert any(answer.url.path == texts and answer.is_success for answer in answers)
    shown = httpx.get(f"{url}/page/assets/page.css")
    assert shown.headers["cache-control"] == "no-cache" and shown.headers["x-frame-options"]


@pytest.mark.parametrize(
    ("settings", "host", "known"),
    [
        *((ServerSettings(), host, False) for host in ("speech.example", "", "[::1")),
        (ServerSettings(), "evil.example@127.0.0.1", False),
        (ServerSettings(), "127.0.0.1:7860:evil", False),
        (ServerSettings(), "127.0.0.1/evil.example", False),
        *(
            (ServerSettings(), host, True)
            for host in ("LOCALHOST:7860", "[::1]:7860", "127.8.8.8:1")
        ),
        (ServerSettings(api_key="k"), "speech.example", True),
        (ServerSettings(host="0.0.0.0"), "speech.example", True),
        (ServerSettings(allow_hosts=("speech.example",)), "Speech.Example:443", True),
        (ServerSettings(allow_hosts=("speech.example",)), "other.example", False),
        (ServerSettings(host="0.0.0.0", allow_hosts=("a.example",)), "b.example", False),
        (ServerSettings(host="0.0.0.0", allow_hosts=("a.example",)), "localhost", True),
    ],
)
def test_which_hosts_are_known(settings: ServerSettings, host: str, known: bool) -> None:
    scope: Scope = {"type": "http", "headers": [(b"host", host.encode())]}
    if known:
        AllowedOrigins(settings).check_host(scope)
        return
    with pytest.raises(APIError, match="start it with --allow_host"):
        AllowedOrigins(settings).check_host(scope)


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
    settings = ServerSettings(
        allow_hosts=("proxy.example",), allow_origins=("https://app.example",)
    )
    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    sites, scope = AllowedOrigins(settings), {"type": "http", "headers": headers}
    assert (sites.is_foreign(scope), sites.may_call(scope)) == (foreign, calls)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("/a/socket", "/a/socket"),
    ],
)
def test_networks(host: str, network: str) -> None:
    assert network_of(Request({"type": "http", "client": (host, 1)})) == network
