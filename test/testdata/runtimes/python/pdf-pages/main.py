"""A book of pages, and an animation; neither comes back as figure-N.png."""
import matplotlib.pyplot as plt
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.backends.backend_pdf import PdfPages

with PdfPages("output/book.pdf") as book:
    for n in range(1, 4):
        plt.figure(figsize=(5, 3))
        plt.plot([0, n])
        plt.title(f"Page {n}")
        book.savefig()

fig, ax = plt.subplots(figsize=(2, 2))
line, = ax.plot([], [])
ax.set_xlim(0, 5)
ax.set_ylim(0, 5)
animation = FuncAnimation(fig, lambda n: line.set_data(range(n), range(n)), frames=5, cache_frame_data=False)
animation.save("output/grow.gif", writer=PillowWriter(fps=5))
