#!/usr/bin/env bash
# Make the pictures of README and docs again, from a recorded session: tools/pictures.sh. Needs .venv and Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cp -r tests/data/evidence/20261125-044333-e4e785 "$work/session"
.venv/bin/llmbench report "$work/session" >/dev/null
mkdir -p docs/images
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --user-data-dir="$work/profile" --window-size=1280,900 \
    --screenshot="$PWD/docs/images/report.png" "file://$work/session/report.html" 2>/dev/null
