"""The native half of the build: the C parts are compiled into lab/_native, the wheel is tagged for the platform.

Everything else is in pyproject.toml. On systems other than Linux the wheel is pure Python.
"""

import platform
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
NATIVE = platform.system() == "Linux"


class BuildPy(build_py):
    """Also builds the natives: in place for an editable install, else into the build folder."""

    def run(self):
        super().run()
        if NATIVE:
            build_natives(ROOT / "lab" / "_native" if self.editable_mode else Path(self.build_lib) / "lab" / "_native")
        if not self.editable_mode:
            self.copy_scenarios()

    def copy_scenarios(self):
        target = Path(self.build_lib) / "lab" / "_scenarios"
        for file in sorted(path for path in (ROOT / "scenarios").rglob("*") if path.is_file()):
            copy = target / file.relative_to(ROOT / "scenarios")
            self.mkpath(str(copy.parent))
            self.copy_file(str(file), str(copy))


class BinaryDistribution(Distribution):
    """Natives are data to setuptools; this says that the wheel belongs to a platform."""

    def has_ext_modules(self):
        return NATIVE


class BdistWheel(bdist_wheel):
    """Any Python 3 may use the wheel: nothing in it links the interpreter that runs lab."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2] if NATIVE else "any")


def build_natives(out):
    """Run the build driver in its own interpreter: what setuptools has imported must not be frozen into the engine.

    A failure has been said in one line; SystemExit, so that setuptools neither adds a traceback nor goes on without
    natives.
    """
    command = [sys.executable, "-m", "lab.codegen", "build", "--out", str(out.absolute())]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(1)


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel}, distclass=BinaryDistribution)
