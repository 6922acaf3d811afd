"""`python -m docs._make.pictures STUDY RUN` photographs the README's pages of a study and a run, light and dark.

Both folders must be finished, and Chromium installed (or its path in CHROMIUM)."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "pictures"
SIZES = {"study": (1200, 860), "run": (1200, 1030)}
"""Width and height in pixels of the top of a page."""
THEMES = {"dark": 0, "light": 1}
"""Values of Chromium's setting `preferredColorScheme`."""


def photograph(page: Path, picture: Path, size: tuple[int, int], theme: str) -> None:
    """Write the top of a page as PNG."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.exit("pictures: Chromium was not found. Install it, or set CHROMIUM to its path.")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--disable-background-networking", f"--user-data-dir={profile}"),
                f"--blink-settings=preferredColorScheme={THEMES[theme]}",
                "--virtual-time-budget=4000",  # charts are drawn after the page is loaded
                f"--window-size={size[0]},{size[1]}",
                *(f"--screenshot={picture}", page.resolve().as_uri()),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, folder in zip(SIZES, sys.argv[1:], strict=True):
        for theme in THEMES:
            page, picture = Path(folder) / "report.html", FOLDER / f"{name}-{theme}.png"
            photograph(page, picture, SIZES[name], theme)
