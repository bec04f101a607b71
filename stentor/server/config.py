"""One frozen configuration object for a server. Each field is a flag and a key of
`--config file.yaml`.

Imports nothing heavy: the command line reads this file to build its parser.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar

from stentor.align.aligner import Aligners
from stentor.arguments import shown
from stentor.arguments.untrusted import Unreadable, parse_json, read_bytes
from stentor.arguments.untrusted_yaml import parse_yaml
from stentor.config import DTYPES, check_device, check_quantization, path_of
from stentor.errors import InvalidRequest
from stentor.flags import ALIGNER, LEXICON, LORA, MODEL, THREADS, Flag
from stentor.host.installed import pip_install
from stentor.server.limits import LIMITS, MIB
from stentor.server.load_options import load_options
from stentor.server.lora_modules import lora_modules
from stentor.server.origins import parse_origin
from stentor.speech.client_names import taken_by_model
from stentor.text.cleanup import ALL, HELP, steps
from stentor.text.lexicon import Lexicon
from stentor.text.sentences import MAX_CHARS

Value = TypeVar("Value")

FORMATS = ("wav", "mp3", "flac", "opus", "aac", "pcm", "ulaw", "alaw")
HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
HOST = re.compile(r"\*|(\*\.)?[\w.-]+|[0-9A-Fa-f.:]+")


def option(default: Any, help: str, **more: Any) -> Any:
    """A field with its help text. `more` may hold `names` (other flags), `choices`, and `commas`
    between its values."""
    return field(default=default, metadata={"help": help, **more})


def common(table: Mapping[str, Flag], name: str) -> Any:
    """A field that is a flag of other commands too."""
    return option(table[name]["default"], table[name]["help"])


GROUPS = {
    "models": "models",
    "host": "network and logs",
    "api_key": "access",
    "default_response_format": "requests",
    "max_active_requests": "load",
    "provenance": "provenance",
    "replicas": "replicas, with stentor[ray]",
    "voices_dir": "voices and references",
    "ws_idle_seconds": "WebSocket",
}
"""Titles of groups of fields in `--help`, by the first field of each."""


@dataclass(frozen=True)
class EnginePlace:
    """The place of an engine. model: that of its model among the server's. device: as the flag
    names it."""

    model: int
    device: str

    @property
    def shared_device(self) -> str:
        """The device, with one name for the first GPU."""
        if self.device in ("auto", "cuda"):
            return "cuda:0"
        return self.device


@dataclass(frozen=True)
class ServerConfig:
    """How a server listens, what it serves, and its limits."""

    models: tuple[str, ...] = option(
        (), "local directory, Hub id or dummy:NAME; none: the built-in voice"
    )
    served_model_name: tuple[str, ...] = option(
        (),
        "name of each model in requests and responses; several for one model: the first is the main name; default: its id",
    )
    device: tuple[str, ...] = option(
        ("auto",),
        "auto, cpu, cuda or cuda:N; one value for all models, or one per model (cuda:0,cuda:1); "
        "several for one model: an engine on each",
        commas=True,
    )
    engines_per_gpu: int = option(
        1,
        "engines of each model on its device, which share its memory; for models limited by the CPU",
    )
    dtype: str = option("auto", "precision of the language models", choices=DTYPES)
    quantization: tuple[str, ...] = option(
        (),
        "weights of the language models: auto, int8 or fp8; one value for all models, or one per model (auto,int8)",
        commas=True,
    )
    runtime: str = common(MODEL, "runtime")
    lora: str | None = common(LORA, "lora")
    lora_modules: tuple[str, ...] = option(
        (),
        "name=path, adapters that requests select as `model`; one or more; repeatable",
        nargs="+",
    )
    max_loras: int | None = option(
        None, "maximum number of loaded adapters; default: the number of --lora-modules"
    )
    max_lora_rank: int | None = option(
        None, "maximum rank of an adapter; default: the highest of --lora-modules, or 32"
    )
    allow_runtime_lora_updating: bool = option(
        False, "enable /v1/load_lora_adapter and /v1/unload_lora_adapter"
    )
    allowed_lora_path: str | None = option(
        None, "folder from which adapters can be loaded at run time"
    )
    lexicon: str | None = common(LEXICON, "lexicon")
    aligner: str | None = common(ALIGNER, "aligner")
    load_options: tuple[str, ...] = option(
        (),
        "name=value, load options of the model family, such as codec_dtype=float32; one or more; repeatable",
        nargs="+",
    )
    max_num_seqs: int | None = option(
        None, "maximum concurrent requests per engine; default: 8 on a CPU, 64 on CUDA"
    )
    memory_gb: float | None = option(None, "memory for KV pages, in GB")
    gpu_memory_utilization: float = option(0.9, "share of the GPU's free memory to use")
    max_memory_gb: tuple[float, ...] = option(
        (),
        "total GPU memory of a model (weights, slots, pages, graphs); one value for all models, or one per model (8,6,4)",
    )
    mps: str = option(
        "auto",
        "run models that share a GPU at the same time, under CUDA MPS; auto: if it can start; on: or exit; off: in turns",
        choices=("auto", "on", "off"),
    )
    gpu_share: tuple[float, ...] = option(
        (),
        "under MPS, percentage of the GPU that a model can use; one value for all models, or one per model (60,40)",
    )
    deterministic: bool = option(
        False, "on CUDA, the same seed gives the same bytes under any load; slower"
    )
    require_graphs: bool = option(False, "exit if a CUDA graph cannot be captured")
    threads: int | None = common(THREADS, "threads")
    warmup: bool = option(True, "speak a sentence before /ready returns 200")
    idle_unload_seconds: float | None = option(
        None,
        "unload a model that has been idle for this long; the next request reloads it; default: never",
    )
    on_crash: str = option(
        "auto",
        "restart a crashed engine, or exit with code 70; auto: exit only if the GPU fails",
        choices=("auto", "restart", "exit"),
    )
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: all interfaces")
    port: int = option(8000, "port to listen on; 0: any free port")
    uds: str | None = option(None, "listen on this Unix socket instead")
    wyoming_port: int | None = option(
        None,
        "also listen on this TCP port for Wyoming clients, such as Home Assistant; 0: any free port",
    )
    wyoming_zeroconf: str | None = option(
        None,
        "announce the Wyoming port to Home Assistant under this name; needs stentor[zeroconf]",
    )
    api_processes: int = option(
        0,
        "HTTP processes; 0: four with a GPU and 16 CPUs if the other flags allow it, else one",
    )
    root_path: str = option("", "path prefix that a reverse proxy strips")
    ssl_keyfile: str | None = option(None, "TLS key")
    ssl_certfile: str | None = option(None, "TLS certificate")
    ssl_ca_certs: str | None = option(
        None, "TLS: CA certificates that must sign client certificates"
    )
    uvicorn_log_level: str = option(
        "info", "log level", choices=("critical", "error", "warning", "info", "debug")
    )
    log_format: str = option(
        "text", "text lines, or one JSON object per line", choices=("text", "json")
    )
    log_requests: bool = option(True, "log each request, except /health, /ready and /metrics")
    otlp_traces_endpoint: str | None = option(
        None,
        "export OpenTelemetry spans to this URL, such as http://localhost:4318/v1/traces; needs stentor[traces]",
    )
    drain_seconds: int = option(
        LIMITS.drain_seconds, "on SIGTERM, seconds to let running requests finish"
    )
    api_key: tuple[str, ...] = option(
        (), "bearer key required on /v1 paths (also STENTOR_API_KEY); repeatable"
    )
    open_lists: bool = option(
        False,
        "with --api-key: serve /v1/audio/voices and /v1/audio/models without a key, for Open WebUI",
    )
    allowed_origins: tuple[str, ...] = option(
        (), 'other origins allowed for CORS and WebSocket; ["*"]: any'
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "host names accepted in addition to this machine's, such as tts.example or *.example; *: any; repeatable; "
        "default: none on a loopback address without a key, else any",
    )
    forwarded_allow_ips: tuple[str, ...] = option(
        (),
        "addresses or networks of proxies whose X-Forwarded-For is trusted; repeatable; default: none",
    )
    default_response_format: str = option(
        "mp3", "audio format if the request names none", choices=FORMATS
    )
    default_sample_rate: int | None = option(
        None,
        "sample rate in Hz if the request names none, such as 24000 for clients that assume it; default: the model's",
    )
    strict: bool = option(
        False,
        "reject (400) unknown fields and fields the model cannot use, instead of listing them in X-Ignored",
    )
    max_input_chars: int = option(LIMITS.max_input_chars, "maximum characters of `input`")
    max_instructions_chars: int = option(
        LIMITS.max_instructions_chars,
        "maximum characters of `instructions`",
        names=("--tts-max-instructions-length",),
    )
    realtime_instructions: bool = option(
        False,
        "apply the `instructions` of Realtime clients to the voice; by default they are ignored as an assistant's prompt",
    )
    max_body_mb: float = option(LIMITS.max_body_mb, "maximum size of a request body, in MiB")
    split_chars: int = option(
        MAX_CHARS,
        "split longer input at sentences into pieces of at most this many characters",
    )
    cleanup: str = option(ALL, HELP)
    voice_alias: tuple[str, ...] = option(
        (), "name=voice, another name for a voice, such as alloy=low; repeatable"
    )
    max_active_requests: int = option(
        LIMITS.max_active_requests, "maximum requests in progress; further ones get 429"
    )
    max_queued_requests: int = option(
        LIMITS.max_queued_requests,
        "maximum requests waiting for a slot per model; further ones get 503",
    )
    request_timeout: float = option(LIMITS.request_timeout, "maximum seconds of a request")
    max_buffered_mb: float = option(
        LIMITS.max_buffered_mb,
        "disconnect a client that has left this much audio unread, in MiB",
    )
    guard: bool = option(True, "stop speech that runs on far beyond the length of its text")
    guard_retries: int = option(2, "retries of a run-on response that is not streamed")
    provenance: bool = option(
        False,
        "mark audio as machine-made in its metadata, in X-Provenance and in events",
    )
    watermark: str | None = option(
        None,
        "package:function of an installed package that watermarks the samples of all audio",
    )
    replicas: int | None = option(None, "fixed number of server replicas, run by Ray")
    min_replicas: int | None = option(
        None, "with --max-replicas: minimum number of replicas; default: 1"
    )
    max_replicas: int | None = option(
        None, "scale the number of replicas with the load, up to this many"
    )
    gpus_per_replica: float | None = option(
        None, "GPUs per replica, such as 1 or 0.5; default: 1 if there are any"
    )
    session_header: str | None = option(
        None, "route requests with the same value of this header to the same replica"
    )
    voices_dir: str | None = option(None, "folder of uploaded voices (also SPEAKER_SAMPLES_DIR)")
    max_voices: int = option(
        LIMITS.max_voices, "maximum number of uploaded voices (also SPEAKER_MAX_UPLOADED)"
    )
    voice_policy: str = option(
        "overwrite",
        "when a voice is uploaded again: overwrite it, or refuse the upload",
        choices=("overwrite", "immutable"),
    )
    max_upload_mb: float = option(LIMITS.max_upload_mb, "maximum size of reference audio, in MiB")
    allowed_media_domains: tuple[str, ...] = option(
        (), "fetch reference audio only from these hosts; repeatable"
    )
    allow_remote_references: bool = option(True, "fetch reference audio from http(s) URLs")
    allowed_local_media_path: str | None = option(
        None, "folder from which file: references can be read"
    )
    media_timeout: float = option(
        LIMITS.media_timeout, "timeout for fetching reference audio, in seconds"
    )
    ws_idle_seconds: float = option(
        LIMITS.ws_idle_seconds, "close a WebSocket after this many idle seconds"
    )
    ws_max_sessions: int = option(LIMITS.ws_max_sessions, "maximum concurrent WebSocket sessions")

    def __post_init__(self) -> None:
        for name in _WITH_COMMAS:
            object.__setattr__(self, name, _split(getattr(self, name)))
        origins = tuple(parse_origin(text) for text in self.allowed_origins)
        object.__setattr__(self, "allowed_origins", origins)
        for f in fields(self):
            choices = f.metadata.get("choices")
            value = getattr(self, f.name)
            if choices and value not in choices:
                raise InvalidRequest(f.name, f"must be one of {', '.join(choices)}, got {value!r}")
        _check_budgets(self.max_memory_gb, max(1, len(self.models)))
        self._check_gpu_share()
        for name in self.quantization:
            check_quantization(name)
        _check_number("quantization", self.quantization, max(1, len(self.models)))
        if not self.device:
            raise InvalidRequest("device", "must be auto, cpu, cuda or cuda:N, got nothing")
        for device in self.device:
            check_device(device)
        if len(self.models) > 1:  # one model may have several devices
            _check_number("device", self.device, len(self.models))
        Lexicon.of(self.lexicon)
        Aligners(self.aligner)
        steps(self.cleanup)
        self._check_numbers()
        if self.default_sample_rate is not None and not 8000 <= self.default_sample_rate <= 48000:
            raise InvalidRequest(
                "default_sample_rate", f"must be from 8000 to 48000, got {self.default_sample_rate}"
            )
        for name, port in (("port", self.port), ("wyoming_port", self.wyoming_port or 0)):
            if not 0 <= port <= 65535:
                raise InvalidRequest(name, f"must be from 0 to 65535, got {port}")
        self._check_names()
        self._check_paths()
        if not all(key.strip() for key in self.api_key):
            raise InvalidRequest(
                "api_key", "must not be empty: an empty key would let everybody in"
            )
        self._check_proxies()
        self._check_adapters()
        load_options(self.load_options)
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise InvalidRequest("ssl_keyfile", "and ssl_certfile go together")
        self._check_replicas()
        self._check_api_processes()
        self._check_wyoming()
        self._check_watermark()
        for alias in self.voice_alias:
            if not all(alias.partition("=")):
                raise InvalidRequest("voice_alias", f"must look like name=voice, got {alias!r}")

    def _check_gpu_share(self) -> None:
        for share in self.gpu_share:
            if not 0 < share <= 100:
                raise InvalidRequest("gpu_share", f"must be above 0 and at most 100, got {share:g}")
        _check_number("gpu_share", self.gpu_share, max(1, len(self.models)))
        if self.gpu_share and self.mps == "off":
            raise InvalidRequest("gpu_share", "does not go with mps off")

    def _check_names(self) -> None:
        served = self.served_model_name or self.models
        models = len(self.models)
        if models > 1 and len(served) != models:
            raise InvalidRequest("served_model_name", f"give one per model ({models})")
        if "" in served or (models > 1 and len(set(served)) < models):
            raise InvalidRequest(
                "served_model_name", f"must be names that differ and are not empty, got {served}"
            )

    def _check_paths(self) -> None:
        paths = {
            name: getattr(self, name)
            for name in ("allowed_local_media_path", "allowed_lora_path", "uds")
        }
        paths["voices_dir"] = self.voices_dir or None  # an empty one is the usual folder
        for name, path in paths.items():
            if path is not None:
                path_of(name, path)
        if self.uds is not None and not Path(self.uds).parent.is_dir():
            raise InvalidRequest("uds", f"folder {str(Path(self.uds).parent)!r} does not exist")
        if self.uds is not None and os.path.lexists(self.uds) and not Path(self.uds).is_socket():
            raise InvalidRequest("uds", f"{self.uds!r} exists and is no socket")

    def _check_numbers(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if kind(f) not in ("int", "float") or f.name in _OTHER_RANGES or value is None:
                continue
            if f.name in _FROM_ZERO and value < 0:
                raise InvalidRequest(f.name, f"must be 0 or more, got {value}")
            if f.name not in _FROM_ZERO and not 0 < value < math.inf:
                raise InvalidRequest(f.name, f"must be above 0, got {value}")

    def loras_of(self, model: str) -> dict[str, str]:
        """Paths of the adapters that a model has from the start, by their names."""
        first = (*self.served_model_name, *self.models, "stentor")[0]
        return {
            m.name: m.path
            for m in lora_modules(self.lora_modules)
            if (m.base_model_name or first) == model
        }

    def _check_adapters(self) -> None:
        served = self.served_model_name or self.models
        for module in lora_modules(self.lora_modules):
            if module.base_model_name not in (None, *served):
                raise InvalidRequest(
                    "lora_modules", f"{module.base_model_name!r} is no model of this server"
                )
            if (why := taken_by_model(module.name, served or ("stentor",))) is not None:
                raise InvalidRequest("lora_modules", why)
        if self.allow_runtime_lora_updating and not self.api_key:
            raise InvalidRequest(
                "allow_runtime_lora_updating",
                "needs an api_key: who may load adapters must be known",
            )
        if self.allow_runtime_lora_updating and self.scaled:
            raise InvalidRequest(
                "allow_runtime_lora_updating", "does not go with replicas: each would have its own"
            )

    def _check_proxies(self) -> None:
        for flag in ("allowed_hosts", "allowed_media_domains"):
            for name in getattr(self, flag):
                if not HOST.fullmatch(name):
                    raise InvalidRequest(
                        flag, f"must be names without scheme and port, got {name!r}"
                    )
        for network in self.forwarded_allow_ips:
            try:
                ip_network(network)
            except ValueError:
                raise InvalidRequest(
                    "forwarded_allow_ips", f"must be addresses or networks, got {network!r}"
                ) from None

    @property
    def scaled(self) -> bool:
        """Whether Ray runs replicas of this server."""
        return self.replicas is not None or self.max_replicas is not None

    @property
    def most_replicas(self) -> int:
        """How many replicas there are, or may be where their number follows the load."""
        return self.max_replicas or self.replicas or 1

    def _check_replicas(self) -> None:
        low = self.min_replicas
        high = self.max_replicas
        if low is not None and (high is None or low > high):
            raise InvalidRequest(
                "min_replicas", f"must be at most max_replicas, got {low} and {high}"
            )
        if high is not None and self.replicas is not None:
            raise InvalidRequest("replicas", "is a fixed number: leave it out with max_replicas")
        if self.session_header is not None and not HEADER.fullmatch(self.session_header):
            raise InvalidRequest(
                "session_header", f"must be the name of a header, got {self.session_header!r}"
            )
        if self.gpus_per_replica is not None and self.gpus_per_replica < 0:
            raise InvalidRequest(
                "gpus_per_replica", f"must be 0 or more, got {self.gpus_per_replica}"
            )
        if 0 < (self.gpus_per_replica or 0) < 1 and not self.max_memory_gb:
            raise InvalidRequest(
                "max_memory_gb",
                "is needed for a share of a GPU: Ray packs shares and limits no memory",
            )
        if not self.scaled:
            return
        if len(self.models) <= 1 and len(self.device) > 1:
            raise InvalidRequest(
                "device", "must be one value with replicas: each replica has GPUs of its own"
            )
        for name in ("uds", "ssl_keyfile", "ssl_ca_certs"):
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    name, "does not go with replicas: a proxy in front of them has TLS and sockets"
                )
        if self.port == 0:
            raise InvalidRequest("port", "must be a number of its own with replicas, not 0")

    def wants_one_process(self) -> str | None:
        """Name a field that does not go with several API processes. None: they may be several."""
        needs = {
            "uds": self.uds is not None,
            "idle_unload_seconds": self.idle_unload_seconds is not None,
            "allow_runtime_lora_updating": self.allow_runtime_lora_updating,
            "replicas": self.scaled,
            "wyoming_zeroconf": self.wyoming_zeroconf is not None,
            "wyoming_port": self.wyoming_port == 0,
        }
        return next((name for name, is_given in needs.items() if is_given), None)

    def _check_api_processes(self) -> None:
        name = self.wants_one_process()
        if self.api_processes <= 1 or name is None:
            return
        if name == "wyoming_port":
            raise InvalidRequest(
                name, "must be a number of its own with several api_processes, not 0"
            )
        raise InvalidRequest(name, "does not go with more than one of api_processes")

    def _check_wyoming(self) -> None:
        self._check_zeroconf()
        if self.wyoming_port is None:
            return
        if self.api_key:
            raise InvalidRequest(
                "wyoming_port",
                "does not go with api_key: Wyoming has no keys, so anybody could speak",
            )
        if self.scaled:
            raise InvalidRequest("wyoming_port", "does not go with replicas")

    def _check_zeroconf(self) -> None:
        name = self.wyoming_zeroconf
        if name is None:
            return
        if self.wyoming_port is None:
            raise InvalidRequest("wyoming_zeroconf", "needs wyoming_port")
        if self.host in LOOPBACK:
            raise InvalidRequest(
                "wyoming_zeroconf",
                f"needs a host that others can reach, such as 0.0.0.0, got {self.host}",
            )
        if not 1 <= len(name.encode()) <= MAX_LABEL_BYTES or "." in name:
            raise InvalidRequest(
                "wyoming_zeroconf", f"must be 1 to {MAX_LABEL_BYTES} bytes long, without a dot"
            )
        try:
            import zeroconf  # noqa: F401
        except ImportError as e:
            raise InvalidRequest(
                "wyoming_zeroconf", f"needs zeroconf: {pip_install('zeroconf')} ({e})"
            ) from None

    def _check_watermark(self) -> None:
        if self.watermark is not None:
            from stentor.output import watermark

            watermark.load(self.watermark)

    @property
    def uses_gpus(self) -> bool:
        """Whether a model may run on a GPU, if there is one."""
        return any(device != "cpu" for device in self.device)

    @property
    def engines(self) -> list[EnginePlace]:
        """The engines of the server, in the order of its models."""
        places = []
        for model in range(max(1, len(self.models))):
            devices: Sequence[str] = self.device
            if len(self.models) > 1:
                devices = [value_at(self.device, model)]
            for device in devices:
                places += [EnginePlace(model, device)] * self.engines_per_gpu
        return places

    def engines_like(self, place: EnginePlace) -> int:
        """The number of engines of one model on one device."""
        like = (place.model, place.shared_device)
        return sum((other.model, other.shared_device) == like for other in self.engines)

    @property
    def aliases(self) -> dict[str, str]:
        """Lower-case alias -> voice."""
        return {a.partition("=")[0].lower(): a.partition("=")[2] for a in self.voice_alias}


def _check_budgets(given: tuple[float, ...], models: int) -> None:
    """InvalidRequest if these are not one budget for every model, or one for each."""
    if any(value <= 0 for value in given):
        raise InvalidRequest("max_memory_gb", f"must be above 0, got {min(given):g}")
    _check_number("max_memory_gb", given, models)


def value_at(values: Sequence[Value], at: int) -> Value:
    """The value for the model at this place among those of the server: the only one, or its own."""
    if len(values) == 1:
        return values[0]
    return values[at]


def _check_number(name: str, given: Sequence[object], models: int) -> None:
    if len(given) not in (0, 1, models):
        raise InvalidRequest(name, f"give one value, or one per model ({models})")


_WITH_COMMAS = (
    "allowed_origins",
    "allowed_hosts",
    "allowed_media_domains",
    "forwarded_allow_ips",
)
"""Lists of names without commas: `a,b` means two, also where a flag is repeated."""

MAX_LABEL_BYTES = 63
"""Length of a name in DNS."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_FROM_ZERO = ("api_processes", "drain_seconds", "guard_retries")
_OTHER_RANGES = (
    "port",
    "wyoming_port",
    "default_sample_rate",
    "gpu_memory_utilization",
    "gpus_per_replica",
)  # checked by themselves


