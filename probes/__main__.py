"""Start a probe: ``python -m probes NAME`` in the checkout, or ``python /path/to/probes NAME`` from anywhere.

Started by path, the folder is loaded as the package ``gpuwatch_probes`` from exactly this place, so that neither a
``probes`` package nor a ``matmul.py`` or ``torch.py`` in the working directory can stand in for ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "gpuwatch_probes"


def without_shadows(path: list[str], folder: Path, cwd: Path, pythonpath: str) -> list[str]:
    """``sys.path`` without this folder, and without the working directory where only a relative entry named it.

    An ``export PYTHONPATH=$PYTHONPATH:/opt/x`` that was empty before leaves an empty entry, which means the working
    directory: then a ``torch.py`` lying there would be imported as torch.
    """
    entries = [Path(entry) for entry in pythonpath.split(os.pathsep)] if pythonpath else []
    relative = {(cwd / entry).resolve() for entry in entries if not entry.is_absolute()}
    wanted = {entry.resolve() for entry in entries if entry.is_absolute()}
    dropped = (relative - wanted) | {folder.resolve()}
    return [entry for entry in path if entry and Path(entry).resolve() not in dropped]


def load_by_path(folder: Path) -> ModuleType:
    """Our own folder as the package ``gpuwatch_probes``; gives its command line module."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the probes from {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(PACKAGE + ".command")


def main() -> int:
    """Run the command line and give its exit code."""
    if __package__:
        command = importlib.import_module(__package__ + ".command")
    else:
        folder = Path(__file__).resolve().parent
        sys.path[:] = without_shadows(sys.path, folder, Path.cwd(), os.environ.get("PYTHONPATH", ""))
        command = load_by_path(folder)
    try:
        code = command.main(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    sys.exit(main())
