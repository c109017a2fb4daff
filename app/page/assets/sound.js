// The audio of the microphone, stored until its text has arrived, to be sent again after a lost
// connection.

import { RATE } from "./microphone.js";

const MAX_SECONDS = 60;  // seconds at most
const SILENCE = 2;  // seconds that are stored during silence: speech may have begun
const BEFORE = 0.5;  // seconds that are stored before speech

export class Sound {
  constructor() {
    this.pieces = [];  // of samples, and when each began
    this.samples = 0;  // added so far
    this.sent = 0;  // of the pieces
    this.lost = 0;  // seconds that were never sent
  }

  get now() { return this.samples / RATE; }  // seconds
  get unsent() { return this.pieces.slice(this.sent).reduce((sum, { samples }) => sum + samples.length, 0) / RATE; }
  get start() { return this.pieces[0]?.at ?? this.now; }  // of what is kept

  add(samples) {
    this.pieces.push({ at: this.now, samples });
    this.samples += samples.length;
    while (this.now - this.start > MAX_SECONDS) this.drop();
  }

  drop() {
    const { samples } = this.pieces.shift();
    if (this.sent) this.sent -= 1;
    else this.lost += samples.length / RATE;
  }

  // Send what was not sent yet. open: when the first utterance began that has no whole text yet.
  send(connection, open) {
    for (; this.sent < this.pieces.length; this.sent++) connection.append(this.pieces[this.sent].samples);
    this.discard(Math.min((open ?? Infinity) - BEFORE, this.now - SILENCE));
  }

  discard(before) {
    while (this.sent && this.pieces.length > 1 && this.pieces[1].at <= before) this.drop();
  }

  // Send the stored audio again, from a time on, to another connection. Returns its start.
  rewind(from) {
    this.discard(from);
    this.sent = 0;
    return this.start;
  }
}
