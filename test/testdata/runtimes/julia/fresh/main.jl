# What a script finds: Main as Julia makes it, and nothing of what waited.
println(names(Main, all = true))
println([k for k in keys(ENV) if startswith(k, "BELLJAR")], ARGS, " ", PROGRAM_FILE, " ", pwd())
println(isdefined(Main, :Statistics), " ", isinteractive())
try
    mean([1])
catch e
    println(e isa UndefVarError)
end

using Random, LinearAlgebra
Random.seed!(7)
a = (rand(3), randn(), rand(1:10), shuffle(1:4))
Random.seed!(7)
println(a == (rand(3), randn(), rand(1:10), shuffle(1:4)))
println(a)
A = [4.0 1; 2 3]
println(eigvals(A))
display(A \ [1.0, 2.0])
println()
@show typeof(A) svd(A).S[1]
@warn "a warning"
for (x, y) in Dict("k" => 1:3)
    println(x, " ", collect(y))
end
