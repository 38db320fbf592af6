import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).with_name("package")


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `example_plugin` as pip installs it: to be put on the path. Built offline."""
    folder = tmp_path_factory.mktemp("plugin")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    source = folder / "source"
    subprocess.run(["cp", "-r", str(PACKAGE), str(source)], check=True)  # setuptools writes beside what it builds
    command = [sys.executable, "-m", "pip", *install, "--target", str(folder / "installed"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "installed"
