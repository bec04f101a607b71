"""Build an image of deploy/ without a Docker daemon or a registry, and have it speak as an
orchestrator would run it.

    scripts/image_check.py [--dockerfile deploy/Dockerfile] [--seconds 600]

The base image is a Debian root that debootstrap makes, with its own Python, under the name that the
Dockerfile begins with. buildah runs the Dockerfile's steps in it, unchanged. Then the image's
command runs as the image's user, with a read-only root, answers its own health check, speaks, and
ends at SIGTERM.

Needs root, debootstrap, buildah and the right to mount. Without one of them, or after --seconds, it
reports that and ends with 0: nothing was found to be wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASE = "docker.io/library/python:3.12-slim"
SUITE = "bookworm"
PACKAGES = "ca-certificates,python3,python3-venv"
CERTIFICATES = "/etc/ssl/certs"
PORT = 8799
WRITABLE = ("cache", "voices", "tmp")
SPEAK = f"""
import json, urllib.request
body = json.dumps({{"input": "Hello there.", "response_format": "wav"}}).encode()
url, kind = "http://127.0.0.1:{PORT}/v1/audio/speech", {{"Content-Type": "application/json"}}
request = urllib.request.Request(url, body, kind)
audio = urllib.request.urlopen(request, timeout=120).read()
assert audio[:4] == b"RIFF" and len(audio) > 10000, audio[:100]
print(len(audio), "bytes of audio")
"""


class Skipped(Exception):
    """Why the image cannot be built here."""


def missing() -> str | None:
    """Reason why this machine cannot do it, or None."""
    if os.geteuid() != 0:
        return "it needs root"
    absent = [
        tool
        for tool in ("debootstrap", "buildah", "unshare", "chroot")
        if shutil.which(tool) is None
    ]
    if absent:
        return f"{', '.join(absent)} not installed (apt install debootstrap buildah)"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "nothing may be mounted here"
    return None


def pip_settings(listed: str) -> dict[str, str]:
    """Where pip of this machine looks, from `pip config list`, which also has PIP_*: the same for
    pip in the image."""
    settings = dict(re.findall(r"^(?:\w+|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    return {
        key: settings[key]
        for key in ("index-url", "extra-index-url", "find-links")
        if key in settings
    }


def folders(settings: Mapping[str, str]) -> list[str]:
    """Folders of this machine that pip's settings name."""
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    roots = {
        Path(word).parent if word.endswith("/simple") else Path(word)
        for word in words
        if word.startswith("/")
    }
    return sorted(str(root) for root in roots if root.is_dir())


class Build:
    """One image, in a folder that is thrown away."""

    def __init__(self, folder: Path, dockerfile: str, deadline: float) -> None:
        self.folder, self.dockerfile, self.deadline = folder, dockerfile, deadline
        self.image = f"stentor:{Path(dockerfile).suffix.removeprefix('.') or 'cpu'}"

    def run(self, *command: str, **more: str) -> str:
        """Run a command before the deadline. Skipped after it. SystemExit with the end of its log
        if it fails."""
        seconds = self.deadline - time.monotonic()
        environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "DEBIAN_FRONTEND": "noninteractive",
            **more,
        }
        try:
            process = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=max(1.0, seconds), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Skipped(f"its time was over at: {' '.join(command)[:80]}") from None
        if process.returncode:
            raise SystemExit(f"image: {' '.join(command)[:200]} failed:\n{process.stdout[-4000:]}")
        return process.stdout

    def buildah(self, *words: str) -> str:
        return self.run(
            "buildah", "--root", f"{self.folder}/store", "--runroot", f"{self.folder}/run", *words
        ).strip()

    def base(self) -> None:
        """The image that the Dockerfile begins with, from Debian's packages."""
        root = self.folder / "root"
        self.run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root))
        (root / "usr/bin/python").symlink_to("python3")
        container = self.buildah("from", "scratch").splitlines()[-1]
        self.buildah("add", "-q", container, str(root), "/")
        self.buildah("commit", "-q", "--rm", container, BASE)
        shutil.rmtree(root)

    def build(self) -> None:
        """The Dockerfile's steps. pip looks where this machine's does."""
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            check=True,
        )
        settings = pip_settings(listed.stdout)
        conf = self.folder / "pip.conf"
        conf.write_text(
            "\n".join(["[global]", *(f"{k} = {v}" for k, v in settings.items())]) + "\n",
            encoding="utf-8",
        )
        mounts = [f"{folder}:{folder}:ro" for folder in (*folders(settings), CERTIFICATES)] + [
            f"{conf}:/etc/pip.conf:ro"
        ]
        own_index = settings.get("index-url", "https://pypi.org/simple") if settings else None
        index = [] if own_index is None else ["--build-arg", f"TORCH_INDEX={own_index}"]
        volumes = [word for mount in mounts for word in ("--volume", mount)]
        options = ["--pull-never", "--layers=false", "--format", "docker", *volumes, *index]
        self.buildah("bud", *options, "-f", self.dockerfile, "-t", self.image, ".")

    def speak(self) -> None:
        """Run it as user 10001 with a read-only root, until it has spoken and has ended by
        SIGTERM."""
        config = json.loads(self.buildah("inspect", "--type", "image", self.image))["Docker"][
            "config"
        ]
        user, environment, entry = config["User"], config["Env"], config["Entrypoint"]
        health = config["Healthcheck"]["Test"][1:]
        container = self.buildah("from", "--pull-never", self.image).splitlines()[-1]
        root = self.buildah("mount", container)
        command = [*entry[: entry.index("--host")], "--port", str(PORT)]
        check = [word.replace(":8000/", f":{PORT}/") for word in health]
        inside = self.folder / "inside.sh"
        inside.write_text(_script(root, user, environment, command, check), encoding="utf-8")
        print(
            self.run(
                "unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", str(inside)
            ).strip()
        )


