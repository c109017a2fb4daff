"""The page at "/": its components, connected to its handlers.

Importing this module imports Gradio, which takes seconds; only a server with a page does so.
"""

from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components import Component

from slimwhisper.app.page.handlers import Handlers
from slimwhisper.app.page.layout import Layout, lay_out
from slimwhisper.app.page.results import Results
from slimwhisper.app.page.run import Runs
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings

QUICK: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}


class Blocks(gr.Blocks):
    """Gradio's, which logs no traceback of arguments that it cannot read."""

    async def preprocess_data(self, *args: Any, **options: Any) -> Any:
        """The arguments, as the handlers take them. Raises gr.Error."""
        try:
            return await super().preprocess_data(*args, **options)
        except Exception as error:
            said = error.message if isinstance(error, gr.Error) else "they do not fit the function"
            raise gr.Error(f"The arguments: {said[:300]}", print_exception=False) from None


def make_page(
    service: Service,
    models: Models,
    results: Results,
    runs: Runs,
    settings: Settings,
    live: bool,
) -> gr.Blocks:
    """The whole page. live: whether the server takes live streams."""
    handlers = Handlers(service, models, results, runs, settings)
    with Blocks(title="slimwhisper", analytics_enabled=False, fill_width=True) as blocks:
        layout = lay_out(models, settings.cache, live)
        _connect(layout, handlers)
        blocks.unload(handlers.stop)
    blocks.max_threads = service.limits.queue
    blocks.queue(default_concurrency_limit=None)
    return blocks


def _connect(layout: Layout, handlers: Handlers) -> None:
    """Connect the components' events to the handlers."""
    buttons, output = layout.buttons, layout.output
    _connect_start(
        buttons.transcribe, handlers.transcribe, layout.arguments(), layout, "transcribe"
    )
    for example in layout.inputs.examples:
        _connect_start(example, handlers.try_example, [example], layout)
    buttons.stop.click(handlers.stop, None, None, **QUICK)
    output.costs.expand(
        lambda: (handlers.costs(), gr.Timer(active=True)),
        None,
        [output.chart, output.clock],
        **QUICK,
    )
    output.costs.collapse(lambda: gr.Timer(active=False), None, output.clock, **QUICK)
    output.clock.tick(handlers.costs, None, output.chart, **QUICK)


def _connect_start(
    button: gr.Button,
    run: Callable[..., Any],
    arguments: list[Component],
    layout: Layout,
    api_name: str | None = None,
) -> None:
    """Connect a button that starts a run. api_name: of the call for programs; None: no call."""
    stop, output = layout.buttons.stop, layout.output
    button.click(lambda: gr.update(visible=True), None, stop, **QUICK)
    event = button.click(
        run,
        arguments,
        [output.text, output.view],
        api_name=api_name,
        api_visibility="public" if api_name else "private",
        preprocess=False,
        show_progress="hidden",
        concurrency_limit=None,
        trigger_mode="once",
    )
    event.then(lambda: gr.update(visible=False), None, stop, **QUICK)
