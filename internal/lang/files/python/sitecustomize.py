"""Belljar's start of Python, found through PYTHONPATH.

Figures that a script leaves open and never saves are saved when it ends. With
BELLJAR_GATE set, the script is waited for, and with BELLJAR_PRELOAD set
early.py loads libraries first.

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

    name = "matplotlib.backend_bases"

    def __init__(self):
        self.saved = None  # figures that the script saved
        self.process = 0

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
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
                self.hook(module)

            spec.loader.exec_module = exec_module
            return spec
        return None

    def hook(self, bases):
        import atexit
        import weakref

        self.saved = weakref.WeakSet()
        self.process = os.getpid()
        # Behind matplotlib's own handler, which closes all figures; so this
        # one is called before it.
        atexit.register(self.save)
        canvas = bases.FigureCanvasBase
        canvas.print_figure = Noted(canvas.print_figure, self.saved)

    def save(self):
        """Saves the open figures as figure-N.png."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or os.getpid() != self.process:
            return
        for number in pyplot.get_fignums():
            try:
                figure = pyplot.figure(number)
                if figure not in self.saved:
                    figure.savefig(unused("/sandbox/output/figure-%d" % number, ".png"))
            except Exception as e:
                print("figure %d was left open and could not be saved: %s: %s"
                      % (number, type(e).__name__, e), file=sys.stderr)


class Noted:
    """A method of canvases that notes whose it was asked for. Unlike a
    function around the method it is in no traceback."""

    def __init__(self, method, figures):
        self.method = method
        self.figures = figures

    def __get__(self, canvas, owner=None):
        if canvas is not None:
            self.figures.add(canvas.figure)
        return self.method.__get__(canvas, owner)


def unused(stem, extension):
    """A name that no file has."""
    name, n = stem + extension, 1
    while os.path.lexists(name):
        n += 1
        name = "%s-%d%s" % (stem, n, extension)
    return name


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
