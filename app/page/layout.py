"""The page's components, in the order in which they are shown."""

from dataclasses import dataclass

import gradio as gr
from gradio.components import Component

from slimwhisper.app.page.assets_route import asset
from slimwhisper.app.page.examples import examples
from slimwhisper.app.page.live_layout import lay_out_live
from slimwhisper.app.page.options_row import Options, options_row
from slimwhisper.app.service.models import Models
from slimwhisper.cache.forms import PRESETS
from slimwhisper.speakers.choice import BACKENDS, missing
from slimwhisper.types import MOST_SPEAKERS

SUBTITLE = "Speech to text on this server. Nothing you upload leaves it."
TEMPERATURES = ("0", "0.2", "0.4", "0.6", "0.8", "1")
MOST_BEAMS = 10
PANEL_SECONDS = 3.0  # between updates of the cache costs, while they are shown


@dataclass(frozen=True, slots=True)
class Inputs:
    """The recordings to transcribe."""

    files: gr.File
    recording: gr.Audio
    examples: list[gr.Button]  # of the names that they show


@dataclass(frozen=True, slots=True)
class MoreOptions:
    """The options behind "More options"."""

    model: gr.Dropdown
    cache: gr.Dropdown
    beams: gr.Slider
    temperature: gr.Dropdown
    vad: gr.Checkbox
    diarize: gr.Dropdown
    speakers: gr.Number
    sentences: gr.Checkbox


@dataclass(frozen=True, slots=True)
class Buttons:
    """Transcribe and Stop."""

    transcribe: gr.Button
    stop: gr.Button


@dataclass(frozen=True, slots=True)
class Output:
    """The results, and the costs of the cache."""

    view: gr.HTML
    costs: gr.Accordion
    chart: gr.HTML
    text: gr.Textbox
    clock: gr.Timer


@dataclass(frozen=True, slots=True)
class Layout:
    """All components that the page's events use."""

    inputs: Inputs
    options: Options
    more: MoreOptions
    buttons: Buttons
    output: Output

    def arguments(self) -> list[Component]:
        """The inputs of `Handlers.transcribe`, in the order of its parameters."""
        inputs, options, more = self.inputs, self.options, self.more
        return [
            *(inputs.files, inputs.recording),
            *(options.language, options.task, options.words, options.prompt),
            *(more.model, more.cache, more.beams, more.temperature, more.vad),
            *(more.diarize, more.speakers, more.sentences),
        ]


def lay_out(models: Models, preset: str | None, live: bool) -> Layout:
    """Make all components, within a `gr.Blocks`.

    preset: the server's; None: not a preset. live: whether the server takes live streams.
    """
    gr.HTML(
        f"<h1>{asset('icon.svg')}slimwhisper</h1><p>{SUBTITLE}</p>",
        elem_id="sw-title",
        apply_default_css=False,
    )
    if not live:
        return _lay_out_files(models, preset)
    with gr.Tabs(elem_id="sw-tabs"):
        with gr.Tab("Files", elem_id="sw-tab-files"):
            layout = _lay_out_files(models, preset)
        with gr.Tab("Live", elem_id="sw-tab-live"):
            lay_out_live()
    return layout


def _lay_out_files(models: Models, preset: str | None) -> Layout:
    return Layout(
        *(_inputs(models), options_row("sw-options"), _more_options(models, preset)),
        *(_buttons(), _output()),
    )


def _inputs(models: Models) -> Inputs:
    with gr.Row(elem_id="sw-inputs", equal_height=True):
        files = gr.File(
            label="Audio or video files",
            file_count="multiple",
            file_types=["audio", "video"],
            height=168,
            elem_id="sw-files",
            scale=3,
            min_width=260,
        )
        recording = gr.Audio(
            label="Or record",
            sources=["microphone"],
            type="filepath",
            editable=False,
            buttons=[],
            elem_id="sw-record",
            scale=2,
            min_width=260,
        )
    buttons = []
    if named := examples(models.default):
        with gr.Row(elem_id="sw-examples"):
            gr.HTML("Or try an example:", apply_default_css=False)
            buttons = [gr.Button(name, size="sm", min_width=60) for name in named]
    return Inputs(files, recording, buttons)


def _more_options(models: Models, preset: str | None) -> MoreOptions:
    with gr.Accordion("More options", open=False, elem_id="sw-more"):
        with gr.Row():
            diarize, speakers = _speakers()
            sentences = gr.Checkbox(
                label="Sentences as subtitles", elem_classes="sw-check", min_width=140
            )
        with gr.Row():
            model = gr.Dropdown(models.choices(), value=models.shown, label="Model", min_width=140)
            own = preset or "as the server was started"
            cache = gr.Dropdown(
                [(own, ""), *((p, p) for p in reversed(PRESETS) if p != preset)],
                value="",
                label="Cache form",
                filterable=False,
                min_width=140,
            )
            beams = gr.Slider(1, MOST_BEAMS, value=1, step=1, label="Beams", min_width=140)
            temperature = gr.Dropdown(
                [("Automatic", ""), *TEMPERATURES],
                value="",
                label="Temperature",
                filterable=False,
                min_width=140,
            )
            vad = gr.Checkbox(label="Skip silence", elem_classes="sw-check", min_width=140)
    return MoreOptions(*(model, cache, beams, temperature, vad), *(diarize, speakers, sentences))


def _speakers() -> tuple[gr.Dropdown, gr.Number]:
    """Who spoke; hidden where nothing that finds speakers is installed."""
    found = [name for name in BACKENDS if not missing(name)]
    named = [("Yes" if len(found) == 1 else f"Yes, by {name}", name) for name in found]
    diarize = gr.Dropdown(
        [("No", ""), *named],
        value="",
        label="Tell speakers apart",
        filterable=False,
        visible=bool(found),
        min_width=140,
    )
    speakers = gr.Number(
        label="How many speakers",
        placeholder="found",
        precision=0,
        minimum=1,
        maximum=MOST_SPEAKERS,
        visible=bool(found),
        min_width=140,
    )
    return diarize, speakers


def _buttons() -> Buttons:
    with gr.Row(elem_id="sw-buttons"):
        transcribe = gr.Button("Transcribe", variant="primary", elem_id="sw-go", scale=3)
        stop = gr.Button("Stop", visible=False, elem_id="sw-stop", scale=1)
    return Buttons(transcribe, stop)


def _output() -> Output:
    view = gr.HTML(
        value=None,
        html_template=asset("player.html"),
        js_on_load=asset("load.js"),
        apply_default_css=False,
        elem_id="sw-results",
    )
    with gr.Accordion("What the cache costs", open=False, elem_id="sw-costs") as costs:
        chart = gr.HTML(elem_id="sw-chart", apply_default_css=False)
    text = gr.Textbox(label="Text", visible=False)
    clock = gr.Timer(PANEL_SECONDS, active=False)
    return Output(view, costs, chart, text, clock)
