import Dates, DelimitedFiles, LinearAlgebra, Printf, Statistics

# Printing, above all, takes longer to compile than to do.
let
    out = IOContext(IOBuffer(), :limit => true)
    matrix = [2.0 1.0; 1.0 3.0]
    for value in (1, 1.5, "a", 'a', true, nothing, :a, 1:3, (1, 2.0), "a" => 1, [1, 2], [1.5], ["a"], matrix, Dict("a" => 1))
        print(out, value)
        println(out, value)
        show(out, MIME("text/plain"), value)
        string(value)
    end
    println(out, "a", 1, " ", 1.5)
    Printf.@printf(out, "%d %.3f %s\n", 1, 1.5, "a")
    matrix \ [1.0, 2.0]
    LinearAlgebra.eigen(matrix)
    Statistics.mean([1.0, 2.0]), Statistics.std([1.0, 2.0])
    sort([2, 1]), sum(abs2, [1.0]), map(sqrt, [1.0]), split("a,b", ","), parse(Float64, "1.5"), join([1, 2], ",")
    mktemp() do path, io
        println(io, "a,b\n1,2.5")
        close(io)
        readlines(path), DelimitedFiles.readdlm(path, ',', header=true)
    end
end
