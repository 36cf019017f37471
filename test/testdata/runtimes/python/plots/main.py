"""Pictures in the usual formats, styles and sizes."""
import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 2 * np.pi, 400)
plt.rcParams["svg.hashsalt"] = "same"

fig, (top, bottom) = plt.subplots(2, 1, figsize=(6, 4), dpi=100, sharex=True)
top.plot(x, np.sin(x), label="sin")
top.plot(x, np.cos(x), "--", label="cos")
top.set_title(r"$\sin x$ and $\cos x$")
top.legend()
bottom.fill_between(x, np.sin(x) ** 2, alpha=0.4)
bottom.set_xlabel("x")
fig.savefig("output/waves.png")
fig.savefig("output/waves.pdf", metadata={"CreationDate": None})
fig.savefig("output/waves.svg", metadata={"Date": None})

with plt.style.context("dark_background"):
    plt.figure(figsize=(3, 3))
    plt.imshow(np.outer(np.sin(x), np.cos(x)), cmap="viridis", origin="lower")
    plt.colorbar()
    plt.savefig("output/heat.jpg", dpi=120)

ax = plt.figure(figsize=(4, 3)).add_subplot(projection="3d")
u, v = np.meshgrid(np.linspace(-2, 2, 30), np.linspace(-2, 2, 30))
ax.plot_surface(u, v, np.exp(-u**2 - v**2), cmap="magma")
plt.savefig("output/surface.png")
print(plt.get_backend().lower(), plt.get_fignums(), plt.rcParams["axes.facecolor"])
