"""Pages as a browser shows them, by Debian's chromium without a window: for pictures, and for tests.

A page is shown in a frame of the requested width, because chromium's own window is never narrower than 500 pixels.
"""

import html
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

CHROMIUM = shutil.which("chromium")
"""None where it is not installed: `apt-get install chromium`"""


def screenshot(page: str, width: int, height: int, png: Path, scale: float = 1) -> None:
    """Writes a picture of the first `height` pixels of `page` (HTML), laid out for a screen of `width` pixels."""
    options = [f"--screenshot={png.resolve()}", f"--window-size={max(width, 500)},{height}"]
    _browse(_framed(page, width, height), [*options, f"--force-device-scale-factor={scale}", "--hide-scrollbars"])
    with Image.open(png) as whole:
        part = whole.crop((0, 0, round(width * scale), round(height * scale)))
    part.quantize(64).save(png, optimize=True)


def measured(page: str, width: int, expression: str) -> str:
    """Value of the JavaScript `expression`, as text, in `page` (its document is `page`) at a width of `width`
    pixels."""
    script = f"""<script>
        const frame = document.querySelector("iframe");
        frame.onload = () => {{
            const page = frame.contentDocument;
            document.querySelector("output").textContent = String({expression});
        }};
    </script>"""
    dumped = _browse(f"{_framed(page, width, 900)}<output></output>{script}", ["--dump-dom"])
    found = re.search(r"<output>(.*)</output>", dumped, re.DOTALL)
    assert found is not None, dumped
    return html.unescape(found[1])


def _framed(page: str, width: int, height: int) -> str:
    frame = f'<iframe width="{width}" height="{height}" style="border:0" srcdoc="{html.escape(page)}"></iframe>'
    return f'<!doctype html><meta charset="utf-8"><body style="margin:0">{frame}'


def _browse(page: str, options: list[str]) -> str:
    assert CHROMIUM is not None, "chromium is not installed: apt-get install chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        file = Path(directory) / "page.html"
        file.write_text(page, encoding="utf-8")
        quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        command = [CHROMIUM, *quiet, f"--user-data-dir={directory}/profile", *options, file.as_uri()]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
