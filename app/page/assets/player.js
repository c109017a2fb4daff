// Draws the page's results. Gradio provides `element`, `props` and `watch` (gr.HTML's js_on_load).
// Names and texts are untrusted: always set them as text, never as HTML.

const list = element.querySelector(".sw-player");
const prefix = new URL(window.gradio_config?.root || "./", location.href).pathname.replace(/\/$/, "");
const address = (path) => `${prefix}/${path}`;
let cards = [];

function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(className, text, action) {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

function link(path, text) {
  const made = make("a", "sw-download", text);
  made.href = address(path);
  made.download = "";
  return made;
}

function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

function status(file) {
  if (file.state === "failed") return "Failed";
  if (file.state === "stopped") return "Stopped";
  if (file.state === "done") return clock(file.seconds);
  if (file.state === "working") return `${clock(file.done)} of ${clock(file.seconds)}`;
  if (file.loading) return "Loading the model";
  if (file.place > 1) return `Waiting, ${file.place - 1} ahead`;
  return file.place ? "Next" : "Reading";
}

async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // browsers refuse it over http, except on localhost
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    from.focus();
  }
  const before = from.textContent;
  from.textContent = "Copied";
  setTimeout(() => { from.textContent = before; }, 1500);
}

class Card {
  constructor(number) {
    this.file = {};
    this.number = number;
    this.current = -1;
    this.root = make("article", "sw-file");
    this.head = make("header");
    this.title = make("h3");
    this.title.id = `sw-file-${number}`;
    this.root.setAttribute("aria-labelledby", this.title.id);
    this.state = make("span", "sw-state");
    this.head.append(this.title, this.state);
    this.bar = make("progress", "sw-progress");
    this.bar.max = 1;
    this.bar.setAttribute("aria-label", "Progress");
    this.error = make("p", "sw-error");
    this.error.setAttribute("role", "alert");
    this.sound = make("div", "sw-sound");
    this.text = make("p", "sw-text");
    this.copy = button("sw-copy", "Copy text", () => copy(this.file.text, this.copy));
    this.segments = make("ol", "sw-segments");
    this.segments.setAttribute("aria-label", "Segments; each plays from its start");
    this.foot = make("footer");
    this.root.append(
      this.head, this.bar, this.error, this.text, this.sound, this.segments, this.foot);
    for (const part of [this.error, this.text, this.sound, this.segments, this.foot]) {
      part.hidden = true;
    }
  }

  update(file) {
    const before = this.file;
    this.file = file;
    this.root.dataset.state = file.state;
    if (before.name !== file.name) {
      this.title.textContent = file.name;
      this.title.title = file.name;
    }
    const shown = status(file);
    if (this.state.textContent !== shown) this.state.textContent = shown;
    this.bar.hidden = !["waiting", "working"].includes(file.state);
    if (file.state === "working" && file.seconds) this.bar.value = file.done / file.seconds;
    else this.bar.removeAttribute("value");
    this.error.hidden = !file.message;
    this.error.textContent = file.message;
    if (before.text !== file.text) {
      this.text.textContent = file.text;
      this.text.hidden = !file.text;
    }
    if (file.state === "done" && !file.text) {
      this.text.textContent = "No speech was found.";
      this.text.className = "sw-text sw-none";
      this.text.hidden = false;
    }
    if (file.audio && !this.audio) this.addSound();
    if (!this.sound.hidden) {
      this.drawSegments(before.state !== file.state);
      this.drawWave();
    }
    if (file.state === "done" && before.state !== "done") this.addDownloads();
    if (file.state === "stopped" && file.text && !this.copy.isConnected) {
      this.foot.hidden = false;
      this.foot.append(this.copy);
    }
  }

