"""Puts prefect.yaml beside the packages in a wheel, where `nlac up` looks for it; pyproject.toml holds all else."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DEPLOYMENTS = "prefect.yaml"


class WithDeployments(build_py):
    """setuptools ships data files from inside packages only, and Prefect expects this one at the root."""

    def run(self) -> None:
        """Build the packages, then copy the file."""
        super().run()
        if not self.editable_mode:
            self.copy_file(DEPLOYMENTS, str(Path(self.build_lib) / DEPLOYMENTS))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """The files built, for the record of what an uninstall removes."""
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib) / DEPLOYMENTS)]


setup(cmdclass={"build_py": WithDeployments})
