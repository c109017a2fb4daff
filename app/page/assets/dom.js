// Elements. Names and texts are untrusted: they are set as text, never as HTML.

// attributes: {name: value}
export function make(tag, className, text, attributes = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// An element for an error message; hidden until there is one.
export const alertBox = (className) => make("p", className, "", { role: "alert", hidden: "" });

export function button(className, text, action) {
  const element = make("button", className, text);
  element.type = "button";
  if (action) element.addEventListener("click", action);
  return element;
}

// Seconds as 1:05 or 1:01:05.
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

export async function copy(text, from) {
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
  from.dataset.label ??= from.textContent;
  from.textContent = "Copied";
  setTimeout(() => { from.textContent = from.dataset.label; }, 1500);
}

// Whether an event belongs to a text field.
export const inField = (event) => Boolean(event.target.closest?.("input, textarea, select, [contenteditable]"));
