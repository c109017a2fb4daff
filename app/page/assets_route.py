"""The page's own files: styles, which are part of the page, and scripts at /page/assets/NAME.js."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

ASSETS = Path(__file__).with_name("assets")
STYLES = ("page.css", "player.css", "editing.css", "live.css")


def asset(name: str) -> str:
    """The text of a file in `assets`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def make_assets_router() -> APIRouter:
    """GET /page/assets/NAME.js. The scripts hold no secrets: no login is needed."""
    router = APIRouter(prefix="/page/assets")
    scripts = {path.name: path for path in ASSETS.glob("*.js")}

    @router.get("/{name}")
    async def script(name: str) -> Response:
        if name not in scripts:
            raise HTTPException(404, "there is no such script")
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return FileResponse(scripts[name], media_type="text/javascript", headers=headers)

    return router
