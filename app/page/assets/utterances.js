// The utterances: a paragraph for each, with its time, the committed text, and the tentative tail.
// The committed text is announced to screen readers once, as it arrives.

import { clock, make } from "./dom.js";

const TIMES = "Tap a word, or press left and right in the text, to see when it was said.";
const MAX_ANNOUNCEMENTS = 20;  // announcements for screen readers in the page

class Utterance {
  constructor(start) {
    Object.assign(this, { start, received: start, stopped: null, committed: "", segments: [], ended: false });
    this.root = make("p", "sw-utterance");
    this.text = make("span", "sw-committed");
    this.tail = make("span", "sw-tail");
    this.time = make("time", "", clock(start));
    const text = make("span", "sw-words");
    text.append(this.text, this.tail);
    this.root.append(this.time, text);
  }

  setStart(start) {
    this.start = start;
    this.time.textContent = clock(start);
  }

  get end() { return this.stopped ?? this.received; }

  // The parts of the committed text, with times, from which files are written.
  get parts() {
    if (this.segments.length) return this.segments;
    const text = this.committed.trim();
    return text ? [{ start: this.start, end: Math.max(this.start, this.end), text }] : [];
  }

  // received: seconds of audio that the server had received, about
  add(text, words, received) {
    this.received = received;
    const first = !this.committed;
    this.committed += text;
    if (words?.length) this.text.append(...wordElements(words, first));
    else if (text) this.text.append(first ? text.trimStart() : text);
  }

  // The tail follows the committed text, so it is drawn with its leading space.
  setTentative(text) { this.tail.textContent = this.committed ? text : text.trimStart(); }

  finish(text) {
    this.ended = true;
    this.tail.textContent = "";
    const words = this.segments.flatMap((segment) => segment.words ?? []);
    if (text.trim() !== this.committed.trim()) {
      this.committed = text;
      this.text.textContent = text.trim();
    }
    if (words.length) {
      const at = [...this.text.children].indexOf(document.activeElement);
      this.text.replaceChildren(...wordElements(words, true));
      this.text.children[at]?.focus({ preventScroll: true });
    }
    if (!this.parts.length) this.root.remove();
  }
}

// An element for each word, with its time, and the spaces between them.
function wordElements(words, first) {
  return words.flatMap(({ word, start, end }, i) => {
    const part = make("span", "sw-word", word.trimStart());
    part.title = `${start.toFixed(2)} to ${end.toFixed(2)} s`;
    part.tabIndex = -1;
    const spaced = /^\s/.test(word) && (i || !first);
    return spaced ? [" ", part] : [part];
  });
}

const isWord = (element) => element.classList.contains("sw-word");

export class Utterances {
  constructor() {
    const region = { role: "region", "aria-label": "What was said", tabindex: 0 };  // it scrolls
    this.root = make("div", "sw-log", "", region);
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("click", ({ target }) => { if (isWord(target)) target.focus(); });
    this.root.addEventListener("focusin", ({ target }) => {
      if (isWord(target)) this.wordTime.textContent = `${target.textContent}: ${target.title}`;
    });
    this.wordTime = make("p", "sw-note", "", { role: "status" });
    this.announcer = make("div", "sw-announced", "", { role: "log" });
    this.items = new Map();  // by the server's names; other connections have others
    this.gone = new Set();  // names of what was cleared
    this.clear();
  }

  clear() {
    this.all = [];
    for (const item of this.items.keys()) this.gone.add(item);
    this.items.clear();
    this.root.replaceChildren();
    this.announcer.replaceChildren();
    this.wordTime.textContent = "";
  }

  get parts() { return this.all.flatMap(({ parts }) => parts); }
  get hasText() { return this.all.some(({ committed }) => committed); }
  get text() { return this.all.map(({ committed }) => committed.trim()).filter(Boolean).join("\n"); }
  get open() { return this.all.find(({ ended }) => !ended); }  // the first that has not ended

  // The utterance of an item of the server's; a new one if it has none.
  get(item, start) {
    if (!this.items.has(item)) {
      const utterance = new Utterance(start);
      this.items.set(item, utterance);
      this.all.push(utterance);
      this.root.append(utterance.root);
    }
    return this.items.get(item);
  }

  // After a lost connection, open utterances get no more events: those that began before a time keep
  // their text; the audio of the others is sent again. Returns the end of the transcribed audio, about.
  disconnect(before) {
    let end = 0;
    this.items.clear();
    this.all = this.all.filter((utterance) => {
      if (utterance.ended) end = Math.max(end, utterance.end);
      if (utterance.ended) return true;
      if (utterance.start < before) {
        end = Math.max(end, utterance.received);
        utterance.finish(utterance.committed);
        return true;
      }
      utterance.root.remove();
      return false;
    });
    return end;
  }

  // Left and right go from word to word; from elsewhere, to the newest.
  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    const words = [...this.root.querySelectorAll(".sw-word")];
    if (!words.length) return;
    const at = words.indexOf(document.activeElement);
    const next = at < 0 ? words.length - 1 : Math.min(Math.max(at + step, 0), words.length - 1);
    words[next].focus();
    event.preventDefault();
  }

  // Explain how to see the times of words, until one is selected.
  explain() {
    if (!this.wordTime.textContent && this.root.querySelector(".sw-word")) this.wordTime.textContent = TIMES;
  }

  // Announce a text to screen readers.
  announce(text) {
    this.announcer.append(make("p", "", text));
    if (this.announcer.childElementCount > MAX_ANNOUNCEMENTS) this.announcer.firstChild.remove();
  }

  // Change the view, and stay at its end if it shows that.
  draw(change) {
    const { root } = this;
    const atEnd = root.scrollHeight - root.scrollTop - root.clientHeight < 30;
    change();
    this.explain();
    if (atEnd) root.scrollTop = root.scrollHeight;
  }
}
