# A picture without a library: the Mandelbrot set as a PPM, and a plot as SVG.
function iterations(c)
    z = zero(c)
    for n in 1:50
        abs2(z) > 4 && return n
        z = z^2 + c
    end
    return 0
end

width, height = 120, 80
set = [iterations(complex(-2.2 + 3.2x / width, -1.1 + 2.2y / height)) for y in 1:height, x in 1:width]
open("output/set.ppm", "w") do io
    print(io, "P6\n$width $height\n255\n")
    for y in 1:height, x in 1:width
        n = set[y, x]
        write(io, UInt8(5n), UInt8(2n), UInt8(255 - 5n))
    end
end
println(count(iszero, set), " of ", length(set))

points = join(("$(round(10x, digits=2)),$(round(50 - 40sin(x), digits=2))" for x in 0:0.1:2pi), " ")
write("output/sine.svg", """
<svg xmlns="http://www.w3.org/2000/svg" width="64" height="100"><polyline fill="none" stroke="red" points="$points"/></svg>
""")
