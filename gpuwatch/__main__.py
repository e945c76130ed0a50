"""``python -m gpuwatch``."""

from gpuwatch.cli.main import entry

if __name__ == "__main__":
    entry()
