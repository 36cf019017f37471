"""Loads what scripts usually import, before the script is known, and waits
for it.

The modules are set aside then: the script finds sys.modules, the exit
handlers and the filters of warnings as at any start, until it imports one of
them. For a script that could tell, the interpreter starts anew.
"""

import sys

# Names alone: what holds on to __main__ changes how Python takes it apart.
before = set(sys.modules)

import atexit
import gc
import os
import re
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder

LIBRARIES = "numpy", "pandas", "matplotlib.pyplot"


def start(wait, path, figures):
    """path is what PYTHONPATH was, figures the finder that hooks matplotlib."""
    with silence(), Effects() as effects:
        load()
    shelf = Shelf(effects)
    keep(shelf.modules)
    wait()
    if needs_fresh_start(shelf.modules):
        os.environ["PYTHONPATH"] = path
        argv = getattr(sys, "orig_argv", None) or [sys.executable] + sys.argv
        os.execvp(argv[0], argv)
    atexit.register(shelf.put_back)
    sys.meta_path[sys.meta_path.index(figures)] = shelf  # it has done its work


def keep(modules):
    """Keeps the modules from being freed at exit, and from being looked at by
    the garbage collector: either takes longer than most scripts."""
    cycle = [modules]
    cycle.append(cycle)
    del cycle
    gc.collect()
    gc.freeze()
    # The script's own namespace must stay the collector's business.
    main = type(sys)("__main__")
    main.__dict__.update(sys.modules["__main__"].__dict__)
    sys.modules["__main__"] = main


def load():
    for name in LIBRARIES:
        try:
            import_module(name)
        except Exception:
            pass  # the script will see the error, if it needs the library
    try:
        draw()
    except Exception:
        pass
    if len(os.listdir("/proc/self/task")) > 1:
        # Algebra libraries have threads of their own, which end at a fork and
        # come back when needed. A script without them must not see any.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    gc.collect()
    join_pages()


def draw():
    """Draws a figure, past pyplot, so that fonts and writers are loaded."""
    from io import BytesIO

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([1, 2], label="a")
    axes.set_title("b")
    axes.legend()
    figure.savefig(BytesIO(), format="png")


def join_pages():
    """Joins the heap's pages to large ones. At exit the system takes memory
    apart by pages, which else is half of the time that a small script needs."""
    collapse, size = 25, 1 << 21  # MADV_COLLAPSE, of Linux 6.1
    try:
        import ctypes

        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        with open("/proc/self/maps") as f:
            maps = [line.split() for line in f]
        for span, access, _, _, inode, *name in maps:
            start, end = (int(n, 16) for n in span.split("-"))
            if access == "rw-p" and inode == "0" and name != ["[stack]"] and end - start >= size:
                madvise(start, end - start, collapse)
    except Exception:
        pass


class silence:
    """Sends what is printed, from C as well, to nowhere."""

    def __enter__(self):
        self.streams = [(fd, os.dup(fd)) for fd in (1, 2)]
        null = os.open(os.devnull, os.O_WRONLY)
        for fd, _ in self.streams:
            os.dup2(null, fd)
        os.close(null)

    def __exit__(self, *_):
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, copy in self.streams:
            os.dup2(copy, fd)
            os.close(copy)


class Effects:
    """What loading modules does elsewhere: it is undone, and done again when
    the script gets them."""

    def __enter__(self):
        self.environ = dict(os.environ)
        self.meta_path = sys.meta_path[:]
        self.handlers = []
        self.register = atexit.register
        self.recording = True
        atexit.register = self.note
        self.warnings = warnings.catch_warnings()
        self.warnings.__enter__()
        warnings.simplefilter("ignore")
        self.ignore = warnings.filters[0]
        return self

    def note(self, handler, *args, **kwargs):
        # Who took it by name has it for good.
        if not self.recording:
            return self.register(handler, *args, **kwargs)
        self.handlers.append((handler, args, kwargs))
        return handler

    def __exit__(self, *_):
        self.filters = warnings.filters[:warnings.filters.index(self.ignore)]
        self.warnings.__exit__(None, None, None)
        self.recording = False
        atexit.register = self.register
        self.finders = [f for f in sys.meta_path if f not in self.meta_path]
        sys.meta_path[:] = self.meta_path
        self.variables = {k: v for k, v in os.environ.items() if self.environ.get(k) != v}
        for name in self.variables:
            del os.environ[name]
        os.environ.update(self.environ)

    def redo(self, group):
        for handler, args, kwargs in self.handlers:
            if group_of(handler.__module__) == group:
                atexit.register(handler, *args, **kwargs)
        if group == OTHERS:
            with warnings.catch_warnings():
                pass  # tells the interpreter that the filters change
            warnings.filters[:0] = self.filters
            sys.meta_path += self.finders
            os.environ.update(self.variables)


