"""Work for which no client waits: `Prefer: respond-async` (RFC 7240) with OpenAI's API.

The answer is 202, with the address of the result. A job is a folder with its form, the recording,
and in the end the response; so jobs survive a restart of the server. All of it is removed after
`--keep_results`. Other files and links in the folder of jobs are left alone.
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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast

import httpx
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import FormData, UploadFile

from slimwhisper.app.api.errors import STOPPING, APIError, as_api_error
from slimwhisper.app.api.fields import close_files, read_form, refused
from slimwhisper.app.api.request import read_request
from slimwhisper.app.api.respond import Client, PendingTranscription, transcribe
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import BusyError
from slimwhisper.disk import atomic_write
from slimwhisper.errors import SlimWhisperError

ID = re.compile("[0-9a-f]{32}")
FORM, UPLOAD, RESULT = "form.json", "upload", "result.json"
BUSY, SWEEP = 5.0, 60.0  # seconds until the queue is tried again; between two removals
FULL = 30.0  # seconds until a result is stored again that could not be
STORING = 2.0  # seconds to store results at a shutdown
PATIENCE = 10.0  # seconds for a webhook to answer

logger = logging.getLogger("slimwhisper.serve")


@dataclass(slots=True)
class BackgroundJob:
    """A job that is not done."""

    created: int  # seconds
    task: "asyncio.Task[None]"
    pending: PendingTranscription | None = None  # once its form is read


class Background:
    """The jobs of a server, and their folder."""

    def __init__(self, host: ServerHost) -> None:
        assert host.settings.results is not None
        self._host, self._settings = host, host.settings
        self._folder, self._most = host.settings.results, host.service.limits.queue
        self._jobs: dict[str, BackgroundJob] = {}  # by their names
        self._storing = Lock()  # or removing
        self._room = asyncio.Semaphore(-(-self._most // 2))  # half of the queue is for who waits

    async def start(self) -> None:
        """Go on with the jobs of the last run, and remove old results now and then."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for folder in self._folders():
            if (folder / FORM).exists():
                self._begin(folder)
            elif not (folder / RESULT).exists():
                shutil.rmtree(folder, ignore_errors=True)  # the server died while it was sent
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Store the results that are here, and leave what is not done to the next run. A second
        call does so for jobs that were accepted meanwhile.
        """
        self._sweeping.cancel()
        if tasks := [job.task for job in self._jobs.values()]:
            _, rest = await asyncio.wait(tasks, timeout=STORING)
            for task in rest:
                task.cancel()

    async def accept(self, request: Request, task: str) -> Response:
        """Store a request, and answer where its result will be. Raises APIError."""
        if len(self._jobs) >= self._most:
            raise BusyError(f"{len(self._jobs)} jobs are waiting; try again in a minute")
        form = await read_form(request)
        try:
            self._check_webhook(str(form.get("webhook", "")))
            if read_request(form, self._host.models, task).stream:
                raise refused("stream", "a job in the background is not streamed; leave stream out")
            folder = self._folder / secrets.token_hex(16)
            await asyncio.to_thread(self._store, folder, form, task, request)
        finally:
            await asyncio.to_thread(close_files, form)
        self._begin(folder)
        where = f"{self._settings.root_path}/v1/audio/transcriptions/{folder.name}"
        headers = {"Location": where, "Preference-Applied": "respond-async"}
        return JSONResponse(self.state(folder.name), 202, headers)

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of a job in the background, with its result or its error."""
        job = self._jobs.get(name)  # before its result is looked for: it may end meanwhile
        result = self._folder_of(name) / RESULT
        state = {"id": name, "object": "transcription.job"}
        with suppress(FileNotFoundError):
            expires = round(result.stat().st_mtime + self._settings.keep_results)
            return {**state, "expires_at": expires, **json.loads(result.read_bytes())}
        if job is None:  # removed just now
            return self.state(name)
        progress = 0.0 if job.pending is None else round(job.pending.progress, 3)
        status = "queued" if job.pending is None else "in_progress"
        return {**state, "created_at": job.created, "status": status, "progress": progress}

    async def delete(self, name: str) -> None:
        """Cancel a job in the background, or remove its result."""
        folder = self._folder_of(name)
        if job := self._jobs.get(name):
            job.task.cancel()
            await asyncio.wait([job.task])
            self._jobs.pop(name, None)
        await asyncio.to_thread(self._remove, folder)

    def _folders(self) -> list[Path]:
        return [p for p in self._folder.iterdir() if ID.fullmatch(p.name) and not p.is_symlink()]

    def _folder_of(self, name: str) -> Path:
        folder = self._folder / name
        known = name in self._jobs or (folder / RESULT).exists()
        if not (known and ID.fullmatch(name)) or folder.is_symlink():
            raise APIError(404, "no such job, or its result was removed", "not_found")
        return folder

    def _check_webhook(self, url: str) -> None:
        hosts = "|".join(map(re.escape, self._settings.allow_webhooks))
        found = re.fullmatch(rf"https?://({hosts})(:[0-9]{{1,5}})?(/[!-~]*)?", url)
        allowed = hosts and found and int((found[2] or ":0")[1:]) < 1 << 16
        if url and not allowed:
            message = f"webhook {url[:100]!r} is not of a host that --allow_webhook names"
            raise refused("webhook", message)

    def _store(self, folder: Path, form: FormData, task: str, request: Request) -> None:
        """Store a request; nothing of it, if that fails."""
        folder.mkdir(mode=0o700, parents=True)
        upload = next(value for _, value in form.multi_items() if isinstance(value, UploadFile))
        texts = [[key, value] for key, value in form.multi_items() if isinstance(value, str)]
        client = Client.of(request, 0.0)
        stored = {"task": task, "fields": texts, "filename": upload.filename, "client": client[:2]}
        try:
            upload.file.seek(0)
            with (folder / UPLOAD).open("wb") as file:
                shutil.copyfileobj(upload.file, file)
            with atomic_write(folder / FORM, text=True) as file:
                json.dump(stored, file)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _begin(self, folder: Path) -> None:
        task = asyncio.create_task(self._run(folder))
        # a job that the next run goes on with stays
        task.add_done_callback(lambda t: t.cancelled() or self._jobs.pop(folder.name, None))
        self._jobs[folder.name] = BackgroundJob(round((folder / FORM).stat().st_mtime), task)

    async def _run(self, folder: Path) -> None:
        """Transcribe, store the response, and call the webhook."""
        response, url = None, ""
        try:
            stored = json.loads((folder / FORM).read_text("utf-8"))
            url = dict(stored["fields"]).get("webhook", "")
            if not (folder / RESULT).exists():
                response = await self._respond(folder, stored)
        except Exception as error:
            if not isinstance(error, APIError | SlimWhisperError):
                logger.exception("job %s", folder.name)
            api_error = as_api_error(error)
            if api_error.code == STOPPING:  # the next run goes on with it
                raise asyncio.CancelledError from None
            response = api_error.response()
        while response is not None and folder.exists():
            try:
                await asyncio.to_thread(self._finish, folder, response)
                break
            except OSError as error:  # a full disk, for example
                logger.error("job %s is not stored: %s", folder.name, error.strerror)
                await asyncio.sleep(FULL)
        if url:
            await self._call(url, folder.name)
        (folder / FORM).unlink(missing_ok=True)  # has known speakers' voices, too

    async def _respond(self, folder: Path, stored: Any) -> Response:
        async def answer(pending: PendingTranscription) -> Response:
            self._jobs[folder.name].pending = pending
            return await pending.full_response()

        while True:
            with suppress(BusyError):
                async with self._room:
                    file = cast(BinaryIO, (folder / UPLOAD).open("rb"))
                    upload = UploadFile(file, filename=stored["filename"])
                    fields = [(key, value) for key, value in stored["fields"] if key != "webhook"]
                    return await transcribe(
                        self._host,
                        Client(*stored["client"]),
                        FormData([("file", upload), *fields]),
                        partial(read_request, task=stored["task"]),
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
        created = self._jobs[folder.name].created
        end = {"created_at": created, "status": "failed", "headers": headers, **body}
        with self._storing:
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
            async with asyncio.timeout(PATIENCE), httpx.AsyncClient(timeout=PATIENCE) as client:
                # an answer's content is not read: it may have no end
                async with client.stream("POST", url, content=body, headers=headers) as answer:
                    problem = None if answer.is_success else f"status {answer.status_code}"
        except Exception as error:  # of the address, of its host, of what it answers
            problem = type(error).__name__
        if problem:  # without the address, which may have a key
            logger.warning("webhook of job %s: %s", name, problem)

    async def _sweep(self) -> None:
        """Remove results that are older than `--keep_results`."""
        while True:
            await asyncio.to_thread(self._remove_old, time.time() - self._settings.keep_results)
            await asyncio.sleep(SWEEP)

    def _remove_old(self, before: float) -> None:
        for folder in self._folders():
            with suppress(OSError):  # it has no result, or is removed by a client
                if (folder / RESULT).stat().st_mtime < before:
                    self._remove(folder)

    def _remove(self, folder: Path) -> None:
        with self._storing:
            shutil.rmtree(folder, ignore_errors=True)
