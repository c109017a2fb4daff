// The view of the Live tab: buttons, loudness, problems, the text, and how to save it.

import { alertBox, button, clock, make } from "./dom.js";

const QUIET = 60;  // dB below the loudest, where the meter begins
const STATES = {
  idle: "", starting: "Starting", running: "Listening", lost: "Reconnecting", paused: "Paused",
  stopping: "Finishing",
};
const MAX_BEHIND = 6;  // seconds; with more, the server is too slow
const MAIN = { paused: "Resume", running: "Pause", lost: "Pause" };  // else Start

export class LiveView {
  // root: the element that is drawn in. actions: press, stop, clear, copy (called with its button),
  // and save (called with a format).
  constructor(root, utterances, actions) {
    Object.assign(this, { root, utterances });
    this.main = button("sw-main", "Start", actions.press);
    this.stopper = button("sw-stop", "Stop", actions.stop);
    const buttons = make("div", "sw-live-buttons");
    buttons.append(this.main, this.stopper);
    this.problem = alertBox("sw-error sw-problem");
    this.hint = make("p", "sw-note sw-hint", "Press Start and speak. Grey words may still change. "
      + "The audio is sent to this server only, which does not store it.");
    const card = make("article", "sw-file", "", { "aria-label": "Live transcript" });
    card.append(
      this.head(), this.hint, utterances.root, utterances.wordTime, utterances.announcer, this.tools(actions));
    root.replaceChildren(buttons, this.problem, card);
  }

  head() {
    this.status = make("span", "sw-state", "", { role: "status" });
    const loudness = { role: "meter", "aria-label": "Loudness of the microphone" };
    this.meter = make("div", "sw-meter", "", loudness);
    this.bar = make("i");
    this.meter.append(this.bar);
    this.time = make("time", "sw-note");
    const head = make("header");
    head.append(this.status, this.meter, this.time);
    return head;
  }

  tools({ copy, clear, save }) {
    const text = make("span", "sw-downloads");
    const copyButton = button("sw-copy", "Copy text", () => copy(copyButton));
    text.append(copyButton, button("sw-download", "Clear", clear));
    const files = make("span", "sw-downloads");
    files.append(make("span", "sw-note", "Save as"));
    for (const format of this.root.dataset.formats.split(" ")) {
      const saveButton = button("sw-download", format, () => save(format));
      saveButton.setAttribute("aria-label", `Save as ${format}`);
      files.append(saveButton);
    }
    this.foot = make("footer");
    this.foot.append(text, files);
    return this.foot;
  }

  // seconds: of sound so far. behind: those that are not decoded yet
  refresh(state, seconds, behind) {
    this.root.dataset.state = state;
    const late = state === "running" && behind > MAX_BEHIND
      ? `, over ${5 * Math.floor(behind / 5)} s behind: the server is too slow` : "";
    const status = STATES[state] + late;  // rarely another one: it is read to screen readers
    if (this.status.textContent !== status) this.status.textContent = status;
    this.main.textContent = MAIN[state] ?? "Start";
    this.main.disabled = ["starting", "stopping"].includes(state);
    this.stopper.hidden = !(state in MAIN);
    this.root.toggleAttribute("data-fresh", state === "idle" && !seconds);
    const empty = !this.utterances.all.length;
    this.hint.hidden = !empty;
    this.utterances.root.hidden = empty;
    this.foot.hidden = !this.utterances.hasText;
    this.time.textContent = seconds ? clock(seconds) : "";
  }

  // level: RMS of the sound, from 0 to 1
  showLevel(level) {
    const loud = Math.min(Math.max(1 + (20 * Math.log10(level || 1e-9)) / QUIET, 0), 1);
    this.bar.style.transform = `scaleX(${loud.toFixed(3)})`;
    this.meter.setAttribute("aria-valuenow", Math.round(100 * loud));
  }

  // message: "" for no problem
  showProblem(message) {
    this.problem.hidden = !message;
    this.problem.textContent = message;
  }
}
