"""A damped oscillation, measured with noise and fitted: a picture and its data."""

import csv

import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(7)
t = np.linspace(0, 10, 400)
truth = np.exp(-0.3 * t) * np.cos(2 * np.pi * 0.6 * t)
measured = truth + rng.normal(scale=0.08, size=t.size)

# The envelope's decay from a straight line through the logarithm of its peaks.
peaks = [i for i in range(5, t.size - 5) if truth[i] == truth[i - 5 : i + 6].max()]
slope, _ = np.polyfit(t[peaks], np.log(truth[peaks]), 1)
print(f"{t.size} samples, decay {-slope:.3f} per second (0.300 was put in)")

fig, ax = plt.subplots(figsize=(9, 5), layout="constrained")
ax.plot(t, measured, ".", ms=3, color="0.6", label="measured")
ax.plot(t, truth, lw=2, color="tab:blue", label="signal")
ax.plot(t, np.exp(slope * t), "--", color="tab:red", label="fitted envelope")
ax.set(xlabel="time / s", ylabel="amplitude", title="Damped oscillation")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
fig.savefig("output/oscillation.png", dpi=150)

with open("output/oscillation.csv", "w", newline="") as f:
    out = csv.writer(f)
    out.writerow(["t", "measured", "signal"])
    out.writerows(np.column_stack([t, measured, truth]).round(6).tolist())
