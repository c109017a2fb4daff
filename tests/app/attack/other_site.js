// What a page of another site may try; the texts of the answers that it can read
async (url) => {
  const body = new FormData();
  body.append("file", new Blob(["RIFF"]), "a.wav");
  const read = { credentials: "include" };
  const post = { ...read, method: "POST", body };
  const paths = ["/inference", "/login", "/gradio_api/upload"].map((path) => [path, post]);
  paths.push(["/gradio_api/queue/join", { ...post, body: "{}" }], ["/config", read]);
  const found = [];
  for (const [path, options] of paths) {
    await fetch(url + path, { ...options, mode: "no-cors" }).catch(() => {});
    found.push(await fetch(url + path, options).then((answer) => answer.text()).catch(() => ""));
  }
  found.push(await new Promise((done) => {
    const socket = new WebSocket(url.replace("http", "ws") + "/v1/realtime");
    socket.onopen = () => done("open");
    socket.onerror = () => done("");
  }));
  return found.join("");
}
