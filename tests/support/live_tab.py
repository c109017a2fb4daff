"""The page's Live tab in a browser, and a server of streams that a test plays."""

import json
import re
from typing import Any

from tests.support.browser import BrowserPage


class Tab(BrowserPage):
    """The page with its Live tab opened."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        super().__init__(browser, url, permissions=["microphone"], **context)
        self.sent: list[list[dict[str, Any]]] = []  # by websocket
        self.socket: Any = None
        self.page.get_by_role("tab", name="Live").click()
        self.page.wait_for_selector(".sw-main")

    def fake(self) -> None:
        """Play the part of the server's streams from now on."""
        key = {"value": "ek_1"}
        self.page.route("**/page/live/key", lambda route: route.fulfill(json=key))
        self.page.route_web_socket("**/v1/realtime?intent=transcription", self._connected)

    def _connected(self, socket: Any) -> None:
        events: list[dict[str, Any]] = []
        self.socket = socket
        self.sent.append(events)

        def receive(message: str) -> None:
            events.append(json.loads(message))
            if events[-1]["type"] == "session.update":
                self.emit("session.updated")

        socket.on_message(receive)
        self.emit("session.created")

    def emit(self, kind: str, item: str = "", **fields: Any) -> None:
        """An event of the server's."""
        if item:
            fields |= {"item_id": item, "content_index": 0}
        self.socket.send(json.dumps({"type": kind, "event_id": "event_1", **fields}))

    def appended(self, connection: int = -1) -> int:
        """Pieces of sound, 0.1 s each, that the server was sent."""
        kinds = [event["type"] for event in self.sent[connection]]
        return kinds.count("input_audio_buffer.append")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def become(self, state: str) -> None:
        self.page.wait_for_selector(f".sw-live[data-state={state}]")

    def begin(self) -> None:
        self.press("Start")
        self.become("running")

    def until(self, function: str) -> None:
        self.page.wait_for_function(function)

    def saved(self, format: str) -> str:
        with self.page.expect_download() as download:
            self.page.get_by_label(f"Save as {format}").click()
        name = download.value.suggested_filename
        assert re.fullmatch(rf"live-\d{{4}}-\d\d-\d\d-\d{{4}}\.{format}", name)
        return str(download.value.path().read_text())
