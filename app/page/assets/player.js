// The results of a run: its files' cards, and the tools that work on all of them.

import { Card } from "./card.js";
import { alertBox, button, inField, make } from "./dom.js";
import { hasUnsaved } from "./editor.js";
import { History } from "./saving.js";
import { Search } from "./search.js";
import { KEYS, WORDS } from "./segments.js";

class Player {
  // list: the element that is drawn in. root: the server's path.
  constructor(list, root) {
    Object.assign(this, { list, root, cards: [], run: null, reasons: {} });
    this.announcer = make("p", "sw-announced", "", { role: "status" });
    this.problem = alertBox("sw-error sw-problem");
    this.archive = make("div", "sw-archive");
    this.makeTools();
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("beforeunload", (event) => {
      if (!this.corrected && this.cards.every((card) => card.ended)) return;
      event.preventDefault();
      setTimeout(() => this.disconnected());
    });
    document.addEventListener("click", (event) => {  // before Gradio, which would start another run
      if (!event.target.closest("#sw-go, #sw-examples button") || !this.corrected) return;
      if (confirm("Start again? Your corrections have not been downloaded.")) return;
      event.stopImmediatePropagation();
    }, true);
  }

  makeTools() {
    this.undo = button("sw-tool", "Undo", () => this.stepHistory("undo"));
    this.redo = button("sw-tool", "Redo", () => this.stepHistory("redo"));
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

  // Whether there are corrections that no download has.
  get corrected() { return hasUnsaved() || this.cards.some((card) => card.unkept || card.corrections?.waiting); }

  address(path) { return `${this.root}/${path}`; }

  // Announce a text to screen readers.
  announce(text) {
    if (this.announcer.textContent !== text) this.announcer.textContent = text;
  }

  // Wait until the corrections of these cards are saved, that of a field which the click has left, too.
  async saved(cards = this.cards) { await Promise.all(cards.map((card) => card.corrections?.last)); }

  // A link to a file of these cards; it waits until their corrections are saved.
  download(path, text, cards) {
    const link = make("a", "sw-download", text);
    link.href = this.address(path);
    link.download = "";
    link.addEventListener("click", async (event) => {
      for (const card of cards) card.unkept = false;
      if (!cards.some((card) => card.corrections?.waiting)) return;
      event.preventDefault();
      await this.saved(cards);
      link.click();
    });
    return link;
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

  // action: "undo" or "redo"
  async stepHistory(action) {
    await this.saved();
    const changed = await this.attempt(() => this.history[action]());
    if (!changed) return;
    this.announce(action === "undo" ? "Undone" : "Redone");
    if (Number.isFinite(changed.index)) changed.card.segments.select(changed.index);
  }

  key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || inField(event)) return;
    if (!this.tools.checkVisibility()) return;  // in another tab, say
    const key = event.key.toLowerCase();
    if (key === "z") this.stepHistory(event.shiftKey ? "redo" : "undo");
    else if (key === "y") this.stepHistory("redo");
    else return;
    event.preventDefault();
  }

  // The user stays, but Gradio has disconnected: the run has ended, and Gradio will reload the page, which asks again.
  disconnected() {
    if (this.cards.every((card) => card.ended)) return;
    for (const card of this.cards) {
      card.unkept = true;
      if (!card.ended) card.update({ ...card.file, state: "failed", message: "The connection was lost." });
    }
  }

  // Called after each correction.
  changed() {
    const flagged = this.flagged().length;
    this.hadFlags ||= flagged > 0;
    this.check.hidden = !this.hadFlags;
    this.check.disabled = !flagged;
    this.check.textContent = flagged ? `Next to check (${flagged})` : "Nothing to check";
    if (this.search.open) this.search.update(this.search.at, false);
  }

  flagged() {
    return this.cards.flatMap(
      (card) => card.segments.flaggedRows.map((index) => ({ card, index })));
  }

  nextToCheck() {
    const all = this.flagged();
    const last = this.lastChecked;
    const order = ({ card, index }) => this.cards.indexOf(card) * 1e6 + index;
    const next = (last && all.find((entry) => order(entry) > order(last))) ?? all[0];
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
        this.archive, this.announcer, this.tools, this.below, ...this.cards.map((card) => card.root));
    }
    files.forEach((file, i) => this.cards[i].update(file));
    this.tools.hidden = this.below.hidden = !this.cards.some((card) => card.corrections && card.segments.views.length);
    this.unsure.hidden = !this.cards.some((card) => card.segments.views.some((segment) => segment[WORDS]));
    this.changed();
    this.archive.hidden = !view?.zip;
    if (view?.zip && !this.archive.firstChild) {
      const count = files.filter((file) => file.state === "done").length;
      this.archive.append(
        this.download(view.zip, `Download all ${count} transcripts (zip)`, this.cards));
    } else if (!view?.zip) this.archive.replaceChildren();
    const pending = this.cards.filter((card) => !card.ended).length;
    if (files.length) this.announce(pending ? `${files.length - pending} of ${files.length} ready` : "Ready");
  }
}

// Returns the function that draws a view.
export function start(list, root) {
  const player = new Player(list, root);
  return (view) => player.draw(view);
}
