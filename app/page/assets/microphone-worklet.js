// Runs on the browser's audio thread: passes on the microphone's audio as pieces of 16-bit samples.

import { Resampler } from "./resample.js";

class Pieces extends AudioWorkletProcessor {
  // rate: of the pieces, in Hz; size: of a piece, in samples
  constructor({ processorOptions: { rate, size } }) {
    super();
    this.resampler = new Resampler(Math.round(sampleRate), rate);
    this.piece = new Int16Array(size);
    [this.filled, this.energy] = [0, 0];
  }

  process([channels]) {
    if (!channels.length) return true;
    const mixed = channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
    for (const sample of this.resampler.push(mixed)) {
      this.energy += sample * sample;
      this.piece[this.filled++] = 32767 * Math.min(Math.max(sample, -1), 1);
      if (this.filled === this.piece.length) this.post();
    }
    return true;
  }

  post() {
    const size = this.piece.length;
    const message = { samples: this.piece, level: Math.sqrt(this.energy / size) };
    this.piece = new Int16Array(size);
    [this.filled, this.energy] = [0, 0];
    this.port.postMessage(message, [message.samples.buffer]);
  }
}

registerProcessor("pieces", Pieces);
