"""The build: compiles the kernels where there is a C compiler; without one the wheel is pure Python and uses numpy."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path("src", "hashlens", "kernels", "build.py")


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = runpy.run_path(str(Path(self.root) / BUILD))
        try:
            library = build["compile_core"]()
        except OSError as error:
            self.app.display_warning(f"{error}; hashlens will count bits with numpy, which is slower")
            build["clear"]()  # what an older compiler made does not belong into a wheel for every machine
            return
        if version != "editable":
            build_data["artifacts"].append(f"/{BUILD.parent.as_posix()}/{library.name}")
        build_data["pure_python"] = False
        # for every Python on this kind of machine: the library does not use Python's own interface
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
