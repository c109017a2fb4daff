// The websocket of OpenAI's Realtime API, which sends audio and receives events.

import { RATE } from "./microphone.js";
import { Problem, UNREACHABLE, post, sentence } from "./problem.js";

const TIMEOUT = 15_000;  // milliseconds for the server to answer
const [TENTATIVE, DETAILS, WORDS] = ["tentative", "details", "words"].map(
  (name) => `item.input_audio_transcription.${name}`);

const REFUSED = "The server does not answer on a websocket: it may have too many streams, or a proxy may "
  + "not forward websockets. Try again in a minute.";

export class Connection {
  // root: the server's path. onEvent: called with each event. onClose: called with a reason, or with
  // "", when the connection has ended and `close` was not called.
  constructor(root, onEvent, onClose) {
    Object.assign(this, { root, onEvent, onClose, ready: false, answered: false, reason: "" });
  }

  // Connect, and configure the session. Fails with Problem.
  async open(session) {
    const { value } = await (await post(`${this.root}/page/live/key`, {})).json();
    if (this.closed) await new Promise(() => {});  // never resolves
    const address = new URL(`${this.root}/v1/realtime?intent=transcription`, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    await new Promise((opened, failed) => {
      const timer = setTimeout(() => this.end(), TIMEOUT);
      this.opened = () => {
        clearTimeout(timer);
        this.ready = true;
        opened();
      };
      this.failed = () => {
        clearTimeout(timer);
        failed(new Problem(this.reason || UNREACHABLE));
      };
      this.socket = new WebSocket(address, ["realtime", `openai-insecure-api-key.${value}`]);
      this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data), session);
      this.socket.onclose = ({ wasClean }) => {
        if (!wasClean) this.reason = this.answered ? "" : REFUSED;
        this.end();
      };
    });
  }

  receive(event, session) {
    if (event.type === "session.created") this.update(session);
    else if (event.type === "session.updated") this.opened();
    else if (event.type === "error") {
      this.reason = sentence(event.error.message);
      if (!this.ready) this.end();
    }
    this.answered = true;
    if (this.socket) this.onEvent(event);
  }

  end() {
    if (!this.socket) return;
    const { ready } = this;
    this.close();
    if (ready) this.onClose(this.reason);
    else this.failed();
  }

  close() {
    const { socket } = this;
    [this.socket, this.ready, this.closed] = [null, false, true];
    socket?.close();
  }

  send(event) { if (this.ready) this.socket.send(JSON.stringify(event)); }

  update(session) { this.socket?.send(JSON.stringify({ type: "session.update", session })); }

  append(samples) {
    const bytes = new Uint8Array(samples.buffer);
    this.send({ type: "input_audio_buffer.append", audio: btoa(String.fromCharCode(...bytes)) });
  }

  // End the utterance now.
  commit() { this.send({ type: "input_audio_buffer.commit" }); }
}

// The session to request. Its argument: the options as the page shows them.
export function sessionOf({ language, task, prompt, words }) {
  const transcription = { language: language || null, prompt: prompt || null, task: task || "transcribe" };
  const include = [TENTATIVE, DETAILS, ...(words ? [WORDS] : [])];
  const format = { type: "audio/pcm", rate: RATE };
  return { type: "transcription", include, audio: { input: { format, transcription } } };
}
