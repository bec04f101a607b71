"""stentor in Gradio: voice design, controllable and ultimate cloning, heard without gaps while they are made.

    pip install -e '.[server]' gradio     # on a CPU: --extra-index-url https://download.pytorch.org/whl/cpu
    python examples/gradio_demo.py [MODEL] [--port 8000]     # then open http://127.0.0.1:8000/gradio

Gradio draws the form. The sound does not pass through it: its audio component plays files one after another, with a gap
between them. The browser asks stentor's own server, which runs in the same process, and plays the samples in an
AudioWorklet, with the modules of the page at `/`.
"""

import argparse

import gradio as gr
import uvicorn

from stentor.server.app import create_app
from stentor.server.config import ServerConfig

MODES = {
    "Voice design": "A new voice, described below, or the model's own.",
    "Controllable cloning": "The voice of a recording; its manner can be described.",
    "Ultimate cloning": "The voice and the manner of a recording, continued from its very words.",
}

HEAD = """<script type="module">
import { Player } from "../web/player.js";
import { Utterance } from "../web/speech.js";

const element = (id) => document.getElementById(id);
let utterance = null;
let sound = null;
const player = new Player((state) => (sound = state));

function show(message) {
  if (message) element("message").textContent = message;
  if (!utterance) return;
  const figures = {
    "First audio": utterance.ttfp === null ? "-" : `${utterance.ttfp.toFixed(0)} ms`,
    RTF: utterance.rtf === null ? "-" : utterance.rtf.toFixed(2),
    Lead: sound ? `${sound.lead.toFixed(1)} s` : "-",
    Underruns: sound ? sound.underruns : "-",
  };
  element("figures").textContent = Object.entries(figures).map(([k, v]) => `${k} ${v}`).join("   ");
}

const uri = async (file) => {
  const blob = await (await fetch(file.url)).blob();
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(blob);
  });
};

async function body(mode, text, manner, recording, words, seed) {
  const made = { input: text };
  if (seed) made.seed = Number(seed);
  if (manner && mode !== "Ultimate cloning") made.instructions = manner;
  if (mode === "Voice design") return made;
  if (!recording) throw new Error("Record a reference or choose a file first.");
  made.ref_audio = await uri(recording);
  if (mode === "Ultimate cloning") Object.assign(made, { prompt_audio: made.ref_audio, prompt_text: words });
  return made;
}

async function speak(...fields) {
  stop();
  const mine = (utterance = new Utterance());
  sound = null;
  element("saved").hidden = true;
  show("Waiting for the first audio…");
  const opened = player.open();
  const clock = setInterval(show, 100);
  try {
    const asked = await body(...fields);
    await opened;
    await mine.receive(asked, (rate) => player.start(rate, 0.1), (samples) => player.push(samples.slice()));
    player.end();
    show(`${mine.seconds.toFixed(2)} s of audio, seed ${mine.seed}`);
    while (mine === utterance && sound?.phase !== "idle") await new Promise((done) => setTimeout(done, 100));
    if (mine === utterance) {
      element("saved").href = URL.createObjectURL(mine.wav());
      element("saved").hidden = false;
    }
  } catch (error) {
    if (mine === utterance && error.name !== "AbortError") show(error.message);
  } finally {
    clearInterval(clock);
    if (mine === utterance) show();
  }
}

function stop() {
  utterance?.cancel();
  player.stop();
  show("Stopped");
}

window.stentor = { speak, stop };
</script>"""

OUTPUT = """<pre id="figures">First audio -   RTF -   Lead -   Underruns -</pre>
<p id="message" role="status">Ready when you are.</p><a id="saved" download="stentor.wav" hidden>Download WAV</a>"""


def form() -> gr.Blocks:
    """The demo's page."""
    with gr.Blocks(title="stentor", analytics_enabled=False) as blocks:
        gr.Markdown("# stentor")
        text = gr.Textbox(
            "The sea was calm that morning, and every boat waited for the wind.",
            label="Text",
            lines=4,
        )
        mode = gr.Radio(list(MODES), value="Voice design", label="Mode")
        about = gr.Markdown(MODES["Voice design"])
        manner = gr.Textbox(
            label="Voice and manner", placeholder="a calm old man with a warm, deep voice"
        )
        recording = gr.Audio(
            label="Reference", sources=["microphone", "upload"], type="filepath", visible=False
        )
        words = gr.Textbox(label="What is said in it", visible=False)
        seed = gr.Textbox(label="Seed", placeholder="random")
        with gr.Row():
            speak = gr.Button("Speak", variant="primary", elem_id="speak")
            stop = gr.Button("Stop", elem_id="stop")
        gr.HTML(OUTPUT)

        def fields(chosen: str) -> list[object]:
            ultimate, cloning = chosen == "Ultimate cloning", chosen != "Voice design"
            return [
                MODES[chosen],
                gr.update(visible=not ultimate),
                gr.update(visible=cloning),
                gr.update(visible=ultimate),
            ]

        mode.change(fields, mode, [about, manner, recording, words])
        inputs = [mode, text, manner, recording, words, seed]
        speak.click(None, inputs, None, js="(...fields) => { window.stentor.speak(...fields); }")
        stop.click(None, None, None, js="() => { window.stentor.stop(); }")
    return blocks


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    arguments.add_argument(
        "model", nargs="?", help="directory, Hub id or dummy:NAME; none: the built-in voice"
    )
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=8000)
    given = arguments.parse_args()
    app = create_app(ServerConfig(models=(given.model,) if given.model else ()))
    theme = gr.themes.Default(
        font=["system-ui", "sans-serif"], font_mono=["monospace"]
    )  # nothing from elsewhere
    app = gr.mount_gradio_app(app, form(), path="/gradio", head=HEAD, theme=theme)
    uvicorn.run(app, host=given.host, port=given.port)


if __name__ == "__main__":
    main()