def _script(
    root: str, user: str, environment: Sequence[str], command: Sequence[str], health: Sequence[str]
) -> str:
    """Script that mounts the root and runs the server in it."""
    quoted = [shlex.join(words) for words in (environment, command, health)]
    uid = user.partition(":")[0]
    writable = "\n".join(f"mount -t tmpfs -o uid={uid} tmpfs {root}/{name}" for name in WRITABLE)
    return f"""
set -euo pipefail
mount --make-rprivate /
mount --bind {root} {root}
mount -o remount,bind,ro {root}
mount -t proc proc {root}/proc
mount --bind /dev {root}/dev
{writable}
within=(chroot --userspec={user} {root} /usr/bin/env -i {quoted[0]} HOME=/home/stentor)  # no shell takes the signal
test "$("${{within[@]}}" id -u)" = {uid}
if "${{within[@]}}" touch /opt/written 2>/dev/null; then echo "the root can be written"; exit 1; fi
"${{within[@]}}" {quoted[1]} & server=$!
for _ in $(seq 300); do
    kill -0 $server
    if "${{within[@]}}" {quoted[2]} 2>/dev/null; then break; fi
    sleep 1
done
"${{within[@]}}" python -c {shlex.quote(SPEAK)}
kill -TERM $server
wait $server
"""


def size(build: Build) -> str:
    """Size of the image, uncompressed."""
    images = json.loads(build.buildah("images", "--json"))
    return next(
        str(i["size"]) for i in images if any(build.image in name for name in i["names"] or ())
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dockerfile", default="deploy/Dockerfile")
    parser.add_argument("--seconds", type=float, default=600)
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stentor-image-") as folder:
        build = Build(Path(folder), args.dockerfile, began + args.seconds)
        try:
            if (why := missing()) is not None:
                raise Skipped(why)
            for step in (build.base, build.build, build.speak):
                started = time.monotonic()
                step()
                print(f"image: {step.__name__} took {time.monotonic() - started:.0f} s", flush=True)
            ran = "speaks as its user, with a read-only root"
            print(f"image: {args.dockerfile} {ran}, and takes {size(build)} uncompressed")
        except Skipped as e:
            print(f"image: skipped after {time.monotonic() - began:.0f} s: {e}")
        finally:
            if shutil.which("buildah"):
                subprocess.run(
                    ["buildah", "--root", f"{folder}/store", "--runroot", f"{folder}/run", "rm", "--all"],
                    capture_output=True, check=False,
                )  # fmt: skip
                subprocess.run(
                    ["umount", f"{folder}/store/overlay"], capture_output=True, check=False
                )


if __name__ == "__main__":
    main()
