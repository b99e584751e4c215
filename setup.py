"""What setup.cfg cannot say: the compiled part, the tag of its wheel, and the README with links that hold elsewhere."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

OPERATIONS = (
    "edges",
    "polynomials",
    "estimates",
    "balls",
    "walks",
    "layers",
    "attention",
)

# A plain shared library, which tg_lpe/ops/cpu/__init__.py finds beside itself; it needs only the compiler's headers.
# Versions for newer processors are inside it and chosen when it runs, so no flag names a processor.
# -ffp-contract=fast allows fused multiply-adds and nothing else: what is not a number stays so.
LIBRARY = Extension(
    "tg_lpe.ops.cpu._library",
    [f"tg_lpe/ops/csrc/{name}.cpp" for name in OPERATIONS],
    depends=["tg_lpe/ops/csrc/common.h"],
    extra_compile_args=["-std=c++17", "-O3", "-g0", "-ffp-contract=fast", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,  # where it cannot be built, the package does without
)


class BuildLibrary(build_ext):
    """The library has no Python in it, so its name has none either."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the files side by side, which takes half the time on two cores."""
        compile_one = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                return [path for (path,) in threads.map(lambda source: compile_one([source], **options), sources)]

        self.compiler.compile = compile_all
        super().build_extension(ext)

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"


class TagWheel(bdist_wheel):
    """A wheel with the library fits any Python on one platform; without it, any platform as well."""

    def run(self) -> None:
        self.run_command("build_ext")
        if not any(Path(library).is_file() for library in self.get_finalized_command("build_ext").get_outputs()):
            self.distribution.ext_modules, self.root_is_pure = [], True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform = super().get_tag()
        return "py3", "none", platform


def readme() -> str:
    """The README as a package index shows it: pictures and pages by their addresses in the repository."""
    config = ConfigParser()
    config.read("setup.cfg", encoding="utf-8")
    source = re.search(r"^Source = (\S+)$", config["metadata"]["project_urls"], flags=re.M)[1]
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\1{source}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!\w+:|#)", rf"\1{source}/blob/main/", text)


setup(
    long_description=readme(),
    ext_modules=[] if sys.platform == "win32" else [LIBRARY],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": TagWheel},
)
