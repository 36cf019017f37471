"""Belljar's start of Python, found through PYTHONPATH.

Figures that a script leaves open and never saves are saved when it ends. With
BELLJAR_GATE set, the script is waited for, and with BELLJAR_PRELOAD set
early.py loads libraries first.

What most scripts do not need stands in files of its own: this one is compiled
at every start.

The script must not notice: it is the interpreter's own start that goes on
behind this, and what stands here leaves sys.path, the environment and
sys.modules as it found them.
"""

import os
import sys

HERE = os.path.dirname(__file__)


class Figures:
    """Finds matplotlib.backend_bases, on which every figure depends, to hook
    it once it is loaded, and nothing else."""

    def find_spec(self, name, path=None, target=None):
        if name != "matplotlib.backend_bases":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is None:
                continue
            load = spec.loader.exec_module

            def exec_module(module):
                del spec.loader.exec_module  # the loader is as it was
                load(module)
                figures = {"__name__": "figures"}
                with open(HERE + "/figures.py") as f:
                    exec(compile(f.read(), f.name, "exec"), figures)
                figures["hook"](module)

            spec.loader.exec_module = exec_module
            return spec
        return None


def leave():
    """Takes the directory of this file out of all places that show it, and
    returns what PYTHONPATH was."""
    path = os.environ["PYTHONPATH"]
    paths = path.split(os.pathsep)
    paths.remove(HERE)
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        del os.environ["PYTHONPATH"]
    sys.path.remove(HERE)
    sys.path_importer_cache.pop(HERE, None)
    del sys.modules[__name__]
    return path


def wait(gate):
    """Waits until the script is there."""
    with open(gate, "rb") as f:
        f.read()


figures = Figures()
gate = os.environ.pop("BELLJAR_GATE", None)
preload = os.environ.pop("BELLJAR_PRELOAD", None)
early = None
if gate and preload:
    import early

    del sys.modules["early"]
path = leave()
sys.meta_path.insert(0, figures)
try:
    import sitecustomize  # the one that this one hides, if there is any
finally:
    if early:
        early.start(lambda: wait(gate), path, figures)
    elif gate:
        wait(gate)