  addSound() {
    this.audio = make("audio");
    this.audio.controls = true;
    this.audio.preload = "metadata";
    this.audio.src = address(this.file.audio);
    this.audio.setAttribute("aria-label", `Audio of ${this.file.name}`);
    this.canvas = make("canvas", "sw-wave");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-label", "Position");
    this.canvas.setAttribute("aria-valuemin", "0");
    const bytes = atob(this.file.peaks);
    this.peaks = Int8Array.from(bytes, (c) => c.charCodeAt(0));
    this.audio.addEventListener("error", () => {
      this.audio.replaceWith(make("p", "sw-note", "This browser cannot play this kind of file."));
    }, { once: true });
    for (const name of ["timeupdate", "seeked", "play", "loadedmetadata"]) {
      this.audio.addEventListener(name, () => this.follow());
    }
    this.audio.addEventListener("play", () => this.animate());
    this.canvas.addEventListener("click", (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.play(this.length * (event.clientX - box.left) / box.width);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.sound.append(this.canvas, this.audio);
    this.sound.hidden = false;
    new ResizeObserver(() => this.drawWave()).observe(this.canvas);
  }

  get length() {
    return this.file.seconds || this.audio.duration || 0;
  }

  key(event) {
    const steps = { ArrowLeft: -5, ArrowRight: 5, ArrowDown: -5, ArrowUp: 5, PageUp: 30, PageDown: -30 };
    if (event.key === " " || event.key === "Enter") {
      if (this.audio.paused) this.audio.play(); else this.audio.pause();
    } else if (event.key in steps) {
      const wanted = this.audio.currentTime + steps[event.key];
      this.audio.currentTime = Math.min(Math.max(wanted, 0), this.length);
    } else if (event.key === "Home") this.audio.currentTime = 0;
    else return;
    event.preventDefault();
  }

  play(seconds) {
    for (const card of cards) if (card !== this) card.audio?.pause();
    this.audio.currentTime = seconds;
    this.audio.play().catch(() => {});  // the "error" event shows a message
  }

  animate() {
    this.drawWave();
    if (!this.audio.paused && this.root.isConnected) requestAnimationFrame(() => this.animate());
  }

  drawSegments(ended) {
    const { segments } = this.file;
    if (ended) this.segments.replaceChildren();  // draw the final times and words
    for (let i = this.segments.children.length; i < segments.length; i++) {
      const [start, end, text, words] = segments[i];
      const row = make("li");
      const one = button("sw-segment", undefined, (event) => {
        this.play(Number(event.target.dataset.start ?? start));
      });
      const content = make("span", "sw-words");
      if (words) {
        for (const [from, to, word] of words) {
          const part = make("span", "sw-word", word);
          part.dataset.start = from;
          part.dataset.end = to;
          content.append(part);
        }
      } else content.textContent = text;
      one.append(make("time", "", clock(start)), content);
      one.setAttribute("aria-label", `${clock(start)}, ${text}`);
      row.append(one);
      this.segments.append(row);
    }
    this.segments.hidden = !segments.length;
    this.mark(this.current);
  }

  follow() {
    const now = this.audio.currentTime;
    const touched = now > 0 || !this.audio.paused;
    const current = touched
      ? this.file.segments.findIndex(([start, end]) => now >= start - 0.01 && now < end) : -1;
    if (current !== this.current) this.mark(current);
    for (const word of this.segments.children[current]?.querySelectorAll(".sw-word") ?? []) {
      word.classList.toggle(
        "sw-now", now >= Number(word.dataset.start) - 0.01 && now < Number(word.dataset.end));
    }
    this.canvas.setAttribute("aria-valuemax", String(Math.round(this.length)));
    this.canvas.setAttribute("aria-valuenow", String(Math.round(now)));
    this.canvas.setAttribute("aria-valuetext", `${clock(now)} of ${clock(this.length)}`);
    this.drawWave();
  }

  mark(current) {
    this.segments.children[this.current]?.firstChild.removeAttribute("aria-current");
    this.current = current;
    const row = this.segments.children[current];
    if (!row) return;
    row.firstChild.setAttribute("aria-current", "true");
    const [box, frame] = [row.getBoundingClientRect(), this.segments.getBoundingClientRect()];
    if (box.top < frame.top) this.segments.scrollTop -= frame.top - box.top;
    if (box.bottom > frame.bottom) this.segments.scrollTop += box.bottom - frame.bottom;
  }

  drawWave() {
    const { canvas, peaks, length } = this;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !length) return;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.file.segments.forEach(([start, end], i) => {
      pen.fillStyle = colour(i === this.current ? "--sw-mark-now" : "--sw-mark");
      const [left, right] = [start / length * width, Math.min(end / length, 1) * width];
      pen.fillRect(left, 0, Math.max(right - left - 1, 1), height);
    });
    const loudest = Math.max(8, ...peaks.map(Math.abs));
    const played = this.audio.currentTime / length * width;
    const columns = peaks.length / 2;
    const [step, line] = [3, 2];
    for (let x = 0; x < width; x += step) {
      const first = Math.floor(x / width * columns);
      const last = Math.max(Math.floor((x + step) / width * columns), first + 1);
      let [low, high] = [0, 0];
      for (let i = first; i < last && i < columns; i++) {
        low = Math.min(low, peaks[2 * i]);
        high = Math.max(high, peaks[2 * i + 1]);
      }
      const half = height / 2 - 3;
      const [top, bottom] = [high / loudest * half, -low / loudest * half];
      pen.fillStyle = colour(x < played ? "--sw-played" : "--sw-wave");
      pen.fillRect(x, height / 2 - Math.max(top, 0.75), line, Math.max(top + bottom, 1.5));
    }
    if (played > 0) {
      pen.fillStyle = colour("--sw-played");
      pen.fillRect(Math.min(played, width - 2), 0, 2, height);
    }
  }

  addDownloads() {
    const row = make("span", "sw-downloads");
    row.append(make("span", "sw-note", "Download"));
    for (const [format, path] of Object.entries(this.file.downloads)) {
      const one = link(path, format);
      one.setAttribute("aria-label", `Download ${format} of ${this.file.name}`);
      row.append(one);
    }
    this.foot.replaceChildren(...(this.file.text ? [this.copy] : []), row);
    this.foot.hidden = false;
  }
}

const archive = make("div", "sw-archive");
const announced = make("p", "sw-announced");
announced.setAttribute("role", "status");
let run = null;

function draw() {
  const view = props.value || {};
  const files = view.files || [];
  if (view.run !== run) {  // the button was pressed again
    run = view.run;
    cards.forEach((card) => card.audio?.pause());
    cards = files.map((_, i) => new Card(i));
    list.replaceChildren(archive, announced, ...cards.map((card) => card.root));
  }
  files.forEach((file, i) => cards[i].update(file));
  archive.hidden = !view.zip;
  if (view.zip && !archive.firstChild) {
    const count = files.filter((file) => file.state === "done").length;
    archive.append(link(view.zip, `Download all ${count} transcripts (zip)`));
  } else if (!view.zip) archive.replaceChildren();
  const left = files.filter((file) => ["waiting", "working"].includes(file.state)).length;
  const said = !files.length ? "" : left ? `${files.length - left} of ${files.length} ready` : "Ready";
  if (announced.textContent !== said) announced.textContent = said;
}

watch("value", draw);
draw();
