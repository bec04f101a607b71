// What is shown of the server: its state at the top, a banner while it is away, the key that it asks for.

import { $ } from "./form.js";
import { key, readiness } from "./server.js";
import { Watch } from "./watch.js";

const PHASES = {
  loading: "is being loaded…",
  restarting: "is being started again…",
  failed: "could not be started",
  closed: "is being shut down",
};
const AWAY = ["unloading", "unloaded", "reloading"]; // phases in which a request has the model loaded again
const BANNERS = {
  never: "The server cannot be reached. Is it running? The page connects automatically.",
  down: "The connection to the server was lost. The page reconnects automatically and keeps your takes.",
  restarting: "The model crashed and is restarting. This takes a moment.",
};

export class Connection {
  /** @param {Form} form @param {() => void} onChange after each look at the server */
  constructor(form, onChange) {
    this.form = form;
    this.onChange = onChange;
    this.state = { kind: "connecting" };
    this.loaded = false; // the server's lists have been here
    this.entered = false; // a key has been typed in since the page was opened
    this.watch = new Watch({ ready: readiness, lists: () => this.load(), tell: (state) => this.told(state) });
    $("retry").addEventListener("click", () => this.watch.check());
    $("login").addEventListener("submit", (event) => {
      event.preventDefault();
      this.enter();
    });
    $("forget").addEventListener("click", () => this.forget());
    $("model").addEventListener("change", () => this.show());
  }

  async load() {
    await this.form.load();
    this.loaded = true;
  }

  /** Whether the chosen model can speak now. */
  get ready() {
    const phase = this.form.model?.phase;
    return (this.state.kind === "ready" || this.state.kind === "unready") && (phase === "ready" || AWAY.includes(phase));
  }

  /** Look at the server now: something has gone wrong, or may have changed. */
  check() {
    return this.watch.check();
  }

  async enter() {
    key.value = $("key").value.trim();
    this.entered = true;
    $("unlock").disabled = true;
    await this.check();
    $("unlock").disabled = false;
    if (this.state.kind === "locked") $("key").focus();
    else if (this.loaded) $("text").focus();
  }

  forget() {
    key.value = "";
    $("key").value = "";
    this.entered = false;
    this.check();
  }

  told(state) {
    const was = this.state.kind;
    this.state = state;
    if (state.kind === "locked") this.loaded = false;
    this.show();
    if (state.kind === "locked" && was !== "locked" && !this.entered) $("key").focus();
    this.onChange();
  }

  show() {
    const { kind } = this.state;
    const locked = kind === "locked";
    $("login").hidden = !locked;
    this.showKey(locked);
    $("forget").hidden = locked || !key.value;
    $("controls").disabled = !this.loaded;
    $("form").classList.toggle("off", !this.loaded);
    $("model-state").dataset.kind = this.ready ? "ready" : kind;
    const words = this.words();
    if ($("model-state").textContent !== words) $("model-state").textContent = words;
    const banner = this.banner();
    $("banner").hidden = !banner;
    $("retry").hidden = kind !== "down";
    if ($("banner-text").textContent !== banner) $("banner-text").textContent = banner;
  }

  showKey(locked) {
    const wrong = locked && Boolean(key.value);
    $("key-error").hidden = !wrong;
    if (wrong) {
      $("key").setAttribute("aria-invalid", "true");
      $("key-error").textContent = this.entered
        ? "This key is wrong. Check that it is complete."
        : "The server no longer accepts the saved key.";
    } else {
      $("key").removeAttribute("aria-invalid");
      $("key-error").textContent = "";
    }
  }

  words() {
    const { kind } = this.state;
    if (kind === "down") return "Not connected";
    if (kind === "locked") return "A key is needed";
    const { model } = this.form;
    if (!model) return "Connecting…";
    if (!this.ready) return `${this.form.name} ${PHASES[model.phase] ?? "is not ready"}`;
    const rate = `${this.form.name}, ${model.sample_rate / 1000} kHz`;
    return AWAY.includes(model.phase) ? `${rate}, loads when it speaks` : rate;
  }

  banner() {
    const { kind, phase, reason } = this.state;
    if (kind === "down") return this.loaded ? BANNERS.down : BANNERS.never;
    if (kind !== "unready" || this.ready) return "";
    if (phase === "failed") return `The model could not be started${reason ? `: ${reason}` : ""}. The log of the server says more.`;
    return BANNERS[phase] ?? "";
  }
}
