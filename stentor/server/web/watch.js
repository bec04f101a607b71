// The server's state, followed while the page is visible: asked often after a change, then ever less often.

const PAUSES = { ready: [3, 15], locked: [3, 15], other: [1, 10] }; // seconds: the first, the longest
const GROWTH = 1.5;

/** Milliseconds until the next look, after `calm` looks that found the same kind of state. */
export function pause(kind, calm) {
  const [first, most] = PAUSES[kind] ?? PAUSES.other;
  return Math.min(most, first * GROWTH ** calm) * 1000;
}

export class Watch {
  /**
   * @param {object} on
   *   ready() resolves to what /ready says, and rejects where nothing answers.
   *   lists() loads what the server has, and rejects with status 401 where it asks for a key.
   *   tell(state) is called after each look. state.kind: ready, unready (with phase, model, reason), locked, down.
   * @param {Document} page whose visibility counts
   * @param {object} clock setTimeout and clearTimeout
   */
  constructor({ ready, lists, tell }, page = document, clock = window) {
    Object.assign(this, { ready, lists, tell, page, clock });
    this.kind = null;
    this.calm = 0;
    this.turn = 0;
    this.timer = null;
    page.addEventListener("visibilitychange", () => (page.hidden ? this.rest() : this.check()));
  }

  /** Look now, at the lists too. Resolves to the state. */
  check() {
    this.kind = null;
    return this.look();
  }

  rest() {
    this.clock.clearTimeout(this.timer);
  }

  async look() {
    this.rest();
    const turn = ++this.turn;
    const state = await this.find();
    if (turn !== this.turn) return state; // a later look tells
    this.calm = state.kind === this.kind ? this.calm + 1 : 0;
    this.kind = state.kind;
    this.tell(state);
    if (!this.page.hidden) this.timer = this.clock.setTimeout(() => this.look(), pause(state.kind, this.calm));
    return state;
  }

  async find() {
    const before = this.kind;
    try {
      const said = await this.ready();
      if (before === "locked") return { kind: "locked" };
      if (before !== "ready" || !said.ready) await this.lists();
      return said.ready ? { kind: "ready" } : { ...said, kind: "unready" };
    } catch (error) {
      return { kind: error.status === 401 ? "locked" : "down" };
    }
  }
}
