"""A damped oscillation, measured with noise and fitted: a picture and its data."""

import csv

import matplotlib.pyplot as plt
import numpy as np


def signal(decay, frequency):
    return np.exp(-decay * t) * np.cos(2 * np.pi * frequency * t)


rng = np.random.default_rng(7)
t = np.linspace(0, 10, 400)
truth = signal(0.3, 0.6)
measured = truth + rng.normal(scale=0.08, size=t.size)

# Least squares by Gauss and Newton, from a rough guess.
fit, step = np.array([0.5, 0.58]), 1e-6
for _ in range(20):
    here = signal(*fit)
    slopes = np.column_stack([(signal(*(fit + d)) - here) / step for d in step * np.eye(2)])
    fit += np.linalg.lstsq(slopes, measured - here, rcond=None)[0]
decay, frequency = fit
print(f"{t.size} samples: decay {decay:.3f} per second (0.300 was put in), {frequency:.3f} Hz (0.600)")

fig, ax = plt.subplots(figsize=(9, 5), layout="constrained")
ax.plot(t, measured, ".", ms=3, color="0.6", label="measured")
ax.plot(t, signal(*fit), lw=2, color="tab:blue", label="fit")
ax.plot(t, np.exp(-decay * t), "--", color="tab:red", label="its envelope")
ax.set(xlabel="time / s", ylabel="amplitude", title="Damped oscillation")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
fig.savefig("output/oscillation.png", dpi=150)

with open("output/oscillation.csv", "w", newline="") as f:
    out = csv.writer(f)
    out.writerow(["t", "measured", "fit"])
    out.writerows(np.column_stack([t, measured, signal(*fit)]).round(6).tolist())
