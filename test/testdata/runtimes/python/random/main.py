"""Seeded generators give what they give anywhere."""
import random

import numpy as np
import pandas as pd

random.seed(1)
print(random.random(), random.gauss(0, 1), random.sample(range(100), 3))
np.random.seed(2)
print(np.random.rand(2), np.random.normal(), np.random.permutation(5))
print(np.random.default_rng(3).normal(size=2), np.random.RandomState(5).randint(100))
print(pd.Series(range(10)).sample(3, random_state=1).tolist())
