"""What the page uses of Gradio without a promise in Gradio's documentation is still there."""

import asyncio

import gradio as gr
import pytest
from gradio import processing_utils, route_utils, routes

from slimwhisper.app.page.gradio_internals import FETCHING


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        ("processing_utils", FETCHING),
        ("route_utils", ("upload_fn", "FnIndexInferError")),
        ("routes", ("App", "file_upload_statuses")),
        ("routes.file_upload_statuses", ("stop_tracking",)),
        ("App", ("auth", "tokens", "cookie_id", "stop_event", "get_blocks")),
        ("Blocks", ("preprocess_data", "temp_file_sets", "has_launched", "max_threads", "fns")),
    ],
)
def test_gradio_still_has(owner: str, names: tuple[str, ...]) -> None:
    async def make() -> tuple[gr.Blocks, routes.App]:
        with gr.Blocks(analytics_enabled=False) as blocks:
            return blocks, routes.App.create_app(blocks)

    blocks, app = asyncio.run(make())
    owners = {
        "processing_utils": processing_utils,
        "route_utils": route_utils,
        "routes": routes,
        "routes.file_upload_statuses": routes.file_upload_statuses,
        "App": app,
        "Blocks": blocks,
    }
    gone = [name for name in names if not hasattr(owners[owner], name)]
    assert not gone, f"Gradio {gr.__version__}: {owner} lacks {gone}; see gradio_internals.py"
