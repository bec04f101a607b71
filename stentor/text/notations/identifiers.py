"""Names of files, programs, versions and what else is written in code."""

from __future__ import annotations

import re

from stentor.text.notations.rule import any_of, rules
from stentor.text.numbers import version

FILES = {
    "py": "P Y",
    "js": "J S",
    "ts": "T S",
    "jsx": "J S X",
    "tsx": "T S X",
    "rs": "R S",
    "go": "go",
    "c": "C",
    "cc": "C C",
    "cpp": "C P P",
    "h": "H",
    "hpp": "H P P",
    "java": "java",
    "rb": "R B",
    "sh": "S H",
    "bat": "bat",
    "exe": "E X E",
    "dll": "D L L",
    "txt": "T X T",
    "md": "M D",
    "json": "JSON",
    "yaml": "yaml",
    "yml": "Y M L",
    "toml": "toml",
    "ini": "I N I",
    "cfg": "C F G",
    "conf": "conf",
    "log": "log",
    "xml": "X M L",
    "html": "H T M L",
    "css": "C S S",
    "php": "P H P",
    "sql": "S Q L",
    "csv": "C S V",
    "tsv": "T S V",
    "pdf": "P D F",
    "doc": "doc",
    "docx": "doc X",
    "xls": "X L S",
    "xlsx": "X L S X",
    "ppt": "P P T",
    "pptx": "P P T X",
    "png": "P N G",
    "jpg": "J P G",
    "jpeg": "JPEG",
    "gif": "gif",
    "svg": "S V G",
    "bmp": "B M P",
    "mp3": "M P three",
    "mp4": "M P four",
    "wav": "wave",
    "flac": "flack",
    "ogg": "ogg",
    "opus": "opus",
    "mov": "mov",
    "avi": "A V I",
    "zip": "zip",
    "gz": "G Z",
    "tar": "tar",
    "rar": "rar",
    "bin": "bin",
    "safetensors": "safetensors",
    "onnx": "onnx",
    "ipynb": "I P Y N B",
    "env": "env",
    "lock": "lock",
    "db": "D B",
}
NAMES = {
    "IPv4": "I P V four",
    "IPv6": "I P V six",
    "C++": "C plus plus",
    "C#": "C sharp",
    "F#": "F sharp",
    "G++": "G plus plus",
    "g++": "G plus plus",
    "Notepad++": "Notepad plus plus",
    "ASP.NET": "A S P dot net",
    ".NET": "dot net",
    "R&D": "R and D",
    "Q&A": "Q and A",
    "I/O": "I O",
    "TCP/IP": "T C P I P",
    "CI/CD": "C I C D",
    "OS/2": "O S two",
    "AT&T": "A T and T",
    "R&B": "R and B",
    "H&M": "H and M",
    "M&Ms": "M and Ms",
    "B&B": "B and B",
    "P&L": "P and L",
    "S&P": "S and P",
    "AC/DC": "A C D C",
    "A/C": "A C",
    "AM/FM": "A M F M",
    "w/o": "without",
    "w/": "with ",
    "b/c": "because",
    "c/o": "care of",
    "n/a": "N A",
    "N/A": "N A",
    "and/or": "and or",
    "his/her": "his or her",
    "he/she": "he or she",
    "s/he": "she or he",
    "3M": "three M",
    "7-Eleven": "seven eleven",
    "9/11": "nine eleven",
    "50/50": "fifty fifty",
    "50-50": "fifty fifty",
    "20/20": "twenty twenty",
    "Node.js": "Node J S",
    "Next.js": "Next J S",
    "Vue.js": "View J S",
    "React.js": "React J S",
    "D3.js": "D three J S",
    "WWI": "World War one",
    "WWII": "World War two",
    "WW1": "World War one",
    "WW2": "World War two",
    "YoY": "year over year",
    "y/y": "year over year",
    "y/o": "years old",
    "w/in": "within",
    "A-Z": "A to Z",
    "M-F": "Monday to Friday",
    "TL;DR": "T L D R",
    "mmHg": "millimeters of mercury",
    "24/7/365": "twenty-four seven three sixty-five",
    "24/7": "twenty-four seven",
}
_RELEASED = (
    "Python Ruby Java Node Django Flask CUDA PyTorch TensorFlow Go Rust PHP Perl macOS iOS iPadOS Android Windows "
    "Ubuntu Debian Fedora Linux Chrome Firefox Safari Swift Kotlin Postgres PostgreSQL MySQL Redis Kubernetes Docker "
    "React Angular Vue Bluetooth USB HDMI HTTP TLS SSL OpenGL Vulkan DirectX Unity release Release build Build "
    "firmware update Update GPT Claude Gemini Llama Qwen kernel"
).split()
_MODULES = (
    "self this np pd os sys re io math json torch numpy pandas console window document process string std".split()
)
_ONE_WORD = re.compile(r"(?:Mc|Mac|O|De|Di|La|Le|Van|Fitz|[ie])[A-Z]|PhDs?$|[A-Z]{2,}e?s$")
_ASIDE = {".": " dot ", "_": " ", "/": " slash ", "-": " "}


