"""Modules of the script's own before libraries', and imports that fail."""
import sys

sys.path.insert(0, "input")
import importlib.util

import numpy as np
import statistics
from geometry import shapes

print(statistics.mean([1, 2]), statistics.__file__)
print(shapes.area(3), shapes.np is np)
print(importlib.util.find_spec("pandas").origin, importlib.util.find_spec("nothing_of_this_name"))
print(np.__spec__.loader.__class__.__name__, np.__file__, np.linalg.__name__)
try:
    import nothing_of_this_name
except ImportError as e:
    print(type(e).__name__, e, e.name)
import xml.etree.ElementTree as tree

print(tree.fromstring("<a><b>text</b></a>").find("b").text)
from broken import nothing
