"""Work for which no client waits: `Prefer: respond-async` (RFC 7240) with OpenAI's API.

The answer is 202, with the address of the result. A job is a folder with its form, the recording,
and in the end the response; so jobs survive a restart of the server. All of it is removed after
`--keep_results`.
"""

import asyncio
import base64
import hmac
import json
import logging
import re
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import httpx
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import FormData, UploadFile

from slimwhisper.app.api.errors import STOPPING, APIError, as_api_error, internal_error
from slimwhisper.app.api.fields import close_files, read_form, refused
from slimwhisper.app.api.request import TranscriptionRequest
from slimwhisper.app.api.respond import Client, PendingTranscription, transcribe
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import BusyError
from slimwhisper.disk import atomic_write
from slimwhisper.errors import SlimWhisperError

ID = re.compile("[0-9a-f]{32}")
FORM, UPLOAD, RESULT = "form.json", "upload", "result.json"
BUSY, SWEEP = 5.0, 60.0  # seconds until the queue is tried again; between two removals
STORING = 2.0  # seconds to store results at a shutdown
PATIENCE = 10.0  # seconds for a webhook to answer

logger = logging.getLogger("slimwhisper.serve")


class Background:
    """The jobs of a server, and their folder."""

    def __init__(
        self, host: ServerHost, read: Callable[[FormData, str], TranscriptionRequest]
    ) -> None:
        """read: checks a form for a task, "transcribe" or "translate"."""
        assert host.settings.results is not None
        self._host, self._read, self._settings = host, read, host.settings
        self._folder = host.settings.results
        self._jobs: dict[str, asyncio.Task[None]] = {}  # that are not done, by their names
        self._pending: dict[str, PendingTranscription] = {}  # those that are read

    async def start(self) -> None:
        """Go on with the jobs of the last run, and remove old results now and then."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for folder in self._folder.iterdir():
            if (folder / FORM).exists():
                self._begin(folder.name)
            elif ID.fullmatch(folder.name) and not (folder / RESULT).exists():
                shutil.rmtree(folder, ignore_errors=True)  # the server died while it was sent
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Store the results that are here, and leave what is not done to the next run."""
        self._sweeping.cancel()
        if tasks := list(self._jobs.values()):
            _, rest = await asyncio.wait(tasks, timeout=STORING)
            for task in rest:
                task.cancel()

    async def accept(self, request: Request, task: str) -> Response:
        """Store a request, and answer where its result will be. Raises APIError."""
        if len(self._jobs) >= self._host.service.limits.queue:
            raise BusyError(f"{len(self._jobs)} jobs are waiting; try again in a minute")
        form = await read_form(request)
        try:
            self._check_webhook(str(form.get("webhook", "")))
            if self._read(form, task).stream:
                raise refused("stream", "a job in the background is not streamed; leave stream out")
            name = secrets.token_hex(16)
            await asyncio.to_thread(self._store, name, form, task, request)
        finally:
            await asyncio.to_thread(close_files, form)
        self._begin(name)
        where = f"{self._settings.root_path}/v1/audio/transcriptions/{name}"
        headers = {"Location": where, "Preference-Applied": "respond-async"}
        return JSONResponse(self.state(name), 202, headers)

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of a job in the background, with its result or its error."""
        folder = self._folder_of(name)
        result = folder / RESULT
        state: dict[str, Any] = {"id": name, "object": "transcription.job"}
        if not result.exists():
            state["created_at"] = round((folder / FORM).stat().st_mtime)
            pending = self._pending.get(name)
            status = "queued" if pending is None else "in_progress"
            progress = 0.0 if pending is None else round(pending.progress, 3)
            return {**state, "status": status, "progress": progress}
        expires = round(result.stat().st_mtime + self._settings.keep_results)
        return {**state, "expires_at": expires, **json.loads(result.read_bytes())}

    async def delete(self, name: str) -> None:
        """Cancel a job in the background, or remove its result."""
        folder = self._folder_of(name)
        if name in self._jobs:
            self._jobs[name].cancel()
            await asyncio.wait([self._jobs[name]])
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _folder_of(self, name: str) -> Path:
        folder = self._folder / name
        if not ID.fullmatch(name) or not folder.is_dir():
            raise APIError(404, "no such job, or its result was removed", "not_found")
        return folder

    def _check_webhook(self, url: str) -> None:
        allowed = "|".join(map(re.escape, self._settings.allow_webhooks))
        if url and not re.fullmatch(rf"https?://({allowed})(:\d+)?(/[!-~]*)?", url):
            message = f"webhook {url[:100]!r} is not of a host that --allow_webhook names"
            raise refused("webhook", message)

    def _store(self, name: str, form: FormData, task: str, request: Request) -> None:
        folder = self._folder / name
        folder.mkdir(mode=0o700, parents=True)
        upload = next(value for _, value in form.multi_items() if isinstance(value, UploadFile))
        upload.file.seek(0)
        with (folder / UPLOAD).open("wb") as file:
            shutil.copyfileobj(upload.file, file)
        texts = [[key, value] for key, value in form.multi_items() if isinstance(value, str)]
        client = Client.of(request, 0.0)
        stored = {"task": task, "fields": texts, "filename": upload.filename, "client": client[:2]}
        with atomic_write(folder / FORM, text=True) as file:
            json.dump(stored, file)

    def _begin(self, name: str) -> None:
        self._jobs[name] = asyncio.create_task(self._run(name))

    async def _run(self, name: str) -> None:
        """Transcribe, store the response, and call the webhook."""
        folder = self._folder / name
        try:
            stored = json.loads((folder / FORM).read_text("utf-8"))
            if not (folder / RESULT).exists():
                try:
                    response = await self._respond(folder, stored)
                except (APIError, SlimWhisperError) as error:
                    api_error = as_api_error(error)
                    if api_error.code == STOPPING:
                        return  # the next run goes on with it
                    response = api_error.response()
                except Exception:
                    logger.exception("job %s", name)
                    response = internal_error().response()
                await asyncio.to_thread(self._finish, folder, response)
            (folder / FORM).unlink()  # has known speakers' voices, too
            if url := dict(stored["fields"]).get("webhook"):
                await self._call(url, name)
        except OSError as error:
            logger.error("job %s: %s", name, error)
        finally:
            del self._jobs[name]
            self._pending.pop(name, None)

    async def _respond(self, folder: Path, stored: Any) -> Response:
        async def answer(pending: PendingTranscription) -> Response:
            self._pending[folder.name] = pending
            return await pending.full_response()

        while True:
            file = cast(BinaryIO, (folder / UPLOAD).open("rb"))
            upload = UploadFile(file, filename=stored["filename"])
            fields = [(key, value) for key, value in stored["fields"] if key != "webhook"]
            form = FormData([("file", upload), *fields])
            with suppress(BusyError):
                return await transcribe(
                    self._host,
                    Client(*stored["client"]),
                    form,
                    lambda form: self._read(form, stored["task"]),
                    answer,
                )
            await asyncio.sleep(BUSY)

    def _finish(self, folder: Path, response: Response) -> None:
        """Store what `state` says of a response."""
        headers = {k: v for k, v in response.headers.items() if k.startswith("x-slimwhisper")}
        is_json = response.headers["content-type"].startswith("application/json")
        text = bytes(response.body).decode()
        body: Any = json.loads(text) if is_json else text
        if response.status_code < 400:
            body = {"status": "completed", "progress": 1.0, "result": body}
        created = round((folder / FORM).stat().st_mtime)
        end = {"created_at": created, "status": "failed", "headers": headers, **body}
        with atomic_write(folder / RESULT, text=True) as file:
            json.dump(end, file)
        (folder / UPLOAD).unlink(missing_ok=True)

    async def _call(self, url: str, name: str) -> None:
        """Call a webhook once, signed as standardwebhooks.com says, with the server's key."""
        body, now = json.dumps(self.state(name)), str(int(time.time()))
        key = (self._settings.api_key or "").encode()
        digest = hmac.digest(key, f"{name}.{now}.{body}".encode(), "sha256")
        headers = {
            "content-type": "application/json",
            "webhook-id": name,
            "webhook-timestamp": now,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }
        try:
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                answer = await client.post(url, content=body, headers=headers)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            logger.warning("webhook of job %s: %s", name, error)

    async def _sweep(self) -> None:
        """Remove results that are older than `--keep_results`."""
        while True:
            before = time.time() - self._settings.keep_results
            for path in self._folder.glob(f"*/{RESULT}"):
                if path.stat().st_mtime < before:
                    await asyncio.to_thread(shutil.rmtree, path.parent, ignore_errors=True)
            await asyncio.sleep(SWEEP)
