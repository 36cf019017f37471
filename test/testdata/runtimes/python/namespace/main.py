"""What a script finds: the same whether or not numpy was loaded before it."""
import os
import sys

frame = sys._getframe()
print(__name__, __file__, __doc__[:19], __spec__, frame.f_back, frame.f_code.co_filename)
print(sorted(globals()))
print(sys.argv, sys.orig_argv, sys.path[0], len(sys.path), sys.flags.isolated, sys.flags.no_site)
print([p for p in sys.path if "belljar" in p], os.getcwd(), os.listdir())
# Named without the words that make Python start anew.
variables = getattr(os, "env" "iron")
print(sorted(variables))
modules = getattr(sys, "mod" "ules")
print(sorted(modules))
print([type(f).__name__ for f in getattr(sys, "meta_" "path")][1:], sys.path_hooks)
import warnings

print(warnings.filters)
import threading

print(threading.active_count(), len(os.listdir("/proc/self/task")))
import gc
import signal

print(gc.isenabled(), gc.get_threshold(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
print(os.popen("env | cut -d= -f1 | sort | tr '\\n' ' '; python3 -c 'import sys; print(sys.path, len(sys.modules))'").read())
