// Starts a script. Gradio runs this (gr.HTML's js_on_load) with `element`, `props` and `watch`.

const root = new URL(window.gradio_config?.root || "./", location.href).pathname.replace(/\/$/, "");
import(`${root}/page/assets/SCRIPT.js`).then(({ start }) => {
  const draw = start(element.querySelector(".sw-player"), root);
  watch("value", () => draw(props.value));
  draw(props.value);
});
