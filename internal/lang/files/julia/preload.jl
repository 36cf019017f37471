# Calls what scripts usually call, so that it is compiled; what takes long for
# what it saves is left out. Output goes where nobody reads it, and the global
# random generator is not drawn from.
#
# The parts are worth having one by one, the first most of all. Each stands in a
# try of its own, since no version of Julia has to have everything. On a busy
# machine the later ones are left out: a start that takes too long is given up.
started = time()
late() = time() > started + 15

using Dates, DelimitedFiles, LinearAlgebra, Printf, Random, Statistics

# An output of the type that stdout and stderr have, for which methods are
# compiled.
pipe = Pipe()
if stdout isa Base.PipeEndpoint
    Base.link_pipe!(pipe; reader_supports_async = true, writer_supports_async = true)
    out = pipe.in
    reader = @async while !eof(pipe.out)
        readavailable(pipe.out)
    end
else
    out = open("/dev/null", "w")
end

floats = [1.5, -2.25e10]
ints = [3, 1, 2]
words = ["a", "b"]
matrix = [4.0 1.0; 2.0 3.0]
counts = Dict("a" => 1)
date = Date(2020, 1, 31)
line = "alpha, beta; 3\n"

late() || try
    for value in Any["a", 1, 1.5, true, nothing, floats, ints, words, matrix, (1, 2), counts, date]
        println(out, value)
    end
    for value in Any["a", 1, 1.5, floats]
        println(out, "a", value)
        println(out, "a", value, "b")
        string("a", value)
        string("a", value, "b")
    end
    println(out)
    println(out, "a", 1, "b", 2)
    println(out, "a", 1.5, "b", 2.5)
    println(out, 1, " ", 2)
    println(out, 1.5, " ", 2.5)
    string("a", 1, "b", 2)
    string("a", 1.5, "b", 2.5)
    for value in Any[floats, matrix]
        show(out, MIME("text/plain"), value)
    end
    @printf(out, "%d %5d %s %-8s %.3f %8.4f %g %.2e\n", 1, 2, "a", "b", 1.5, 2.5, 3.5, 4.5)
    @printf(out, "%s %d %.2f\n", "a", 1, 2)
    @sprintf("%d %03d %s %.2f", 1, 2, "a", 1.5)
    join(floats, ", "), join(ints, ", "), join(words, ", ")
catch
end

# What tells of an error is code to compile like any other: a second of it.
late() || for f in (() -> error("a"), () -> sqrt(-1.0), () -> 1 + "a")
    try
        f()
    catch e
        try
            showerror(out, LoadError("main.jl", 1, e), catch_backtrace())
        catch
        end
    end
end

late() || try
    split(line), split(line, ","), split(line, r"\s+"), strip(line), replace(line, "a" => "b"), replace(line, r"a" => "b")
    uppercase(line), occursin("beta", line), match(r"(\w+)", line), collect(eachmatch(r"\w+", line)), lpad(3, 5), rpad("a", 5)
    parse(Int, "3"), parse(Float64, "3.5"), tryparse(Int, "a"), parse.(Int, split("1 2")), parse.(Float64, split("1.5 2.5"))
    round(1.2345; digits = 2), round(Int, 2.5)
    counts["a"] = get(counts, "a", 0) + 1
    sort(collect(counts)), sort(collect(keys(counts)))
catch
end

late() || try
    steps = range(0, stop = 1, length = 11)
    sin.(steps), sin.(floats), exp.(floats), floats .^ 2, 2 .* floats, 2 * floats, floats .+ 1, floats + floats, floats .* floats, floats[floats.>0.5]
    sum(floats), maximum(floats), minimum(floats), sort(floats), cumsum(floats), mean(floats), std(floats), sum(ints), maximum(ints), sort(ints)
    push!([1.5], 2.5), push!([1], 2), zeros(3), zeros(2, 2), ones(3), fill(1.5, 3), collect(1:3), collect(steps), map(abs, floats), hcat(floats, floats)
    sum(matrix; dims = 1)
catch
end

late() || try
    mktemp() do file, io
        println(io, "1.5,2.5")
        println(io, 3, ",", 4.5)
        write(io, "5,6\n")
        close(io)
        read(file, String), readlines(file), collect(eachline(file)), open(readline, file), isfile(file)
        table = readdlm(file, ',')
        writedlm(file, table, ',')
    end
catch
end

late() || try
    matrix * floats, matrix * matrix, matrix + matrix, matrix \ floats, inv(matrix), det(matrix), matrix', norm(floats), dot(floats, floats), eigvals(matrix)
catch
end

late() || try
    generator = MersenneTwister(1)
    rand(generator, 3), randn(generator, 3), rand(generator, 1:6, 3), shuffle(generator, ints)
    for (f, types) in ((rand, ()), (rand, (Int,)), (rand, (UnitRange{Int},)), (rand, (UnitRange{Int}, Int)), (randn, ()), (randn, (Int,)), (Random.seed!, (Int,)), (Random.seed!, ()))
        precompile(f, types)
    end
catch
end

late() || try
    date + Day(1), date - Date(2019, 1, 1), collect(date:Day(1):date+Day(2)), today()
    Dates.format(date, "yyyy-mm-dd"), Dates.format(now(), "yyyy-mm-dd HH:MM:SS")
catch
end

close(out)
stdout isa Base.PipeEndpoint && wait(reader)
