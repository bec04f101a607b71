// The waveform, drawn as it arrives: bars for what is there, coloured for what has been heard.

const BIN = 0.01; // seconds
const MOST = 4096; // bins; beyond, pairs are merged
const WINDOW = 4; // seconds that the canvas shows at least
const BAR = 3;
const GAP = 2;

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    this.clear();
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.bins = [];
    this.bin = BIN;
    this.rate = 0;
    this.filled = 0; // samples in the last bin
    this.played = 0; // seconds
    this.seconds = 0;
    this.expected = 0; // seconds that it will be, while it is made
    this.loudest = 0.1;
    this.canvas.dataset.seconds = 0;
  }

  /** Seconds from the left edge to the right one. */
  get span() {
    return Math.max(WINDOW, this.expected, this.seconds);
  }

  add(samples, rate) {
    this.rate = rate;
    this.seconds += samples.length / rate;
    this.canvas.dataset.seconds = this.seconds;
    let peak = this.filled ? this.bins.pop() : 0;
    for (const s of samples) {
      peak = Math.max(peak, Math.abs(s) / 32768);
      if (++this.filled >= this.bin * rate) {
        this.put(peak);
        peak = this.filled = 0;
      }
    }
    if (this.filled) this.put(peak);
    if (this.bins.length > MOST) this.merge();
  }

  put(peak) {
    this.bins.push(peak);
    this.loudest = Math.max(this.loudest, peak);
  }

  merge() {
    const merged = [];
    for (let i = 0; i + 1 < this.bins.length; i += 2) merged.push(Math.max(this.bins[i], this.bins[i + 1]));
    if (this.bins.length % 2) merged.push(this.bins[this.bins.length - 1]);
    this.bins = merged;
    this.bin *= 2;
    this.filled = 0;
  }

  draw() {
    const { canvas } = this;
    const scale = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const [rest, ahead, heard] = ["--wave-rest", "--wave-ahead", "--wave-heard"].map((n) => style.getPropertyValue(n));
    const bars = Math.max(1, Math.floor((width + GAP) / (BAR + GAP)));
    const perBar = this.span / bars; // seconds
    for (let i = 0; i < bars; i++) {
      const from = Math.floor((i * perBar) / this.bin);
      const to = Math.max(from + 1, Math.floor(((i + 1) * perBar) / this.bin));
      const there = from < this.bins.length;
      const peak = there ? Math.max(...this.bins.slice(from, to)) / this.loudest : 0;
      const tall = Math.max(BAR, peak * (height - 4));
      pen.fillStyle = !there ? rest : i * perBar < this.played ? heard : ahead;
      pen.beginPath();
      pen.roundRect(i * (BAR + GAP), (height - tall) / 2, BAR, tall, BAR / 2);
      pen.fill();
    }
  }
}
