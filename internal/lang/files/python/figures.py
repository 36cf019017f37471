"""Saves the figures that a script leaves open and never saves, when it ends."""

import atexit
import os
import sys
import weakref


def hook(bases):
    """Watches what is saved by the canvases of matplotlib.backend_bases."""
    saved = weakref.WeakSet()
    # Behind matplotlib's own handler, which closes all figures; so this one is
    # called before it.
    atexit.register(save, saved, os.getpid())
    canvas = bases.FigureCanvasBase
    canvas.print_figure = Noted(canvas.print_figure, saved)


def save(saved, process):
    """Saves the open figures as figure-N.png."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or os.getpid() != process:
        return
    for number in pyplot.get_fignums():
        try:
            figure = pyplot.figure(number)
            if figure not in saved:
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
