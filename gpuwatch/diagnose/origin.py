"""Whose code a frame is: the user's, Python's own, a library's that hands work to the GPU or only computes on the CPU.

Owns: telling that from a file's path. Refuses: what the code does at that instant (frames.py).

Paths are compared by their tail, since the prefix is the environment's; some samplers cut long ones at the front, in
the middle of a folder's name.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from gpuwatch.model import Frame

PACKAGE = r"(?:^|(?:site|dist)-packages/|^[a-z-]{0,9}kages/|/pytorch/)"
"""Where a package's folder begins: an environment may itself lie in a folder called torch (``/opt/torch/.venv``)."""
INSTALLED = r"(?:(?:site|dist)-packages/|^[a-z-]{0,9}kages/)"
"""The same for names that a user's own folder may have as well: only where packages are installed."""

_LIBRARY = re.compile(
    r"(site-packages|dist-packages|^[a-z-]{0,9}kages/|/lib/python3\.\d+/|^lib/python3|^[a-z]{0,6}thon3\.\d+/|<frozen|"
    r"<string>|"
    r"<__array_function__|torchinductor_|<eval_with_key>|"
    r"/torch/(nn|optim|utils|autograd|_|cuda|distributed|multiprocessing|amp|functional|serialization)|"
    r"multiprocessing/|importlib/|threading\.py$|runpy\.py$|(^|/)gpuwatch[_/]hook\.py$)"
)
"""Files that are not the user's. ``site-packages`` covers every installed library, also in a truncated path."""
_STANDARD = re.compile(r"(?:^[a-z]{0,6}|/py)thon3(\.\d+)?/(?!.*(site|dist)-packages)|^<frozen")
_NAME = re.compile(INSTALLED + r"([\w.-]+?)(?:\.py|\.so)?(?:/|$)")

_TORCH = re.compile(PACKAGE + r"(torch|triton)/|torchinductor_|<eval_with_key>")
"""Compiled code stands in files of the compiler's cache, or in none."""
_LAUNCHERS = re.compile(
    PACKAGE + r"(jax|jaxlib|flash_attn|xformers|apex|bitsandbytes|transformer_engine|cupy|deep_gemm|flashinfer)/"
)
_TRAINERS = re.compile(
    PACKAGE + r"(lightning|pytorch_lightning|lightning_fabric|accelerate|transformers|ignite|fastai|deepspeed|composer|"
    r"keras|trl|mmengine|ultralytics|torchtune|torchtitan)/"
)
_CPU_ONLY = frozenset(
    {
        *("numpy", "numexpr", "scipy", "sklearn", "pandas", "polars", "pyarrow", "xarray", "dask", "networkx"),
        *("PIL", "cv2", "skimage", "imageio", "imageio_ffmpeg", "tifffile", "albumentations", "albucore", "imgaug"),
        *("imagecodecs", "simplejpeg", "turbojpeg", "av", "decord", "librosa", "soundfile", "audioread", "resampy"),
        *("tokenizers", "sentencepiece", "tiktoken", "sacremoses", "nltk", "jieba", "regex", "ftfy", "rapidfuzz"),
        *("orjson", "ujson", "simplejson", "yaml", "h5py", "zarr", "numcodecs", "tables", "netCDF4", "lmdb", "msgpack"),
        *("zstandard", "lz4", "snappy", "blosc", "webdataset", "datasets", "nibabel", "pydicom", "SimpleITK"),
        *("rasterio", "shapely", "geopandas", "trimesh", "rdkit", "ase", "MDAnalysis"),
        *("gym", "gymnasium", "mujoco", "dm_control", "pybullet", "pygame", "ale_py", "procgen", "pettingzoo"),
    }
)
"""Packages whose functions compute on the CPU or read files, whatever calls them."""


class Origin(enum.Enum):
    """Whose code a frame is."""

    USER = "user"
    STANDARD = "standard library"
    TORCH = "torch"
    """PyTorch's own Python, triton, or what its compiler has made."""
    LAUNCHER = "launcher"
    """Another library whose functions hand work to the GPU."""
    CPU = "cpu"
    """A library that computes on the CPU, whatever calls it."""
    OTHER = "other"
    """Installed, and it may call any of the above: its line tells no more than a user's."""


def origin(frame: Frame) -> Origin:
    """Of one frame."""
    file = frame.file
    if is_users(frame):
        return Origin.USER
    if _TORCH.search(file):
        return Origin.TORCH
    if _LAUNCHERS.search(file):
        return Origin.LAUNCHER
    if package(file) in _CPU_ONLY:
        return Origin.CPU
    return Origin.STANDARD if _STANDARD.search(file) else Origin.OTHER


def package(file: str) -> str:
    """The installed package that a file belongs to, or ""."""
    found = _NAME.search(file)
    return found[1] if found else ""


def is_trainer(frame: Frame) -> bool:
    """Whether this frame is of a framework that runs training loops."""
    return bool(_TRAINERS.search(frame.file))


def is_users(frame: Frame) -> bool:
    """Whether this frame is the user's own code rather than a library's."""
    return bool(frame.file) and not _LIBRARY.search(frame.file)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """Innermost frame of the user's own code; if everything is installed, the innermost outside frameworks."""
    own = next((frame for frame in frames if is_users(frame)), None)
    if own is not None:
        return own
    return next((f for f in frames if f.line > 0 and package(f.file) and not _of_framework(f)), None)


def _of_framework(frame: Frame) -> bool:
    return origin(frame) in (Origin.TORCH, Origin.LAUNCHER) or is_trainer(frame)
