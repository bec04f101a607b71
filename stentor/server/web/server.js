// The server: where it is, the key that it may ask for, and its answers.

export const BASE = new URL("..", import.meta.url); // whatever prefix a proxy puts before it
const STORED = "stentor-key";
const PROBE = 8000; // ms; a server that says nothing for so long does not answer

/** The API key. The tab keeps it until it is closed. */
export const key = {
  get value() {
    return sessionStorage.getItem(STORED) ?? "";
  },
  set value(given) {
    if (given) sessionStorage.setItem(STORED, given);
    else sessionStorage.removeItem(STORED);
  },
};

/** An answer that is not a success, or none at all (`lost`). `param` names the field, where one is to blame. */
export class Refused extends Error {
  constructor(message, facts = {}) {
    super(message);
    Object.assign(this, { status: 0, code: null, param: null, retryAfter: null, id: null, lost: false }, facts);
  }
}

/** What `work` gives. A network that fails becomes Refused, with `lost`. */
export async function connected(message, work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(message, { lost: true });
  }
}

const authorization = () => (key.value ? { Authorization: `Bearer ${encodeKey(key.value)}` } : {});

/** Headers carry bytes: the UTF-8 of a key, one character for each. */
function encodeKey(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

function request(path, options) {
  return connected("The server cannot be reached", () =>
    fetch(new URL(path, BASE), { ...options, headers: { ...authorization(), ...options.headers } }),
  );
}

/** fetch() of a path of the server, with the key. Refused for any answer but success. */
export async function ask(path, options = {}) {
  const response = await request(path, options);
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // a proxy's page, not ours
  }
  throw new Refused(error.message ?? "", {
    status: response.status,
    code: error.code ?? null,
    param: error.param ?? null,
    retryAfter: Number(response.headers.get("Retry-After")) || null,
    id: response.headers.get("X-Request-Id"),
  });
}

/** What /ready says: {ready, phase, model, reason}. Refused if there is no server that says it. */
export async function readiness() {
  const response = await request("ready", { signal: AbortSignal.timeout(PROBE), cache: "no-store" });
  const said = await connected("The answer is not the server's", () => response.json());
  if (typeof said.ready !== "boolean") throw new Refused("The answer is not the server's", { lost: true });
  return said;
}
