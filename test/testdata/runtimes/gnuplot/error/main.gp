set terminal png
f(x) = x**2
plot f(x