def kind(f: Field[Any]) -> str:
    """The type of a field, from its annotation: bool, int, float, str, "numbers", "names" or
    "list"."""
    name = str(f.type).removesuffix(" | None")
    if name == "tuple[float, ...]":
        return "numbers"
    if f.metadata.get("commas"):
        return "names"
    if name.startswith("tuple"):
        return "list"
    return name


def from_env(env: Mapping[str, str]) -> dict[str, Any]:
    """Settings taken from the environment: our own names and those that other engines use."""
    values: dict[str, Any] = {}
    if (key := env.get("STENTOR_API_KEY")) is not None:
        values["api_key"] = (key,)
    if folder := env.get("SPEAKER_SAMPLES_DIR"):
        values["voices_dir"] = folder
    if limit := env.get("SPEAKER_MAX_UPLOADED"):
        values["max_voices"] = _number("SPEAKER_MAX_UPLOADED", limit, int)
    if policy := env.get("VLLM_OMNI_SPEAKER_REGISTRATION_POLICY"):
        values["voice_policy"] = policy.lower()
    return values


def from_file(path: str | Path) -> dict[str, Any]:
    """Settings of a YAML file, as `typed` reads them."""
    import yaml

    try:
        read = parse_yaml(read_bytes(Path(path), MIB), yaml.SafeLoader)
    except Unreadable as e:
        raise InvalidRequest("config", f"{str(path)!r} {e}") from None
    if not isinstance(read, dict):
        raise InvalidRequest(
            "config", f"{str(path)!r} must hold a mapping of option names to values"
        )
    return typed(read)


