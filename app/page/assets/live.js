// The Live tab: sends the microphone's audio to the server, and shows the text that returns.

import { Connection, sessionOf } from "./connection.js";
import { copy, make } from "./dom.js";
import { LiveView } from "./live-view.js";
import { Microphone } from "./microphone.js";
import { Problem, post, sentence } from "./problem.js";
import { Sound } from "./sound.js";
import { Utterances } from "./utterances.js";

const AGAIN = 1000;  // milliseconds before reconnecting
const LAST_TEXT = 20_000;  // milliseconds to wait for the last text
const LAST_SPEECH = 1500;  // milliseconds for the server to notice speech that has just begun
// errors that are not shown: no speech before a pause, or a session ends and another begins
const EXPECTED = ["input_audio_buffer_commit_empty", "session_idle", "session_expired"];

// of a segment, for its file in json
const DETAILS = ["tokens", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob"];

const wait = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

class Live {
  // element: where to draw. root: the server's path.
  constructor(element, root) {
    Object.assign(this, { root, options: {}, sound: new Sound(), base: 0, unsaved: false, timers: [] });
    this.said = new Utterances();
    this.view = new LiveView(element, this.said, {
      press: () => this.press(),
      stop: () => this.stop(),
      clear: () => this.clear(),
      copy: (from) => copy(this.said.text, from),
      save: (format) => this.save(format),
    });
    this.become("idle");
    window.addEventListener("beforeunload", (event) => {
      if (this.state !== "idle" || this.unsaved) event.preventDefault();
    });
  }

  become(state) {
    this.state = state;
    if (state !== "running" && state !== "lost") this.view.show(0);
    this.refresh();
  }

  refresh() { this.view.refresh(this.state, this.sound.now); }
  tell(message) { this.view.tell(message); }

  press() {
    if (this.state === "idle") this.start();
    else if (this.state === "paused") this.resume();
    else this.pause();
  }

  async start() {
    this.tell("");
    this.become("starting");
    try {
      this.microphone = await Microphone.open(
        this.root,
        (samples, level) => this.hear(samples, level),
        () => this.fail("The microphone was disconnected."));
      navigator.wakeLock?.request("screen").then((lock) => { this.awake = lock; }).catch(() => {});
      await this.connect();
      this.become("running");
    } catch (error) {
      this.fail(this.explain(error));
    }
  }

  explain(error) {
    if (!(error instanceof Problem)) console.error(error);
    return error instanceof Problem ? error.message : "Something unexpected went wrong. Reload the page.";
  }

  async connect() {
    const connection = new Connection(
      this.root, (event) => this.said.draw(() => this.take(event)), (said) => this.lose(said));
    this.connection = connection;
    await connection.open(sessionOf(this.options));
    this.base = this.sound.again(this.said.lose(this.sound.start));
    this.sound.send(connection, this.base);
  }

  // options: as the page shows them now; an open utterance keeps its options.
  change(options) {
    this.options = options ?? {};
    if (this.connection?.ready) this.connection.update(sessionOf(this.options));
  }

  hear(samples, level) {
    this.sound.add(samples);
    if (this.connection?.ready) this.sound.send(this.connection, this.said.open?.start);
    this.view.show(level);
    this.refresh();
  }

  take(event) {
    const one = event.item_id && this.said.of(event.item_id, this.sound.now);
    switch (event.type.replace("conversation.item.input_audio_transcription.", "")) {
      case "input_audio_buffer.speech_started":
        one.begin(this.base + event.audio_start_ms / 1000);
        break;
      case "input_audio_buffer.speech_stopped":
        one.stopped = this.base + event.audio_end_ms / 1000;
        break;
      case "tentative":
        one.guess(event.text);
        break;
      case "delta":
        one.add(event.delta, this.timed(event.words), this.sound.now);
        this.said.tell(event.delta);
        this.again = false;
        this.unsaved = true;
        break;
      case "segment":
        one.segments.push({
          ...Object.fromEntries(DETAILS.map((name) => [name, event[name]])),
          start: this.base + event.start,
          end: this.base + event.end,
          text: event.text,
          words: this.timed(event.words),
        });
        break;
      case "completed":
        one.finish(event.transcript);
        this.language = event.languages?.[0]?.code ?? this.language;
        break;
      case "failed":
        one.finish(one.committed);
        this.tell(sentence(event.error.message));
        break;
      case "error":
        if (!EXPECTED.includes(event.error.code)) this.tell(sentence(event.error.message));
    }
    this.refresh();
    this.settle();
  }

  // Words with times since Start.
  timed(words) {
    return words?.length
      ? words.map((one) => ({ ...one, start: this.base + one.start, end: this.base + one.end })) : null;
  }

  // The connection was lost: try once more.
  async lose(said) {
    this.connection = null;
    if (this.state === "stopping") this.fail(said || "The connection was lost.");
    if (this.state !== "running") return;
    if (this.again) return this.fail(said || "The connection was lost.");
    this.again = true;
    this.become("lost");
    await wait(AGAIN);
    if (this.state !== "lost") return;
    try {
      await this.connect();
    } catch (error) {
      this.fail(said || `The connection was lost. ${this.explain(error)}`);
      return;
    }
    if (this.state === "lost") this.become("running");
    else if (this.state === "paused") this.connection.commit();
    if (this.sound.lost >= 1) this.tell(`${Math.round(this.sound.lost)} s of speech were lost.`);
    this.sound.lost = 0;
  }

  pause() {
    this.microphone.silent = true;
    this.connection?.commit();
    this.become("paused");
  }

  async resume() {
    this.microphone.silent = false;
    this.become(this.connection ? "running" : "starting");
    if (this.connection) return;
    try {
      await this.connect();
      this.become("running");
    } catch (error) {
      this.fail(this.explain(error));
    }
  }

  stop() {
    this.microphone.close();
    if (!this.connection?.ready) return this.fail("");
    this.become("stopping");
    this.connection.commit();
    this.noticed = false;
    this.timers = [
      setTimeout(() => {
        this.noticed = true;
        this.settle();
      }, LAST_SPEECH),
      setTimeout(() => this.fail("The last text did not arrive."), LAST_TEXT),
    ];
  }

  // After Stop: end once all text has arrived.
  settle() {
    if (this.state === "stopping" && this.noticed && !this.said.open) this.end();
  }

  end() {
    this.timers.forEach(clearTimeout);
    this.microphone?.close();
    this.awake?.release().catch(() => {});
    this.connection?.close();
    Object.assign(this, { microphone: null, connection: null, awake: null, again: false });
    this.said.lose(Infinity);
    this.sound.pieces = [];
    this.become("idle");
  }

  fail(message) {
    const missing = this.said.open ? this.said.open.start : this.sound.now - this.sound.unsent;
    const seconds = Math.round(this.sound.now - missing);
    this.end();
    const note = seconds ? ` What was said in the last ${seconds} s may be missing.` : "";
    this.tell((message + note).trim());
  }

  clear() {
    if (this.unsaved && !confirm("Clear the transcript? It has not been saved.")) return;
    this.connection?.send({ type: "input_audio_buffer.clear" });
    this.said.clear();
    if (this.state === "idle") this.sound = new Sound();
    this.unsaved = false;
    this.tell("");
    this.refresh();
  }

  async save(format) {
    const { parts } = this.said;
    const segments = format === "json"
      ? parts : parts.map(({ start, end, text, words }) => ({ start, end, text, words }));
    const body = { language: this.options.language || this.language || "en", segments };
    try {
      const response = await post(`${this.root}/page/live/transcript.${format}`, body);
      const link = make("a");
      link.href = URL.createObjectURL(await response.blob());
      const now = new Date();
      const local = new Date(now - 60_000 * now.getTimezoneOffset()).toISOString();
      link.download = `live-${local.slice(0, 16).replace("T", "-").replace(":", "")}.${format}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      this.unsaved = this.state !== "idle";
    } catch (error) {
      this.tell(`Not saved: ${this.explain(error)}`);
    }
  }
}

// Returns a function to call when the page's options change. element: where to draw.
export function start(element, root) {
  const live = new Live(element, root);
  return (options) => live.change(options);
}
