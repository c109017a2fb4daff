// A file's segments: a list in which one row at a time takes the focus. A click plays, a double click
// edits; by keyboard, space plays, Enter and F2 edit, the arrows go from row to row and word to word.

import { button, clock, make } from "./dom.js";
import { openEditor } from "./editor.js";

export const KEYS = "Space plays, Enter edits, up and down move between segments, left and right between words";
const [LONGEST_TEXT, LONGEST_NAME] = [5000, 64];
const UNSURE = [0.3, 0.5, 0.7];  // limits of the probability, one for each level of unsure words
export const [START, END, TEXT, WORDS, SPEAKER, FLAGS] = [0, 1, 2, 3, 4, 5];  // of a view

// A view as the server sends it, with its words as a list.
function read(view) {
  const copy = [...view];
  copy[WORDS] &&= JSON.parse(view[WORDS]);
  return copy;
}

export class Segments {
  // card: has play, toggle, pause, change, title, and `reasons` of flags
  constructor(card) {
    this.card = card;
    this.views = [];
    this.version = 0;
    this.current = -1;  // the row that plays
    this.at = 0;  // the row that takes the focus
    this.list = make("ol", "sw-segments", "", { "aria-label": "Segments", hidden: "" });
    this.editButton = button("sw-edit", "Edit", () => this.edit(this.at));
    this.list.addEventListener("click", (event) => this.click(event));
    this.list.addEventListener("dblclick", (event) => this.doubleClick(event));
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("focusin", (event) => {
      const index = this.indexOf(event.target);
      if (index >= 0) this.makeFocusable(index);  // no scrolling: the mouse may be about to click
    });
  }

  // Show these; redraw: also the existing ones.
  show(views, redraw) {
    if (redraw) this.list.replaceChildren();
    const first = this.list.children.length;
    const known = redraw ? [] : this.views;
    this.views = Array.from(views, (view, i) => known[i] ?? read(view));
    if (this.at >= views.length) this.at = 0;
    if (redraw || first < views.length) this.version += 1;
    const rows = document.createDocumentFragment();
    for (let i = first; i < views.length; i++) rows.append(this.fill(make("li", "sw-row"), i));
    this.list.append(rows);
    this.list.hidden = !views.length;
  }

  // Apply changed segments: {index: view}.
  apply(changed) {
    const rows = new Set();
    for (const [key, view] of Object.entries(changed)) {
      const index = Number(key);
      this.views[index] = read(view);
      rows.add(index).add(index + 1);  // its speaker's name may have to appear or disappear
    }
    this.version += 1;
    for (const index of rows) {
      if (this.views[index]) this.fill(this.list.children[index], index);
    }
  }

  row(index) { return this.list.children[index]?.querySelector(".sw-segment") ?? null; }

  indexOf(element) {
    const row = element.closest(".sw-row");
    return row ? Array.prototype.indexOf.call(this.list.children, row) : -1;
  }

  fill(item, index) {
    const [start, , text, words, speaker, flags] = this.views[index];
    const parts = [];
    if (speaker && speaker !== this.views[index - 1]?.[SPEAKER]) {
      const name = button("sw-speaker", speaker);
      name.title = "Rename this speaker everywhere";
      parts.push(name);
    }
    const segment = make("div", "sw-segment", "", { role: "button", tabindex: -1 });
    const content = make("span", "sw-words");
    if (!text) {
      content.classList.add("sw-none");
      content.textContent = "Removed";
    } else if (words?.length) content.append(...this.words(words));
    else content.textContent = text;
    segment.append(make("time", "", clock(start)), content);
    segment.setAttribute("aria-label", `${clock(start)}, ${speaker ? `${speaker}: ` : ""}${text || "removed"}`);
    parts.push(segment);
    if (flags?.length) parts.push(this.flagged(flags));
    item.classList.toggle("sw-to-check", Boolean(flags?.length));
    if (index === this.current) segment.setAttribute("aria-current", "true");
    if (index === this.at) {
      segment.tabIndex = 0;
      if (this.card.corrections) parts.splice(parts.indexOf(segment) + 1, 0, this.editButton);
    }
    if (!item.querySelector(".sw-editing")) item.replaceChildren(...parts);
    return item;  // a row with an open field is filled again when the field closes
  }

  // An element for each word, and the spaces between them.
  words(words) {
    return words.flatMap(([start, end, word, probability], i) => {
      const bare = word.trimStart();
      const part = make("span", "sw-word", bare, { "data-start": start, "data-end": end });
      const level = UNSURE.filter((limit) => probability < limit).length;
      if (level) {
        part.classList.add(`sw-unsure-${level}`);
        part.title = `Probability ${Math.round(100 * probability)} %`;
      }
      const space = i ? word.slice(0, word.length - bare.length) : "";
      return space ? [space, part] : [part];
    });
  }

  flagged(flags) {
    const note = make("p", "sw-flags");
    note.append(make("span", "", `To check: ${flags.map((f) => this.card.reasons[f] ?? f).join("; ")}.`));
    note.append(button("sw-approve", "Mark as correct"));
    return note;
  }

