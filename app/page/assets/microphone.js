// Opens the microphone, and passes on its audio in pieces.

import { Problem } from "./problem.js";

export const RATE = 16_000;  // samples per second, as the model needs
const PIECE = RATE / 10;  // samples

const REFUSED = {
  NotAllowedError: "The browser was not allowed to use the microphone. Allow it for this site, in the "
    + "address bar or in the browser's settings, and press Start again.",
  NotFoundError: "No microphone was found. Connect one and press Start again.",
  NotReadableError: "The microphone cannot be opened; another program may be using it. Close that program "
    + "and press Start again.",
};

export class Microphone {
  // root: the server's path. onPiece: called with (Int16Array of 0.1 s, its RMS from 0 to 1).
  // onEnd: called when the microphone is disconnected. Fails with Problem.
  static async open(root, onPiece, onEnd) {
    if (!navigator.mediaDevices || !window.AudioWorkletNode) {
      const port = location.port ? `:${location.port}` : "";
      throw new Problem(
        "Browsers allow the microphone only for pages on https or localhost. Open this page over https, or "
        + `on the server's machine as http://localhost${port}${root}/.`);
    }
    const microphone = new Microphone();
    try {
      const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false };
      microphone.stream = await navigator.mediaDevices.getUserMedia({ audio });
    } catch (error) {
      throw new Problem(REFUSED[error.name] ?? `The microphone cannot be used: ${error.message}.`);
    }
    try {
      await microphone.listen(root, onPiece);
    } catch (error) {
      microphone.close();
      throw new Problem(`This browser cannot read the microphone: ${error.message}.`);
    }
    microphone.stream.getAudioTracks()[0].addEventListener("ended", onEnd);
    return microphone;
  }

  async listen(root, onPiece) {
    this.context = new AudioContext();
    await this.context.audioWorklet.addModule(`${root}/page/assets/microphone-worklet.js`);
    const source = this.context.createMediaStreamSource(this.stream);
    const processorOptions = { rate: RATE, size: PIECE };
    this.pieces = new AudioWorkletNode(this.context, "pieces", { processorOptions });
    this.pieces.port.onmessage = ({ data }) => { if (!this.muted) onPiece(data.samples, data.level); };
    source.connect(this.pieces).connect(this.context.destination);  // silent; some browsers need it
    await this.context.resume();
  }

  // Whether the audio is discarded, in the browser.
  set silent(silent) {
    this.muted = silent;
    for (const track of this.stream.getTracks()) track.enabled = !silent;
  }

  close() {
    this.muted = true;
    for (const track of this.stream.getTracks()) track.stop();
    this.context?.close().catch(() => {});
  }
}
