// Sends a file's corrections to the server, one after the other, in their order.

import { Problem, post } from "./problem.js";

export class Corrections {
  // onAnswer: called with each answer, {revision, text, segments: {index: view}}
  constructor(address, onAnswer) {
    Object.assign(this, { address, onAnswer, revision: 0, waiting: 0, last: Promise.resolve() });
  }

  // Resolves to the answer; fails with Problem, which may be a `conflict`. change: of the current revision, what to send.
  send(change) {
    this.waiting += 1;
    const sent = this.last.then(() => this.post(change(this.revision)))
      .finally(() => { this.waiting -= 1; });
    this.last = sent.catch(() => {});
    return sent;
  }

  async post(change) {
    try {
      return this.receive(await (await post(this.address, change)).json());
    } catch (problem) {
      if (problem.answer?.segments) this.receive(problem.answer);
      const failure = new Problem(`Not saved: ${problem.message}`);
      throw Object.assign(failure, { conflict: problem.status === 409 });
    }
  }

  receive(answer) {
    this.revision = answer.revision;
    this.onAnswer(answer);
    return answer;
  }
}

// The changes of all files, for undo and redo.
export class History {
  constructor(changed) {
    this.changed = changed;  // called when `canUndo` or `canRedo` may have changed
    this.clear();
  }

  clear() {
    [this.done, this.undone] = [[], []];
    this.changed();
  }

  get canUndo() { return this.done.length > 0; }
  get canRedo() { return this.undone.length > 0; }

  // cards: of the files that one change of the user affected
  add(cards) {
    this.done.push(cards);
    this.undone = [];
    this.changed();
  }

  undo() { return this.move(this.done, this.undone, (revision) => ({ undo: revision })); }
  redo() { return this.move(this.undone, this.done, (revision) => ({ redo: revision })); }

  // Resolves to the card and the first segment that changed, or null.
  async move(from, to, change) {
    const cards = from.pop();
    if (!cards) return null;
    this.changed();
    let first = null;
    const moved = [];
    try {
      for (const card of cards) {
        const { segments } = await card.corrections.send(change);
        moved.push(card);
        first ??= { card, index: Math.min(...Object.keys(segments).map(Number)) };
      }
    } catch (error) {
      if (error.conflict) this.clear();
      else from.push(cards.slice(moved.length));
      throw error;
    } finally {
      if (moved.length) to.push(moved);
      this.changed();
    }
    return first;
  }
}
