# An exit code of one's own, with what is to be done before; printed by a
# function without a name, in the way of a script that fails.
atexit(() -> println("at exit"))
f = x -> x > 2 ? error("too big: $x") : x^2
println(map(f, [1, 2]))
try
    map(f, [1, 3])
catch e
    showerror(stdout, e)
    println("\n", f)
    println(stderr, "about to end")
    exit(7)
end
