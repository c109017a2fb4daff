// A text field in place of an element: Enter or leaving the field saves; Escape cancels.

import { alertBox, make } from "./dom.js";

const UNSAVED = new Set();  // fields

export const hasUnsaved = () => [...UNSAVED].some((field) => field.value !== field.dataset.before);

// element: what the field replaces while it is open. save: called with the new text; may fail.
// select: [start, end] of the text that is selected at first. onClose: called with whether to focus.
export function openEditor({ element, tag, text, label, maxLength, select, save, onClose }) {
  const box = make("div", "sw-editing");
  const field = make(tag, "sw-field", "", { "aria-label": label, spellcheck: "true" });
  field.value = field.dataset.before = text;
  field.maxLength = maxLength;
  const error = alertBox("sw-error");
  const time = element.querySelector("time")?.cloneNode(true);
  if (time) box.append(time);
  box.append(field);
  element.after(box, error);
  element.hidden = true;
  UNSAVED.add(field);
  const fit = () => {
    if (tag !== "textarea") return;
    field.style.height = "0";
    field.style.height = `${field.scrollHeight}px`;
  };
  let state = "open";  // then "saving", then "open" again or "closed"
  const close = (focus) => {
    if (state === "closed") return;
    state = "closed";
    UNSAVED.delete(field);
    box.remove();
    error.remove();
    element.hidden = false;
    onClose(focus);
  };
  const commit = async (focus) => {
    if (state !== "open") return;
    const newText = field.value.replace(/\s*\n\s*/g, " ").trim();
    if (newText === text) return close(focus);
    state = "saving";
    field.readOnly = true;
    field.setAttribute("aria-busy", "true");
    try {
      await save(newText);
      close(focus && document.activeElement === field);
    } catch (problem) {
      state = "open";
      field.readOnly = false;
      field.removeAttribute("aria-busy");
      error.textContent = problem.message;
      error.hidden = false;
    }
  };
  field.addEventListener("input", fit);
  field.addEventListener("blur", () => commit(false));
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.isComposing) return;
    if (event.key === "Enter") commit(true);
    else if (event.key === "Escape" && state === "open") close(true);
    else return;
    event.preventDefault();
  });
  fit();
  field.focus({ preventScroll: true });
  field.setSelectionRange(...select);
  box.scrollIntoView({ block: "nearest" });
}
