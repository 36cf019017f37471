import atexit
import sys

atexit.register(print, "registered first, called last")
atexit.register(print, "registered last")


class Thing:
    def __del__(self):
        print("a thing is gone")


thing = Thing()
sys.stderr.write("no newline")
sys.exit(3)
