"""Variables and backends that count at import."""
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "svg"

import matplotlib

print(matplotlib.get_backend())
matplotlib.use("pdf")
import matplotlib.pyplot as plt
import numpy as np

print(matplotlib.get_backend(), (np.ones((500, 500)) @ np.ones((500, 500))).sum(), len(os.listdir("/proc/self/task")))
plt.plot([1, 2])
plt.savefig("output/plot")
plt.figure(figsize=(2, 1))
plt.plot([2, 1])
