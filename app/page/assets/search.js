// Find and replace in all files.

import { button, make } from "./dom.js";
import { TEXT } from "./segments.js";

const [MATCHES, CURRENT] = ["sw-match", "sw-match-current"];  // names of highlights

function field(label, className) {
  const box = make("label", className);
  const input = make("input", "", "", { type: "text", autocomplete: "off" });
  box.append(make("span", "", label), input);
  return [box, input];
}

export class Search {
  // player: it has cards, history, attempt, announce
  constructor(player) {
    this.player = player;
    [this.matches, this.at] = [[], -1];
    this.bar = make("form", "sw-search", "", { role: "search", hidden: "" });
    const [findBox, find] = field("Find", "sw-find");
    const [replaceBox, replace] = field("Replace with", "sw-find");
    const caseBox = make("label", "sw-case");
    this.sameCase = make("input", "", "", { type: "checkbox" });
    caseBox.append(this.sameCase, make("span", "", "Match case"));
    this.count = make("output", "sw-note");
    [this.find, this.replacement] = [find, replace];
    this.steps = [["Previous", -1], ["Next", 1]].map(
      ([text, step]) => button("sw-tool", text, () => this.step(step)));
    this.replacing = [
      button("sw-tool", "Replace", () => this.replace(false)),
      button("sw-tool", "Replace all", () => this.replace(true)),
    ];
    const row = make("span", "sw-search-row");
    row.append(...this.steps, ...this.replacing, this.count);
    this.opener = button("sw-tool", "Find and replace", () => this.toggle());
    this.opener.setAttribute("aria-expanded", "false");
    this.bar.append(findBox, replaceBox, caseBox, row);
    this.bar.addEventListener("submit", (event) => event.preventDefault());
    this.find.addEventListener("input", () => this.update(0));
    this.sameCase.addEventListener("change", () => this.update(0));
    this.bar.addEventListener("keydown", (event) => this.key(event));
    this.showCurrent();
  }

  get open() { return !this.bar.hidden; }

  toggle(open = !this.open) {
    if (!open && this.bar.contains(document.activeElement)) this.opener.focus();
    this.bar.hidden = !open;
    this.opener.setAttribute("aria-expanded", String(open));
    if (open) this.find.focus();
    if (open) this.find.select();
    this.update(0);
  }

  key(event) {
    if (event.key === "Escape") this.toggle(false);
    else if (event.key === "Enter" && event.target === this.find) this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Enter" && event.target === this.replacement) this.replacing[0].click();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  pattern() {
    const literal = this.find.value.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
    return new RegExp(literal, this.sameCase.checked ? "gu" : "giu");
  }

  // Find all matches again; `at`: the match to show.
  update(at, scroll = true) {
    this.matches = [];
    if (this.open && this.find.value) {
      const pattern = this.pattern();
      for (const card of this.player.cards.filter((card) => card.corrections)) {
        card.segments.views.forEach((view, index) => {
          for (const match of view[TEXT].matchAll(pattern)) {
            this.matches.push({ card, index, start: match.index, end: match.index + match[0].length });
          }
        });
      }
    }
    this.at = Math.min(at, this.matches.length - 1);
    this.showCurrent(scroll);
  }

  step(by) {
    const count = this.matches.length;
    if (!count) return;
    this.at = (this.at + by + count) % count;
    this.showCurrent();
  }

  showCurrent(scroll = true) {
    const { length } = this.matches;
    const files = new Set(this.matches.map((match) => match.card)).size;
    const where = files > 1 ? ` in ${files} files` : "";
    this.count.textContent = !this.find.value ? "" : length ? `${this.at + 1} of ${length}${where}` : "Not found";
    for (const tool of [...this.steps, ...this.replacing]) tool.disabled = !length;
    const current = this.matches[this.at];
    if (current && scroll) current.card.segments.select(current.index);
    this.highlight(current);
  }

  highlight(current) {
    if (!CSS.highlights) return;
    const ranges = (matches) => matches.map(rangeOf).filter(Boolean);
    CSS.highlights.set(MATCHES, new Highlight(...ranges(this.matches.filter((match) => match !== current))));
    CSS.highlights.set(CURRENT, new Highlight(...ranges(current ? [current] : [])));
  }

  // all: or only the current match
  async replace(all) {
    const replacement = this.replacement.value;
    const current = this.matches[this.at];
    await this.player.saved();  // then the matches are found again
    const isCurrent = ({ card, index, start }) => (
      card === current.card && index === current.index && start === current.start);
    const matches = this.matches.filter((match) => all || isCurrent(match));
    const files = Map.groupBy(matches, (match) => match.card);
    const at = matches.length ? this.matches.indexOf(matches[0]) : this.at;
    await this.player.attempt(async () => {
      const changed = [];
      let count = 0;
      try {
        for (const [card, fileMatches] of files) {
          const texts = [...Map.groupBy(fileMatches, (match) => match.index)].map(([index, segmentMatches]) => {
            const before = card.segments.views[index][TEXT];
            let [text, end] = ["", 0];
            for (const match of segmentMatches) {
              text += before.slice(end, match.start) + replacement;
              end = match.end;
            }
            return [index, before, text + before.slice(end)];
          });
          const { segments } = await card.corrections.send(() => ({ texts }));
          if (Object.keys(segments).length) changed.push(card);
          count += fileMatches.length;
        }
      } finally {
        if (changed.length) this.player.history.add(changed);
      }
      this.player.announce(`${count} replaced`);
    });
    this.update(at);
  }
}

// The range of a match on the page; null if the page does not show the current text.
function rangeOf({ card, index, start, end }) {
  const content = card.segments.row(index)?.querySelector(".sw-words");
  if (!content || content.textContent.trimEnd() !== card.segments.views[index][TEXT]) return null;
  const locate = (offset, last) => {
    for (const part of content.childNodes) {
      const text = part.firstChild ?? part;
      const length = text.data?.length ?? 0;
      if (offset < length || (last && offset === length)) return [text, offset];
      offset -= length;
    }
    return null;
  };
  const [from, to] = [locate(start), locate(end, true)];
  if (!from || !to) return null;
  return new StaticRange({
    startContainer: from[0], startOffset: from[1], endContainer: to[0], endOffset: to[1] });
}
