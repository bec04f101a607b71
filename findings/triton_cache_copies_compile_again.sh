#!/usr/bin/env bash
# A copy of Triton's kernel cache serves as long as the folder that it was copied from exists, and compiles everything after.
#
# Version: triton 3.6.0, 2026-11.
# Behaviour: a cache entry is named by a hash of source, options, target and compiler, without any path. But the list of an
# entry's files (`__grp__NAME.json`) has absolute paths, and a lookup drops those that do not exist. So a copy at another
# path reads the metadata and the machine code of the original folder. Once that is gone, each kernel is compiled again,
# without a word, into the very entry that has them.
# The usual guess: TRITON_CACHE_DIR can be filled in one place and shipped, as ccache's or pip's can: in an image, on a
# volume with another mount point, for another home folder. A test of the copy on the machine that made it passes.
# Why it matters: a first start of a speech model compiles 75 kernels in 26 s. An image that ships its cache saves nothing.
# stentor rewrites the lists of the entries that it copies (stentor/kernels/shipped.py).
#
# Output seen:
#   compiled: hit False, then hit True
#   copy, with the original beside it: hit True
#   copy, with the original renamed: hit False
#   copy whose lists name its own files: hit True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check triton==3.6.0
cat > "$folder/copies.py" <<'PYTHON'
import json
import os
import shutil
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

root = Path(sys.argv[1])
hits = []
knobs.compilation.listener = lambda **report: hits.append(report["cache_hit"])


@triton.jit
def add_one(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count) + 1, mask=at < count)


def compile_in(cache):
    """Whether the cache has the kernel. It is compiled for an H100, which need not be there."""
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    signature = {"x": "*fp32", "y": "*fp32", "count": "i32", "BLOCK": "constexpr"}
    source = ASTSource(add_one, signature=signature, constexprs={"BLOCK": 128})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
    return hits[-1]


original, moved = root / "original", root / "moved"
first, second = compile_in(original), compile_in(original)
print(f"compiled: hit {first}, then hit {second}")
shutil.copytree(original, root / "copy")
beside = compile_in(root / "copy")
print(f"copy, with the original beside it: hit {beside}")
shutil.copytree(original, root / "second copy")
shutil.copytree(original, root / "mended copy")
original.rename(moved)
gone = compile_in(root / "second copy")
print(f"copy, with the original renamed: hit {gone}")
for group in (root / "mended copy").glob("*/__grp__*.json"):
    names = json.loads(group.read_text())["child_paths"]
    group.write_text(json.dumps({"child_paths": {name: str(group.parent / name) for name in names}}))
mended = compile_in(root / "mended copy")
print(f"copy whose lists name its own files: hit {mended}")
sys.exit((first, second, beside, gone, mended) != (False, True, True, False, True))
PYTHON
mkdir "$folder/caches"
"$folder/venv/bin/python" "$folder/copies.py" "$folder/caches"
