import numpy as np


def area(r):
    return round(np.pi * r**2, 4)
