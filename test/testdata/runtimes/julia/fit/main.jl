# A least-squares fit, an eigenvalue problem and an integral.
using LinearAlgebra, Printf, Statistics

x = collect(0:0.5:5)
y = 1.5 .+ 2.25 .* x .- 0.5 .* x .^ 2
A = [ones(length(x)) x x .^ 2]
c = A \ y
@printf("coefficients %.4f %.4f %.4f\n", c...)
@printf("residual below 1e-10: %s\n", norm(A * c - y) < 1e-10)

S = Symmetric([2.0 -1 0; -1 2 -1; 0 -1 2])
@printf("eigenvalues %.6f %.6f %.6f\n", eigvals(S)...)
@printf("mean %.4f std %.4f median %.4f\n", mean(y), std(y), median(y))

simpson(f, a, b, n) = (b - a) / 3n * sum(f(a + i * (b - a) / n) * (i in (0, n) ? 1 : isodd(i) ? 4 : 2) for i in 0:n)
@printf("integral %.8f\n", simpson(sin, 0, pi, 100))

println([1 2; 3 4] * [5, 6])
show(stdout, MIME("text/plain"), [1.0 2; 3 4])
println()