def camel(word: str) -> str:
    """ "HTTPServer" -> "HTTP Server", "getUserName" -> "get User Name"."""
    return re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", word)


def _file(m: re.Match[str]) -> str:
    stem = "".join(_ASIDE.get(c, c) for c in m[1]).strip()
    inner = [f" dot {FILES[e]}" for e in m[2].lower().split(".") if e]
    return camel(stem) + "".join(inner)


def _version(m: re.Match[str]) -> str:
    return f"version {version(m[2])}" + _of_stage(m[3], m[4])


def _of_stage(stage: str | None, number: str | None) -> str:
    """ "rc", "1" -> " R C 1"."""
    return f" {'R C' if stage == 'rc' else stage} {number}".rstrip() if stage else ""


def _stage(m: re.Match[str]) -> str:
    return version(m[1]) + _of_stage(m[2], m[3])


def _camel_word(m: re.Match[str]) -> str:
    return m[0] if _ONE_WORD.match(m[0]) else camel(m[0])


_EXT = any_of(FILES)
_STAGE = r"(?:-?(alpha|beta|rc|dev|post)[-.]?(\d*))?"

RULES = rules(
    (rf"(?<![\w.$/-])({any_of(n for n in NAMES if n[-1] != '/')})(?![\w/]|-\w)", lambda m: NAMES[m[1]], "", NAMES),
    (rf"(?<![\w./])({any_of(n for n in NAMES if n[-1] == '/')})(?=\s?\w)", lambda m: NAMES[m[1]], "/"),
    (rf"(?i)(?<![\w@])(\.?[a-z_][\w-]+(?:\.[a-z_][\w-]*)*?)((?:\.(?:{_EXT}))+)\b(?![\w@])", _file, "", FILES),
    (r"(?<!\S)([A-D])-(?![\w-])", lambda m: f"{m[1]} minus", "-"),
    (
        r"(?<![\w.])(?<!slash )(?<!score )(?<!dash )(?<!dot )"
        rf"([Vv]ersion\s+|(?:v|V(?=\d+\.)|[Vv]er)\.?\s?)(\d+(?:\.\d+)*){_STAGE}(?![\w])",
        _version,
        "0",
    ),
    (r"\b(\d+(?:\.\d+)+)-?(alpha|beta|rc|dev|post)[-.]?(\d*)\b", _stage, "0"),
    (rf"\b({any_of(_RELEASED)})[ -](\d+(?:\.\d+)+)\b", lambda m: f"{m[1]} {version(m[2])}", "0", _RELEASED),
    (r"(?<!\S)--(?=[a-z][a-z-]+(?![\w ]*--))", "dash dash ", "-"),
    (r"(?<!\S)-(?=[a-zA-Z](?!\S))", "dash ", "-"),
    (r"\b([a-zA-Z_]\w*)\(\)", lambda m: m[1], ") ("),
    (r"(?<=[a-z]{2})\.(?=[A-Z][a-z])", ". "),  # no space behind a sentence
    (rf"\b({'|'.join(_MODULES)}|[a-z]\w*_\w+)\.(?=[a-zA-Z_]\w)", lambda m: f"{m[1]} dot ", "", ("_", *_MODULES)),
    (r"\b([a-z]\w*)\.(?=[a-z]\w*_\w)", lambda m: f"{m[1]} dot ", "_"),
    (r"(?<=[a-z]{3})\.(?=[a-z]{2})", ". "),
    (r"\b[A-Za-z]+(?:[a-z][A-Z]|[A-Z]{2}[a-z])[A-Za-z]*\b", _camel_word),
    (r"(?<=\w)_+(?=\w)", " ", "_"),
)
