// The results of a run: its files' cards, and the tools that work on all of them.

import { Card } from "./card.js";
import { alertBox, button, inField, make } from "./dom.js";
import { hasUnsaved } from "./editor.js";
import { History } from "./saving.js";
import { Search } from "./search.js";
import { KEYS } from "./segments.js";

class Player {
  // list: the element that is drawn in. root: the server's path.
  constructor(list, root) {
    Object.assign(this, { list, root, cards: [], run: null, reasons: {} });
    this.said = make("p", "sw-announced", "", { role: "status" });
    this.problem = alertBox("sw-error sw-problem");
    this.archive = make("div", "sw-archive");
    this.makeTools();
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("beforeunload", (event) => {
      if (hasUnsaved() || this.cards.some((card) => card.corrections?.waiting)) event.preventDefault();
    });
  }

  makeTools() {
    this.undo = button("sw-tool", "Undo", () => this.move("undo"));
    this.redo = button("sw-tool", "Redo", () => this.move("redo"));
    this.history = new History(() => {
      this.undo.disabled = !this.history?.canUndo;
      this.redo.disabled = !this.history?.canRedo;
    });
    this.search = new Search(this);
    this.unsure = button("sw-tool", "Unsure words", () => {
      const on = this.list.classList.toggle("sw-tinted");
      this.unsure.setAttribute("aria-pressed", String(on));
      this.legend.hidden = !on;
    });
    this.unsure.setAttribute("aria-pressed", "false");
    this.check = button("sw-tool", "", () => this.nextToCheck());
    this.legend = make("p", "sw-note sw-legend");
    this.legend.hidden = true;
    const levels = [["1", "below 70 %"], ["2", "below 50 %"], ["3", "below 30 %"]];
    this.legend.append("Probability of a word: ", ...levels.map(
      ([level, text]) => make("span", `sw-unsure-${level}`, text)));
    this.hint = make("p", "sw-note sw-hint", "Click a word or a line to play it; double-click to edit.");
    this.hint.title = `${KEYS}.`;
    const row = make("div", "sw-tool-row", "", { role: "group", "aria-label": "Corrections" });
    row.append(this.undo, this.redo, this.search.opener, this.unsure, this.check);
    this.tools = make("div", "sw-tools");
    this.tools.append(row, this.search.bar, this.problem);
    this.below = make("div", "sw-below");
    this.below.append(this.legend, this.hint);
  }

  address(path) { return `${this.root}/${path}`; }

  say(text) {
    if (this.said.textContent !== text) this.said.textContent = text;
  }

  // A link to a file of these cards; it waits until their corrections are saved.
  download(path, text, cards) {
    const made = make("a", "sw-download", text);
    made.href = this.address(path);
    made.download = "";
    made.addEventListener("click", async (event) => {
      if (!cards.some((card) => card.corrections?.waiting)) return;
      event.preventDefault();
      await Promise.all(cards.map((card) => card.corrections?.last));
      made.click();
    });
    return made;
  }

  // Run an action, and show the problem if it fails.
  async attempt(action) {
    this.problem.hidden = true;
    try {
      return await action();
    } catch (problem) {
      this.problem.textContent = problem.message;
      this.problem.hidden = false;
      return null;
    }
  }

  async move(way) {
    const place = await this.attempt(() => this.history[way]());
    if (!place) return;
    this.say(way === "undo" ? "Undone" : "Done again");
    if (Number.isFinite(place.index)) place.card.segments.select(place.index);
  }

  key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || inField(event) || this.tools.hidden) return;
    const key = event.key.toLowerCase();
    if (key === "z") this.move(event.shiftKey ? "redo" : "undo");
    else if (key === "y") this.move("redo");
    else return;
    event.preventDefault();
  }

  // Called after each correction.
  changed() {
    const left = this.toCheck().length;
    this.hadFlags ||= left > 0;
    this.check.hidden = !this.hadFlags;
    this.check.disabled = !left;
    this.check.textContent = left ? `Next to check (${left})` : "Nothing to check";
    if (this.search.open) this.search.look(this.search.at, false);
  }

  toCheck() {
    return this.cards.flatMap(
      (card) => card.segments.flaggedRows.map((index) => ({ card, index })));
  }

  nextToCheck() {
    const all = this.toCheck();
    const last = this.lastChecked;
    const order = ({ card, index }) => this.cards.indexOf(card) * 1e6 + index;
    const next = (last && all.find((one) => order(one) > order(last))) ?? all[0];
    if (!next) return;
    this.lastChecked = next;
    next.card.segments.select(next.index, true);
    next.card.segments.row(next.index).scrollIntoView({ block: "nearest" });
  }

  draw(view) {
    const files = view?.files ?? [];
    if (view?.run !== this.run) {  // the button was pressed again
      this.run = view?.run;
      this.cards.forEach((card) => card.pause());
      this.reasons = view?.reasons ?? {};
      this.cards = files.map((_, i) => new Card(i, this));
      [this.lastChecked, this.hadFlags] = [null, false];
      this.history.clear();
      this.search.toggle(false);
      this.list.replaceChildren(
        this.archive, this.said, this.tools, this.below, ...this.cards.map((card) => card.root));
    }
    files.forEach((file, i) => this.cards[i].update(file));
    this.tools.hidden = this.below.hidden = !this.cards.some((card) => card.corrections && card.segments.views.length);
    this.unsure.hidden = !this.cards.some((card) => card.segments.views.some((one) => one[3]));
    this.changed();
    this.archive.hidden = !view?.zip;
    if (view?.zip && !this.archive.firstChild) {
      const count = files.filter((file) => file.state === "done").length;
      this.archive.append(
        this.download(view.zip, `Download all ${count} transcripts (zip)`, this.cards));
    } else if (!view?.zip) this.archive.replaceChildren();
    const left = this.cards.filter((card) => !card.ended).length;
    if (files.length) this.say(left ? `${files.length - left} of ${files.length} ready` : "Ready");
  }
}

// Returns the function that draws a view.
export function start(list, root) {
  const player = new Player(list, root);
  return (view) => player.draw(view);
}
