import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

t = np.linspace(0, 10, 500)
noise = np.random.default_rng(1).normal(0, 0.3, t.size)
frame = pd.DataFrame({"t": t, "measured": np.sin(t) + noise})
frame["smooth"] = frame["measured"].rolling(25, center=True).mean()

figure, axes = plt.subplots(figsize=(6, 4))
axes.plot(frame["t"], frame["measured"], ".", markersize=3, label="measured")
axes.plot(frame["t"], frame["smooth"], label="rolling mean")
axes.set_xlabel("time")
axes.set_title("A noisy sine")
axes.legend()
figure.savefig("plot.png", dpi=100)
