// The websocket of OpenAI's Realtime API, which sends audio and receives events.

import { RATE } from "./microphone.js";
import { Problem, UNREACHABLE, post, sentence } from "./problem.js";

const PATIENCE = 15_000;  // milliseconds for the server to answer
const [TENTATIVE, DETAILS, WORDS] = ["tentative", "details", "words"].map(
  (name) => `item.input_audio_transcription.${name}`);

const REFUSED = "The server does not answer on a websocket: it may have too many streams, or a proxy may "
  + "not forward websockets. Try again in a minute.";

export class Connection {
  // root: the server's path. heard: called with each event. closed: called with a reason, or with
  // "", when the connection has ended and `close` was not called.
  constructor(root, heard, closed) {
    Object.assign(this, { root, heard, closed, ready: false, heardAny: false, said: "" });
  }

  // Connect, and configure the session. Fails with Problem.
  async open(session) {
    const { value } = await (await post(`${this.root}/page/live/key`, {})).json();
    if (this.gone) await new Promise(() => {});  // closed meanwhile: never resolves
    const address = new URL(`${this.root}/v1/realtime?intent=transcription`, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    await new Promise((opened, failed) => {
      const late = setTimeout(() => this.end(), PATIENCE);
      this.opened = () => {
        clearTimeout(late);
        this.ready = true;
        opened();
      };
      this.failed = () => {
        clearTimeout(late);
        failed(new Problem(this.said || UNREACHABLE));
      };
      this.socket = new WebSocket(address, ["realtime", `openai-insecure-api-key.${value}`]);
      this.socket.onmessage = ({ data }) => this.take(JSON.parse(data), session);
      this.socket.onclose = ({ wasClean }) => {
        if (!wasClean) this.said = this.heardAny ? "" : REFUSED;
        this.end();
      };
    });
  }

  take(event, session) {
    if (event.type === "session.created") this.update(session);
    else if (event.type === "session.updated") this.opened();
    else if (event.type === "error") {
      this.said = sentence(event.error.message);
      if (!this.ready) this.end();
    }
    this.heardAny = true;
    if (this.socket) this.heard(event);
  }

  end() {
    if (!this.socket) return;
    const { ready } = this;
    this.close();
    if (ready) this.closed(this.said);
    else this.failed();
  }

  close() {
    const { socket } = this;
    [this.socket, this.ready, this.gone] = [null, false, true];
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
