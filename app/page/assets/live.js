// The Live tab: sends the microphone's audio to the server, and shows the text that returns.

import { Connection, sessionOf } from "./connection.js";
import { copy, make } from "./dom.js";
import { LiveView } from "./live-view.js";
import { Microphone } from "./microphone.js";
import { Problem, post, sentence } from "./problem.js";
import { Sound } from "./sound.js";
import { Utterances } from "./utterances.js";

const RECONNECT_DELAY = 1000;  // milliseconds before reconnecting
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
    Object.assign(this, { root, options: {}, sound: new Sound(), base: 0, heard: 0, unsaved: false, timers: [] });
    this.utterances = new Utterances();
    this.view = new LiveView(element, this.utterances, {
      press: () => this.startOrPause(),
      stop: () => this.stop(),
      clear: () => this.clear(),
      copy: (copyButton) => copy(this.utterances.text, copyButton),
      save: (format) => this.save(format),
    });
    this.setState("idle");
    window.addEventListener("beforeunload", (event) => {
      if (this.state !== "idle" || this.unsaved) event.preventDefault();
    });
  }

  setState(state) {
    this.state = state;
    if (state !== "running" && state !== "lost") this.view.showLevel(0);
    this.refresh();
  }

  refresh() { this.view.refresh(this.state, this.sound.now, this.behind); }

  // Seconds of audio, about, that the server has not decoded yet.
  get behind() {
    const { open, all } = this.utterances;
    return open ? (all.at(-1).stopped ?? this.sound.now) - Math.max(this.heard, open.start) : 0;
  }

  showProblem(message) { this.view.showProblem(message); }

  startOrPause() {
    if (this.state === "idle") this.start();
    else if (this.state === "paused") this.resume();
    else this.pause();
  }

  async start() {
    this.showProblem("");
    this.setState("starting");
    try {
      this.microphone = await Microphone.open(
        this.root,
        (samples, level) => this.addSamples(samples, level),
        () => this.fail("The microphone was disconnected."));
      navigator.wakeLock?.request("screen").then((lock) => { this.wakeLock = lock; }).catch(() => {});
      await this.connect();
      this.setState("running");
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
      this.root,
      (event) => this.utterances.draw(() => this.receive(event)),
      (reason) => this.reconnect(reason));
    this.connection = connection;
    await connection.open(sessionOf(this.options));
    this.base = this.heard = this.sound.rewind(this.utterances.disconnect(this.sound.start));
    this.sound.send(connection, this.base);
  }

  // options: as the page shows them now; an open utterance keeps its options.
  setOptions(options) {
    this.options = options ?? {};
    if (this.connection?.ready) this.connection.update(sessionOf(this.options));
  }

  addSamples(samples, level) {
    this.sound.add(samples);
    if (this.connection?.ready) this.sound.send(this.connection, this.utterances.open?.start);
    this.view.showLevel(level);
    this.refresh();
  }

  receive(event) {
    if (this.utterances.gone.has(event.item_id)) return;
    const utterance = event.item_id && this.utterances.get(event.item_id, this.sound.now);
    switch (event.type.replace("conversation.item.input_audio_transcription.", "")) {
      case "input_audio_buffer.speech_started":
        utterance.setStart(this.base + event.audio_start_ms / 1000);
        break;
      case "input_audio_buffer.speech_stopped":
        utterance.stopped = this.base + event.audio_end_ms / 1000;
        break;
      case "tentative":
        utterance.setTentative(event.text);
        this.heard = this.base + event.heard;
        break;
      case "delta":
        utterance.add(event.delta, this.timed(event.words), this.sound.now);
        this.utterances.announce(event.delta);
        this.reconnected = false;
        this.unsaved = true;
        break;
      case "segment":
        utterance.segments.push({
          ...Object.fromEntries(DETAILS.map((name) => [name, event[name]])),
          start: this.base + event.start,
          end: this.base + event.end,
          text: event.text,
          words: this.timed(event.words),
        });
        break;
      case "completed":
        utterance.finish(event.transcript);
        this.language = event.languages?.[0]?.code ?? this.language;
        break;
      case "failed":
        utterance.finish(utterance.committed);
        this.showProblem(sentence(event.error.message));
        break;
      case "error":
        if (!EXPECTED.includes(event.error.code)) this.showProblem(sentence(event.error.message));
    }
    this.refresh();
    this.endIfComplete();
  }

  // Words with times since Start.
  timed(words) {
    return words?.length
      ? words.map((word) => ({ ...word, start: this.base + word.start, end: this.base + word.end })) : null;
  }

  // The connection was lost: try once more.
  async reconnect(reason) {
    this.connection = null;
    if (this.state === "stopping") this.fail(reason || "The connection was lost.");
    if (this.state !== "running") return;
    if (this.reconnected) return this.fail(reason || "The connection was lost.");
    this.reconnected = true;
    this.setState("lost");
    await wait(RECONNECT_DELAY);
    if (this.state !== "lost") return;
    try {
      await this.connect();
    } catch (error) {
      this.fail(reason || `The connection was lost. ${this.explain(error)}`);
      return;
    }
    if (this.state === "lost") this.setState("running");
    else if (this.state === "paused") this.connection.commit();
    if (this.sound.lost >= 1) this.showProblem(`${Math.round(this.sound.lost)} s of speech were lost.`);
    this.sound.lost = 0;
  }

  pause() {
    this.microphone.silent = true;
    this.connection?.commit();
    this.setState("paused");
  }

  async resume() {
    this.microphone.silent = false;
    this.setState(this.connection ? "running" : "starting");
    if (this.connection) return;
    try {
      await this.connect();
      this.setState("running");
    } catch (error) {
      this.fail(this.explain(error));
    }
  }

  stop() {
    this.microphone.close();
    if (!this.connection?.ready) return this.fail("");
    this.setState("stopping");
    this.connection.commit();
    this.noticed = false;
    this.timers = [
      setTimeout(() => {
        this.noticed = true;
        this.endIfComplete();
      }, LAST_SPEECH),
      setTimeout(() => this.fail("The last text did not arrive."), LAST_TEXT),
    ];
  }

  // After Stop: end once all text has arrived.
  endIfComplete() {
    if (this.state === "stopping" && this.noticed && !this.utterances.open) this.end();
  }

  end() {
    this.timers.forEach(clearTimeout);
    this.microphone?.close();
    this.wakeLock?.release().catch(() => {});
    this.connection?.close();
    Object.assign(this, { microphone: null, connection: null, wakeLock: null, reconnected: false });
    this.utterances.disconnect(Infinity);
    this.sound.pieces = [];
    this.setState("idle");
  }

  fail(message) {
    const missing = this.utterances.open ? this.utterances.open.start : this.sound.now - this.sound.unsent;
    const seconds = Math.round(this.sound.now - missing);
    this.end();
    const note = seconds ? ` What was said in the last ${seconds} s may be missing.` : "";
    this.showProblem((message + note).trim());
  }

  clear() {
    if (this.unsaved && !confirm("Clear the transcript? It has not been saved.")) return;
    this.connection?.send({ type: "input_audio_buffer.clear" });
    this.utterances.clear();
    if (this.state === "idle") this.sound = new Sound();
    this.unsaved = false;
    this.showProblem("");
    this.refresh();
    this.endIfComplete();
  }

  async save(format) {
    const { parts } = this.utterances;
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
      this.showProblem(`Not saved: ${this.explain(error)}`);
    }
  }
}

// Returns a function to call when the page's options change. element: where to draw.
export function start(element, root) {
  const live = new Live(element, root);
  return (options) => live.setOptions(options);
}