def typed(read: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by field. Keys are flag names with - or _. InvalidRequest names the key that is
    wrong."""
    options = {f.name: f for f in fields(ServerConfig)}
    values: dict[str, Any] = {}
    for key, value in read.items():
        name = str(key).replace("-", "_")
        name = {"model": "models"}.get(name, name)
        if name == "ignore_unknown_fields":  # an older name of the opposite of strict
            values["strict"] = not _typed(options["strict"], value)
            continue
        if name not in options:
            near = get_close_matches(name, options, 1)
            if near:
                raise InvalidRequest(str(key), f"is not an option; did you mean {near[0]}?")
            raise InvalidRequest(
                str(key), f"is not an option; options are {', '.join(sorted(options))}"
            )
        values[name] = _typed(options[name], value)
    return values


def build(
    flags: Mapping[str, Any], file: str | Path | None = None, env: Mapping[str, str] | None = None
) -> ServerConfig:
    """Flags win over the file, the file over the environment, that over the defaults."""
    values = from_env(os.environ if env is None else env)
    if file is not None:
        values |= from_file(file)
    values |= flags
    return ServerConfig(**values)


def items(value: str) -> tuple[str, ...]:
    """A list flag's value: a JSON list, or one item."""
    if value.lstrip().startswith("["):
        try:
            parsed = parse_json(value)
        except Unreadable as e:
            raise InvalidRequest("list", f"{shown(value)} {e}") from None
        return tuple(str(v) for v in parsed)
    return (value,)


def numbers(value: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    return tuple(float(part) for part in value.split(","))


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(part.strip() for part in value.split(","))


def _split(values: tuple[str, ...]) -> tuple[str, ...]:
    """Names in lower case, of values that may hold several. An empty value stays, to be refused."""
    result: list[str] = []
    for value in values:
        parts = [part.strip().lower() for part in value.split(",") if part.strip()]
        result += parts or [""]
    return tuple(result)


def default(f: Field[Any]) -> Any:
    assert f.default is not MISSING
    return f.default


def _typed(f: Field[Any], value: Any) -> Any:
    type_name = kind(f)
    if type_name == "numbers" and value is not None:
        if isinstance(value, list):
            parts = value
        else:
            parts = str(value).split(",")
        value = tuple(_number(f.name, part, float) for part in parts)
    if type_name in ("list", "names"):
        if isinstance(value, str):
            if type_name == "list":
                return items(value)
            return names(value)
        if isinstance(value, Sequence):
            return tuple(str(v) for v in value)
        raise InvalidRequest(f.name, f"must be a list, got {value!r}")
    if value is None:
        return default(f)
    if type_name == "bool":
        # `serve run` gives text
        value = {"true": True, "false": False}.get(str(value).lower(), value)
        if not isinstance(value, bool):
            raise InvalidRequest(f.name, f"must be true or false, got {value!r}")
        return value
    if type_name in ("str", "numbers"):
        if type_name == "numbers":
            return value
        return str(value)
    if isinstance(value, bool):
        raise InvalidRequest(f.name, f"must be a number, got {value!r}")
    return _number(f.name, value, int if type_name == "int" else float)


def _number(name: str, value: Any, make: type[int] | type[float]) -> int | float:
    try:
        return make(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidRequest(name, f"must be a number, got {value!r}") from e
