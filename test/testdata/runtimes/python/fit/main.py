"""SciPy: a fit, an integral, an equation, an optimum, a signal, a test."""
import numpy as np
from scipy import integrate, interpolate, linalg, optimize, signal, stats

t = np.linspace(0, 10, 200)
rng = np.random.default_rng(42)
y = 3.0 * np.exp(-0.7 * t) + 0.5 + rng.normal(0, 0.02, t.size)
p, cov = optimize.curve_fit(lambda t, a, k, c: a * np.exp(-k * t) + c, t, y)
print("amplitude %.4f rate %.4f offset %.4f" % tuple(p))
print("errors below 0.02:", bool((np.sqrt(np.diag(cov)) < 0.02).all()))
print("integral %.10f" % integrate.quad(lambda x: np.exp(-x**2), -np.inf, np.inf)[0])
solution = integrate.solve_ivp(lambda t, y: [y[1], -y[0]], (0, np.pi), [0, 1], rtol=1e-9, atol=1e-9)
print("oscillator %.6f %.6f" % tuple(solution.y[:, -1]))
print("root %.8f" % optimize.brentq(lambda x: x**3 - 2, 0, 2))
print("minimum", optimize.minimize(optimize.rosen, [1.3, 0.7], method="BFGS").x.round(4))
peaks, _ = signal.find_peaks(np.sin(3 * t))
print("peaks", t[peaks].round(2))
print("spline %.6f" % interpolate.CubicSpline(t, np.sin(t))(1.234))
print("t %.4f p %.3e" % tuple(stats.ttest_ind(y[:50], y[50:100])))
print("eigenvalues", linalg.eigvalsh([[2, 1], [1, 3]]).round(6))
