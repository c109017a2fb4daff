// Posts the page's requests, and turns failures into messages.

const KEEPALIVE = 60_000;  // bytes that browsers still send when the page is closed
export const UNREACHABLE = "The server cannot be reached.";

// An error whose message the page shows.
export class Problem extends Error {}

// A POST of JSON. Fails with Problem, which has the `status` and the `answer` of the server, if any.
export async function post(address, content) {
  const body = JSON.stringify(content);
  const headers = { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(address, { method: "POST", headers, body, keepalive: body.length < KEEPALIVE });
  } catch {
    throw new Problem(UNREACHABLE);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  // without the request's path
  const message = String(answer.error?.message ?? response.statusText).replace(/^[A-Z]+ \/\S*: /, "");
  const problem = new Problem(sentence(message || `error ${response.status}`));
  throw Object.assign(problem, { status: response.status, answer });
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
