#!/usr/bin/env bash
# Make the picture of README again: tools/pictures.sh SESSION, the folder of a session. Needs .venv and Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -f "${1:-}/session.json" ] || { echo "usage: tools/pictures.sh SESSION, the folder of a session" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cp -r "$1" "$work/${1##*/}"
.venv/bin/llmbench report "$work/${1##*/}" >/dev/null
# The figures are drawn after the page is there.
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --user-data-dir="$work/profile" --window-size=1280,1500 \
    --virtual-time-budget=20000 --screenshot="$PWD/docs/images/report.png" "file://$work/${1##*/}/report.html" 2>/dev/null
