"""Warnings and logs, and where they say they come from."""
import logging
import warnings

logging.warning("before anything is set up")
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", force=True)


def old():
    warnings.warn("use new()", DeprecationWarning, stacklevel=2)


old()
import numpy as np

old()
for _ in range(2):
    old()
    np.log(np.array([0.0, 1.0]))
print(np.array([1, 2]) / 0)
warnings.warn("the script's own")
import matplotlib.pyplot as plt

plt.plot([1, 2])
plt.title("\N{CJK UNIFIED IDEOGRAPH-4F60}")
plt.savefig("output/glyph.png")
logging.info("drawn")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("ignore")
    old()
print(len(caught), [h.__class__.__name__ for h in logging.root.handlers])
