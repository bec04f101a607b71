// The voice to clone: recorded here or taken from a file.

import { aboutMicrophone } from "./words.js";

const MOST_RECORDED = 30; // seconds; more makes no better clone

export class Reference {
  /** @param {object} at the elements: record, file, name, preview. @param {(message: string) => void} complain */
  constructor(at, complain) {
    this.at = at;
    this.complain = complain;
    this.blob = null;
    this.limits = [0, Infinity]; // seconds
    this.recorder = null;
    at.record.addEventListener("click", () => (this.recorder ? this.recorder.stop() : this.record()));
    at.file.addEventListener("change", () => at.file.files[0] && this.set(at.file.files[0], at.file.files[0].name));
    if (!navigator.mediaDevices) {
      at.record.disabled = true;
      at.record.title = "Recording needs https or localhost";
      at.name.textContent = "This page cannot record here: choose a file.";
    }
  }

  /** Say what the model takes. */
  limit([low, high]) {
    this.limits = [low, high];
    if (!this.blob) this.at.name.textContent = `${low} to ${high} seconds of one speaker`;
  }

  async record() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({
        audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false },
      });
    } catch (error) {
      this.complain(aboutMicrophone(error));
      return;
    }
    const recorder = new MediaRecorder(stream);
    const parts = [];
    const began = performance.now();
    const most = Math.min(MOST_RECORDED, this.limits[1]);
    const clock = setInterval(() => {
      const seconds = (performance.now() - began) / 1000;
      this.at.name.textContent = `Recording: ${seconds.toFixed(1)} s`;
      if (seconds > most - 0.2 && recorder.state === "recording") recorder.stop();
    }, 100);
    recorder.ondataavailable = (event) => parts.push(event.data);
    recorder.onstop = () => {
      clearInterval(clock);
      stream.getTracks().forEach((track) => track.stop());
      this.recorder = null;
      this.at.record.textContent = "Record";
      this.at.record.classList.remove("recording");
      this.set(new Blob(parts, { type: recorder.mimeType }), "Recording");
    };
    recorder.start();
    this.recorder = recorder;
    this.at.record.textContent = "Stop recording";
    this.at.record.classList.add("recording");
  }

  async set(blob, name) {
    this.blob = blob;
    this.name = name;
    this.at.name.textContent = name;
    URL.revokeObjectURL(this.at.preview.src);
    this.at.preview.src = URL.createObjectURL(blob);
    this.at.preview.hidden = false;
    try {
      const audio = await new OfflineAudioContext(1, 1, 48000).decodeAudioData(await blob.arrayBuffer());
      this.at.name.textContent = `${name}, ${audio.duration.toFixed(1)} s`;
    } catch {
      // the server may know the format all the same, and says so if not
    }
  }

  /** A data: URI, or null. */
  async uri() {
    if (!this.blob) return null;
    return new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(this.blob);
    });
  }
}
