from sympy import *

x, y, n = symbols("x y n")
print(integrate(exp(-x**2), (x, -oo, oo)))
print(factor(x**4 - 1), "|", expand((x + y)**3))
print(solve([x + y - 3, x * y - 2], [x, y]))
print(series(sin(x) / x, x, 0, 8))
print(limit((1 + 1 / n)**n, n, oo), diff(x**x, x))
f = Function("f")
print(dsolve(f(x).diff(x, 2) + f(x), f(x)))
print(Matrix([[1, 2], [3, 4]]).inv(), Matrix([[2, 0], [0, 3]]).eigenvals())
pprint(Integral(sqrt(1 / x), x))
print(latex(Rational(1, 3) * x**2), N(pi, 30))
