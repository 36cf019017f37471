"""Threads, and processes made in every way there is."""
import atexit
import multiprocessing as mp
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import matplotlib.pyplot as plt
import numpy as np


def work(n):
    return n * n, bool(np.isfinite(n)), mp.current_process().name != "MainProcess"


def last():
    time.sleep(0.2)
    print("the thread ends", flush=True)


if __name__ == "__main__":
    plt.plot([1, 2])  # left open: it comes back once, from this process
    child = os.fork()
    if child == 0:
        print("forked", flush=True)
        sys.exit(5)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    for method in "fork", "spawn", "forkserver":
        with mp.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, range(3)))
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(abs, [-1, 2])))
    with ThreadPoolExecutor(2) as pool:
        print(list(pool.map(lambda n: n + 1, [1, 2])))
    code = "import matplotlib.pyplot as plt, sys; plt.plot([1]); print(sys.path[0] == '', len(plt.get_fignums()))"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))
    atexit.register(print, "at exit, after threads")
    threading.Thread(target=last).start()
    threading.Thread(target=time.sleep, args=[1000], daemon=True).start()
    print("the script ends", flush=True)
