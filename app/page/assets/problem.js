// An error whose message the page shows.
export class Problem extends Error {}

// What a response of the server says went wrong, without the request's path, as a sentence.
export async function reason(response) {
  const answer = await response.json().catch(() => ({}));
  const said = String(answer.error?.message ?? response.statusText).replace(/^[A-Z]+ \/\S*: /, "");
  return sentence(said || `error ${response.status}`);
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
