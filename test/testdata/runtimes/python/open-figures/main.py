"""Figures left open come back; saved, closed and failed ones do not twice."""
import matplotlib.pyplot as plt

plt.plot([1, 4, 9])
plt.title("first")
plt.show()

plt.figure(figsize=(4, 2))
plt.bar(["a", "b"], [3, 5])

plt.figure()
plt.scatter([1, 2], [2, 1])
plt.savefig("output/saved.png")

plt.figure()
plt.plot([0, 1])
plt.close()

fig, axes = plt.subplots(2, 2, num=9, figsize=(5, 5))
axes[0, 0].hist([1, 1, 2, 5])
open("output/figure-1.png", "w").write("the script's own file")
raise RuntimeError("figures survive this")
