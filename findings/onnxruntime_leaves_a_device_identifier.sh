#!/usr/bin/env bash
# onnxruntime 1.32.0 (wheel for Linux, CPython): what `import onnxruntime` leaves below the home, and what stops it.
#
# Behaviour: the import alone, before any session, writes a persistent identifier of the machine and a database of events
# that wait for upload to ~/.cache/Microsoft/DeveloperTools/.onnxruntime. The public call that turns telemetry off,
# disable_telemetry_events(), needs the import first, so the identifier is there already. ORT_DISABLE_TELEMETRY=1 in the
# environment before the import leaves nothing. So does CI=true, which most CI systems set: a test that looks at the home
# passes there whatever the program does. In a home that cannot be written the import warns on standard error, each time.
#
# The usual guess: telemetry is a matter of the builds for Windows (docs/Privacy.md said so for years), a library that only
# runs local graphs writes nothing, and the call that disables it is enough when it comes before the first session.
#
# Output seen (2026-11-29):
#   import only:                   deviceid onnxruntime.db
#   disable_telemetry_events():    deviceid onnxruntime.db
#   ORT_DISABLE_TELEMETRY=1:       nothing
#   CI=true:                       nothing
#   os.environ before the import:  nothing
#
# Why it matters: speech programs that promise to work on the user's machine (Piper, Kokoro, faster-whisper's VAD)
# run by this wheel, and inherit it by an upgrade. The one way that works from Python is os.environ before the
# first import in the process.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0

# Names of the files that a program leaves in an empty home: left PROGRAM [VARIABLE=VALUE ...]
left() {
    local program=$1 home
    shift
    home=$(mktemp -d -p "$folder")
    env -i PATH="$PATH" HOME="$home" "$@" "$folder/venv/bin/python" -c "$program" >/dev/null 2>&1
    find "$home" -type f -printf '%f\n' | sort | tr '\n' ' ' | sed 's/ $//'
}

failed=0
# check LABEL EXPECTED FOUND
check() {
    printf '%-30s %s\n' "$1:" "${3:-nothing}"
    [ "$2" = "$3" ] || { echo "  expected: ${2:-nothing}"; failed=1; }
}

both="deviceid onnxruntime.db"
check "import only" "$both" "$(left 'import onnxruntime')"
check "disable_telemetry_events()" "$both" "$(left 'import onnxruntime; onnxruntime.disable_telemetry_events()')"
check "ORT_DISABLE_TELEMETRY=1" "" "$(left 'import onnxruntime' ORT_DISABLE_TELEMETRY=1)"
check "CI=true" "" "$(left 'import onnxruntime' CI=true)"
check "os.environ before the import" "" \
    "$(left 'import os; os.environ["ORT_DISABLE_TELEMETRY"] = "1"; import onnxruntime')"
exit "$failed"
