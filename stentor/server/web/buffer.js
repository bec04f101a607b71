// When to begin: how fast speech arrives, against how fast it is heard. Nothing here knows a clock or a network.

const LEAST = 0.25; // seconds gathered however fast the server is
const DOUBT = 0.15; // of the measured rate, at first: the machine may slow down. Half of it after SETTLED
const SETTLED = 8; // seconds of speech
const MARGINS = { guessed: 1.2, learned: 1.1 }; // of the expected length: speech may be longer than its text looks
const SHORT_PAUSE = 0.3; // seconds that may be missing at worst, so that a listener waits less for the beginning
const CHUNK = 1; // seconds of speech; the server's parts grow up to about so long, and arrive when they are whole
const SPAN = 0.1; // seconds of arrivals that tell a rate,
const ENOUGH = 1; // or so many seconds of speech

const IDEOGRAPHS = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/gu;
const PAUSE = /\[pause\s+([\d.]+)\s*(ms|s)\]|<break\b[^>]*\btime\s*=\s*["']([\d.]+)(ms|s)["'][^>]*>/gi;

/** Seconds that a text takes to say at a usual pace, its pauses included. */
export function expectedSeconds(text, speed = 1) {
  let pauses = 0;
  const words = text
    .replace(PAUSE, (_, a, unit, b, other) => {
      pauses += Number(a ?? b) / ((unit ?? other).toLowerCase() === "ms" ? 1000 : 1);
      return "";
    })
    .replace(/<[^>]*>/g, "")
    .replace(/\s+/g, " ")
    .trim();
  const signs = words.match(IDEOGRAPHS)?.length ?? 0;
  const digits = words.match(/\d/g)?.length ?? 0;
  const ends = words.match(/[.!?。！？]+(\s|$)/g)?.length ?? 0;
  const letters = [...words].length - signs - digits;
  return (letters / 16 + signs / 4.5 + digits / 4 + ends * 0.2) / speed + pauses;
}

/** Of one utterance. Times are in seconds. */
export class StartBuffer {
  /**
   * @param {number} expected seconds of the whole speech
   * @param {number?} rate seconds of speech per second that the server made last time, if known
   * @param {number?} fixed seconds to gather whatever the rate, if the user has said so
   */
  constructor(expected, rate = null, fixed = null) {
    this.expected = expected * (rate === null ? MARGINS.guessed : MARGINS.learned); // who knows the rate knows the pace
    this.known = rate;
    this.fixed = fixed;
    this.received = 0;
    this.first = this.last = null; // when the first and the last part arrived
    this.began = 0; // seconds of speech in the first part
    this.gap = 0; // the longest time between two parts
    this.ended = false;
  }

  /** A part of `seconds` has arrived at `now`. */
  arrived(now, seconds) {
    if (this.first === null) {
      this.first = now;
      this.began = seconds;
    } else {
      this.gap = Math.max(this.gap, now - this.last);
    }
    this.last = now;
    this.received += seconds;
  }

  /** Seconds of speech that arrive per second, or null while too little has arrived to tell. */
  get rate() {
    const span = this.first === null ? 0 : this.last - this.first;
    const speech = this.received - this.began;
    if (span >= SPAN || speech >= ENOUGH) return span > 0 ? speech / span : Infinity;
    return this.known;
  }

  /** Seconds that must be here beyond `position`, so that what follows it plays without a gap. */
  need(position = 0) {
    if (this.ended) return 0;
    if (this.fixed !== null) return this.fixed;
    const { rate } = this;
    const rest = Math.max(0, this.expected - position);
    if (rate === null) return Math.max(LEAST, rest); // all that is expected
    const doubt = DOUBT / (1 + this.received / SETTLED);
    const behind = rest * Math.max(0, 1 - rate * (1 - doubt));
    // Parts come late by their own length. From twice the speed on, each is here before the one half as long is heard.
    const parts = CHUNK * (rate < 1 ? rate : Math.max(0, 2 / rate - 1));
    return Math.max(LEAST, LEAST + behind + parts - SHORT_PAUSE, Math.min(this.gap, rest));
  }

  /** Seconds until need() is met, or null where that cannot be told. */
  startsIn(position = 0) {
    const { rate } = this;
    const missing = Math.min(this.need(position), Math.max(0, this.expected - position)) - (this.received - position);
    if (missing <= 0) return 0;
    return rate ? missing / rate : null;
  }
}
