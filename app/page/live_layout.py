"""The Live tab's components. Everything else of it happens in the browser: assets/live.js."""

import gradio as gr

from slimwhisper.app.page.assets_route import asset
from slimwhisper.app.page.live_route import live_formats
from slimwhisper.app.page.options_row import options_row

OPTIONS = "(language, task, prompt, words) => ({language, task, prompt, words})"  # JavaScript


def lay_out_live() -> None:
    """Make them, within a `gr.Tab`."""
    options = options_row("sw-live-options")
    view = gr.HTML(
        value=None,
        html_template=asset("live.html").replace("FORMATS", " ".join(live_formats())),
        js_on_load=asset("load-live.js"),
        apply_default_css=False,
        elem_id="sw-live",
    )
    language, task, prompt, words = options.language, options.task, options.prompt, options.words
    gr.on(
        [language.change, task.change, prompt.change, words.change],
        None,
        [language, task, prompt, words],
        view,
        js=OPTIONS,
        show_progress="hidden",
    )
