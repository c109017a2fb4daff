// Starts the Live tab. Gradio runs this (gr.HTML's js_on_load) with `element`, `props` and `watch`.

const root = new URL(window.gradio_config?.root || "./", location.href).pathname.replace(/\/$/, "");
import(`${root}/page/assets/live.js`).then(({ start }) => {
  const change = start(element.querySelector(".sw-live"), root);
  watch("value", () => change(props.value));
  change(props.value);
});
