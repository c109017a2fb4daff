"""The options that recordings and live streams share."""

from dataclasses import dataclass

import gradio as gr
from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES


@dataclass(frozen=True, slots=True)
class Options:
    """The options that are always shown."""

    language: gr.Dropdown
    task: gr.Dropdown
    words: gr.Checkbox
    prompt: gr.Textbox


def options_row(elem_id: str) -> Options:
    """Make them, in a row."""
    with gr.Row(elem_id=elem_id, equal_height=True):
        language = gr.Dropdown(
            [("Detect", ""), *((n.title(), code) for code, n in LANGUAGES.items())],
            value="",
            label="Language",
            min_width=150,
        )
        task = gr.Dropdown(
            [("Transcribe", "transcribe"), ("Translate into English", "translate")],
            value="transcribe",
            label="Task",
            filterable=False,
            min_width=150,
        )
        prompt = gr.Textbox(
            label="Prompt",
            placeholder="names and words to expect",
            max_lines=1,
            scale=2,
            min_width=200,
        )
        words = gr.Checkbox(label="Word times", elem_classes="sw-check", min_width=130)
    return Options(language, task, words, prompt)
