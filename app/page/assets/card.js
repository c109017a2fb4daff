// A file: its state, text, sound, segments and downloads.

import { alertBox, button, clock, copy, make } from "./dom.js";
import { Corrections } from "./saving.js";
import { Segments } from "./segments.js";
import { Wave } from "./wave.js";

const ENDED = ["done", "failed", "stopped"];

function status(file) {
  if (file.state === "failed") return "Failed";
  if (file.state === "stopped") return "Stopped";
  if (file.state === "done") return clock(file.seconds);
  if (file.state === "working") return `${clock(file.done)} of ${clock(file.seconds)}`;
  if (file.loading) return "Loading the model";
  if (file.position > 1) return `Waiting, ${file.position - 1} ahead`;
  return file.position ? "Next" : "Reading";
}

export class Card {
  // player: it has cards, reasons, history, address, download, changed
  constructor(number, player) {
    this.file = {};
    this.player = player;
    this.reasons = player.reasons;
    this.head = make("header");
    this.title = make("h3");
    this.title.id = `sw-file-${number}`;
    this.root = make("article", "sw-file", "", { "aria-labelledby": this.title.id });
    this.state = make("span", "sw-state");
    this.head.append(this.title, this.state);
    this.bar = make("progress", "sw-progress", "", { max: 1, "aria-label": "Progress" });
    this.error = alertBox("sw-error");
    this.warnings = make("p", "sw-note sw-warnings", "", { role: "status" });
    this.sound = make("div", "sw-sound");
    this.text = make("p", "sw-text");
    this.copy = button("sw-copy", "Copy text", () => copy(this.text.textContent, this.copy));
    this.segments = new Segments(this);
    this.unscripted = make("div", "sw-unscripted");
    this.foot = make("footer");
    this.root.append(
      this.head, this.bar, this.error, this.warnings, this.text, this.sound, this.segments.list,
      this.unscripted, this.foot);
    for (const part of [this.text, this.sound, this.unscripted, this.foot]) part.hidden = true;
  }

  get ended() { return ENDED.includes(this.file.state); }
  get length() { return this.file.seconds || this.audio?.duration || 0; }
  get now() { return this.audio?.currentTime ?? 0; }
  get playing() { return Boolean(this.audio && !this.audio.paused); }

  update(file) {
    if (this.corrections) return;  // later views are older than the responses to corrections
    const before = this.file;
    this.file = file;
    this.root.dataset.state = file.state;
    if (before.name !== file.name) this.title.textContent = this.title.title = file.name;
    const label = status(file);
    if (this.state.textContent !== label) this.state.textContent = label;
    this.bar.hidden = this.ended;
    if (file.state === "working" && file.seconds) this.bar.value = file.done / file.seconds;
    else this.bar.removeAttribute("value");
    this.error.hidden = !file.message;
    this.error.textContent = file.message;
    const warnings = file.warnings.join(". ");
    if (this.warnings.textContent !== warnings) this.warnings.textContent = warnings;
    if (before.text !== file.text || before.state !== file.state) this.showText(file.text);
    if (file.audio && !this.audio) this.addSound();
    if (file.edit) {
      this.corrections = new Corrections(this.player.address(file.edit), (answer) => this.apply(answer));
    }
    if (file.segments.length || before.segments?.length) {
      this.segments.show(file.segments, before.state !== file.state);  // final times and words
    }
    this.wave?.draw();
    if (file.state === "done") this.addDownloads();
    else if (this.ended && file.text) this.showFoot(this.copy);
    if (file.unscripted.length) this.addUnscripted();
  }

  // Speech that is not in the text that was aligned; a click plays it.
  addUnscripted() {
    this.unscripted.replaceChildren(
      make("span", "sw-note", "Spoken, but not in your text:"),
      ...this.file.unscripted.map(([start, , text]) =>
        button("sw-tool", `${clock(start)} ${text}`, () => this.play(start))));
    this.unscripted.hidden = false;
  }

  showText(text) {
    const none = this.file.state === "done" && !text && !this.segments.views.length;
    this.text.textContent = none ? "No speech was found." : text;
    this.text.classList.toggle("sw-none", none);
    this.text.hidden = !this.text.textContent;
    this.copy.hidden = !text;
  }

  addSound() {
    this.audio = make("audio", "", "", {
      controls: "",
      preload: "metadata",
      src: this.player.address(this.file.audio),
      "aria-label": `Audio of ${this.file.name}`,
    });
    this.audio.addEventListener("error", () => {
      this.audio.replaceWith(make("p", "sw-note", "This browser cannot play this kind of file."));
    }, { once: true });
    for (const name of ["timeupdate", "seeked", "play", "loadedmetadata"]) {
      this.audio.addEventListener(name, () => this.follow());
    }
    this.audio.addEventListener("play", () => this.animate());
    this.wave = new Wave(this.file.peaks, this.audio, this);
    this.sound.append(this.wave.canvas, this.audio);
    this.sound.hidden = false;
  }

  follow() {
    this.segments.follow(this.now, this.now > 0 || this.playing);
    this.wave.follow(this.now);
  }

  play(seconds) {
    if (!this.audio) return;
    for (const card of this.player.cards) if (card !== this) card.pause();
    this.audio.currentTime = seconds;
    this.audio.play().catch(() => {});  // the "error" event shows a message
  }

  pause() { this.audio?.pause(); }

  toggle() {
    if (this.playing) this.pause();
    else this.play(this.now);
  }

  animate() {
    this.wave.draw();
    if (this.playing && this.root.isConnected) requestAnimationFrame(() => this.animate());
  }

  // Correct the transcript. Fails with a message if it was not saved.
  async change(change) {
    const answer = await this.corrections.send(change);
    if (Object.keys(answer.segments).length) this.player.history.add([this]);
    return answer;
  }

  apply({ segments, text }) {
    this.unkept = true;  // until it is downloaded
    this.showText(text);
    this.segments.apply(segments);
    this.wave?.draw();
    this.player.changed();
  }

  addDownloads() {
    const row = make("span", "sw-downloads");
    row.append(make("span", "sw-note", "Download"));
    for (const [format, path] of Object.entries(this.file.downloads)) {
      const link = this.player.download(path, format, [this]);
      link.setAttribute("aria-label", `Download ${format} of ${this.file.name}`);
      row.append(link);
    }
    this.showFoot(this.copy, row);
  }

  showFoot(...parts) {
    this.foot.replaceChildren(...parts);
    this.foot.hidden = false;
  }
}
