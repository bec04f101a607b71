// The listener's buffer: 16-bit samples in at the stream's rate, floats out at the output's rate, without gaps.
//
// It knows nothing of the Web Audio API, so the AudioWorklet and its fallback run the same code.

const LOBES = 16; // zero crossings of the sinc on either side
const STEPS = 256; // table entries per zero crossing; between them lies a straight line
const REFILL = 0.4; // seconds to gather at least after the first underrun; doubles with each
const MOST_REFILL = 4;
const FADE = 0.005; // seconds, after a gap

/** One half of a sinc under a Blackman window, LOBES * STEPS + 2 values. */
function kernel() {
  const table = new Float32Array(LOBES * STEPS + 2);
  for (let i = 0; i <= LOBES * STEPS; i++) {
    const t = (Math.PI * i) / STEPS;
    const w = (Math.PI * i) / (LOBES * STEPS);
    table[i] = (i ? Math.sin(t) / t : 1) * (0.42 + 0.5 * Math.cos(w) + 0.08 * Math.cos(2 * w));
  }
  return table;
}

const KERNEL = kernel();

export class Ring {
  /** @param {number} outputRate samples per second that read() is asked for */
  constructor(outputRate) {
    this.outputRate = outputRate;
    this.data = new Int16Array(1 << 17);
    this.start(-1, outputRate, 0); // nobody's
    this.phase = "idle";
  }

  /** Forget everything and expect a stream. @param {number} wait seconds to gather before the first sample is heard */
  start(id, rate, wait) {
    this.id = id;
    this.rate = rate;
    this.step = rate / this.outputRate;
    this.cutoff = Math.min(1, 1 / this.step); // below the output's Nyquist rate
    this.reach = Math.ceil(LOBES / this.cutoff); // input samples on either side of one output sample
    this.wait = wait;
    this.refill = 0; // seconds to gather after an underrun, whatever `wait` says
    this.written = 0; // input samples taken so far
    this.position = 0; // of the next output sample, in input samples
    this.ended = false;
    this.heard = false;
    this.underruns = 0;
    this.stalled = 0; // output samples of silence within speech
    this.gain = 1;
    this.last = 0;
    this.phase = "filling";
  }

  /** @param {Int16Array} samples */
  push(samples) {
    this.reserve(samples.length);
    const mask = this.data.length - 1;
    const at = this.written & mask;
    const first = Math.min(samples.length, this.data.length - at);
    this.data.set(samples.subarray(0, first), at);
    this.data.set(samples.subarray(first), 0);
    this.written += samples.length;
  }

  /** Nothing follows. */
  end() {
    this.ended = true;
  }

  stop() {
    this.phase = "idle";
  }

  /** What the page shows. Times are seconds of the stream. */
  state() {
    const played = Math.min(this.position, this.written);
    return {
      id: this.id,
      phase: this.phase,
      heard: this.heard,
      played: played / this.rate,
      lead: (this.written - played) / this.rate,
      underruns: this.underruns,
      stalled: this.stalled / this.outputRate,
    };
  }

  /** Fill `out`, with silence where there is nothing to hear. */
  read(out) {
    if (this.phase === "filling" && this.enough()) this.phase = "playing";
    if (this.phase !== "playing") {
      if (this.phase === "filling" && this.heard) this.stalled += out.length;
      this.silence(out, 0);
      return;
    }
    this.heard = true;
    const ready = Math.min(out.length, this.ready());
    if (this.step === 1) this.copy(out, ready);
    else this.resample(out, ready);
    this.fadeIn(out, ready);
    if (ready) this.last = out[ready - 1];
    if (ready < out.length) this.runDry(out, ready);
  }

  enough() {
    if (this.ended) return true;
    return this.ready() > 0 && this.written - this.position >= Math.max(this.wait, this.refill) * this.rate;
  }

  /** Output samples that can be made now. Before the end, the last inputs wait for those that follow them. */
  ready() {
    const limit = this.ended ? this.written : this.written - (this.step === 1 ? 0 : this.reach);
    return Math.max(0, Math.ceil((limit - this.position) / this.step));
  }

  runDry(out, from) {
    this.silence(out, from);
    if (this.ended) {
      this.phase = "idle";
      return;
    }
    this.phase = "filling";
    this.refill = Math.min(MOST_REFILL, REFILL * 2 ** this.underruns);
    this.underruns++;
    this.stalled += out.length - from;
    this.gain = 0;
  }

  /** Let the last value die away instead of breaking off. */
  silence(out, from) {
    const length = out.length - from;
    for (let i = 0; i < length; i++) out[from + i] = this.last * (1 - (i + 1) / length);
    this.last = 0;
  }

  fadeIn(out, count) {
    if (this.gain === 1) return;
    const rise = 1 / (FADE * this.outputRate);
    for (let i = 0; i < count; i++) {
      this.gain = Math.min(1, this.gain + rise);
      out[i] *= this.gain;
    }
  }

  copy(out, count) {
    const { data, position } = this;
    const mask = data.length - 1;
    for (let i = 0; i < count; i++) out[i] = data[(position + i) & mask] / 32768;
    this.position += count;
  }

  /** Band-limited interpolation (Smith and Gossett, 1984). */
  resample(out, count) {
    const { data, step, cutoff, reach, written } = this;
    const mask = data.length - 1;
    const scale = cutoff * STEPS;
    let position = this.position;
    for (let i = 0; i < count; i++, position += step) {
      const centre = Math.floor(position);
      const low = Math.max(0, centre - reach + 1);
      const high = Math.min(written - 1, centre + reach);
      let sum = 0;
      for (let k = low; k <= high; k++) {
        const x = Math.abs(position - k) * scale;
        const j = Math.floor(x);
        if (j < LOBES * STEPS) sum += data[k & mask] * (KERNEL[j] + (x - j) * (KERNEL[j + 1] - KERNEL[j]));
      }
      out[i] = (sum * cutoff) / 32768;
    }
    this.position = position;
  }

  /** Room for `count` more; what the resampler still looks back at is kept. */
  reserve(count) {
    const oldest = Math.max(0, Math.floor(this.position) - this.reach);
    let size = this.data.length;
    while (this.written - oldest + count > size) size *= 2;
    if (size === this.data.length) return;
    const grown = new Int16Array(size);
    const mask = this.data.length - 1;
    for (let k = Math.max(oldest, this.written - this.data.length); k < this.written; k++) {
      grown[k & (size - 1)] = this.data[k & mask];
    }
    this.data = grown;
  }

  /** Carry out a message from the page. */
  take(message) {
    if (message.start) this.start(message.start.id, message.start.rate, message.start.wait);
    else if (message.id !== this.id) return;
    if (message.wait !== undefined) this.wait = message.wait;
    if (message.samples) this.push(message.samples);
    if (message.end) this.end();
    if (message.stop) this.stop();
  }
}