  click(event) {
    const index = this.indexOf(event.target);
    if (index < 0) return;
    if (event.target.closest(".sw-speaker")) this.rename(index, event.target);
    else if (event.target.closest(".sw-approve")) this.approve(index);
    else if (event.target.closest(".sw-segment")) {
      if (event.detail > 1 || (event.detail && !getSelection().isCollapsed)) return;
      this.makeFocusable(index);
      this.row(index).focus({ preventScroll: true });
      if (this.card.audio) this.mark(index, false);  // no scrolling: a second click may follow
      this.card.play(Number(event.target.dataset.start ?? this.views[index][START]));
    }
  }

  doubleClick(event) {
    const segment = event.target.closest(".sw-segment");
    if (!segment) return;
    const word = event.target.closest(".sw-word");
    if (!word) return this.edit(this.indexOf(segment));
    let start = 0;
    for (let node = word.previousSibling; node; node = node.previousSibling) start += node.textContent.length;
    this.edit(this.indexOf(segment), [start, start + word.textContent.trimEnd().length]);
  }

  key(event) {
    if (!event.target.classList.contains("sw-segment") || event.ctrlKey || event.metaKey || event.altKey) return;
    const index = this.indexOf(event.target);
    const rows = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (event.key === " ") {
      if (this.current === index && this.card.playing) this.card.pause();
      else this.card.play(this.views[index][START]);
    } else if (event.key === "Enter" || event.key === "F2") this.edit(index);
    else if (event.key in rows) {
      this.select(Math.min(Math.max(index + rows[event.key], 0), this.views.length - 1), true);
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      this.playWord(index, event.key === "ArrowLeft" ? -1 : 1);
    } else return;
    event.preventDefault();
  }

  // Play the word before or after the one that is playing.
  playWord(index, step) {
    const words = this.views[index][WORDS];
    if (!words?.length) return;
    const playing = words.findLastIndex(([start]) => start <= this.card.now + 0.05);
    const inside = this.card.now < this.views[index][END];
    const target = inside ? playing + step : step < 0 ? words.length - 1 : 0;
    this.card.play(words[Math.min(Math.max(target, 0), words.length - 1)][0]);
  }

  // Make a row the one that takes the focus.
  makeFocusable(index) {
    if (index !== this.at) this.row(this.at)?.setAttribute("tabindex", "-1");
    this.at = index;
    const row = this.row(index);
    row?.setAttribute("tabindex", "0");
    if (!row || row.hidden || !this.card.corrections) return;
    if (row.nextSibling !== this.editButton) row.after(this.editButton);  // a move takes the focus away
  }

  select(index, focus = false) {
    this.makeFocusable(index);
    if (!this.row(index)) return;
    this.scrollTo(index);
    if (focus) this.row(index).focus({ preventScroll: true });
  }

  edit(index, select) {
    const row = this.row(index);
    if (!row || row.hidden || !this.card.corrections) return;
    this.card.pause();
    this.select(index);
    this.editButton.remove();
    const text = this.views[index][TEXT];
    openEditor({
      element: row,
      tag: "textarea",
      text,
      label: `Text at ${clock(this.views[index][START])}; Enter saves, Escape cancels`,
      maxLength: LONGEST_TEXT,
      select: select ?? [text.length, text.length],
      save: (newText) => this.card.change(() => ({ texts: [[index, this.views[index][TEXT], newText]] })),
      onClose: (focus) => {
        this.fill(this.list.children[index], index);
        if (focus || index === this.at) this.select(index, focus);
      },
    });
  }

  rename(index, element) {
    const before = this.views[index][SPEAKER];
    if (!this.card.corrections) return;
    openEditor({
      element,
      tag: "input",
      text: before,
      label: `New name of ${before}; Enter saves, Escape cancels`,
      maxLength: LONGEST_NAME,
      select: [0, before.length],
      save: async (name) => { if (name) await this.card.change(() => ({ speaker: [before, name] })); },
      onClose: (focus) => {
        this.fill(this.list.children[index], index);
        if (focus) this.list.children[index].querySelector(".sw-speaker")?.focus();
      },
    });
  }

  async approve(index) {
    await this.card.player.attempt(() => this.card.change(() => ({ approve: index })));
    this.select(index, true);
  }

  get flaggedRows() {
    return this.views.flatMap((view, index) => (view[FLAGS]?.length ? [index] : []));
  }

  // Show the segment and the word at a time.
  follow(now, touched) {
    const current = touched
      ? this.views.findIndex(([start, end]) => now >= start - 0.01 && now < end) : -1;
    if (current !== this.current) this.mark(current);
    for (const word of this.row(current)?.querySelectorAll(".sw-word") ?? []) {
      word.classList.toggle(
        "sw-now", now >= Number(word.dataset.start) - 0.01 && now < Number(word.dataset.end));
    }
  }

  mark(current, scrolls = true) {
    this.row(this.current)?.removeAttribute("aria-current");
    this.current = current;
    this.row(current)?.setAttribute("aria-current", "true");
    if (scrolls && this.row(current) && !this.list.querySelector(".sw-editing")) this.scrollTo(current);
  }

  scrollTo(index) {
    const frame = this.list.getBoundingClientRect();
    for (let pass = 0; pass < 2; pass++) {  // rows that were never in sight get their height now
      const box = this.list.children[index].getBoundingClientRect();
      if (box.top < frame.top) this.list.scrollTop -= frame.top - box.top;
      else if (box.bottom > frame.bottom) this.list.scrollTop += box.bottom - frame.bottom;
      else break;
    }
  }
}
