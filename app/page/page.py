"""The page at "/": its components, connected to its handlers.

Importing this module imports Gradio, which takes seconds; only a server with a page does so.
"""

import inspect
from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components import Component

from slimwhisper.app.page.gradio_internals import Blocks
from slimwhisper.app.page.handlers import Handlers
from slimwhisper.app.page.layout import Layout, lay_out

QUICK: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}


def make_page(handlers: Handlers, preset: str | None, live: bool) -> Blocks:
    """The whole page. preset: the server's; live: whether it takes live streams."""
    with Blocks(title="slimwhisper", analytics_enabled=False, fill_width=True) as blocks:
        layout = lay_out(handlers.models, list(handlers.examples), preset, live)
        _connect(layout, handlers)
        blocks.unload(handlers.stop)
    blocks.max_threads = handlers.service.limits.queue
    blocks.queue(default_concurrency_limit=None)
    return blocks


def _connect(layout: Layout, handlers: Handlers) -> None:
    """Connect the components' events to the handlers."""
    _, *names = inspect.signature(handlers.transcribe).parameters  # after the request
    arguments = [layout.arguments[name] for name in names]
    _connect_start(layout, layout.transcribe, handlers.transcribe, arguments, "transcribe")
    for example in layout.examples:
        _connect_start(layout, example, handlers.try_example, [example])
    layout.stop.click(handlers.stop, None, None, **QUICK)
    shown = [layout.chart, layout.clock]
    layout.costs.expand(lambda: (handlers.costs(), gr.Timer(active=True)), None, shown, **QUICK)
    layout.costs.collapse(lambda: gr.Timer(active=False), None, layout.clock, **QUICK)
    layout.clock.tick(handlers.costs, None, layout.chart, **QUICK)


def _connect_start(
    layout: Layout,
    button: gr.Button,
    run: Callable[..., Any],
    arguments: list[Component],
    api_name: str | None = None,
) -> None:
    """Connect a button that starts a run. api_name: of the call for programs; None: no call."""
    button.click(lambda: gr.update(visible=True), None, layout.stop, **QUICK)
    event = button.click(
        run,
        arguments,
        [layout.text, layout.view],
        api_name=api_name,
        api_visibility="public" if api_name else "private",
        preprocess=False,
        show_progress="hidden",
        concurrency_limit=None,
        trigger_mode="once",
    )
    event.then(lambda: gr.update(visible=False), None, layout.stop, **QUICK)