# Modules are given to the script by groups: Python's own, and all.
OWN, OTHERS = 0, 1


def group_of(name):
    return OWN if name.partition(".")[0] in getattr(sys, "stdlib_module_names", ()) else OTHERS


class Shelf:
    """Holds the modules until the script imports one, and gives it those of
    its group then."""

    def __init__(self, effects):
        self.effects = effects
        self.path = sys.path[:]
        self.modules = {n: m for n, m in sys.modules.items() if n not in before}
        self.tops = {n for n in self.modules if "." not in n}
        self.given = -1
        for name in self.modules:
            del sys.modules[name]
        # A package that was there has the others as attributes by now.
        self.attributes = []
        for name, module in self.modules.items():
            parent, _, child = name.rpartition(".")
            if parent in before and getattr(sys.modules[parent], child, None) is module:
                self.attributes.append((parent, child, module))
                delattr(sys.modules[parent], child)

    def find_spec(self, name, path=None, target=None):
        module = self.modules.get(name)
        if module is None or name in sys.modules or name.partition(".")[0] in self.hidden():
            return None
        spec = module.__spec__
        if isinstance(spec.loader, type):  # shared: built-in and frozen modules
            return ModuleSpec(name, Lender(self, module), origin=spec.origin)
        # It must look as ever, also to who only asks whether there is one.
        lender = Lender(self, module)
        spec.loader.create_module = lender.create_module
        spec.loader.exec_module = lender.exec_module
        return spec

    def give(self, wanted):
        hidden = self.hidden()
        group = group_of(wanted)
        for name, other in self.modules.items():
            if name != wanted and group_of(name) <= group and name.partition(".")[0] not in hidden:
                sys.modules.setdefault(name, other)
        if self.given < OWN:
            for parent, child, other in self.attributes:
                setattr(sys.modules[parent], child, other)
        while self.given < group:
            self.given += 1
            self.effects.redo(self.given)
            reseed(self.given)

    def hidden(self):
        """The packages of which the script has others of the same name, in
        directories that it put before Python's own."""
        names = set()
        for directory in sys.path:
            if directory in self.path:
                break
            try:
                entries = os.listdir(directory or ".")
            except OSError:
                continue
            for name in {e.partition(".")[0] for e in entries} & self.tops:
                spec = PathFinder.find_spec(name, [directory])
                if spec is not None and spec.loader is not None:
                    names.add(name)
        return names

    def put_back(self):
        """At exit: what is not in sys.modules need not be taken apart."""
        for name, module in self.modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class Lender:
    """Loads a module by giving what is there."""

    def __init__(self, shelf, module):
        self.shelf = shelf
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec):
        if spec.origin != "built-in":  # which depends on no other
            self.shelf.give(spec.name)
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec
        if self.spec.loader.__dict__.get("exec_module") == self.exec_module:
            del self.spec.loader.create_module, self.spec.loader.exec_module


def reseed(group):
    module = sys.modules.get(("random", "numpy.random")[group])
    if module is not None:
        module.seed()


# A script that sets variables before it imports, replaces modules, looks at
# what imports say, or wants another backend.
FRESH = re.compile(
    rb"""
    putenv | unsetenv | \bdel\s[^\n]*environ
    | \benviron\b(?!\.get\(|\[) | \benviron\[[^\n]*(?<![=!<>])=(?!=)
    | matplotlibrc | \bswitch_backend\b | ['"]backend['"]
    | (?<!style)\.use\(\s*(?!['"]agg['"]\s*\))[^)]
    | \bsys\.(?:modules|meta_path|path_hooks)\b | __import__\s*= | \baddaudithook\b
    | \b(?:simplefilter|filterwarnings)\(\s*(?:action\s*=\s*)?(?!['"]ignore)
    | \bDEBUG\b | \bNOTSET\b | \bsettrace\b | \bsetprofile\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def needs_fresh_start(modules):
    """Whether the script, or a Python file among its inputs, could tell that
    the modules were loaded before it."""
    files = [sys.argv[0]]
    for directory, _, names in os.walk("input"):
        for name in names:
            stem, extension = os.path.splitext(name)
            if name == "matplotlibrc" or extension in (".py", ".so") and stem in modules:
                return True
            if extension == ".py":
                files.append(os.path.join(directory, name))
    for name in files:
        try:
            with open(name, "rb") as f:
                if FRESH.search(f.read()):
                    return True
        except OSError:
            pass  # Python says what is wrong with it
    return False
