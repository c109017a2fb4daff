"""A page of another site in Chromium: what it asks a browser to do here does nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import chromium
from tests.support.live import Live
from tests.support.servers import serving

pytestmark = pytest.mark.slow

TRY = Path(__file__).with_name("other_site.js").read_text()
WITH_KEY = """(url) => fetch(`${url}/v1/models`, { headers: { Authorization: "Bearer s3cret" } })
  .then((answer) => answer.text())"""


def test_a_page_of_another_site(keyless: Live, keyed: Live, begin: Any) -> None:
    """For a browser, localhost is not the site 127.0.0.1."""
    port = keyless.url.rpartition(":")[2]
    rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with serving() as server, chromium(rebound) as browser:
        server.pages["/"] = b"<title>other</title>"
        server.headers["Content-Type"] = "text/html"
        site = server.url.replace("127.0.0.1", "localhost")
        open_to_it = begin(api_key="s3cret", allow_origins=(site,))
        context = browser.new_context()
        login = {"username": "any", "password": "s3cret"}
        answer = context.request.post(f"{keyed.url}/login", form=login)
        assert answer.ok and context.cookies(keyed.url)[0]["sameSite"] == "Lax"
        assert context.request.get(f"{keyed.url}/config").ok, "is logged in"
        page = context.new_page()
        taken: list[str] = []
        page.on("response", lambda r: taken.append(f"{r.status} {r.request.method} {r.url}"))
        page.goto(site)
        for live in (keyless, keyed):
            assert page.evaluate(TRY, live.url) == ""
        answers = [line for line in taken if "127.0.0.1" in line]
        assert answers and all(line.startswith(("400 ", "401 ", "403 ")) for line in answers)
        assert "digits" in page.evaluate(WITH_KEY, open_to_it.url)
        page.goto(f"http://evil.example:{port}/")
        assert "--allow_host" in page.content()
        page.goto(site)
        page.evaluate("url => { location = url }", keyless.url)
        page.wait_for_selector("#sw-go")
        context.close()
