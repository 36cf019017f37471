function check(values)
    for v in values
        v < 3 || error("too big: $v")
    end
end

println("before")
check([1, 2])
check([1, 5])
println("after")
