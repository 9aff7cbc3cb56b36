#!/usr/bin/env bash
# Make the pictures of README again: tools/pictures.sh TRAINING VALIDATION, the folders of two sessions, of which the
# second checked several nodes. The terminal is that of the test in README. Needs .venv and Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
for session in "${1:-}" "${2:-}"; do
    [ -f "$session/session.json" ] || { echo "usage: tools/pictures.sh TRAINING VALIDATION, the folders of two sessions" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# photograph PAGE NAME WIDTH HEIGHT; figures of a report are drawn after the page is there.
photograph() {
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --user-data-dir="$work/profile" --window-size="$3,$4" \
        --virtual-time-budget=20000 --screenshot="$PWD/docs/images/$2.png" "file://$1" 2>/dev/null
}

for name in report map; do
    cp -rL "$1" "$work/$name"
    .venv/bin/llmbench report --as-recorded "$work/$name" >/dev/null
    photograph "$work/$name/report.html" "$name" 1280 1500
    shift
done

.venv/bin/python - "$work" <<'EOF'
import pathlib, re, subprocess, sys

from rich.console import Console
from rich.text import Text

work = pathlib.Path(sys.argv[1])
(work / "test_my_cluster.py").write_text(re.search(r"```python\n(.*?)```", pathlib.Path("README.md").read_text(), re.S)[1])
words = ["test_my_cluster.py", "--scale", "smoke", "--cluster", "local"]
others = [f"-pno:{name}" for name in ("cacheprovider", "benchmark", "xdist", "timeout", "anyio", "hypothesispytest")]
command = [sys.executable, "-m", "pytest", *others, "--color=yes", *words]
env = {"PATH": "/usr/bin:/bin", "COLUMNS": "110", "HOME": str(work)}
printed = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True).stdout
console = Console(record=True, width=110, file=open("/dev/null", "w"))
console.print(Text("$ pytest " + " ".join(words), "bold"))
console.print(Text.from_ansi(printed))
console.save_svg(str(work / "terminal.svg"), title="llmbench")
size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', (work / "terminal.svg").read_text())
(work / "size").write_text(f"{float(size[1]):.0f} {float(size[2]):.0f}\n")
EOF
read -r width height <"$work/size"
photograph "$work/terminal.svg" terminal "$width" "$height"
