// The outline of a recording, with its segments and the current position. It is also a slider.

import { clock, make } from "./dom.js";

const STEPS = { ArrowLeft: -5, ArrowRight: 5, ArrowDown: -5, ArrowUp: 5, PageUp: 30, PageDown: -30 };
const [STEP, LINE] = [3, 2];  // pixels from line to line, and of a line

export class Wave {
  // peaks: int8 [columns, 2] in base64. audio: the element. card: has `length`, `play`, `segments`.
  constructor(peaks, audio, card) {
    this.audio = audio;
    this.card = card;
    this.peaks = Int8Array.from(atob(peaks), (c) => c.charCodeAt(0));
    this.loudest = this.peaks.reduce((most, peak) => Math.max(most, Math.abs(peak)), 8);
    const slider = { role: "slider", "aria-label": "Position", "aria-valuemin": 0, tabindex: 0 };
    this.canvas = make("canvas", "sw-wave", "", slider);
    this.canvas.addEventListener("click", (event) => {
      const box = this.canvas.getBoundingClientRect();
      card.play(card.length * (event.clientX - box.left) / box.width);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.style = getComputedStyle(this.canvas);
    this.drawn = "";  // the state that the layers show
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  key(event) {
    const { audio, card } = this;
    if (event.key === " " || event.key === "Enter") card.toggle();
    else if (event.key in STEPS) {
      audio.currentTime = Math.min(Math.max(audio.currentTime + STEPS[event.key], 0), card.length);
    } else if (event.key === "Home") audio.currentTime = 0;
    else return;
    event.preventDefault();
  }

  follow(now) {
    const { canvas, card } = this;
    canvas.setAttribute("aria-valuemax", String(Math.round(card.length)));
    canvas.setAttribute("aria-valuenow", String(Math.round(now)));
    canvas.setAttribute("aria-valuetext", `${clock(now)} of ${clock(card.length)}`);
    this.draw();
  }

  draw() {
    const { canvas, card } = this;
    const scale = window.devicePixelRatio || 1;
    const [width, height, length] = [canvas.clientWidth, canvas.clientHeight, card.length];
    if (!width || !length) return;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wide) canvas.width = wide;
    if (canvas.height !== high) canvas.height = high;
    const colours = ["--sw-mark", "--sw-wave", "--sw-played", "--sw-mark-now"]
      .map((name) => this.style.getPropertyValue(name));
    const { views, current } = card.segments;
    const state = [wide, high, length, views.length, card.segments.version, ...colours].join();
    if (state !== this.drawn) {
      this.drawn = state;
      const layer = (colour, fill) => this.layer(scale, width, height, colour, fill);
      this.marks = layer(colours[0], (pen) => {
        for (const [start, end] of views) this.mark(pen, start, end, width, height);
      });
      const lines = (pen) => this.lines(pen, width, height);
      [this.wave, this.played] = [layer(colours[1], lines), layer(colours[2], lines)];
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.drawImage(this.marks, 0, 0);
    if (views[current]) {
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.fillStyle = colours[3];
      this.mark(pen, views[current][0], views[current][1], width, height);
      pen.setTransform(1, 0, 0, 1, 0, 0);
    }
    const played = Math.round(this.audio.currentTime / length * wide);
    if (played < wide) pen.drawImage(this.wave, played, 0, wide - played, high, played, 0, wide - played, high);
    if (played > 0) {
      pen.drawImage(this.played, 0, 0, played, high, 0, 0, played, high);
      pen.fillStyle = colours[2];
      pen.fillRect(Math.min(played, wide - 2 * scale), 0, 2 * scale, high);
    }
  }

  layer(scale, width, height, colour, fill) {
    const layer = make("canvas");
    [layer.width, layer.height] = [Math.round(width * scale), Math.round(height * scale)];
    const pen = layer.getContext("2d");
    pen.scale(scale, scale);
    pen.fillStyle = colour;
    fill(pen);
    return layer;
  }

  mark(pen, start, end, width, height) {
    const { length } = this.card;
    const [left, right] = [start / length * width, Math.min(end / length, 1) * width];
    pen.fillRect(left, 0, Math.max(right - left - 1, 1), height);
  }

  lines(pen, width, height) {
    const { peaks, loudest } = this;
    const [columns, half] = [peaks.length / 2, height / 2 - 3];
    for (let x = 0; x < width; x += STEP) {
      const first = Math.floor(x / width * columns);
      const last = Math.max(Math.floor((x + STEP) / width * columns), first + 1);
      let [low, high] = [0, 0];
      for (let i = first; i < last && i < columns; i++) {
        low = Math.min(low, peaks[2 * i]);
        high = Math.max(high, peaks[2 * i + 1]);
      }
      const [top, bottom] = [high / loudest * half, -low / loudest * half];
      pen.fillRect(x, height / 2 - Math.max(top, 0.75), LINE, Math.max(top + bottom, 1.5));
    }
  }
}
